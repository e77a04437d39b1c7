"""Applications whose workers talk along the job tree, for the tests of whole services."""

import json
import os
import signal
from pathlib import Path

from mallob_py.kit import Application, JobInput, Payload, Result, TreeMessage, TreeReduction, WorkerContext

_POLL_S = 0.01


class _NoInput(Application):
    takes_input = False

    def read(self, job: JobInput) -> Payload:
        return {}


class AllReduce(_NoInput):
    """All-reduces the set of indices, again and again.

    The root waits for the configured sizes of the set, one after the other; other sizes may come between. The
    root leaves a file `0`, `1`, ... in the configured `folder` for each, and answers after the last. Another
    process may be the root after the whole job was suspended. With `crash` configured, the worker of that
    index dies once in the midst of a reduction, and leaves a file `crashed`.
    """

    name = "ALLREDUCE"

    def run(self, context: WorkerContext) -> Result | None:
        folder = Path(str(context.configuration["folder"]))
        sizes = [int(size) for size in context.configuration["sizes"]]

        def contribute(epoch: int) -> bytes:
            if epoch > 2 and context.index == context.configuration.get("crash"):
                _die_once(folder / "crashed")
            return _encode([context.index])

        reduction = TreeReduction(context, contribute, _merge)
        latest = 0
        while True:
            if context.index == 0 and reduction.unfinished is None:
                reduction.start()
            for epoch, data in reduction.advance(context.poll(_POLL_S)).finished:
                indices = json.loads(data)
                assert epoch > latest, f"epoch {epoch} after {latest}"
                assert len(indices) == len(set(indices)), f"counted twice: {indices}"
                assert 0 in indices
                latest = epoch
                if context.index == 0 and _pass(folder, sizes, len(indices)):
                    return Result(10, sorted(indices))


def _pass(folder: Path, sizes: list[int], size: int) -> bool:
    """Note a set of this size; return whether it was the last awaited one."""
    passed = len(list(folder.glob("[0-9]*")))
    if passed < len(sizes) and size == sizes[passed]:
        (folder / str(passed)).touch()
        passed += 1
    return passed == len(sizes)


def _die_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Gossip(_NoInput):
    """Workers tell their parents what they have heard; the root answers when it has heard of all workers.

    Paths from the root go down: a worker tells its children its path when its path or a child is new. Known
    paths go up, whenever one is new.
    """

    name = "GOSSIP"

    def run(self, context: WorkerContext) -> Result | None:
        workers = int(context.configuration["workers"])
        heard: dict[int, list[int]] = {0: [0]} if context.index == 0 else {}
        told: object = None
        while len(heard) < workers or context.index > 0:
            for message in context.poll(_POLL_S):
                assert not message.returned
                _listen(context, message, heard)
            if context.index in heard and told != (context.children, len(heard)):
                told = (context.children, len(heard))
                context.send_to_children(_encode({"path": heard[context.index]}))
                context.send_to_parent(_encode({"heard": [[*one] for one in heard.items()]}))
        return Result(10, sorted(heard), {"paths": {str(at): heard[at] for at in heard}})


def _listen(context: WorkerContext, message: TreeMessage, heard: dict[int, list[int]]) -> None:
    """Take in a message: the parent's path from the root, or the paths that a child knows."""
    content = json.loads(message.data)
    if "path" in content:
        assert message.source == (context.index - 1) // 2
        heard[context.index] = [*content["path"], context.index]
        return
    assert message.source in (2 * context.index + 1, 2 * context.index + 2)
    heard.update({int(index): path for index, path in content["heard"]})


def _encode(value: object) -> bytes:
    return json.dumps(value).encode()


def _merge(parts: list[bytes]) -> bytes:
    return _encode([index for part in parts for index in json.loads(part)])
