"""Worker processes: the pool's promises to the rank, with real processes and signals."""

import array
import errno
import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from faults.processes import state_of
from pool_rank import APPS, CLASSES, DEADLINE_S, HERE, KEY, Make, Rank, is_gone, result_of
from seeds import seeds
from waiting import poll_until

from mallob_py.applications import ENTRY_POINT_GROUP, OURS
from mallob_py.kit import TreeMessage
from mallob_py.kit.payload import decode_description, encode_description
from mallob_py.protocol import stimuli
from mallob_py.protocol.progress import Progress
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.workers import tasks
from mallob_py.runtime.workers.links import WorkerLimits
from mallob_py.runtime.workers.process import AppRegistry
from mallob_py.runtime.workers.supply import PoolOptions
from mallob_py.runtime.workers.tasks import Key, ReadDone, ReadFailed, ReadGoesOn, ReadStalled

# --- results and failures -----------------------------------------------------


def packed(*literals: int) -> bytes:
    return array.array("i", literals).tobytes()


def test_a_started_worker_reports_that_it_runs_and_then_its_result(rank: Rank) -> None:
    rank.start("ANSWER")
    (result,) = rank.hear(stimuli.WorkerAnswered)
    assert [type(event) for event in rank.seen] == [stimuli.WorkerStarted, stimuli.WorkerAnswered]
    assert result_of(result) == (10, [0, -1])
    assert b'"threads":1' in wire.decode_result(result.body).fields


def test_a_preloaded_application_is_prepared_where_workers_are_forked_from(make: Make) -> None:
    rank = make(preload=("PREPARED",))
    rank.start("PREPARED")
    (result,) = rank.hear(stimuli.WorkerAnswered)
    by, worker = result_of(result)[1]
    assert by == rank.server.pid != worker


def test_an_application_is_prepared_before_its_first_worker_says_that_it_runs(rank: Rank) -> None:
    rank.start("PREPARED")
    (result,) = rank.hear(stimuli.WorkerAnswered)
    by, worker = result_of(result)[1]
    assert by == worker


def test_a_worker_whose_application_cannot_be_prepared_fails_and_has_not_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOB_PY_TEST_UNPREPARED", "1")
    rank = make(preload=("PREPARED",))
    rank.start("PREPARED")
    (failed,) = rank.hear(stimuli.WorkerRaised)
    assert "RuntimeError: not today" in failed.reason
    assert not rank.of(stimuli.WorkerStarted)


def test_finish_ends_the_run_and_the_process_is_used_again(rank: Rank) -> None:
    rank.run("FINISH")
    rank.hear(stimuli.WorkerAnswered)
    rank.until(rank.idle_pids)
    rank.start("FINISH", (8, 8))
    assert [result_of(result)[0] for result in rank.hear(stimuli.WorkerAnswered, 2)] == [20, 20]


def test_processes_of_one_server_draw_different_random_numbers(make: Make) -> None:
    rank = make(PoolOptions(warm=2), preload=("DRAW",))
    rank.until(lambda: len(rank.idle_pids()) == 2)
    rank.start("DRAW", (1, 1))
    rank.start("DRAW", (2, 2))
    one, other = (result_of(result)[1] for result in rank.hear(stimuli.WorkerAnswered, 2))
    assert one[0] != other[0]
    assert one[1] != other[1]


def test_a_worker_that_goes_on_after_its_result_is_ended_by_terminate(rank: Rank) -> None:
    rank.start("FINISH", swallow=True)
    rank.until(lambda: rank.pool.pid_of(KEY) is not None)
    pid = rank.pid()
    rank.hear(stimuli.WorkerAnswered)
    assert not is_gone(pid)
    rank.pool.terminate(KEY)
    rank.until(lambda: is_gone(pid))


@pytest.mark.parametrize("what", ["thread", "thread that Python does not list", "child"])
def test_a_process_that_was_left_with_threads_or_children_is_not_used_again(make: Make, what: str) -> None:
    # preloaded: a process from before the import would not be used again in any case
    rank = make(preload=("LITTER",))
    rank.run("LITTER", what=what)
    pids = result_of(rank.hear(stimuli.WorkerAnswered)[0])[1]
    rank.until(lambda: all(map(is_gone, pids)))


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("value", "ValueError: no such luck"),
        ("exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("recursion", "RecursionError"),
        ("odd name", "ValueError: odd\\udcff.cnf"),
        ("bad result", "must be a Result or None"),
        ("wide result", "fit into 32 bits"),
        ("nameless code", "TypeError: the name of result code 10 must be a text, not 5"),
        ("deep result", "ValueError: a result's fields have more than 500 levels"),
        ("no number", "a result's value is nan, which no JSON number can be"),
        ("no end", "a result's value is -inf, which no JSON number can be"),
    ],
)
def test_whatever_an_application_raises_is_reported_as_its_traceback(
    rank: Rank, what: str, text: str
) -> None:
    rank.run("RAISE", what=what)
    (failed,) = rank.hear(stimuli.WorkerRaised)
    assert text in failed.reason
    assert "workers/process.py" not in failed.reason.partition("worker_apps.py")[0]


def test_an_error_that_the_application_foresaw_is_reported_as_its_text_alone(rank: Rank) -> None:
    rank.run("RAISE", what="foreseen")
    assert rank.hear(stimuli.WorkerRaised)[0].reason == "the disk is full"
    rank.run("RAISE", what="foreseen odd name")
    assert rank.hear(stimuli.WorkerRaised, 2)[-1].reason == "odd\\udcff.cnf"


def test_a_worker_beyond_its_memory_limit_fails_and_takes_nobody_along(make: Make) -> None:
    rank = make(limits=WorkerLimits(memory_limit_bytes=1 << 30))
    rank.run("RAISE", what="memory")
    assert "Unable to allocate" in rank.hear(stimuli.WorkerRaised)[0].reason
    rank.start("ANSWER", (8, 8))
    rank.hear(stimuli.WorkerAnswered)


@pytest.mark.parametrize(
    ("how", "reason"), [("segfault", "SIGSEGV"), ("exit", "exit status 7"), ("killed", "SIGKILL")]
)
def test_a_process_that_dies_is_reported_with_the_reason(rank: Rank, how: str, reason: str) -> None:
    rank.start("DIE", how=how)
    (crashed,) = rank.hear(stimuli.WorkerCrashed)
    assert crashed.worker == KEY[1]
    assert reason in crashed.reason


def test_what_a_process_has_started_is_killed_when_it_dies(rank: Rank) -> None:
    rank.run("LITTER", what="child beside it")
    (said,) = rank.hear(stimuli.WorkerSaves)
    child = int(said.data)
    try:
        os.kill(rank.pid(), signal.SIGKILL)
        poll_until(lambda: is_gone(child))  # the fork server ends the child before the pool notices
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


# --- CPU time --------------------------------------------------------------------


def test_a_result_tells_the_cpu_time_of_its_own_task_with_its_children(rank: Rank) -> None:
    pids: set[int] = set()
    for number in range(3):
        rank.start("WORK", (number, 0), cpu_s=0.2)
        result = rank.hear(stimuli.WorkerAnswered, number + 1)[number]
        pids.add(result_of(result)[1][0])
        assert 0.4 <= result.cpu_s < 0.6
        rank.until(rank.idle_pids)
    assert len(pids) < 3, "some task shall run in a process that has used CPU time before"


def test_the_cpu_time_of_a_worker_can_be_asked_while_it_runs(rank: Rank) -> None:
    assert rank.pool.cpu_seconds_of(KEY) is None
    rank.run("WORK", cpu_s=0.2, then="wait")
    # less than 0.4 s, because each of four measurements may lose a clock tick
    rank.until(lambda: (rank.pool.cpu_seconds_of(KEY) or 0.0) >= 0.35)


def test_a_crash_tells_the_cpu_time_used_until_then(rank: Rank) -> None:
    rank.start("WORK", cpu_s=0.2, then="die")
    (crashed,) = rank.hear(stimuli.WorkerCrashed)
    assert 0.4 <= crashed.cpu_s < 0.6


def test_a_process_that_talks_nonsense_is_killed_and_reported_as_crashed(rank: Rank) -> None:
    rank.start("TALK")
    assert "SIGKILL" in rank.hear(stimuli.WorkerCrashed)[0].reason


def test_an_application_nobody_knows_fails_its_job_only(rank: Rank) -> None:
    rank.start("NOBODY")
    assert "no application 'NOBODY' is installed" in rank.hear(stimuli.WorkerRaised)[0].reason


# --- suspension, termination ------------------------------------------------------


def test_suspend_stops_the_process_and_resume_continues_it_in_its_new_place(rank: Rank) -> None:
    rank.run("ECHO")
    rank.pool.suspend(KEY)
    rank.until(lambda: state_of(rank.pid()) == "T")
    rank.pool.resume(KEY, 4, 9, (9, 10))
    rank.pool.deliver(KEY, TreeMessage(1, b"end"))
    assert result_of(rank.hear(stimuli.WorkerAnswered)[0]) == (0, [4, 9, 9, 10])


def test_a_worker_suspended_before_it_has_a_process_runs_only_when_resumed(rank: Rank) -> None:
    rank.start("ECHO")
    rank.pool.suspend(KEY)
    rank.until(rank.idle_pids)
    assert rank.pool.pid_of(KEY) is None
    rank.pool.resume(KEY, 2, 6, ())
    rank.hear(stimuli.WorkerStarted)
    rank.pool.deliver(KEY, TreeMessage(0, b"end"))
    assert result_of(rank.hear(stimuli.WorkerAnswered)[0])[1] == [2, 6]


def test_a_worker_that_leaves_in_order_sends_a_last_message_and_its_process_is_used_again(make: Make) -> None:
    # preloaded: otherwise the process would be from before the import
    rank = make(PoolOptions(warm=1), preload=("LEAVE",))
    rank.run("LEAVE")
    assert rank.of(stimuli.WorkerStarted) == [stimuli.WorkerStarted(KEY[1], leaves=True)]
    pid = rank.pid()
    rank.pool.deliver(KEY, TreeMessage(1, b"mine", sender=(3, 4)))
    rank.pool.leave(KEY)
    (left,) = rank.hear(stimuli.WorkerLeft)
    assert rank.of(stimuli.WorkerToWorker) == [stimuli.WorkerToWorker(KEY[1], 3, 4, b"yours")]
    assert left.worker == KEY[1]
    assert rank.pool.pid_of(KEY) is None
    rank.until(lambda: pid in rank.idle_pids())


def test_what_comes_to_a_worker_that_has_just_left_is_known_to_be_missed(make: Make) -> None:
    rank = make(PoolOptions(warm=1), preload=("LEAVE",))
    rank.run("LEAVE")
    (link,) = (link for link in rank.pool.processes.links.values() if link.pid == rank.pid())
    rank.pool.leave(KEY)
    assert select.select([link], [], [], DEADLINE_S)[0], "it has not left"
    late = TreeMessage(1, b"a bag", sender=(3, 4))
    rank.pool.deliver(KEY, late)
    rank.hear(stimuli.WorkerLeft)
    *_, missed, left = rank.seen
    assert missed == stimuli.WorkerMissed(KEY[1], 1, (3, 4), b"a bag", False)
    assert isinstance(left, stimuli.WorkerLeft)


def test_what_a_worker_took_while_it_left_is_not_missed(rank: Rank) -> None:
    rank.run("LEAVE")
    os.kill(rank.pid(), signal.SIGSTOP)  # stopped, so that it finds both messages together
    rank.pool.leave(KEY)
    rank.pool.deliver(KEY, TreeMessage(1, b"mine", sender=(3, 4)))
    os.kill(rank.pid(), signal.SIGCONT)
    rank.hear(stimuli.WorkerLeft)
    assert rank.of(stimuli.WorkerToWorker)
    assert not rank.of(stimuli.WorkerMissed)


def test_a_parked_worker_leaves_at_once(rank: Rank) -> None:
    rank.run("LEAVE", parked=True)
    rank.pool.leave(KEY)
    rank.hear(stimuli.WorkerLeft)


@pytest.mark.parametrize(("last", "saved"), [(None, b"nothing"), (b"the last", b"after the last")])
def test_a_root_is_given_the_last_checkpoint_and_messages_wait_meanwhile(
    rank: Rank, last: bytes | None, saved: bytes
) -> None:
    rank.run("SAVE")
    rank.hear(stimuli.WorkerWantsCheckpoint)
    rank.pool.deliver(KEY, TreeMessage(1, bytes([1, 2])))
    rank.pool.give_checkpoint(KEY, last)
    assert rank.hear(stimuli.WorkerSaves) == [stimuli.WorkerSaves(KEY[1], saved)]
    assert result_of(rank.hear(stimuli.WorkerAnswered)[0])[1] == [1, 2]


def test_a_root_that_gets_no_answer_asks_again(rank: Rank) -> None:
    rank.run("SAVE")
    rank.hear(stimuli.WorkerWantsCheckpoint, 2)


def test_who_is_not_the_root_neither_gets_nor_has_a_checkpoint(rank: Rank) -> None:
    description = wire.Inline(bytes(encode_description("SAVE", {}, {})))
    rank.pool.start(KEY, 1, 2, (), description)
    rank.pool.deliver(KEY, TreeMessage(1, bytes([1, 2])))
    rank.hear(stimuli.WorkerAnswered)
    assert not rank.of(stimuli.WorkerWantsCheckpoint) + rank.of(stimuli.WorkerSaves)


def test_a_worker_is_not_asked_to_leave_in_order_unless_its_application_says_so(rank: Rank) -> None:
    rank.run("PARK")
    assert rank.of(stimuli.WorkerStarted) == [stimuli.WorkerStarted(KEY[1], leaves=False)]


def test_while_workers_are_suspended_a_process_stands_ready(rank: Rank) -> None:
    for number in range(3):
        rank.start("SPIN", (number, 0))
        rank.until(lambda number=number: rank.pool.pid_of((number, 0)))
        rank.pool.suspend((number, 0))
    rank.until(rank.idle_pids)


def test_terminate_kills_running_stopped_and_unstarted_workers_without_further_events(rank: Rank) -> None:
    for number in range(3):
        rank.start("SPIN", (number, 0))
    rank.hear(stimuli.WorkerStarted, 3)
    pids = [rank.pid((number, 0)) for number in range(3)]
    rank.pool.suspend((1, 0))
    rank.start("SPIN", (3, 0))
    rank.seen.clear()
    for number in range(4):
        rank.pool.terminate((number, 0))
        rank.pool.terminate((number, 0))
    rank.until(lambda: all(state_of(pid) == "X" for pid in pids))
    assert rank.seen == []


def test_commands_for_unknown_or_finished_workers_have_no_effect(rank: Rank) -> None:
    rank.run("ANSWER")
    rank.hear(stimuli.WorkerAnswered)
    for key in (KEY, (99, 99)):
        rank.pool.suspend(key)
        rank.pool.resume(key, 0, 1, ())
        rank.pool.update(key, 0, 1, ())
        rank.pool.terminate(key)
    rank.start("ANSWER", (8, 8))
    rank.hear(stimuli.WorkerAnswered, 2)


def test_interrupt_and_terminate_signals_do_not_end_workers_or_their_server(rank: Rank) -> None:
    rank.run("ECHO")
    for pid in (rank.server.pid, rank.pid()):
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    rank.pool.deliver(KEY, TreeMessage(0, b"end"))
    rank.hear(stimuli.WorkerAnswered)
    assert not rank.of(stimuli.WorkerCrashed)


@pytest.mark.parametrize("seed", seeds(4))
def test_under_random_commands_every_worker_ends_exactly_once(rank: Rank, seed: int) -> None:
    choose = random.Random(seed)
    live: set[Key] = set()
    ended: list[Key] = []

    def terminate(key: Key) -> None:
        rank.pool.terminate(key)
        live.remove(key)
        ended.append(key)

    def turn() -> None:
        rank.turn()
        for event in rank.seen:
            if isinstance(event, stimuli.WorkerAnswered | stimuli.WorkerRaised | stimuli.WorkerCrashed):
                live.remove((event.worker, event.worker))
                ended.append((event.worker, event.worker))
        rank.seen.clear()

    for number in range(60):
        key = (number, number)
        application = choose.choice(["ANSWER", "PARK", "ECHO", "SPIN", "DIE", "RAISE"])
        rank.start(application, key, how="exit", what="value")
        live.add(key)
        for command in choose.choices(range(5), k=4):
            other = choose.choice([*sorted(live), key])
            if command == 0:
                rank.pool.suspend(other)
            elif command == 1:
                rank.pool.resume(other, 1, 5, (3,))
            elif command == 2:
                rank.pool.deliver(other, TreeMessage(0, b"x"))
            elif command == 3:
                turn()
            elif len(live) > 8:
                terminate(choose.choice(sorted(live)))
    for key in sorted(live):
        terminate(key)
    rank.until(lambda: not rank.busy_pids())
    turn()
    assert len(ended) == len(set(ended)) == 60


# --- messages ---------------------------------------------------------------------


def test_progress_is_passed_on_now_and_then(rank: Rank) -> None:
    rank.run("FAR", done=7)
    rank.hear(stimuli.WorkerAnswered)
    told = rank.of(stimuli.WorkerProgresses)
    assert 1 <= len(told) <= 20  # few of the hundreds of reports are passed on
    assert told[0].progress == Progress(7.0, None, "a unit with a very l")


def test_the_last_progress_is_passed_on_though_it_came_too_soon(rank: Rank) -> None:
    rank.run("FARATONCE")
    rank.hear(stimuli.WorkerAnswered)
    assert rank.of(stimuli.WorkerProgresses)[-1].progress.done == 3


def test_what_is_no_progress_is_an_error_of_the_application(rank: Rank) -> None:
    rank.start("FAR", done=-1)
    (raised,) = rank.hear(stimuli.WorkerRaised)
    assert raised.reason.endswith("progress with done=-1: `done` must be a number of at least 0")


def test_messages_demand_and_volume_pass_both_ways(rank: Rank) -> None:
    rank.pool.start(KEY, 1, 3, (3,), wire.Inline(bytes(encode_description("ECHO", {}, {}))))
    assert rank.hear(stimuli.WorkerToChildren)[0].data == b"hello"
    assert rank.hear(stimuli.WorkerDemands)[0].demand == 5
    rank.pool.deliver(KEY, TreeMessage(3, b"x", returned=True))
    assert rank.hear(stimuli.WorkerToParent)[0].data == b"3:x:1"


def test_a_message_of_fifty_megabytes_arrives_whole(make: Make) -> None:
    rank = make(PoolOptions(queue_limit_bytes=1 << 30))
    rank.pool.start(KEY, 1, 2, (), wire.Inline(bytes(encode_description("ECHO", {}, {}))))
    data = bytes(50_000_000)
    rank.pool.deliver(KEY, TreeMessage(0, data))
    assert rank.hear(stimuli.WorkerToParent)[0].data[2:-2] == data


def test_messages_to_a_worker_that_does_not_read_are_bounded_and_the_oldest_returned(make: Make) -> None:
    rank = make(PoolOptions(queue_limit_bytes=1_000_000))
    rank.run("SPIN")
    for number in range(300):
        rank.pool.deliver(KEY, TreeMessage(number, bytes(10_000)))
        rank.pool.update(KEY, number, number, ())
    rank.turn()
    dropped = [event.source_index for event in rank.of(stimuli.WorkerMissed)]
    assert dropped == list(range(dropped[0], dropped[0] + len(dropped)))
    assert 100 < len(dropped) < 300 - 90


def test_messages_for_a_worker_that_has_no_process_yet_wait_for_it(make: Make) -> None:
    rank = make(PoolOptions(queue_limit_bytes=1000))
    rank.pool.start(KEY, 1, 3, (3,), wire.Inline(bytes(encode_description("ECHO", {}, {}))))
    first, *others = (TreeMessage(source, bytes(300)) for source in range(4))
    for message in (first, *others):
        rank.pool.deliver(KEY, message)
    assert [event.data[:2] for event in rank.hear(stimuli.WorkerToParent, 3)] == [b"1:", b"2:", b"3:"]
    assert rank.of(stimuli.WorkerMissed) == [tasks.missed(KEY, first)]


def test_a_message_for_an_unknown_worker_comes_back(rank: Rank) -> None:
    message = TreeMessage(0, b"late")
    rank.pool.deliver(KEY, message)
    assert rank.hear(stimuli.WorkerMissed) == [tasks.missed(KEY, message)]


# --- inputs -----------------------------------------------------------------------


def read(files: list[Path], path: Path, **changes: Any) -> wire.Read:
    fields = {"application": "SUM", "literals": None, "configuration": {}, "inline_limit_bytes": 4096}
    return wire.Read(files=tuple(map(os.fsencode, files)), path=str(path), **(fields | changes))


def test_a_small_input_comes_inline_and_a_large_one_as_a_file_that_workers_map(
    rank: Rank, tmp_path: Path
) -> None:
    for size in (10, 10_000):
        source = tmp_path / f"numbers.{size}"
        source.write_text(" ".join(map(str, range(size))))
        rank.pool.read(size, read([source], tmp_path / f"description.{size}", configuration={"a": 1}))
    small, large = sorted(rank.hear(ReadDone, 2), key=lambda done: done.request_id)
    assert isinstance(small.description, wire.Inline)
    assert decode_description(small.description.data).configuration == {"a": 1}
    assert large.description == wire.Mapped(
        str(tmp_path / "description.10000"), (tmp_path / "description.10000").stat().st_size
    )
    rank.pool.start(KEY, 0, 1, (), large.description)
    assert result_of(rank.hear(stimuli.WorkerAnswered)[0]) == (10, [sum(range(10_000))])


def test_an_input_file_beyond_the_limit_is_refused(make: Make, tmp_path: Path) -> None:
    rank = make(limits=WorkerLimits(input_max_bytes=3))
    (tmp_path / "numbers").write_text("1 22")
    rank.pool.read(1, read([tmp_path / "numbers"], tmp_path / "description"))
    (failed,) = rank.hear(ReadFailed)
    assert "numbers: the file has 4 bytes, more than the 3 of --input-max" in failed.message
    assert failed.field == "files"


@pytest.mark.parametrize(
    ("changes", "message", "field"),
    [
        ({"files": (b"/nowhere",)}, "/nowhere: no such file", "files"),
        ({"configuration": {"bad": 1}}, "'bad' is not an option", "configuration"),
        ({"application": "ANSWER", "literals": packed(1)}, "takes no literals", "literals"),
        ({"application": "ANSWER", "files": (b"x",)}, "takes no files", "files"),
        ({"configuration": {"seed": 1 << 70}}, "cannot be passed on", "configuration"),
        ({"application": "NOBODY"}, "no application 'NOBODY' is installed", "application"),
        ({"files": (os.fsencode(__file__),)}, "ValueError: invalid literal", "application"),
        ({"literals": packed(*[1] * 1000), "path": "/nowhere/description"}, "no room", "files"),
    ],
)
def test_an_input_that_cannot_be_used_is_refused_with_message_and_field(
    rank: Rank, tmp_path: Path, changes: dict[str, Any], message: str, field: str
) -> None:
    asked = {"files": (), "path": str(tmp_path / "description"), "literals": None} | changes
    request = wire.Read(**({"application": "SUM", "configuration": {}, "inline_limit_bytes": 64} | asked))
    rank.pool.read(1, request)
    (failed,) = rank.hear(ReadFailed)
    assert message in failed.message
    assert failed.field == field


def test_reading_a_pipe_that_nobody_writes_can_be_cancelled(rank: Rank, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    rank.pool.read(1, read([pipe], tmp_path / "description"))
    rank.until(lambda: rank.busy_pids())
    (pid,) = rank.busy_pids()
    rank.pool.cancel_read(1)
    rank.until(lambda: is_gone(pid))
    assert not rank.of(ReadFailed)


def test_reads_of_which_nothing_comes_leave_their_turn_to_others(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "LOOK_PERIOD_S", 0.05)
    monkeypatch.setattr(tasks, "STALLED_MAX", 3)
    rank = make(PoolOptions(max_reads=2))
    pipe, source = tmp_path / "pipe", tmp_path / "source"
    os.mkfifo(pipe)
    source.write_text("1 2 3")
    for number in range(4):
        rank.pool.read(number, read([pipe], tmp_path / f"description.{number}"))
    rank.pool.read(4, read([source], tmp_path / "description.4"))
    (done,) = rank.hear(ReadDone)
    assert done.request_id == 4
    for number in range(5, 8):
        rank.pool.read(number, read([pipe], tmp_path / f"description.{number}"))
    failed = rank.hear(ReadFailed)[0]
    assert "other inputs stall" in failed.message
    # The process stopped for longest; on a busy machine, it need not be the one that was asked first.
    standing: list[int] = []
    for event in rank.seen[: rank.seen.index(failed)]:
        if isinstance(event, ReadStalled):
            standing.append(event.request_id)
        elif isinstance(event, ReadGoesOn):
            standing.remove(event.request_id)
    assert failed.request_id == standing[0]


def kill_reader(rank: Rank, but: int = 0) -> int:
    rank.until(lambda: set(rank.reading_pids()) - {but})
    (pid,) = set(rank.reading_pids()) - {but}
    os.kill(pid, signal.SIGKILL)
    return pid


def test_another_process_reads_what_a_killed_one_has_not(rank: Rank, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    rank.pool.read(1, read([pipe], tmp_path / "description"))
    kill_reader(rank, kill_reader(rank))
    writers: list[int] = []

    def is_read() -> bool:
        with suppress(OSError):
            writers.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writers)

    rank.until(is_read)
    os.write(writers[0], b"1 2 3")
    os.close(writers[0])
    (done,) = rank.hear(ReadDone)
    assert isinstance(done.description, wire.Inline)
    assert not rank.of(ReadFailed)


def test_an_input_that_three_processes_died_of_is_given_up(rank: Rank, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    rank.pool.read(1, read([pipe], tmp_path / "description"))
    pid = 0
    for _ in range(3):
        pid = kill_reader(rank, pid)
    (failed,) = rank.hear(ReadFailed)
    assert "each process that read the input ended early (3 processes): killed by signal 9" in failed.message


def test_reads_beyond_the_limit_wait_for_their_turn(make: Make, tmp_path: Path) -> None:
    rank = make(PoolOptions(max_reads=2))
    source = tmp_path / "numbers"
    source.write_text("1 2 3")
    most = 0
    for number in range(12):
        rank.pool.read(number, read([source], tmp_path / f"{number}"))
    while len(rank.of(ReadDone)) < 12:
        most = max(most, len(rank.busy_pids()))
        rank.turn()
    assert most <= 4  # two that read, and two that have read and are about to report that they are idle


def test_a_process_that_has_read_for_nobody_leaves_no_file(make: Make, tmp_path: Path) -> None:
    rank, source, path = make(), tmp_path / "numbers", tmp_path / "description"
    os.mkfifo(source)
    rank.pool.read(1, read([source], path, inline_limit_bytes=0))
    rank.until(rank.busy_pids)
    (link,) = (each for each in rank.pool.processes.links.values() if each.pid in rank.busy_pids())
    with source.open("w") as numbers:
        with socket.socket(fileno=os.dup(link.fileno())) as ours:
            ours.shutdown(socket.SHUT_RDWR)
        numbers.write("1 2 3")
    poll_until(lambda: is_gone(link.pid), "it has ended")
    assert not path.exists()


# --- applications -------------------------------------------------------------------


def test_applications_are_known_even_if_one_kills_its_importer(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "deadly.py").write_text("import os\nos._exit(9)\n")
    (tmp_path / "broken.py").write_text("raise RuntimeError('not today')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MALLOB_PY_APPS", f"{APPS},DEADLY=deadly:App,BROKEN=broken:App")
    rank = make()
    rank.pool.inspect_applications()
    rank.until(lambda: rank.pool.inspection.is_complete)
    known = rank.pool.inspection.known
    assert "exit status 9" in known["DEADLY"].problem
    assert "not today" in known["BROKEN"].problem
    assert (known["SUM"].problem, known["SUM"].takes_input) == ("", True)
    assert (known["ANSWER"].problem, known["ANSWER"].takes_input) == ("", False)


def test_waiting_for_applications_keeps_other_events(rank: Rank) -> None:
    rank.start("ANSWER")
    known = rank.pool.wait_for_applications(timeout_s=DEADLINE_S)
    assert known.keys() >= {name.upper() for name in CLASSES}
    assert result_of(rank.hear(stimuli.WorkerAnswered)[0]) == (10, [0, -1])


def is_opened_for_its_reader(pipe: Path) -> bool:
    """Let the reader of a pipe go on; return False if there is no reader yet, because a wait would stop the
    rank.
    """
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return False
    return True


def test_an_application_that_takes_long_to_import_is_known_all_the_same(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "lengthy.py").write_text(
        f"open({str(gate)!r}).read()\nfrom worker_apps import Answer as App\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MALLOB_PY_APPS", f"{APPS},LENGTHY=lengthy:App")
    rank = make()
    known = rank.pool.wait_for_applications(timeout_s=0.5)
    assert known["LENGTHY"].problem == "it was not imported within 0.5 s"
    rank.until(lambda: is_opened_for_its_reader(gate))
    rank.until(lambda: rank.pool.inspection.is_complete)
    assert rank.pool.inspection.known["LENGTHY"].problem == ""


def test_an_inspection_survives_the_death_of_the_fork_server(rank: Rank) -> None:
    rank.pool.inspect_applications()
    rank.until(rank.busy_pids)
    os.kill(rank.server.pid, signal.SIGKILL)
    rank.until(lambda: rank.pool.inspection.is_complete)
    assert not any(known.problem for known in rank.pool.inspection.known.values())


def test_an_application_is_imported_in_the_server_after_its_first_use(rank: Rank) -> None:
    rank.run("PARK")
    rank.until(lambda: rank.pool.processes.generation == 1 and rank.idle_pids())
    rank.start("PARK", (8, 8))
    rank.hear(stimuli.WorkerStarted, 2)
    assert rank.pool.processes.generation == 1


# --- the end of processes and of the pool -----------------------------------------------


def test_a_fork_server_that_dies_is_replaced_and_its_workers_are_reported(rank: Rank) -> None:
    rank.run("PARK")
    rank.start("SPIN", (8, 8))
    rank.hear(stimuli.WorkerStarted, 2)
    pids = [rank.pid(), rank.pid((8, 8))]
    rank.pool.suspend(KEY)
    os.kill(rank.server.pid, signal.SIGKILL)
    assert {event.worker for event in rank.hear(stimuli.WorkerCrashed, 2)} == {KEY[1], 8}
    rank.until(lambda: all(map(is_gone, pids)))
    rank.start("ANSWER", (9, 9))
    rank.hear(stimuli.WorkerAnswered)


def test_a_worker_without_a_process_is_lost_with_the_reason_and_the_next_one_is_not(rank: Rank) -> None:
    rank.run("ANSWER")
    rank.hear(stimuli.WorkerAnswered)
    limits = resource.prlimit(rank.server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(rank.server.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    for number in range(20):
        rank.start("PARK", (8, number))
    assert "Too many open files" in rank.hear(stimuli.WorkerLost)[0].reason
    resource.prlimit(rank.server.pid, resource.RLIMIT_NOFILE, limits)
    rank.start("ANSWER", (9, 9))
    rank.until(lambda: any(event.worker == 9 for event in rank.of(stimuli.WorkerAnswered)))
    assert not rank.of(stimuli.WorkerRaised)


def test_an_input_is_read_later_if_no_process_can_be_had_for_the_moment(rank: Rank, tmp_path: Path) -> None:
    source = tmp_path / "numbers"
    source.write_text("1 2")
    rank.run("PARK")
    limits = resource.prlimit(rank.server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(rank.server.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    rank.start("PARK", (8, 8))
    rank.start("PARK", (8, 2))
    rank.pool.read(1, read([source], tmp_path / "description"))
    rank.hear(stimuli.WorkerLost)
    rank.turn()
    assert not rank.of(ReadFailed)
    resource.prlimit(rank.server.pid, resource.RLIMIT_NOFILE, limits)
    rank.hear(ReadDone)


def test_a_rank_without_a_free_descriptor_loses_the_worker_and_not_itself(rank: Rank) -> None:
    rank.run("PARK")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 1, limits[1]))
        for number in range(10):
            rank.start("PARK", (8, number))
        assert "Too many open files in the rank" in rank.hear(stimuli.WorkerLost)[0].reason
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    rank.start("ANSWER", (9, 9))
    rank.until(lambda: any(event.worker == 9 for event in rank.of(stimuli.WorkerAnswered)))


def test_a_server_that_cannot_come_up_fails_the_tasks_instead_of_trying_for_ever(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    rank = make()
    rank.start("ANSWER")
    assert "fork server" in rank.hear(stimuli.WorkerLost)[0].reason
    monkeypatch.undo()
    monkeypatch.setenv("MALLOB_PY_APPS", APPS)
    monkeypatch.syspath_prepend(str(HERE))
    rank.start("ANSWER", (8, 8))
    rank.hear(stimuli.WorkerAnswered)


def run_program() -> tuple[subprocess.Popen[str], list[int]]:
    environment = os.environ | {"MALLOB_PY_APPS": APPS}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *(path or os.getcwd() for path in sys.path)])
    program = subprocess.Popen(
        [sys.executable, str(HERE / "worker_program.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert program.stdout is not None
    pids = [int(word) for word in program.stdout.readline().split()]
    assert len(pids) >= 5
    return program, pids


def test_all_processes_die_with_a_rank_that_is_killed() -> None:
    program, pids = run_program()
    poll_until(lambda: state_of(pids[2]) == "T")
    program.kill()
    program.wait()
    poll_until(lambda: all(map(is_gone, pids)))
    program.stdin and program.stdin.close()
    program.stdout and program.stdout.close()


def test_close_leaves_no_process_and_no_zombie() -> None:
    program, pids = run_program()
    program.communicate("")
    assert program.returncode == 0
    assert [state_of(pid) for pid in pids] == ["X"] * len(pids)


def test_a_rank_imports_neither_numpy_nor_applications() -> None:
    code = "import sys, mallob_py.runtime.workers.pool; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {
        "numpy",
        "pysat",
        "mallob_py.kit.payload",
        "mallob_py.runtime.workers.process",
        "ctypes",
    }


def test_our_own_applications_are_those_that_are_installed_under_these_names() -> None:
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    assert OURS.items() <= installed.items()
    assert set(AppRegistry.discover().names()) >= installed.keys()
