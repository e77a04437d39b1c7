"""Processes kept for the next revision save work, and no result depends on them."""

import array
import json
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from faults.processes import state_of
from pool_rank import Make, Rank, is_gone, result_of

from mallob_py.kit.payload import decode_description, encode_description
from mallob_py.kit.result_file import ResultsFolder
from mallob_py.protocol import stimuli
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.memory import cpu_seconds_of
from mallob_py.runtime.workers.supply import PoolOptions
from mallob_py.runtime.workers.tasks import ReadDone, ReadFailed

pytestmark = pytest.mark.usefixtures("patient")
CHAIN = 5


def packed(*literals: int) -> bytes:
    return array.array("i", literals).tobytes()


def start(
    rank: Rank, job: int, revision: int, chain: int = CHAIN, index: int = 0, **configuration: Any
) -> None:
    description = wire.Inline(bytes(encode_description("COUNT", configuration, {})))
    rank.pool.start((job, job), index, 1, (), description, chain, revision)


def answer(rank: Rank, job: int) -> tuple[list[int], int]:
    """Return the revisions that the process of the job's worker has seen, and the process id."""

    def results() -> list[stimuli.WorkerAnswered]:
        return [event for event in rank.of(stimuli.WorkerAnswered) if event.worker == job]

    rank.until(results)
    (result,) = results()
    pid = json.loads(wire.decode_result(result.body).fields)["pid"]
    return result_of(result)[1][:-1], pid


def ask(rank: Rank, job: int, revision: int, **further: Any) -> tuple[list[int], int]:
    start(rank, job, revision, **further)
    return answer(rank, job)


def run(rank: Rank, job: int, revision: int, **further: Any) -> int:
    """Start a worker, wait until it runs, and return its process."""
    start(rank, job, revision, **further)
    rank.until(lambda: stimuli.WorkerStarted(job) in rank.seen)
    return rank.pid((job, job))


def test_the_next_revision_goes_to_the_process_of_the_one_before(rank: Rank) -> None:
    pids = {ask(rank, job=10 + number, revision=number)[1] for number in range(5)}
    assert len(pids) == 1
    assert ask(rank, job=20, revision=5)[0] == [0, 1, 2, 3, 4, 5]


def test_a_job_of_its_own_or_of_another_chain_gets_another_process(rank: Rank) -> None:
    _, pid = ask(rank, 10, 0)
    assert ask(rank, 11, 0, chain=6)[1] != pid
    rank.start("ANSWER", (12, 12))
    rank.until(lambda: any(event.worker == 12 for event in rank.of(stimuli.WorkerAnswered)))
    assert rank.kept_pids()[0] == pid


def test_a_worker_that_is_ended_at_work_is_stopped_and_goes_on_with_the_next_revision(rank: Rank) -> None:
    pid = run(rank, 10, 0, then="wait")
    rank.pool.terminate((10, 10))
    rank.until(lambda: state_of(pid) == "T")
    assert ask(rank, 11, 1) == ([0, 1], pid)


def test_a_suspended_worker_that_is_ended_goes_on_with_the_next_revision(rank: Rank) -> None:
    pid = run(rank, 10, 0, then="wait")
    rank.pool.suspend((10, 10))
    rank.until(lambda: state_of(pid) == "T")
    rank.pool.terminate((10, 10))
    assert ask(rank, 11, 1) == ([0, 1], pid)


def test_a_result_of_a_former_revision_is_no_answer_to_the_next(rank: Rank) -> None:
    pid = run(rank, 10, 0, then="late")
    rank.until(lambda: state_of(pid) == "T")
    rank.pool.terminate((10, 10))
    assert ask(rank, 11, 1) == ([0, 1], pid)
    assert [event.worker for event in rank.of(stimuli.WorkerAnswered)] == [11]


@pytest.mark.usefixtures("impatient")
def test_a_kept_process_that_does_not_turn_to_the_next_revision_is_replaced(rank: Rank) -> None:
    pid = run(rank, 10, 0, then="spin")
    rank.pool.terminate((10, 10))
    start(rank, 11, 1)
    seen, other = answer(rank, 11)
    assert (seen, other != pid) == ([1], True)
    rank.until(lambda: is_gone(pid))
    assert not rank.of(stimuli.WorkerCrashed)


def test_a_kept_process_that_dies_is_replaced_unnoticed(rank: Rank) -> None:
    _, pid = ask(rank, 10, 0)
    os.kill(pid, signal.SIGKILL)
    assert ask(rank, 11, 1)[0] == [1]  # also if the rank has not noticed the death yet
    pid = run(rank, 12, 2, then="wait")
    rank.pool.terminate((12, 12))
    os.kill(pid, signal.SIGKILL)
    rank.until(lambda: is_gone(pid) and not rank.kept_pids())
    assert ask(rank, 13, 3)[0] == [3]
    assert not rank.of(stimuli.WorkerCrashed)


def test_a_process_that_dies_of_the_next_revision_is_reported(rank: Rank) -> None:
    ask(rank, 10, 0)
    start(rank, 11, 1, then="die")
    assert rank.hear(stimuli.WorkerCrashed)[0].worker == 11


def test_a_worker_ended_before_it_turned_to_its_revision_is_kept_all_the_same(rank: Rank) -> None:
    pid = run(rank, 10, 0, then="wait")
    rank.pool.terminate((10, 10))
    for job in range(11, 20):
        start(rank, job, job - 10)
        rank.pool.terminate((job, job))
    seen, same = ask(rank, 20, 10)
    assert same == pid
    assert (seen[0], seen[-1]) == (0, 10)
    assert [event.worker for event in rank.of(stimuli.WorkerAnswered)] == [20]


def test_nothing_is_kept_of_a_chain_that_has_ended(rank: Rank) -> None:
    _, pid = ask(rank, 10, 0)
    other = run(rank, 11, 1, then="wait", chain=6)
    rank.pool.processes.discard_all(rank.pool.kept.drop_chain(CHAIN))
    rank.until(lambda: is_gone(pid))
    rank.pool.processes.discard_all(rank.pool.kept.drop_chain(6))  # the process's worker ends later
    rank.pool.terminate((11, 11))
    rank.until(lambda: is_gone(other))
    assert not rank.kept_pids()


def test_what_is_kept_is_bounded_in_number_bytes_and_time(make: Make) -> None:
    rank = make(PoolOptions(kept_max=2))
    pids = [ask(rank, 10 + chain, 0, chain=chain)[1] for chain in (1, 2, 3)]
    assert rank.kept_pids() == pids[1:]
    rank.until(lambda: is_gone(pids[0]))
    rank = make(PoolOptions(kept_bytes_max=1))
    _, pid = ask(rank, 10, 0)
    rank.until(lambda: is_gone(pid))
    rank = make(PoolOptions(kept_s=0.01))
    _, pid = ask(rank, 10, 0)
    rank.until(lambda: is_gone(pid))
    assert not rank.kept_pids()


def test_when_memory_is_short_the_oldest_kept_process_goes_first_and_none_stands_ready(make: Make) -> None:
    rank = make(PoolOptions(kept_max=3, warm=2))
    pids = [ask(rank, 10 + chain, 0, chain=chain)[1] for chain in (1, 2, 3)]
    rank.until(lambda: len(rank.idle_pids()) == 2)
    spares = rank.idle_pids()
    rank.pool.processes.keep_none_ready()
    discard = rank.pool.processes.discard_all
    assert discard(rank.pool.kept.drop_oldest(1)) > 0
    assert rank.kept_pids() == pids[1:]
    rank.until(lambda: all(map(is_gone, [pids[0], *spares])))
    assert ask(rank, 20, 1, chain=3)[1] == pids[2], "the others are as useful as before"
    assert ask(rank, 21, 1, chain=1)[0] == [1]
    assert discard(rank.pool.kept.drop_oldest(1 << 40)) > 0
    assert not rank.kept_pids()
    assert discard(rank.pool.kept.drop_oldest(1 << 40)) == 0
    assert not rank.idle_pids()
    rank.pool.processes.keep_ready()
    rank.until(lambda: len(rank.idle_pids()) == 2)


def test_kept_processes_survive_nothing_that_ends_the_pool(rank: Rank) -> None:
    _, pid = ask(rank, 10, 0)
    stopped = run(rank, 11, 0, chain=6, then="wait")
    rank.pool.terminate((11, 11))
    rank.pool.close()
    assert is_gone(pid)
    assert is_gone(stopped)


def test_a_fork_server_that_dies_takes_what_is_kept_with_it(rank: Rank) -> None:
    pid = run(rank, 10, 0, then="wait")
    rank.pool.terminate((10, 10))
    start(rank, 11, 1)
    os.kill(rank.server.pid, signal.SIGKILL)
    # The kept process answers before it ends, or ends before it has begun, or in between.
    ends = (stimuli.WorkerAnswered, stimuli.WorkerCrashed)
    rank.until(lambda: any(isinstance(event, ends) and event.worker == 11 for event in rank.seen))
    if not rank.of(stimuli.WorkerCrashed):
        assert answer(rank, 11)[0] in ([0, 1], [1])
    rank.until(lambda: is_gone(pid))
    assert ask(rank, 12, 2)[0] in ([1, 2], [2])


# --- reading revisions ------------------------------------------------------------------------


def read(path: Path, literals: list[int], before: wire.Before | None, **changes: Any) -> wire.Read:
    fields: dict[str, Any] = {"configuration": {}, "inline_limit_bytes": 64 << 10} | changes
    return wire.Read("COUNT", (), packed(*literals), path=str(path), before=before, **fields)


def test_a_process_that_goes_on_with_what_it_has_read_needs_no_file_for_it(
    rank: Rank, tmp_path: Path
) -> None:
    _, pid = ask(rank, 10, 0)
    path = tmp_path / "1"
    rank.pool.read(11, read(path, [1], wire.Before(1, None, ()), inline_limit_bytes=0), CHAIN)
    rank.hear(ReadDone)
    path.unlink()
    rank.pool.start((11, 11), 0, 1, (), wire.Mapped(str(path), 1), CHAIN, 1)
    assert answer(rank, 11) == ([0, 1], pid)


@pytest.mark.parametrize("limit_bytes", [0, 64 << 10])
def test_a_revision_is_read_on_top_of_those_before_it(rank: Rank, tmp_path: Path, limit_bytes: int) -> None:
    earlier = tuple(wire.EarlierInput(f"u.{number}", (), packed(number), {}) for number in (1, 2))
    request = read(tmp_path / "2", [3], wire.Before(2, None, earlier), inline_limit_bytes=limit_bytes)
    rank.pool.read(1, request)
    former = rank.hear(ReadDone)[0].description
    rank.pool.read(2, read(tmp_path / "3", [4], wire.Before(3, former, ())))
    description = rank.hear(ReadDone, 2)[1].description
    assert isinstance(description, wire.Inline)
    assert decode_description(description.data).payload["numbers"].tolist() == [1, 2, 3, 4]


def test_the_process_of_a_chain_reads_its_revisions_and_runs_them(rank: Rank, tmp_path: Path) -> None:
    _, pid = ask(rank, 10, 0)
    former: wire.LocalDescription | None = None
    for revision in range(1, 5):
        request = read(tmp_path / str(revision), [revision], wire.Before(revision, former, ()))
        rank.pool.read(10 + revision, request, CHAIN)
        assert rank.busy_pids() == [pid]
        former = rank.hear(ReadDone, revision)[-1].description
        assert rank.kept_pids() == [pid]
        rank.pool.start((10 + revision, 10 + revision), 0, 1, (), former, CHAIN, revision)
        assert answer(rank, 10 + revision) == (list(range(revision + 1)), pid)
    assert isinstance(former, wire.Inline)
    assert decode_description(former.data).payload["numbers"].tolist() == [1, 2, 3, 4]


def test_a_revision_that_is_refused_leaves_the_process_of_its_chain_as_it_was(
    rank: Rank, tmp_path: Path
) -> None:
    _, pid = ask(rank, 10, 0)
    rank.pool.read(1, read(tmp_path / "1", [0], wire.Before(1, None, ())), CHAIN)
    assert rank.hear(ReadFailed)[0].message == "no zero"
    assert ask(rank, 11, 1) == ([0, 1], pid)
    rank.pool.read(2, read(tmp_path / "2", [1, 2, 3], wire.Before(2, wire.Inline(b""), ())), CHAIN)
    assert rank.hear(ReadFailed, 2)[1].field == "application"
    assert ask(rank, 12, 2)[0] == [2], "its reader ended by an exception"


def test_the_time_that_a_process_has_used_before_is_not_that_of_a_read(rank: Rank, tmp_path: Path) -> None:
    _, pid = ask(rank, 10, 0, then="burn")
    os.kill(pid, signal.SIGSTOP)
    rank.pool.read(1, read(tmp_path / "1", [1], wire.Before(1, None, ())), CHAIN)
    assert rank.pool.read_used_s(1)[1] < 0.1 < cpu_seconds_of(pid)
    os.kill(pid, signal.SIGCONT)
    rank.hear(ReadDone)


def test_results_of_earlier_revisions_are_not_touched_when_these_are_read_again(
    rank: Rank, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / "first").write_text("of the first revision")
    earlier = (wire.EarlierInput("u.first", (), packed(1), {"report": str(results / "first")}),)
    configuration = {"report": str(results / "second")}
    request = read(tmp_path / "1", [2], wire.Before(1, None, earlier), configuration=configuration)
    rank.pool.read(1, msgspec.structs.replace(request, results=ResultsFolder(str(results), "1")))
    rank.hear(ReadDone)
    assert (results / "first").read_text() == "of the first revision"
    assert [path.name.rpartition("-")[0] for path in results.iterdir() if path.name != "first"] == [
        ".second.unfinished-1"
    ]


def test_an_earlier_revision_that_cannot_be_read_is_named(rank: Rank, tmp_path: Path) -> None:
    earlier = (wire.EarlierInput("u.first", (), packed(0), {}),)
    rank.pool.read(1, read(tmp_path / "1", [1], wire.Before(1, None, earlier)))
    rank.pool.read(2, read(tmp_path / "2", [1], wire.Before(1, wire.Mapped("/nowhere", 9), ())))
    first, second = sorted(rank.hear(ReadFailed, 2), key=lambda event: event.request_id)
    assert first.field == second.field == "precursor"
    assert first.message == "the input of its earlier revision u.first cannot be read: no zero"
    assert "/nowhere" in second.message
