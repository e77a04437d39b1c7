"""Programs linked with Mallob's IPASIR bridge are served as Mallob serves them."""

import array
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ipasir_bridge import ASSUMPTIONS_MARK, SAT, UNKNOWN, UNSAT, IpasirBridge, Release, within_time
from running import Running, needs_mpiexec, serving
from waiting import PipeReader, poll_until

pytestmark = needs_mpiexec

#: separator of clauses and assumptions in earlier releases: a clause without literals
EMPTY_CLAUSE = 0
NUMBERS = itertools.count(100)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("bridge")) as running:
        yield running


def pigeons(bridge: IpasirBridge, holes: int) -> None:
    """Add a hard formula: one more pigeon than holes, with clauses in the order of the pigeons."""
    variable = lambda pigeon, hole: pigeon * holes + hole + 1  # noqa: E731
    for pigeon in range(holes + 1):
        bridge.add(*(variable(pigeon, hole) for hole in range(holes)))
    for hole in range(holes):
        for one in range(holes + 1):
            for other in range(one):
                bridge.add(-variable(one, hole), -variable(other, hole))


@pytest.fixture
def numbers() -> Iterator[int]:
    """Return numbers for solvers, each of which is used once in this process."""
    return NUMBERS


def await_solutions(service: Running, count: int) -> None:
    out = service.box() / "out"
    poll_until(lambda: len(list(out.glob("*.solution"))) == count, f"{count} solutions are there")


@pytest.mark.parametrize("release", Release)
@pytest.mark.parametrize("ends_clauses_with", [ASSUMPTIONS_MARK, EMPTY_CLAUSE])
def test_revisions_with_assumptions_come_and_go_through_named_pipes(
    service: Running, tmp_path: Path, release: Release, ends_clauses_with: int, numbers: Iterator[int]
) -> None:
    bridge, other = (
        IpasirBridge(
            service.box(), tmp_path, next(numbers), release=release, ends_clauses_with=ends_clauses_with
        )
        for _ in range(2)
    )
    bridge.add(1, 2)
    bridge.add(-1, 3)
    assert bridge.solve() == SAT
    assert len(bridge.model) == 4
    assert bridge.value(1) > 0 or bridge.value(2) > 0
    assert bridge.value(1) < 0 or bridge.value(3) > 0
    other.add(1)
    assert other.solve() == SAT
    assert other.model == [0, 1]
    bridge.assume(-2)
    bridge.assume(-3)
    assert bridge.solve() == UNSAT
    assert bridge.failed == {-2, -3}
    other.assume(-1)
    assert other.solve() == UNSAT
    assert other.failed == {-1}
    bridge.add(-3)
    assert bridge.solve() == SAT
    assert [bridge.value(one) for one in (1, 2, 3)] == [-1, 2, -3]
    await_solutions(service, 2)  # only the last solution file of each bridge is left
    bridge.add(-2)
    assert bridge.solve() == UNSAT
    assert bridge.failed == set()
    bridge.release()
    other.release()
    poll_until(lambda: not list((service.box() / "journal").iterdir()), "the chains are forgotten")
    await_solutions(service, 0)


@pytest.mark.parametrize("release", Release)
def test_a_formula_without_variables_has_a_model_that_every_release_understands(
    service: Running, tmp_path: Path, release: Release, numbers: Iterator[int]
) -> None:
    bridge = IpasirBridge(service.box(), tmp_path, next(numbers), release=release)
    assert bridge.solve() == SAT
    assert bridge.model == [0]
    bridge.release()
    await_solutions(service, 0)


def test_a_solver_that_is_not_incremental_has_assumptions_as_clauses(
    service: Running, tmp_path: Path
) -> None:
    bridge = IpasirBridge(service.box(), tmp_path, 20, incremental=False, ends_clauses_with=EMPTY_CLAUSE)
    bridge.add(1, 2)
    bridge.assume(-1)
    assert bridge.solve() == SAT
    assert bridge.model == [0, -1, 2]
    for left in (service.box() / "out").glob("*.solution"):  # no client says when to remove it
        left.unlink()


@pytest.mark.parametrize("release", Release)
def test_a_solver_that_is_terminated_has_its_reply_and_goes_on(
    service: Running, tmp_path: Path, release: Release, numbers: Iterator[int]
) -> None:
    bridge = IpasirBridge(service.box(), tmp_path, next(numbers), release=release)
    pigeons(bridge, 12)
    assert bridge.solve(terminates=True) == UNKNOWN
    bridge.add(1)
    bridge.add(-1)
    assert bridge.solve() == UNSAT
    bridge.release()
    poll_until(lambda: not list((service.box() / "journal").iterdir()), "the chain is forgotten")


def test_a_chain_ends_though_something_lies_where_the_reply_to_its_end_would_be(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        assert service.ask("left-0", literals=[1, 0], incremental=True)["result"]["resultcode"] == SAT
        assert service.stop() == 0
        end = {"user": "u", "name": "left-1", "incremental": True, "done": True, "precursor": "u.left-0"}
        service.drop("left-1.json", json.dumps(end))
        left = service.box() / "out" / "u.left-1.json"
        left.write_bytes(b"\xff")
    with serving(tmp_path) as service:
        poll_until(lambda: not list((service.box() / "journal").iterdir()), "the chain is forgotten")
        assert left.read_bytes() == b"\xff"


def revision(service: Running, pipe: Path, name: str, **fields: Any) -> tuple[Path, int]:
    """Submit a revision that comes through a pipe; return the path of its reply, and the pipe's other end."""
    os.mkfifo(pipe)
    path = service.submit(
        name, files=[str(pipe)], content_mode="raw", incremental=True, wallclock_limit="0", **fields
    )
    return path, int(within_time(lambda: os.open(pipe, os.O_WRONLY), "somebody reads"))


def raw(*integers: int) -> bytes:
    return array.array("i", integers).tobytes()


def test_a_revision_interrupted_on_its_way_through_the_pipe_counts_as_a_whole(
    service: Running, tmp_path: Path
) -> None:
    path, descriptor = revision(service, tmp_path / "first", "halved-0")
    os.write(descriptor, raw(1, 2, 0))
    service.interrupt("halved-0")
    poll_until(lambda: not list((service.box() / "in").iterdir()), "the interruption is taken")
    os.write(descriptor, raw(-1, 0, ASSUMPTIONS_MARK, 0))
    os.close(descriptor)
    assert service.reply(path)["result"]["resultcode"] == UNKNOWN
    path, descriptor = revision(service, tmp_path / "second", "halved-1", precursor="u.halved-0")
    os.write(descriptor, raw(ASSUMPTIONS_MARK, 0))
    os.close(descriptor)
    assert service.reply(path)["result"]["solution"] == [-1, 2]


def test_a_revision_whose_rest_does_not_come_after_an_interruption_is_an_error(
    service: Running, tmp_path: Path
) -> None:
    path, descriptor = revision(service, tmp_path / "pipe", "endless-0")
    service.interrupt("endless-0")
    assert "before its input had come through" in service.reply(path)["error"]["message"]
    os.close(descriptor)


def test_a_chain_that_came_through_pipes_ends_with_the_service(tmp_path: Path) -> None:
    def solved(service: Running, number: int, **fields: Any) -> dict[str, Any]:
        path, descriptor = revision(service, tmp_path / f"{number}", f"piped-{number}", **fields)
        os.write(descriptor, raw(1, 0, ASSUMPTIONS_MARK, 0))
        os.close(descriptor)
        return service.reply(path)

    with serving(tmp_path) as service:
        assert solved(service, 0)["result"]["resultcode"] == SAT
        assert solved(service, 1, precursor="u.piped-0")["result"]["resultcode"] == SAT
        service.kill()
    with serving(tmp_path) as service:
        reply = service.ask("piped-2", literals=[2, 0], incremental=True, precursor="u.piped-1")
        assert "named pipes cannot be read again" in reply["error"]["message"]
        assert reply["error"]["field"] == "precursor"


def test_a_model_beyond_what_fits_into_a_pipe_arrives_whole(service: Running, tmp_path: Path) -> None:
    bridge = IpasirBridge(service.box(), tmp_path, 40)
    n_vars = 300_000
    bridge.add(*range(1, n_vars + 1))
    bridge.add(-n_vars)
    assert bridge.solve() == SAT
    assert len(bridge.model) == n_vars + 1
    assert bridge.value(n_vars) == -n_vars
    bridge.release()
    await_solutions(service, 0)


def test_a_refusal_reaches_who_waits_at_a_pipe(service: Running, tmp_path: Path) -> None:
    out = service.box() / "out" / "ipasir.refused.json"
    os.mkfifo(out)
    reader = PipeReader(out)
    job = {"user": "ipasir", "name": "refused", "files": ["/f.cnf"], "piped-response": True, "stranger": 1}
    service.drop("refused.json", json.dumps(job))
    poll_until(reader.is_over, "the refusal")
    reader.close()
    reply: dict[str, Any] = json.loads(reader.received)
    assert reply["error"]["field"] == "stranger"
    assert json.loads(out.read_bytes()) == reply


def test_large_models_of_earlier_revisions_stay(service: Running) -> None:
    """A client that is not the bridge may read its solution files at any time."""
    count = 1_000_001
    first = service.ask("stays-0", literals=[1, 0, -count, 0], incremental=True)["result"]
    path = Path(first["solution-file"])
    service.ask("stays-1", literals=[2, 0], incremental=True, precursor="u.stays-0")
    service.submit("stays-2", incremental=True, precursor="u.stays-1", done=True)
    late = service.ask("stays-3", literals=[3, 0], incremental=True, precursor="u.stays-1")
    assert "done" in late["error"]["message"]
    assert path.stat().st_size == 4 * first["solution-size"] == 4 * count
    for left in path.parent.glob("u.stays-*.solution"):
        left.unlink()
