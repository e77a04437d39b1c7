"""Programs linked with Mallob's IPASIR bridge are served as Mallob serves them."""

from __future__ import annotations

import array
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ipasir_bridge import ASSUMPTIONS_MARK, IpasirBridge, within_time
from running import Running, needs_mpiexec, serving
from waiting import PipeReader, poll_until

pytestmark = needs_mpiexec

SAT, UNSAT, UNKNOWN = 10, 20, 0
#: what stood between clauses and assumptions in earlier releases: a clause without literals
EMPTY_CLAUSE = 0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("bridge")) as running:
        yield running


def pigeons(bridge: IpasirBridge, holes: int) -> None:
    """A formula that keeps a solver busy: one pigeon more than holes, in the order of the pigeons."""
    variable = lambda pigeon, hole: pigeon * holes + hole + 1  # noqa: E731
    for pigeon in range(holes + 1):
        bridge.add(*(variable(pigeon, hole) for hole in range(holes)))
    for hole in range(holes):
        for one in range(holes + 1):
            for other in range(one):
                bridge.add(-variable(one, hole), -variable(other, hole))


@pytest.mark.parametrize("has_piped_replies", [True, False])
@pytest.mark.parametrize("ends_clauses_with", [ASSUMPTIONS_MARK, EMPTY_CLAUSE])
def test_revisions_with_assumptions_come_and_go_through_named_pipes(
    service: Running, tmp_path: Path, has_piped_replies: bool, ends_clauses_with: int
) -> None:
    number = 10 * has_piped_replies + (ends_clauses_with == EMPTY_CLAUSE)
    bridge = IpasirBridge(
        service.box(),
        tmp_path,
        number,
        has_piped_replies=has_piped_replies,
        ends_clauses_with=ends_clauses_with,
    )
    bridge.add(1, 2)
    bridge.add(-1, 3)
    assert bridge.solve() == SAT
    assert len(bridge.model) == 4
    assert bridge.value(1) > 0 or bridge.value(2) > 0
    assert bridge.value(1) < 0 or bridge.value(3) > 0
    bridge.assume(-2)
    bridge.assume(-3)
    assert bridge.solve() == UNSAT
    assert bridge.failed == {-2, -3}
    bridge.add(-3)
    assert bridge.solve() == SAT
    assert [bridge.value(one) for one in (1, 2, 3)] == [-1, 2, -3]
    bridge.add(-2)
    assert bridge.solve() == UNSAT
    assert bridge.failed == set()
    bridge.release()
    poll_until(lambda: not list((service.box() / "journal").iterdir()), "the chain is forgotten")
    assert not list((service.box() / "out").iterdir())


def test_a_solver_that_is_not_incremental_has_assumptions_as_clauses(
    service: Running, tmp_path: Path
) -> None:
    bridge = IpasirBridge(service.box(), tmp_path, 20, incremental=False, ends_clauses_with=EMPTY_CLAUSE)
    bridge.add(1, 2)
    bridge.assume(-1)
    assert bridge.solve() == SAT
    assert bridge.model == [0, -1, 2]


def test_a_solver_that_is_terminated_has_its_reply_and_goes_on(service: Running, tmp_path: Path) -> None:
    bridge = IpasirBridge(service.box(), tmp_path, 30)
    pigeons(bridge, 12)
    assert bridge.solve(terminates=True) == UNKNOWN
    bridge.add(1)
    bridge.add(-1)
    assert bridge.solve() == UNSAT
    bridge.release()
    poll_until(lambda: not list((service.box() / "journal").iterdir()), "the chain is forgotten")


def revision(service: Running, pipe: Path, name: str, **fields: Any) -> tuple[Path, int]:
    """Submit a revision that comes through a pipe: where its reply will be, and the pipe's other end."""
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
    assert "interrupted before it had come through" in service.reply(path)["error"]["message"]
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
