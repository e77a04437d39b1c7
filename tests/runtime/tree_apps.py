"""Applications whose workers talk along the job tree, for the tests of whole services."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import NoReturn

from mallob_py.app import Application, JobInput, Payload, Result, TreeMessage, TreeReduction, WorkerContext

_POLL_S = 0.01


class _NoInput(Application):
    takes_input = False

    def read(self, job: JobInput) -> Payload:
        return {}


class AllReduce(_NoInput):
    """All-reduces the set of indices, again and again.

    The root answers when the sizes of the sets have come by those that are configured, one
    after the other (others may come between). With a `folder` configured, it leaves there a
    file for each, named by its number. With `crash` configured, the worker of that index dies
    once in the midst of a reduction, and leaves a file `crashed`.
    """

    name = "ALLREDUCE"

    def run(self, context: WorkerContext) -> Result | None:
        def contribute(epoch: int) -> bytes:
            if epoch > 2 and context.index == context.configuration.get("crash"):
                _die_once(Path(str(context.configuration["folder"]), "crashed"))
            return _encode([context.index])

        reduction = TreeReduction(context, contribute, _merge)
        if context.index > 0:
            _take_part(context, reduction)
        sizes = [int(size) for size in context.configuration["sizes"]]
        folder = context.configuration.get("folder")
        epochs = passed = 0
        while True:
            if reduction.unfinished is None:
                reduction.start()
            for _, data in reduction.advance(context.poll(_POLL_S)).finished:
                epochs += 1
                indices = json.loads(data)
                assert len(indices) == len(set(indices)), f"counted twice: {indices}"
                if len(indices) != sizes[passed]:
                    continue
                if folder is not None:
                    Path(str(folder), str(passed)).touch()
                passed += 1
                if passed == len(sizes):
                    return Result(10, sorted(indices), {"epochs": epochs})


def _die_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _take_part(context: WorkerContext, reduction: TreeReduction) -> NoReturn:
    """Until the job ends; also check that results come in order and contain the root's part."""
    latest = 0
    while True:
        for epoch, data in reduction.advance(context.poll(_POLL_S)).finished:
            assert epoch > latest, f"epoch {epoch} after {latest}"
            assert 0 in json.loads(data)
            latest = epoch


class Gossip(_NoInput):
    """Workers tell their parents what they have heard; the root answers when it has heard of all.

    Each worker sends `[index, what its parent told]` up once its parent has spoken; so a word
    has gone down to each leaf and come back up through each worker.
    """

    name = "GOSSIP"

    def run(self, context: WorkerContext) -> Result | None:
        workers = int(context.configuration["workers"])
        word = [0] if context.index == 0 else None
        heard: dict[int, list[int]] = {}
        while True:
            for message in context.poll(_POLL_S):
                if not message.returned:
                    word = _listen(context, message, word, heard)
            if word is not None:
                context.send_to_children(_encode({"path": word}))
                heard[context.index] = word
                context.send_to_parent(_encode({"heard": [[*one] for one in heard.items()]}))
            if context.index == 0 and len(heard) == workers:
                return Result(10, sorted(heard), {"paths": {str(at): heard[at] for at in heard}})


def _listen(
    context: WorkerContext, message: TreeMessage, word: list[int] | None, heard: dict[int, list[int]]
) -> list[int] | None:
    """Take in a message: the parent's path from the root, or what a child has heard of."""
    content = json.loads(message.data)
    if "path" in content:
        assert message.source == (context.index - 1) // 2
        return [*content["path"], context.index]
    assert message.source in (2 * context.index + 1, 2 * context.index + 2)
    heard.update({int(index): path for index, path in content["heard"]})
    return word


def _encode(value: object) -> bytes:
    return json.dumps(value).encode()


def _merge(parts: list[bytes]) -> bytes:
    return _encode([index for part in parts for index in json.loads(part)])
