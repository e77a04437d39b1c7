"""Python functions on a service: all features of an executor, and the outcome of calls whose workers are
lost.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, as_completed
from pathlib import Path

import called
import numpy as np
import pytest
from other_user import as_nobody, needs_root
from running import Finished, Running, needs_mpiexec, poll_until, run, serving
from waiting import DEADLINE_S

from mallob_py import Client, Executor, JobError
from mallob_py.api.calls.lane import TimeLimit, WorkerLost
from mallob_py.kit.calls.values import CannotSend, RemoteTraceback
from mallob_py.service import ServiceError

pytestmark = needs_mpiexec


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), "--preload", "CALLS", ranks=3) as running:
        yield running
        assert running.stop() == 0


def test_a_call_is_done_elsewhere_and_its_result_comes(executor: Executor) -> None:
    assert executor.submit(pow, 2, 10).result() == 1024
    assert executor.submit(int, "ff", base=16).result() == 255
    assert executor.submit(os.getpid).result() != os.getpid()
    assert executor.submit(called.is_main_thread, 0).result()


def test_a_map_gives_results_in_order_and_others_as_they_come(executor: Executor) -> None:
    assert list(executor.map(pow, range(1000), [2] * 1000)) == [each**2 for each in range(1000)]
    assert sorted(executor.map(abs, range(100), ordered=False, chunksize=7)) == list(range(100))
    assert list(executor.map(abs, [])) == []
    results = executor.map(abs, range(50))
    assert len(results) == 50
    assert list(results) == list(range(50))
    assert results.progress == (50, 50)
    assert results.progress.share == 1.0


def test_many_submissions_are_answered_each(executor: Executor) -> None:
    futures = [executor.submit(pow, each, 2) for each in range(3000)]
    assert sum(future.result() for future in as_completed(futures)) == sum(each**2 for each in range(3000))


def test_functions_by_value_and_what_they_close_over(executor: Executor) -> None:
    factor = 3
    assert list(executor.map(lambda each: factor * each, range(5))) == [0, 3, 6, 9, 12]
    factor = 4
    assert executor.submit(lambda each: factor * each, 1).result() == 4


def test_arrays_come_and_go_and_are_writable(executor: Executor) -> None:
    array = np.arange(1 << 17, dtype=np.float64)
    for result in executor.map(np.negative, [array] * 5):
        assert np.array_equal(result, -array)
        result[0] = 1.0


def test_a_map_has_as_many_workers_as_it_can_get(executor: Executor) -> None:
    found: set[int] = set()

    def all_have_worked() -> bool:
        found.update(executor.map(called.whose, range(12)))
        return len(found) >= 3

    poll_until(all_have_worked, "three workers")


def test_max_demand_bounds_the_workers(executor: Executor) -> None:
    assert len(set(executor.map(called.whose, range(12), max_demand=1))) == 1


def test_exceptions_come_with_where_they_were_raised_and_the_call(executor: Executor) -> None:
    with pytest.raises(ValueError, match="7 is bad") as caught:
        list(executor.map(called.fails_at, range(20), [7] * 20))
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "called.py" in str(caught.value.__cause__)
    assert "mallob_calls" not in str(caught.value.__cause__)
    assert caught.value.__notes__ == ["call 7 of 20: called.fails_at(7, 7)"]
    outcomes = list(executor.map(called.fails_at, range(9), [7] * 9, on_error="collect"))
    assert isinstance(outcomes.pop(7), ValueError)
    assert outcomes == [0, 1, 2, 3, 4, 5, 6, 8]


def test_a_call_that_raises_is_repeated_as_often_as_wanted(executor: Executor, tmp_path: Path) -> None:
    assert list(executor.map(called.fails_twice, [str(tmp_path / "a")], retries=2)) == [3]
    with pytest.raises(OSError, match="not yet"):
        list(executor.map(called.fails_twice, [str(tmp_path / "b")], retries=1))


def test_what_cannot_be_sent_is_told_for_its_call_alone(executor: Executor) -> None:
    outcomes = list(executor.map(abs, [1, threading.Lock(), 3], on_error="collect"))
    assert isinstance(outcomes[1], CannotSend)
    assert [outcomes[0], outcomes[2]] == [1, 3]
    results = list(executor.map(called.cannot_come_back, range(2), on_error="collect"))
    assert all("its result cannot be pickled" in str(each) for each in results)
    with pytest.raises(CannotSend, match="the function"):
        executor.submit(threading.Lock().acquire)


def test_a_module_that_workers_do_not_have_is_named(
    service: Running, executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def one():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    assert executor.submit(only_here.one).result() == 1  # workers search for modules on this process's path
    with Executor(service.api_dir) as other:
        shutil.move(tmp_path / "only_here.py", tmp_path / "moved.py")
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        with pytest.raises(Exception, match=r"only_here.*is their module installed there"):
            other.submit(only_here.one).result()


def test_a_module_on_the_path_of_the_program_hides_the_worker_s(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tabnanny.py").write_text("def check(file):\n    return 'mine'\n")
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    import tabnanny

    monkeypatch.delitem(sys.modules, "tabnanny")
    monkeypatch.setitem(sys.modules, "tabnanny", tabnanny)
    assert executor.submit(tabnanny.check, "x").result() == "mine"


def test_a_worker_that_dies_costs_nothing_but_time(executor: Executor, tmp_path: Path) -> None:
    assert executor.submit(called.killed_at_first, str(tmp_path / "one")).result() == "done"
    with pytest.raises(WorkerLost, match=r"its workers died 3 times: called\.killed\(1\)"):
        executor.submit(called.killed, 1).result()
    assert executor.submit(abs, -1).result() == 1


def test_what_a_call_has_forked_answers_nothing(executor: Executor) -> None:
    calls = [executor.submit(called.forks, how) for how in ("return", "exit", "raise")]
    assert [call.result(DEADLINE_S) for call in calls] == [0, 3, 1]
    assert executor.submit(abs, -1).result(DEADLINE_S) == 1


def test_each_call_counts_once_while_workers_are_killed(executor: Executor, tmp_path: Path) -> None:
    results = executor.map(called.append_and_nap, [str(tmp_path)] * 300, range(300), ordered=False)
    counts = []
    for result in results:
        counts.append(result)
        if len(counts) in (50, 150):  # a call whose workers died three times would fail
            for pid in {int(path.name.partition(".")[2]) for path in tmp_path.iterdir()}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    break
    assert sorted(counts) == list(range(300))


def test_calls_may_want_calls_however_deep(executor: Executor) -> None:
    assert list(executor.map(called.sum_within, [10] * 6)) == [45] * 6
    assert executor.submit(called.tree_within, 4).result() == 16


def test_executors_that_calls_drop_leave_no_threads(executor: Executor) -> None:
    assert executor.submit(called.threads_after_drops, 30).result(DEADLINE_S) < 10


def test_cancelled_calls_are_not_begun(service: Running, tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    with Executor(service.api_dir, max_demand=1) as executor:
        running = executor.submit(called.touch_and_wait, str(tmp_path / "begun"), go)
        poll_until(lambda: (tmp_path / "begun").exists(), "the first call")
        waiting = executor.submit(called.touch_and_wait, str(tmp_path / "never"), go)
        others = executor.map(called.touch_and_wait, [str(tmp_path / "neither")], [go])
        assert waiting.cancel()
        executor.shutdown(wait=False, cancel_futures=True)
        Path(go).touch()
        assert running.result() == str(tmp_path / "begun")
        with pytest.raises(CancelledError):
            next(others)
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(abs, 1)
    assert not (tmp_path / "never").exists()
    assert not (tmp_path / "neither").exists()


def test_a_map_with_a_time_limit_ends_by_it(executor: Executor, tmp_path: Path) -> None:
    results = executor.map(
        called.touch_and_wait, [str(tmp_path / "begun")], [str(tmp_path / "never")], time_limit=0.2
    )
    with pytest.raises(TimeLimit, match=r"call 0 of 1: called\.touch_and_wait"):
        next(results)
    with pytest.raises(TimeoutError, match="0 of 1 calls were done in time"):
        next(executor.map(called.touch_and_wait, [str(tmp_path / "b")], [str(tmp_path / "n")], timeout=0.1))


def test_progress_that_a_function_tells_is_seen(executor: Executor, tmp_path: Path) -> None:
    future = executor.submit(called.tells, str(tmp_path / "go"))
    poll_until(lambda: future.progress == (3, 10), "its progress")
    (tmp_path / "go").touch()
    assert future.result() == "told"


def test_results_can_be_awaited(executor: Executor) -> None:
    async def ask() -> list[object]:
        loop = asyncio.get_running_loop()
        return [
            await asyncio.wrap_future(executor.submit(pow, 3, 3)),
            await loop.run_in_executor(executor, pow, 2, 3),
            await asyncio.wrap_future(executor.map(abs, range(-3, 0)).future()),
        ]

    assert asyncio.run(ask()) == [27, 8, [3, 2, 1]]


def test_the_job_of_a_program_that_dies_ends_amid_its_call(service: Running, tmp_path: Path) -> None:
    with Client(service.api_dir) as client:

        def names() -> list[str]:
            return [job.application for job in client.jobs()]

        poll_until(lambda: "CALLS" not in names(), "the end of earlier jobs")
        code = (
            "import os, sys, called\nfrom mallob_py import Executor\n"
            f"executor = Executor({str(service.api_dir)!r})\n"
            "executor.submit(called.touch_and_wait, *sys.argv[1:])\ninput()\nos._exit(0)"
        )
        program = [sys.executable, "-c", code, str(tmp_path / "begun"), str(tmp_path / "never")]
        env = os.environ | {"PYTHONPATH": str(Path(called.__file__).parent)}
        with subprocess.Popen(program, env=env, stdin=subprocess.PIPE, text=True) as caller:
            poll_until((tmp_path / "begun").exists, "the call")
            poll_until(lambda: "CALLS" in names(), "its job")
            caller.communicate("\n", timeout=DEADLINE_S)
        poll_until(lambda: "CALLS" not in names(), "the end of its job")


def test_a_service_shows_how_far_a_map_is(executor: Executor, service: Running, tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    paths = [str(tmp_path / str(call)) for call in range(4)]
    results = executor.map(called.touch_and_wait, paths, [go] * 4)
    with Client(service.api_dir) as client:

        def is_shown() -> bool:
            jobs = [job for job in client.jobs() if job.application == "CALLS" and job.progress is not None]
            return any(
                job.progress.total == 4 and job.progress.unit == "calls" for job in jobs if job.progress
            )

        poll_until(is_shown, "the progress")
    Path(go).touch()
    assert list(results) == paths


def test_ranks_of_its_own_end_with_it() -> None:
    before = _children()
    with Executor(ranks=2) as executor:
        assert sum(executor.map(abs, range(100))) == 4950
        (started,) = _children() - before
        words = Path(f"/proc/{started}/cmdline").read_text().split("\0")
        folder = Path(words[words.index("--api-dir") + 1]).parent
        assert folder.exists()
    assert started not in _children()
    assert not folder.exists()


def test_what_calls_print_on_ranks_of_its_own_is_printed_by_the_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed: list[str] = []

    def has_printed(words: str) -> bool:
        printed.append(capsys.readouterr().out)
        return words in "".join(printed)

    with Executor(ranks=1) as executor:
        executor.submit(print, "at work", flush=True).result(DEADLINE_S)
        poll_until(lambda: has_printed("at work\n"), "the output")  # printed while the ranks run
    has_printed("the rest")
    assert "".join(printed).count("at work") == 1


def test_what_calls_print_last_is_printed_when_the_ranks_have_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mallob_py.api.calls.ranks._PRINTING_S", 600.0)
    with Executor(ranks=1) as executor:
        executor.submit(print, "at the end").result(DEADLINE_S)
    assert capsys.readouterr().out == "at the end\n"


def test_ranks_of_its_own_outlive_the_thread_that_has_started_them() -> None:
    made: list[Executor] = []
    thread = threading.Thread(target=lambda: made.append(Executor(ranks=1)))
    thread.start()
    thread.join()
    with made[0] as executor:
        assert executor.submit(abs, -1).result(DEADLINE_S) == 1


def test_calls_end_with_an_error_when_the_ranks_of_their_own_are_killed(tmp_path: Path) -> None:
    before = _children()
    with Executor(ranks=1) as executor:
        (started,) = _children() - before
        running = executor.submit(called.touch_and_wait, str(tmp_path / "begun"), str(tmp_path / "never"))
        poll_until((tmp_path / "begun").exists, "the call has begun")
        os.killpg(int(started), signal.SIGKILL)
        for future in (running, executor.submit(abs, -1)):
            with pytest.raises(ServiceError, match="ranks have ended"):
                future.result(DEADLINE_S)


#: program that forks, and ends without `shutdown`
CARELESS = """
import os, sys
from mallob_py import Executor

executor = Executor(ranks=1)
if (child := os.fork()) == 0:
    sys.exit(0)
os.waitpid(child, 0)
print(executor.submit(abs, -1).result(float(sys.argv[1])))
"""


def test_a_program_that_forks_and_shuts_nothing_down_has_its_results_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ("long" * 30)  # longer than a socket's path may be
    folder.mkdir()
    program = [sys.executable, "-c", CARELESS, str(DEADLINE_S / 2)]
    done = run(command=program, env={"TMPDIR": str(folder)})
    assert (done.out, done.code) == ("1\n", 0), done.err
    assert list(folder.iterdir()) == []


#: program that ends without a wait for its calls, one of them of an executor that is gone
HASTY = """
import sys
from pathlib import Path
from mallob_py import Executor

sys.path.insert(0, sys.argv[2])
import called

executor = Executor(sys.argv[1])
executor.submit(called.append_and_nap, sys.argv[3], 0)
executor.map(called.append_and_nap, [sys.argv[3]] * 2, [1, 2])
dropped = Executor(sys.argv[1])
dropped.submit(called.append_and_nap, sys.argv[3], 3)
del dropped
"""


#: program that is interrupted as by Ctrl-C during a long call
INTERRUPTED = f"""
{HASTY}
executor.submit(called.naps_long, sys.argv[3] + "/long")
raise KeyboardInterrupt
"""


def _ended(program: str, service: Running, folder: Path) -> Finished:
    arguments = service.api_dir, Path(__file__).parent, folder
    return run(command=[sys.executable, "-c", program, *map(str, arguments)])


def test_the_end_of_a_program_waits_for_its_calls(service: Running, tmp_path: Path) -> None:
    done = _ended(HASTY, service, tmp_path)
    assert (done.out, done.code) == ("", 0), done.err
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {"0", "1", "2", "3"}


def test_ctrl_c_ends_a_program_and_its_calls(service: Running, tmp_path: Path) -> None:
    done = _ended(INTERRUPTED, service, tmp_path)
    assert "KeyboardInterrupt" in done.err


def _children() -> set[str]:
    """Return the child processes of this process."""
    found: set[str] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.update(path.read_text().split())
    return found


def test_a_folder_without_a_service_is_told(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="no service has used"):
        Executor(tmp_path)
    with pytest.raises(ServiceError, match="a service is named by its folder"):
        Executor("tcp://localhost:8786")
    with pytest.raises(TypeError, match=r"to start ranks, use Executor\(ranks=4\)"):
        Executor(4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ranks must be a number above 0"):
        Executor(ranks=0)
    with pytest.raises(TypeError, match="ranks must be a whole number, not '2'"):
        Executor(ranks="2")  # type: ignore[arg-type]


# --- users who may bring code --------------------------------------------------------------------------


def test_a_job_by_hand_is_told_where_jobs_of_this_kind_come_from(service: Running) -> None:
    reply = service.ask("by-hand", application="CALLS")
    assert "comes from an executor" in reply["error"]["message"]


def test_a_job_over_http_may_not_bring_code(service: Running) -> None:
    service.drop("http-00.json", json.dumps({"user": "u", "name": "h", "application": "CALLS"}))
    reply = service.reply(service.box() / "out" / "u.h.json")
    assert "came over HTTP" in reply["error"]["message"]
    assert "--allow-code" in reply["error"]["message"]


@needs_root
@pytest.mark.parametrize("is_link", [False, True], ids=["file", "link"])
def test_another_user_may_not_bring_code(is_link: bool, service: Running, tmp_path: Path) -> None:
    name = f"other-{is_link}"
    job = json.dumps({"user": "u", "name": name, "application": "CALLS"})
    mode = (service.box() / "in").stat().st_mode
    folders = [service.box() / "in", *(service.box() / "in").parents]
    modes = [(folder, folder.stat().st_mode) for folder in folders if folder.stat().st_uid == os.geteuid()]
    ours = tmp_path / "ours.json"
    ours.write_text(job)
    for folder, before in modes:
        folder.chmod(before | 0o777 if folder == folders[0] else before | 0o111)
    try:

        def drop() -> None:
            hidden = folders[0] / f"~{name}.json"
            if is_link:
                hidden.symlink_to(ours)
            else:
                hidden.write_text(job)
            hidden.rename(folders[0] / f"{name}.json")

        as_nobody(drop)
        reply = service.reply(service.box() / "out" / f"u.{name}.json")
    finally:
        for folder, before in modes:
            folder.chmod(before)
    assert (service.box() / "in").stat().st_mode == mode
    assert "belongs to another user" in reply["error"]["message"]


def test_a_service_may_allow_code_from_everybody(tmp_path: Path) -> None:
    with serving(tmp_path, "--allow-code", ranks=1) as service:
        service.drop("http-00.json", json.dumps({"user": "u", "name": "h", "application": "CALLS"}))
        reply = service.reply(service.box() / "out" / "u.h.json")
        assert "comes from an executor" in reply["error"]["message"]


def test_a_refused_job_is_the_error_of_its_calls(service: Running) -> None:
    with Executor(service.api_dir, user="not/fit") as executor, pytest.raises(JobError, match="user"):
        executor.submit(abs, 1).result()
