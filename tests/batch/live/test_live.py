"""The batch scheduler as users have it: real processes, killed and started again."""

import contextlib
import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gated_bags
import msgspec
import pytest
from faults.processes import processes_with
from foreign_files import Kind, found, put, put_all
from other_user import as_nobody, folder_for_all, needs_root
from running import COMMAND
from small_disks import small_disk
from waiting import DEADLINE_S, poll_until

from mallob_py.batch.live.launch import TOKEN, Launch, write_in_the_end
from mallob_py.batch.live.nodes import NodeState
from mallob_py.batch.live.requests import (
    Answer,
    Bars,
    Cancel,
    Done,
    Explain,
    Explained,
    Gantt,
    JobLine,
    Jobs,
    LiveError,
    NodeLine,
    NodeLines,
    Nodes,
    Queue,
    Request,
    Submit,
    ask,
)
from mallob_py.malleable.sockets import connect

ROOT = Path(__file__).parents[3]
PATH = os.pathsep.join([str(ROOT), str(ROOT / "apps"), os.environ.get("PYTHONPATH", "")])
ENVIRONMENT = dict(os.environ) | {"PYTHONPATH": PATH}


class Scheduler:
    """`mallob-py batch serve` on a folder, with the requests of its users."""

    def __init__(self, folder: Path, *options: str, slots: int | None = 4) -> None:
        self.folder = folder
        self.options = options
        self.slots = slots
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [*COMMAND, "batch", "serve", "--dir", str(self.folder)]
        if self.slots is not None:
            command += ["--slots", str(self.slots)]
        with open(self.folder.with_suffix(".log"), "ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.options], env=ENVIRONMENT, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        poll_until(self.is_up, self.story)

    def is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.story()
        try:
            ask(self.folder, Nodes())
        except LiveError:
            return False
        return True

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Cancel all jobs and end the scheduler, so that no process is left."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        assert self.process is not None
        for line in [*self.queue().waiting, *self.queue().running]:
            self.cancel(line.job)
        poll_until(lambda: not self.queue().running, self.story)
        self.process.terminate()
        assert self.process.wait(DEADLINE_S) == 0, self.story()

    def story(self) -> str:
        return self.folder.with_suffix(".log").read_text()

    def ask(self, request: Request) -> Answer:
        return ask(self.folder, request)

    def submit(
        self,
        headers: str,
        body: str,
        directory: Path | None = None,
        after: tuple[int, ...] = (),
        after_ok: tuple[int, ...] = (),
    ) -> int:
        script = "#!/bin/bash\n" + "".join(f"#{line}\n" for line in headers.split("; ")) + body
        where = str(directory or self.folder.parent)
        request = Submit(script, "job", where, ENVIRONMENT, {}, list(after), list(after_ok))
        answer = self.ask(request)
        assert isinstance(answer, Done)
        return answer.job

    def explained(self, job: int) -> str:
        answer = self.ask(Explain(job))
        assert isinstance(answer, Explained)
        return " ".join(answer.lines)

    def cancel(self, job: int) -> None:
        """Cancel a job, unless it has ended meanwhile."""
        with contextlib.suppress(LiveError):
            self.ask(Cancel(job))

    def queue(self) -> Jobs:
        answer = self.ask(Queue(1000, 1000))
        assert isinstance(answer, Jobs)
        return answer

    def ended(self, job: int) -> JobLine:
        """Wait until a job has ended; return its line in the list of ended jobs."""
        return poll_until(
            lambda: next((one for one in self.queue().ended if one.job == job), None), self.story
        )

    def output(self, job: int) -> str:
        for part in ("jobs", "ended"):
            path = self.folder / part / str(job) / "output"
            if path.exists():
                return path.read_text()
        return ""

    def processes_of(self, job: int) -> list[int]:
        return processes_with(TOKEN, str(self.folder / "jobs" / str(job)))


#: function that makes a scheduler; it takes the arguments of Scheduler except for the folder
Make = Callable[..., Scheduler]


def scheduler_maker(tmp_path: Path) -> Iterator[Make]:
    """Yield, for a fixture, a function that makes schedulers; none of their processes outlives the
    fixture.
    """
    made: list[Scheduler] = []

    def scheduler(*options: str, slots: int | None = 4) -> Scheduler:
        made.append(Scheduler(tmp_path / f"batch{len(made)}", *options, slots=slots))
        made[-1].start()
        return made[-1]

    yield scheduler
    for one in made:
        one.stop()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    yield from scheduler_maker(tmp_path)


def the_file(folder: Path, name: str) -> tuple[Path, str]:
    """Return the path of a file, and a line of bash that waits for the file."""
    path = folder / name
    return path, f"until [ -e {path} ]; do sleep 0.05; done\n"


RIGID = "REQUIRED_TIME 600000; NODES 1"


def test_jobs_run_with_their_variables_in_their_folder(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "fcfs")
    job = scheduler.submit(
        "JOB_NAME mine; REQUIRED_TIME 600000; NODES 3",
        'echo $NODES $JOBNAME $ELASTIC $(wc -l < "$NODE_FILE") $PWD; exit 3\n',
    )
    line = scheduler.ended(job)
    assert (line.state, line.name) == ("exit code 3", "mine")
    assert scheduler.output(job) == f"3 mine rigid 3 {tmp_path}\n"
    assert Path(line.output).read_text() == scheduler.output(job)


def test_a_job_does_not_inherit_the_orders_of_the_job_that_submits_it(make: Make, tmp_path: Path) -> None:
    scheduler = make()
    inherited = ENVIRONMENT | {"JOB_SOCKET": "/jobs/1/orders.sock", "SCHEDULER_SOCKET": "/scheduler.sock"}
    script = "#!/bin/bash\n#NODES 1\n#REQUIRED_TIME 60000\necho ${JOB_SOCKET-none} ${SCHEDULER_SOCKET-none}\n"
    answer = scheduler.ask(Submit(script, "inner", str(tmp_path), inherited))
    assert isinstance(answer, Done)
    assert scheduler.ended(answer.job).state == "exit code 0"
    assert scheduler.output(answer.job) == "none none\n"


def test_a_script_for_slurm_runs_unchanged(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "fcfs", "--default-time", "7m")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "out-mine-1").write_text("of another run")
    job = scheduler.submit(
        "SBATCH -J mine -D run -o out-%x-%j; SBATCH -e errors", "echo $NODES $PWD; echo oh >&2; exit 3\n"
    )
    line = scheduler.ended(job)
    assert (line.state, line.required_s, line.output) == ("exit code 3", 420.0, f"{tmp_path}/run/out-mine-1")
    assert Path(line.output).read_text() == f"1 {tmp_path}/run\n"
    assert (tmp_path / "run" / "errors").read_text() == "oh\n"
    both = scheduler.submit("JOB_OUTPUT both", "echo out; echo oh >&2\n")
    assert scheduler.ended(both).state == "exit code 0"
    assert (tmp_path / "both").read_text() == "out\noh\n"


def test_an_output_that_cannot_be_opened_is_named_and_nothing_runs(make: Make, tmp_path: Path) -> None:
    scheduler = make()
    os.mkfifo(tmp_path / "fifo")
    for name, why in (("none/out", "No such file or directory"), ("fifo", "No such device or address")):
        job = scheduler.submit(f"JOB_ERRORS {name}", f"touch {tmp_path}/ran\n")
        assert scheduler.ended(job).state == f"not started: {tmp_path}/{name}: {why}"
    assert not (tmp_path / "ran").exists()


def test_a_killed_scheduler_finds_its_jobs_again_and_runs_none_twice(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "easy", slots=2)
    go, waits = the_file(tmp_path, "go")
    early, waits_early = the_file(tmp_path, "early")
    running = scheduler.submit(RIGID, f"echo begun\n{waits}echo over\n")
    ends_meanwhile = scheduler.submit(RIGID, f"echo begun\n{waits_early}echo over\nexit 5\n")
    waiting = scheduler.submit("REQUIRED_TIME 600000; NODES 2", "echo alone\n")
    poll_until(lambda: scheduler.output(running) and scheduler.output(ends_meanwhile))
    pid = scheduler.processes_of(running)
    scheduler.kill()
    early.touch()
    poll_until(lambda: (scheduler.folder / "jobs" / str(ends_meanwhile) / "status.json").exists())
    scheduler.start()
    assert scheduler.ended(ends_meanwhile).state == "exit code 5"
    assert set(pid) & set(scheduler.processes_of(running))
    assert [line.job for line in scheduler.queue().waiting] == [waiting]
    scheduler.kill()
    scheduler.start()
    go.touch()
    for job, output in ((running, "begun\nover\n"), (ends_meanwhile, "begun\nover\n"), (waiting, "alone\n")):
        assert scheduler.ended(job).state.startswith("exit code")
        assert scheduler.output(job) == output


def test_kills_at_any_moment_lose_no_job_and_double_none(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "backfilling")
    ran = tmp_path / "ran"
    jobs = [scheduler.submit(RIGID, f"echo {number} >> {ran}\n") for number in range(30)]
    for _ in range(5):
        before = len(scheduler.queue().ended)
        poll_until(
            lambda before=before: len(scheduler.queue().ended) > before or not scheduler.queue().running
        )
        scheduler.kill()
        scheduler.start()
    assert {scheduler.ended(job).state for job in jobs} == {"exit code 0"}
    assert sorted(map(int, ran.read_text().split())) == list(range(30))


def test_a_job_over_its_time_is_ended_even_if_it_does_not_want_to(make: Make) -> None:
    scheduler = make("--policy", "easy")
    job = scheduler.submit(
        "REQUIRED_TIME 1000; NODES 1", "trap '' TERM\nsetsid sleep 600 &\nwhile true; do sleep 1; done\n"
    )
    assert scheduler.ended(job).state == "over its required time"
    assert not scheduler.processes_of(job)


def test_what_a_job_leaves_behind_ends_with_it(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "easy")
    job = scheduler.submit(
        RIGID, "(setsid sleep 600 &)\n(env -i setsid sleep 601 & echo $! > left)\nexit 0\n"
    )
    assert scheduler.ended(job).state == "exit code 0"
    assert not scheduler.processes_of(job)
    assert not Path(f"/proc/{(tmp_path / 'left').read_text().strip()}").exists()


def test_jobs_whose_keeper_is_killed_end(make: Make) -> None:
    scheduler = make("--policy", "easy")
    job = scheduler.submit(RIGID, "(setsid sleep 600 &)\necho here\nsleep 601\n")
    poll_until(lambda: len(scheduler.processes_of(job)) >= 3, scheduler.story)
    begun = (scheduler.folder / "jobs" / str(job) / "begun.json").read_text()
    os.kill(int(re.sub(r"\D", "", begun)), signal.SIGKILL)
    assert scheduler.ended(job).state == "keeper killed"
    assert not scheduler.processes_of(job)


def test_what_hides_from_a_keeper_that_is_killed_ends_with_it_and_other_jobs_go_on(
    make: Make, tmp_path: Path
) -> None:
    scheduler = make("--policy", "easy")
    go, waits = the_file(tmp_path, "go")
    other = scheduler.submit(RIGID, f"(env -i setsid sleep 600 & echo $! > other)\n{waits}")
    hides = "(env -i setsid sh -c 'sleep 602 & echo $! > .left; mv .left left; sleep 603') &\n"
    job = scheduler.submit(RIGID, f"{hides}sleep 601\n")
    poll_until((tmp_path / "left").exists, scheduler.story)
    poll_until((tmp_path / "other").exists, scheduler.story)
    begun = (scheduler.folder / "jobs" / str(job) / "begun.json").read_text()
    os.kill(int(re.sub(r"\D", "", begun)), signal.SIGKILL)
    assert scheduler.ended(job).state == "keeper killed"
    assert not Path(f"/proc/{(tmp_path / 'left').read_text().strip()}").exists()
    go.touch()
    assert scheduler.ended(other).state == "exit code 0"


def test_jobs_are_cancelled_while_they_wait_and_while_they_run(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "conservative")
    _, waits = the_file(tmp_path, "never")
    running = scheduler.submit("REQUIRED_TIME 600000; NODES 4", f"echo here\n{waits}")
    waiting = scheduler.submit("REQUIRED_TIME 600000; NODES 4", waits)
    last = scheduler.submit("REQUIRED_TIME 600000; NODES 4", "echo last\n")
    poll_until(lambda: scheduler.output(running))
    scheduler.cancel(waiting)
    scheduler.cancel(running)
    assert scheduler.ended(running).state == scheduler.ended(waiting).state == "cancelled"
    assert scheduler.ended(last).state == "exit code 0"
    with pytest.raises(LiveError, match="job 1 has ended already"):
        scheduler.ask(Cancel(running))
    with pytest.raises(LiveError, match="there is no job 99"):
        scheduler.ask(Cancel(99))


def test_jobs_come_after_others_and_after_their_success_and_a_killed_scheduler_knows_that(
    make: Make, tmp_path: Path
) -> None:
    scheduler = make()
    go, waits = the_file(tmp_path, "go")
    first = scheduler.submit(RIGID, waits + "exit 3\n")
    second = scheduler.submit(RIGID, waits)
    after = scheduler.submit(RIGID, "echo after\n", after=(first, second))
    needs = scheduler.submit(RIGID, "echo needs\n", after_ok=(second,))
    lacks = scheduler.submit(RIGID, "echo lacks\n", after_ok=(first, second))
    too = scheduler.submit(RIGID, "echo too\n", after_ok=(lacks,))
    gone = scheduler.submit(RIGID, "echo gone\n", after=(first,))
    waiting = {line.job: line.reason for line in scheduler.queue().waiting}
    assert waiting[after] == f"comes after job {first}, {second}"
    assert set(waiting) == {after, needs, lacks, too, gone}
    assert f"comes after job {second}." in scheduler.explained(needs)
    scheduler.cancel(gone)
    with pytest.raises(LiveError, match="there is no job 99"):
        scheduler.submit(RIGID, "", after=(99,))
    scheduler.kill()
    scheduler.start()
    assert {line.job for line in scheduler.queue().waiting} == {after, needs, lacks, too}
    go.touch()
    states = {job: scheduler.ended(job).state for job in (first, second, after, needs, lacks, too, gone)}
    assert [states[job] for job in (first, second, after, needs, gone)] == [
        *("exit code 3", "exit code 0", "exit code 0", "exit code 0", "cancelled")
    ]
    assert states[lacks] == f"not started: job {first}, which it needs, has ended: exit code 3"
    assert states[too] == f"not started: job {lacks}, which it needs, has ended: not started"
    assert [scheduler.output(job) for job in (lacks, too, gone)] == ["", "", ""]
    late = scheduler.submit(RIGID, "echo late\n", after_ok=(second,))
    assert scheduler.ended(late).state == "exit code 0"


def test_a_job_that_has_ended_well_may_be_forgotten_by_those_that_need_it(make: Make, tmp_path: Path) -> None:
    scheduler = make()
    go, waits = the_file(tmp_path, "go")
    first = scheduler.submit(RIGID, "true\n")
    second = scheduler.submit(RIGID, waits)
    needs = scheduler.submit(RIGID, "echo needs\n", after_ok=(first, second))
    assert scheduler.ended(first).state == "exit code 0"
    shutil.rmtree(scheduler.folder / "ended" / str(first))
    scheduler.kill()
    scheduler.start()
    go.touch()
    assert scheduler.ended(needs).state == "exit code 0"


def test_a_long_chain_ends_if_its_first_job_fails(make: Make, tmp_path: Path) -> None:
    scheduler = make()
    go, waits = the_file(tmp_path, "go")
    first = last = scheduler.submit(RIGID, waits + "exit 1\n")
    for _ in range(600):
        last = scheduler.submit(RIGID, "true\n", after_ok=(last,))
    go.touch()
    poll_until(lambda: (scheduler.folder / "ended" / str(last)).exists())
    assert f"job {last - 1}, which it needs, has ended: not started" in scheduler.explained(last)
    assert len(os.listdir(scheduler.folder / "ended")) == last - first + 1
    answer = scheduler.ask(Queue(1000, 0))
    assert isinstance(answer, Jobs)
    assert answer.running == answer.waiting == []


def test_why_a_job_waits_and_when_it_starts_is_explained(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "easy")
    _, waits = the_file(tmp_path, "never")
    first = scheduler.submit("REQUIRED_TIME 600000; NODES 3", waits)
    poll_until(lambda: scheduler.queue().running)
    second = scheduler.submit("REQUIRED_TIME 600000; NODES 2", waits)
    told = scheduler.explained(second)
    assert "wants 2 slots, 1 free" in told
    assert f"Job {first}, with 3 of the slots, ends in" in told
    assert re.search(r"It starts in (5\d\d|600) s if all jobs take the time", told)
    assert "runs on 3 slots" in scheduler.explained(first)
    scheduler.cancel(second)
    assert "has ended: cancelled" in scheduler.explained(second)
    with pytest.raises(LiveError, match="neither live nor ended"):
        scheduler.ask(Explain(99))


def test_a_program_that_cannot_be_started_says_so(make: Make, tmp_path: Path) -> None:
    scheduler = make()
    answer = scheduler.ask(
        Submit(f"#!/nowhere\n#{RIGID.replace('; ', chr(10) + '#')}\n", "x", str(tmp_path), {})
    )
    assert isinstance(answer, Done)
    assert scheduler.ended(answer.job).state.startswith("not started: ")


# --- jobs whose processes fail in part ---------------------------------------------------------


def fill_disk(scheduler: Scheduler, is_full: bool) -> None:
    """Limit the scheduler's files to no bytes, as on a full disk, or lift this limit."""
    assert scheduler.process is not None
    size_bytes = 0 if is_full else resource.RLIM_INFINITY
    resource.prlimit(scheduler.process.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


def test_jobs_that_were_to_start_while_the_disk_was_full_start_when_it_is_not(
    make: Make, tmp_path: Path
) -> None:
    scheduler = make("--policy", "fcfs", slots=2)
    go, waits = the_file(tmp_path, "go")
    first = scheduler.submit("REQUIRED_TIME 600000; NODES 2", waits)
    others = [scheduler.submit(RIGID, "echo done\n") for _ in range(3)]
    poll_until(lambda: scheduler.queue().running)
    fill_disk(scheduler, True)
    go.touch()
    assert scheduler.ended(first).state == "exit code 0"
    for job in others[:2]:
        poll_until((scheduler.folder / "jobs" / str(job) / ".run.json.part").exists, scheduler.story)
    assert [line.job for line in scheduler.queue().waiting] == others
    fill_disk(scheduler, False)
    for job in others:
        assert scheduler.ended(job).state == "exit code 0"
        assert scheduler.output(job) == "done\n"


def test_a_submission_that_had_no_room_on_the_disk_is_no_hindrance_to_the_next(make: Make) -> None:
    scheduler = make("--policy", "fcfs")
    fill_disk(scheduler, True)
    for _ in range(2):
        with pytest.raises(LiveError, match=r"the job cannot be saved: .*File too large"):
            scheduler.submit(RIGID, "echo done\n")
    fill_disk(scheduler, False)
    assert scheduler.ended(scheduler.submit(RIGID, "echo done\n")).state == "exit code 0"


def test_a_job_that_is_cancelled_while_the_disk_is_full_does_not_run_after_a_restart(
    make: Make, tmp_path: Path
) -> None:
    scheduler = make("--policy", "fcfs", slots=1)
    go, waits = the_file(tmp_path, "go")
    first = scheduler.submit(RIGID, waits)
    second = scheduler.submit(RIGID, "echo done\n")
    fill_disk(scheduler, True)
    scheduler.cancel(second)
    assert not scheduler.queue().waiting
    scheduler.kill()
    scheduler.start()
    assert scheduler.ended(second).state == "cancelled"
    go.touch()
    assert scheduler.ended(first).state == "exit code 0"


def test_how_a_job_has_ended_has_room_on_the_disk_that_it_has_filled(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as folder:
        folder.chmod(0o700)
        scheduler = Scheduler(folder, slots=1)
        scheduler.start()
        try:
            job = scheduler.submit(RIGID, "yes\nsleep 1000\n")
            poll_until(lambda: shutil.disk_usage(folder).free == 0, scheduler.story)
            scheduler.cancel(job)
            assert scheduler.ended(job).state == "cancelled"
            (folder / "ended" / str(job) / "output").unlink()
            assert scheduler.ended(scheduler.submit(RIGID, "echo done\n")).state == "exit code 0"
        finally:
            for output in folder.rglob("output"):
                output.unlink()
            scheduler.stop()


def test_a_keeper_writes_how_its_job_has_ended_once_the_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = list[float]()

    def no_room(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def passes(time_s: float) -> None:
        tries.append(time_s)
        if len(tries) == 3:
            monkeypatch.undo()

    monkeypatch.setattr(os, "fsync", no_room)
    monkeypatch.setattr(time, "sleep", passes)
    write_in_the_end(tmp_path / "status.json", b"{}")
    assert (len(tries), (tmp_path / "status.json").read_bytes()) == (3, b"{}")
    with pytest.raises(FileNotFoundError):
        write_in_the_end(tmp_path / "none" / "status.json", b"{}")


def test_a_keeper_that_waits_for_room_on_the_disk_can_be_told_to_end(tmp_path: Path) -> None:
    launch = Launch(["/bin/sh", "-c", f"touch {tmp_path}/ran"], str(tmp_path), {}, 60.0)
    (tmp_path / "launch.json").write_bytes(msgspec.json.encode(launch))
    keeper = subprocess.Popen(
        [sys.executable, "-m", "mallob_py.batch.live.keeper", str(tmp_path), "0"],
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY)),
    )
    with keeper:
        try:
            poll_until((tmp_path / ".status.json.part").exists)
            keeper.terminate()
            assert keeper.wait(DEADLINE_S) == 0
        finally:
            keeper.kill()
    assert not (tmp_path / "begun.json").exists()
    assert not (tmp_path / "ran").exists()


def test_a_job_that_cannot_be_started_keeps_no_other_from_its_start(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "fcfs", slots=2)
    go, waits = the_file(tmp_path, "go")
    scheduler.submit("REQUIRED_TIME 600000; NODES 2", waits)
    later, waits_later = the_file(tmp_path, "later")
    damaged, good, next_one = (scheduler.submit(RIGID, body) for body in ("", waits_later, "echo done\n"))
    (scheduler.folder / "jobs" / str(damaged) / "job.json").write_text("{")
    go.touch()
    # The next job has the damaged job's slot; the sound job keeps its own.
    assert scheduler.ended(next_one).state == "exit code 0"
    later.touch()
    assert scheduler.ended(good).state == "exit code 0"
    assert f"job {damaged} job has ended: not started: " in scheduler.story()


def test_a_job_whose_name_cannot_be_printed_runs_and_ends(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "PYTHONIOENCODING", "ascii")
    scheduler = make("--policy", "fcfs", slots=1)
    jobs = [scheduler.submit(f"JOB_NAME größe; {RIGID}", "echo done\n") for _ in range(2)]
    assert [scheduler.ended(job).state for job in jobs] == ["exit code 0"] * 2
    assert "job 1 gr\\xf6\\xdfe starts on 1 slot" in scheduler.story()


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the program that docs/batch-live.md shows."""
    text = (ROOT / "docs/batch-live.md").read_text()
    (source,) = re.findall(r"^```python\n# primes.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    path = tmp_path_factory.mktemp("example") / "primes.py"
    path.write_text(source)
    return path


def test_the_example_of_the_document_runs_without_a_scheduler(example: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example), "20000"], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2262 primes\n"


@pytest.mark.slow
def test_the_example_of_the_document_grows_and_shrinks_on_orders(
    make: Make, example: Path, tmp_path: Path
) -> None:
    scheduler = make("--policy", "elastic:cooldown-s=5")
    malleable = "JOB_CLASS malleable; REQUIRED_TIME 600000; MIN_NODES 1; MAX_NODES 4"

    def nodes() -> int:
        return sum(line.nodes for line in scheduler.queue().running if line.job == job)

    job = scheduler.submit(malleable, f"exec {sys.executable} {example} 1000000000\n")
    poll_until(lambda: nodes() == 4, scheduler.story)
    go, waits = the_file(tmp_path, "go")
    rigid = scheduler.submit("REQUIRED_TIME 600000; NODES 3", waits)
    poll_until(lambda: len(scheduler.queue().running) == 2, scheduler.story)
    answer = scheduler.ask(Nodes())
    assert isinstance(answer, NodeLines)
    assert sorted(one or 0 for one in answer.nodes[0].jobs) == [job, rigid, rigid, rigid]
    scheduler.kill()
    scheduler.start()
    go.touch()
    assert scheduler.ended(rigid).state == "exit code 0"
    chart = scheduler.ask(Bars(1e9))
    assert isinstance(chart, Gantt)
    assert [name for _, name in chart.slots] == ["0", "1", "2", "3"]
    assert {len(bar.slots) for bar in chart.bars if bar.job == rigid and bar.end_s is not None} == {3}
    assert [bar.end_s is None for bar in chart.bars if bar.job == job][-1]
    poll_until(lambda: nodes() == 4, scheduler.story)
    poll_until(lambda: scheduler.output(job) == "grown to 4\nshrunk to 1\ngrown to 4\n", scheduler.story)
    scheduler.cancel(job)
    small = scheduler.submit(malleable, f"exec {sys.executable} {example} 20000\n")
    assert scheduler.ended(small).state == "exit code 0"
    assert scheduler.output(small).endswith("2262 primes\n")


@pytest.mark.slow
def test_run_has_a_rank_for_each_slot_that_it_is_given(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "elastic:cooldown-s=5")
    go, waits = the_file(tmp_path, "go")
    rigid = scheduler.submit("REQUIRED_TIME 600000; NODES 2", waits)
    poll_until(lambda: scheduler.queue().running, scheduler.story)
    job = scheduler.submit(
        "JOB_CLASS malleable; REQUIRED_TIME 600000; MIN_NODES 1; MAX_NODES 4",
        f"exec {' '.join(COMMAND)} run UTS --set depth=20 --rank-loss survive\n",
    )
    poll_until(lambda: "2 ranks go on" in scheduler.output(job), lambda: story_of(scheduler, job))
    go.touch()
    assert scheduler.ended(rigid).state == "exit code 0"
    poll_until(lambda: "4 ranks go on" in scheduler.output(job), lambda: story_of(scheduler, job))
    go.unlink()
    scheduler.submit("REQUIRED_TIME 600000; NODES 3", waits)
    poll_until(lambda: "1 rank goes on" in scheduler.output(job), lambda: story_of(scheduler, job))
    poll_until(lambda: len(scheduler.queue().running) == 2, scheduler.story)
    scheduler.cancel(job)
    assert scheduler.ended(job).state.startswith("cancelled")
    assert scheduler.processes_of(job) == []


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "on a node"])
def test_a_bag_asks_for_slots_while_it_expects_work_and_gives_them_back_in_its_tail(
    make: Make, tmp_path: Path, where: str
) -> None:
    # The policy `easy` never resizes a job.
    if where == "here":
        scheduler = make("--policy", "easy", slots=3)
    else:
        scheduler = Hosts(tmp_path, make, "--policy", "easy", slots=(3,)).scheduler
    job = scheduler.submit(gated_bags.HEADERS, gated_bags.body(COMMAND, tmp_path, PATH))
    poll_until(lambda: "3 ranks go on" in scheduler.output(job), lambda: story_of(scheduler, job))
    assert scheduler.story().count("has work for") == 1
    scheduler.kill()
    scheduler.start()
    go, waits = the_file(tmp_path, "rigid-go")
    rigid = scheduler.submit("REQUIRED_TIME 600000; NODES 2", waits)
    # The job reports its wish to the restarted scheduler, too.
    poll_until(lambda: scheduler.story().count("has work for 3 slots") == 2, lambda: story_of(scheduler, job))
    assert [line.job for line in scheduler.queue().running] == [job]
    (tmp_path / "tail").touch()
    poll_until(lambda: "1 rank goes on" in scheduler.output(job), lambda: story_of(scheduler, job))
    poll_until(lambda: len(scheduler.queue().running) == 2, lambda: story_of(scheduler, job))
    assert scheduler.story().count("has work for 1 slot") == 1
    (tmp_path / "go").touch()
    assert scheduler.ended(job).state == "exit code 0"
    assert f'"value":{gated_bags.COUNT},' in scheduler.output(job)
    go.touch()
    assert scheduler.ended(rigid).state == "exit code 0"
    assert "counts as rigid" not in scheduler.story()


@pytest.mark.slow
def test_the_curve_of_a_bag_is_fitted_to_its_rates_on_several_numbers_of_slots(
    make: Make, tmp_path: Path
) -> None:
    scheduler = make("--policy", "curve:curve=fitted,period_s=0.5", slots=3)
    headers = gated_bags.HEADERS.replace("evolving", "malleable")
    job = scheduler.submit(headers, gated_bags.body(COMMAND, tmp_path, PATH))

    def explained(what: str) -> None:
        poll_until(
            lambda: what in scheduler.explained(job),
            lambda: f"{scheduler.explained(job)}\n{story_of(scheduler, job)}",
        )

    explained(", by its rates on 3.")
    assert "counts as n^0.80, by" in scheduler.explained(job), "as assumed"
    go, waits = the_file(tmp_path, "rigid-go")
    rigid = scheduler.submit("REQUIRED_TIME 600000; NODES 2", waits)
    explained(", by its rates on 1, 3.")
    go.touch()
    assert scheduler.ended(rigid).state == "exit code 0"
    for name in ("tail", "go"):
        (tmp_path / name).touch()
    assert scheduler.ended(job).state == "exit code 0"
    assert f'"value":{gated_bags.COUNT},' in scheduler.output(job)
    assert "no notice" not in scheduler.story()
    tell(scheduler, f"Evolving;Progress;much:{scheduler.folder}/jobs/{job}/orders.sock")
    poll_until(lambda: scheduler.story().count("no notice: 'Evolving;Progress;much:") == 1, scheduler.story)


def story_of(scheduler: Scheduler, job: int) -> str:
    return f"{scheduler.story()}\n{scheduler.output(job)}"


DEAF = """
import os, socket
server = socket.socket(socket.AF_UNIX)
server.bind(os.environ["JOB_SOCKET"])
server.listen()
with socket.socket(socket.AF_UNIX) as scheduler:
    scheduler.connect(os.environ["SCHEDULER_SOCKET"])
    scheduler.sendall(f"APGAS-Ready:{os.environ['JOB_SOCKET']}\\n".encode())
while True:
    server.accept()[0].close()
"""


@pytest.mark.slow
def test_nobody_waits_for_a_job_that_does_not_answer(make: Make, tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(DEAF)
    scheduler = make("--policy", "elastic:cooldown-s=5,start=code", slots=2)
    deaf = scheduler.submit(
        "JOB_CLASS malleable; REQUIRED_TIME 600000; MIN_NODES 1; MAX_NODES 2",
        f"exec {sys.executable} {tmp_path}/deaf.py\n",
    )
    poll_until(
        lambda: [one.state for one in scheduler.queue().running] == ["runs, takes orders"], scheduler.story
    )
    rigid = scheduler.submit(RIGID, "echo done\n")
    poll_until(lambda: "counts as rigid from now on: " in scheduler.story(), scheduler.story)
    assert [(one.job, one.state, one.nodes) for one in scheduler.queue().running] == [(deaf, "runs", 2)]
    scheduler.cancel(deaf)
    assert scheduler.ended(rigid).state == "exit code 0"


WILLING = """
import os, socket
server = socket.socket(socket.AF_UNIX)
server.bind(os.environ["JOB_SOCKET"])
server.listen()
with socket.socket(socket.AF_UNIX) as scheduler:
    scheduler.connect(os.environ["SCHEDULER_SOCKET"])
    scheduler.sendall(f"APGAS-Ready:{os.environ['JOB_SOCKET']}\\n".encode())
while True:
    with server.accept()[0] as connection:
        connection.recv(1000)
"""


def test_a_program_that_takes_no_more_orders_says_so_and_is_given_none(make: Make, tmp_path: Path) -> None:
    stop, _ = the_file(tmp_path, "stop")
    program = tmp_path / "leaving.py"
    program.write_text(
        f"{EVOLVING.replace('malleable.ask_for_processes(2)', '')}\n"
        f"while not __import__('os').path.exists({str(stop)!r}): time.sleep(0.05)\n"
        "malleable.disable_malleable_handler()\n"
        "while True: time.sleep(1.0)\n"
    )
    scheduler = make("--policy", "elastic:start=code", slots=2)
    job = scheduler.submit(
        "JOB_CLASS malleable; REQUIRED_TIME 600000; MIN_NODES 1; MAX_NODES 2",
        f"exec {sys.executable} {program}\n",
    )

    def states() -> list[str]:
        return [one.state for one in scheduler.queue().running]

    poll_until(lambda: states() == ["runs, takes orders"], lambda: story_of(scheduler, job))
    stop.touch()
    poll_until(lambda: states() == ["runs"], lambda: story_of(scheduler, job))
    rigid = scheduler.submit(RIGID, "echo done\n")
    assert states() == ["runs"]
    scheduler.cancel(job)
    assert scheduler.ended(rigid).state == "exit code 0"
    assert "shrink" not in scheduler.story()
    assert "rigid" not in scheduler.story()


def test_a_job_that_grows_while_the_disk_is_full_takes_orders_afterwards(make: Make, tmp_path: Path) -> None:
    (tmp_path / "willing.py").write_text(WILLING)
    scheduler = make("--policy", "elastic:cooldown-s=1,period-s=1", slots=2)
    go, waits = the_file(tmp_path, "go")
    rigid = scheduler.submit(RIGID, waits)
    poll_until(lambda: scheduler.queue().running, scheduler.story)
    job = scheduler.submit(
        "JOB_CLASS malleable; REQUIRED_TIME 600000; MIN_NODES 1; MAX_NODES 2",
        f"exec {sys.executable} {tmp_path}/willing.py\n",
    )

    def state() -> list[tuple[int, int, str]]:
        return [(one.job, one.nodes, one.state) for one in scheduler.queue().running]

    poll_until(lambda: (job, 1, "runs, takes orders") in state(), scheduler.story)
    fill_disk(scheduler, True)
    go.touch()
    assert scheduler.ended(rigid).state == "exit code 0"
    poll_until((scheduler.folder / "jobs" / str(job) / ".run.json.part").exists, scheduler.story)
    fill_disk(scheduler, False)
    poll_until(lambda: state() == [(job, 2, "runs, takes orders")], scheduler.story)
    assert "counts as rigid" not in scheduler.story()


# --- notices of jobs' ends ---------------------------------------------------------------------


def tell(scheduler: Scheduler, line: str) -> None:
    with connect(str(scheduler.folder / "scheduler.sock"), DEADLINE_S) as connection:
        connection.sendall(f"{line}\n".encode())


def test_a_job_never_releases_the_slot_where_its_script_runs(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "fcfs", slots=2)
    go, waits = the_file(tmp_path, "go")
    job = scheduler.submit("JOB_CLASS evolving; REQUIRED_TIME 600000; MIN_NODES 2; MAX_NODES 2", waits)
    poll_until(lambda: scheduler.queue().running)
    release = f"Evolving;Release;localhost:{scheduler.folder}/jobs/{job}/orders.sock"
    tell(scheduler, release)
    poll_until(lambda: scheduler.queue().running[0].nodes == 1, scheduler.story)
    tell(scheduler, release)
    poll_until(
        lambda: "job 1 job: released 'localhost', where it has nothing to release" in scheduler.story(),
        scheduler.story,
    )
    answer = scheduler.ask(Nodes())
    assert isinstance(answer, NodeLines)
    assert sorted(answer.nodes[0].jobs, key=bool) == [None, job]
    go.touch()
    assert scheduler.ended(job).state == "exit code 0"


EVOLVING = """
import subprocess, sys, time
from mallob_py import malleable

class Handler:
    def pre_shrink(self, count): raise AssertionError("nobody shrinks it")
    def post_shrink(self, now, removed): pass
    def pre_grow(self, count): print("growing by", count, flush=True)
    def post_grow(self, now, continued, added):
        processes.end(added)
        print("grown to", now, flush=True)

processes = malleable.PlaceProcesses(lambda place: subprocess.Popen(["sleep", "1000"]))
assert malleable.define_malleable_handler(Handler(), processes)
malleable.ask_for_processes(2)
"""


def test_an_evolving_program_asks_for_more_and_has_them_when_another_job_ends(
    make: Make, tmp_path: Path
) -> None:
    scheduler = make("--policy", "easy", slots=3)
    go = tmp_path / "go"
    leave, leaves = the_file(tmp_path, "leave")
    other = scheduler.submit("REQUIRED_TIME 600000; NODES 2", leaves)
    program = tmp_path / "evolving.py"
    program.write_text(
        f"{EVOLVING}\nwhile not __import__('os').path.exists({str(go)!r}): time.sleep(0.05)\n"
        "processes.end(processes.places)\n"
    )
    job = scheduler.submit(
        "JOB_CLASS evolving; REQUIRED_TIME 600000; NODES 1; MIN_NODES 1; MAX_NODES 3",
        f"exec {sys.executable} {program}\n",
    )
    poll_until(
        lambda: {line.state for line in scheduler.queue().running} == {"runs", "runs, takes orders"},
        scheduler.story,
    )
    assert "grow" not in scheduler.story()
    leave.touch()
    assert scheduler.ended(other).state == "exit code 0"
    poll_until(lambda: scheduler.output(job) == "growing by 2\ngrown to 3\n", scheduler.story)
    assert [line.nodes for line in scheduler.queue().running] == [3]
    go.touch()
    assert scheduler.ended(job).state == "exit code 0"


def test_a_notice_names_the_socket_of_its_own_job(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "elastic:cooldown-s=5,start=code", slots=2)
    go, waits = the_file(tmp_path, "go")
    job = scheduler.submit("JOB_CLASS malleable; REQUIRED_TIME 600000; MIN_NODES 1; MAX_NODES 2", waits)
    poll_until(lambda: scheduler.queue().running)
    elsewhere = tmp_path / str(job) / "orders.sock"
    tell(scheduler, f"APGAS-Ready:{elsewhere}")
    poll_until(lambda: f"no job takes orders at {elsewhere}" in scheduler.story(), scheduler.story)
    assert [line.state for line in scheduler.queue().running] == ["runs"]
    tell(scheduler, f"APGAS-Ready:{scheduler.folder}/jobs/{job}/orders.sock")
    poll_until(lambda: scheduler.queue().running[0].state == "runs, takes orders", scheduler.story)
    go.touch()
    assert scheduler.ended(job).state == "exit code 0"


# --- other nodes -----------------------------------------------------------------------------

SHELL = """#!/bin/bash
# plays a remote shell: `down` names hosts that are not reached, the file of a host has processes that were
host=$1; shift
if grep -sqx "$host" {folder}/down; then
    echo "ssh: connect to host $host port 22: No route to host" >&2
    exit 255
fi
echo $$ >> {folder}/$host
cat | setsid --wait "$@"
"""


class Hosts:
    """Hosts that are in truth this host, with these numbers of slots, behind a remote shell."""

    def __init__(self, folder: Path, make: Make, *options: str, slots: tuple[int, ...] = (2, 2)) -> None:
        self.folder = folder / "hosts"
        self.folder.mkdir()
        self.shell = self.folder / "shell"
        self.shell.write_text(SHELL.format(folder=self.folder))
        self.shell.chmod(0o700)
        self.file = self.folder / "nodes"
        lines = [f"n{number} slots={count}  # one of them\n" for number, count in enumerate(slots, 1)]
        self.file.write_text("".join(lines))
        self.scheduler = make(
            "--nodes", str(self.file), "--remote-shell", str(self.shell), *options, slots=None
        )

    def set_down(self, *hosts: str) -> None:
        (self.folder / "down").write_text("".join(f"{host}\n" for host in hosts))

    def cut(self, host: str) -> None:
        """Break the last connection to a host."""
        os.killpg(int((self.folder / host).read_text().split()[-1]), signal.SIGKILL)

    def nodes(self) -> dict[str, NodeLine]:
        answer = self.scheduler.ask(Nodes())
        assert isinstance(answer, NodeLines)
        return {line.name: line for line in answer.nodes}


WAITS_AS_MANY = "REQUIRED_TIME 600000; NODES {}"


def test_jobs_run_on_the_nodes_that_their_node_file_names(make: Make, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, make, "--policy", "fcfs")
    scheduler = hosts.scheduler
    job = scheduler.submit(
        WAITS_AS_MANY.format(3), 'sort "$NODE_FILE"; echo $PWD $NODES; echo to >&2; exit 3\n'
    )
    assert scheduler.ended(job).state == "exit code 3"
    assert scheduler.output(job) == f"n1\nn1\nn2\n{tmp_path} 3\nto\n"
    go, waits = the_file(tmp_path, "go")
    job = scheduler.submit(WAITS_AS_MANY.format(2), f"echo begun\n{waits}echo over\n")
    poll_until(lambda: scheduler.output(job), scheduler.story)
    assert {name: line.jobs for name, line in hosts.nodes().items()} == {"n1": [job, job], "n2": [None] * 2}
    scheduler.kill()
    scheduler.start()
    go.touch()
    assert scheduler.ended(job).state == "exit code 0"
    assert scheduler.output(job) == "begun\nover\n"


def test_jobs_on_other_nodes_are_cancelled_and_end_with_all_that_they_have_started(
    make: Make, tmp_path: Path
) -> None:
    scheduler = Hosts(tmp_path, make, "--policy", "fcfs").scheduler
    stays = "(setsid sleep 600 &)\necho here\ntrap '' TERM\nwhile true; do sleep 1; done\n"
    job, late = (scheduler.submit(f"REQUIRED_TIME {ms}; NODES 1", stays) for ms in (600000, 1000))
    poll_until(lambda: scheduler.output(job), scheduler.story)
    scheduler.cancel(job)
    assert scheduler.ended(job).state == "cancelled"
    assert scheduler.ended(late).state == "over its required time"
    assert not scheduler.processes_of(job) + scheduler.processes_of(late)


def test_a_node_that_is_not_reached_is_down_and_its_job_begins_elsewhere(make: Make, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, make, "--policy", "fcfs")
    scheduler = hosts.scheduler
    hosts.set_down("n1")
    jobs = [scheduler.submit(RIGID, "cat $NODE_FILE\n") for _ in range(3)]
    assert {scheduler.ended(job).state for job in jobs} == {"exit code 0"}
    assert {scheduler.output(job) for job in jobs} == {"n2\n"}
    line = hosts.nodes()["n1"]
    assert (line.state, line.reason) == (NodeState.DOWN, "ssh: connect to host n1 port 22: No route to host")
    large = scheduler.submit(WAITS_AS_MANY.format(4), "sort $NODE_FILE\n")
    (waiting,) = scheduler.queue().waiting
    assert (waiting.state, waiting.reason) == ("waits for nodes", "wants 4 slots of 2")
    scheduler.kill()
    scheduler.start()
    assert hosts.nodes()["n1"].state is NodeState.DOWN
    assert [line.state for line in scheduler.queue().waiting] == ["waits for nodes"]
    hosts.set_down()
    assert cli("nodes", "--dir", str(scheduler.folder), "--resume", "n1").returncode == 0
    assert scheduler.ended(large).state == "exit code 0"
    assert scheduler.output(large) == "n1\nn1\nn2\nn2\n"


def test_a_job_on_a_node_that_is_lost_is_told_lost_and_ends_there(make: Make, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, make, "--policy", "fcfs")
    scheduler = hosts.scheduler
    job = scheduler.submit(WAITS_AS_MANY.format(2), "echo here\nsleep 600\n")
    _, waits = the_file(tmp_path, "never")
    other = scheduler.submit(WAITS_AS_MANY.format(2), f"echo here\n{waits}")
    poll_until(lambda: scheduler.output(job) and scheduler.output(other), scheduler.story)
    hosts.cut("n1")
    assert scheduler.ended(job).state.startswith("node lost: ")
    poll_until(lambda: not scheduler.processes_of(job), scheduler.story)
    assert hosts.nodes()["n1"].state is NodeState.DOWN
    assert [line.job for line in scheduler.queue().running] == [other]


def test_nothing_new_starts_on_a_drained_node(make: Make, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, make, "--policy", "fcfs")
    scheduler, folder = hosts.scheduler, str(hosts.scheduler.folder)
    go, waits = the_file(tmp_path, "go")
    job = scheduler.submit(RIGID, f"cat $NODE_FILE\n{waits}")
    poll_until(lambda: scheduler.output(job) == "n1\n", scheduler.story)
    assert cli("nodes", "--dir", folder, "--drain", "n1", "--reason", "new fan").returncode == 0
    others = [scheduler.submit(RIGID, "cat $NODE_FILE\n") for _ in range(3)]
    assert {scheduler.ended(one).state for one in others} == {"exit code 0"}
    assert {scheduler.output(one) for one in others} == {"n2\n"}
    rows = [line.split() for line in cli("nodes", "--dir", folder).stdout.splitlines()[2:]]
    assert rows == [["n1", "drained", "2", "-", str(job), "job", "(1)", "new", "fan"], ["n2", "up", "2", "2"]]
    go.touch()
    assert scheduler.ended(job).state == "exit code 0"
    assert "there is no node n3 (there are n1, n2)" in refused("nodes", "--dir", folder, "--drain", "n3")


@pytest.mark.slow
def test_a_malleable_program_on_other_nodes_grows_and_shrinks_on_orders(
    make: Make, example: Path, tmp_path: Path
) -> None:
    hosts = Hosts(tmp_path, make, "--policy", "elastic:cooldown-s=5")
    scheduler = hosts.scheduler
    job = scheduler.submit(
        "JOB_CLASS malleable; REQUIRED_TIME 600000; MIN_NODES 1; MAX_NODES 4",
        f"exec {sys.executable} {example} 1000000000\n",
    )

    def jobs() -> list[int]:
        return sorted(job or 0 for line in hosts.nodes().values() for job in line.jobs)

    poll_until(lambda: jobs() == [job] * 4, scheduler.story)
    go, waits = the_file(tmp_path, "go")
    rigid = scheduler.submit(WAITS_AS_MANY.format(2), waits)
    poll_until(lambda: jobs() == [job, job, rigid, rigid], scheduler.story)
    scheduler.kill()
    scheduler.start()
    go.touch()
    poll_until(lambda: jobs() == [job] * 4, scheduler.story)
    poll_until(lambda: scheduler.output(job) == "grown to 4\nshrunk to 2\ngrown to 4\n", scheduler.story)


def test_jobs_that_are_bound_have_cores_of_their_own(make: Make, tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    scheduler = make("--policy", "fcfs", "--affinity", slots=2)
    say = "import os; print(os.environ['CORES'], sorted(os.sched_getaffinity(0)), flush=True)"
    go, waits = the_file(tmp_path, "go")
    jobs = [scheduler.submit(RIGID, f'{sys.executable} -c "{say}"\n{waits}') for _ in range(2)]
    outputs = [poll_until(lambda job=job: scheduler.output(job), scheduler.story) for job in jobs]
    go.touch()
    half = len(cores) // 2
    parts = [cores[:half], cores[half : 2 * half]]
    assert sorted(outputs) == sorted(f"{','.join(map(str, part))} {part}\n" for part in parts)


@pytest.mark.slow
def test_a_bound_job_that_grows_and_shrinks_has_the_cores_of_its_slots(
    make: Make, example: Path, tmp_path: Path
) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    scheduler = make("--policy", "elastic:cooldown-s=5", "--affinity", slots=2)
    job = scheduler.submit(
        "JOB_CLASS malleable; REQUIRED_TIME 600000; MIN_NODES 1; MAX_NODES 2",
        f"exec {sys.executable} {example} 1000000000\n",
    )

    def bound() -> set[int]:
        """Return the numbers of cores that the job's processes may use."""
        found = set()
        for pid in scheduler.processes_of(job):
            with contextlib.suppress(OSError):
                found.add(len(os.sched_getaffinity(pid)))
        return found

    both = 2 * (len(cores) // 2)
    poll_until(lambda: scheduler.output(job).endswith("grown to 2\n") and bound() == {both}, scheduler.story)
    go, waits = the_file(tmp_path, "go")
    scheduler.submit(RIGID, waits)
    poll_until(lambda: bound() == {both // 2}, scheduler.story)
    go.touch()


def test_a_guest_has_half_of_the_cores_of_its_mate_until_it_ends(make: Make, tmp_path: Path) -> None:
    cores = set(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    scheduler = make("--policy", "sd", "--affinity", slots=1)
    malleable = "JOB_CLASS malleable; REQUIRED_TIME {}; MIN_NODES 1; MAX_NODES 1"

    def bound(job: int) -> set[int]:
        """Return the cores that a job's processes may use."""
        found = set[int]()
        for pid in scheduler.processes_of(job):
            with contextlib.suppress(OSError):
                found |= os.sched_getaffinity(pid)
        return found

    _, waits = the_file(tmp_path, "never")
    long = scheduler.submit(malleable.format(6_000_000), waits)
    poll_until(lambda: bound(long) == cores, scheduler.story)
    go, waits = the_file(tmp_path, "go")
    short = scheduler.submit(malleable.format(600_000), waits)
    poll_until(lambda: len(bound(long)) == len(bound(short)) == len(cores) // 2, scheduler.story)
    assert bound(long).isdisjoint(bound(short))
    scheduler.kill()
    scheduler.start()
    assert [line.job for line in scheduler.queue().running] == [long, short]
    go.touch()
    assert scheduler.ended(short).state == "exit code 0"
    poll_until(lambda: bound(long) == cores, scheduler.story)


# --- refused requests -----------------------------------------------------------------------


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "batch", *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


def refused(*arguments: str) -> str:
    done = cli(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    return done.stderr


def test_an_array_is_submitted_task_by_task_in_the_bytes_of_its_script(make: Make, tmp_path: Path) -> None:
    folder = make(slots=4).folder
    script = tmp_path / "job.sh"
    script.write_bytes(
        b"#!/bin/sh\n# J\xf6rg's array\n#SBATCH -t 1 --array=1,5,9%1 -o %A_%a.out -J DTI/imob\n"
        b"srun true 2>&-\nprintf '\xf6 '\n"
        b"echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_MAX\n"
    )
    done = subprocess.run(
        [*COMMAND, "batch", "submit", "--dir", str(folder), "--wait", str(script)],
        cwd=tmp_path,
        env={**os.environ, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    numbers = [line for line in done.stdout.splitlines() if line.isdigit()]
    assert len(numbers) == 3, done.stderr
    if shutil.which("srun", path="/usr/bin:/bin") is None:
        assert "job.sh: line 4: there is no srun on this host" in done.stderr
    for task in (1, 5, 9):
        printed = (tmp_path / f"{numbers[0]}_{task}.out").read_bytes()
        assert printed == b"\xf6 %s %d 9\n" % (numbers[0].encode(), task)
    ended = [line for line in done.stdout.splitlines() if " DTI/imob: exit code 0" in line]
    assert [line.split()[0] for line in ended] == numbers  # one job at a time


def test_who_waits_hears_of_each_end_however_many_other_jobs_end(make: Make, tmp_path: Path) -> None:
    scheduler = make(slots=2)
    go, waits = the_file(tmp_path, "go")
    (script := tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH -t 1\n" + waits)
    command = [
        *COMMAND,
        "batch",
        "submit",
        "--dir",
        str(scheduler.folder),
        "--wait",
        str(script),
        str(script),
    ]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        first, second = int(waiting.stdout.readline()), int(waiting.stdout.readline())
        last = scheduler.submit(RIGID, "true\n", after=(second,))
        scheduler.cancel(second)
        scheduler.ended(second)
        shutil.rmtree(scheduler.folder / "ended" / str(second))
        for _ in range(80):
            last = scheduler.submit(RIGID, "true\n", after_ok=(last,))
            scheduler.cancel(last)
        go.touch()
        told = waiting.communicate(timeout=DEADLINE_S)[0].splitlines()
    assert waiting.returncode == 1
    assert sum(line.startswith(f"{first} job.sh: exit code 0") for line in told) == 1, told


def test_the_number_of_an_array_means_all_its_tasks(make: Make, tmp_path: Path) -> None:
    live = make(slots=1)
    gate = tmp_path / "gate"
    headers = "REQUIRED_TIME 60000; NODES 1"
    body = f"until [ -e {gate} ]; do sleep 0.02; done"

    def submit_array() -> list[int]:
        numbers = list[int]()
        for task in range(3):
            script = "#!/bin/bash\n#REQUIRED_TIME 60000\n#NODES 1\n#JOB_OUTPUT %N.%a\n" + body
            environment = ENVIRONMENT | {"SLURM_ARRAY_TASK_ID": str(task)}
            if numbers:
                environment["SLURM_ARRAY_JOB_ID"] = str(numbers[0])
            answer = live.ask(Submit(script, "task", str(tmp_path), environment))
            assert isinstance(answer, Done)
            numbers.append(answer.job)
        return numbers

    one, other = submit_array(), submit_array()
    later = live.submit(headers, "true", after=(other[0],))
    node = os.uname().nodename.partition(".")[0]
    poll_until(lambda: (tmp_path / f"{node}.0").exists(), live.story)
    live.cancel(one[0])
    assert [live.ended(job).state for job in one] == ["cancelled"] * 3
    assert live.ended(one[0]).output == str(tmp_path / f"{node}.0")
    assert live.ended(one[1]).output == str(tmp_path / "%N.1")
    assert f"comes after job {', '.join(map(str, other))}" in live.explained(later)
    with pytest.raises(LiveError, match=f"no task 3 of an array {other[0]} runs or waits"):
        live.ask(Cancel(other[0], 3))
    for task, job in ((2, other[2]), (0, other[0])):
        assert live.ask(Cancel(other[0], task)) == Done(other[0])
        assert live.ended(job).state == "cancelled"
    gate.touch()
    assert live.ended(later).state == "exit code 0"
    assert live.ended(other[1]).state == "exit code 0"


def test_commands_say_what_is_wrong_in_one_line(make: Make, tmp_path: Path) -> None:
    folder = str(make(slots=2).folder)
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#REQUIRED_TIME 1000\n#NODES many\n")
    assert f"{script}: line 3: #NODES is 'many'" in refused("submit", "--dir", folder, str(script))
    script.write_text("#!/bin/sh\n#REQUIRED_TIME 1000\n#NODES 3\n")
    assert "it needs 3 nodes, there are 2" in refused("submit", "--dir", folder, str(script))
    assert "No such file" in refused("submit", "--dir", folder, str(tmp_path / "none.sh"))
    assert "there is no job 7" in refused("cancel", "--dir", folder, "7")
    assert "a scheduler runs in" in refused("serve", "--dir", folder, "--slots", "2")
    assert "no scheduler runs in" in refused("queue", "--dir", str(tmp_path / "nobody"))
    assert "needs nodes that jobs share" in refused("serve", "--dir", str(tmp_path / "x"), "--policy", "cp")
    assert "no policy 'magic'" in refused("serve", "--dir", str(tmp_path / "x"), "--policy", "magic")
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn2 cpus=3\n")
    assert f"{nodes}, line 2: 'n2 cpus=3' is not a node" in refused(
        "serve", "--dir", str(tmp_path / "x"), "--nodes", str(nodes)
    )
    assert "--remote-shell reaches the hosts of --nodes" in refused("serve", "--remote-shell", "rsh")
    assert "--affinity: each of 1000 slots needs a core of its own, but there are" in refused(
        "serve", "--dir", str(tmp_path / "x"), "--slots", "1000", "--affinity"
    )
    (tmp_path / "open").mkdir(mode=0o755)
    assert "is open to others" in refused("serve", "--dir", str(tmp_path / "open"))


def test_commands_show_the_queue_and_the_slots(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "easy", slots=2)
    _, waits = the_file(tmp_path, "never")
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n#REQUIRED_TIME 600000\n#NODES 2\n{waits}")
    folder = str(scheduler.folder)
    assert cli("submit", "--dir", folder, str(script), str(script)).stdout == "1\n2\n"
    poll_until(lambda: scheduler.queue().running, scheduler.story)
    lines = cli("queue", "--dir", folder).stdout.splitlines()
    assert [line.split()[:4] for line in lines[2:]] == [
        ["1", "job.sh", "rigid", "runs"],
        ["2", "job.sh", "rigid", "waits"],
    ]
    nodes = json.loads(cli("nodes", "--dir", folder, "--json").stdout)
    assert nodes == [{"name": "localhost", "state": "up", "reason": "", "jobs": [1, 1]}]
    (row,) = cli("nodes", "--dir", folder).stdout.splitlines()[2:]
    assert row.split() == ["localhost", "up", "2", "0", "1", "job.sh", "(2)"]
    assert cli("cancel", "--dir", folder, "1", "2").returncode == 0


def test_all_tasks_of_an_array_are_submitted_even_if_nobody_reads_their_numbers(
    make: Make, tmp_path: Path
) -> None:
    scheduler = make("--policy", "easy", slots=1)
    script = tmp_path / "array.sh"
    script.write_text("#!/bin/sh\n#SBATCH -t 1 --array=1-3\n")
    reads, writes = os.pipe()
    os.close(reads)
    command = [*COMMAND, "batch", "submit", "--dir", str(scheduler.folder), str(script)]
    subprocess.run(command, stdout=writes, timeout=DEADLINE_S, check=True)
    os.close(writes)
    queue = scheduler.queue()
    assert len([*queue.running, *queue.waiting, *queue.ended]) == 3


@needs_root
def test_another_user_gets_no_answer_even_where_the_folder_was_opened_to_him() -> None:
    with folder_for_all() as folder:
        scheduler = Scheduler(folder / "batch")
        scheduler.start()
        try:
            with pytest.raises(LiveError, match="no scheduler runs"):
                as_nobody(lambda: ask(folder / "batch", Nodes()))
            scheduler.folder.chmod(0o777)
            (scheduler.folder / "scheduler.sock").chmod(0o777)
            with pytest.raises(LiveError):
                as_nobody(lambda: ask(folder / "batch", Nodes()))
        finally:
            scheduler.folder.chmod(0o700)
            scheduler.stop()


def test_what_somebody_else_has_in_its_folders_stays(make: Make, tmp_path: Path) -> None:
    for part in ("", "jobs", "ended"):
        put_all(tmp_path / "batch0" / part, tmp_path / "elsewhere")
    put(tmp_path / "batch0" / "jobs" / ".git" / "config", Kind.FILE, tmp_path)
    put(tmp_path / "batch0" / "jobs" / "7", Kind.FOLDER, tmp_path)
    (tmp_path / "batch0").chmod(0o700)
    before = found(tmp_path)
    scheduler = make()
    job = scheduler.submit("REQUIRED_TIME 600000; NODES 1", "echo here\n")
    assert job == 8
    assert scheduler.ended(job).state == "exit code 0"
    after = found(tmp_path)
    assert {path: after.get(path) for path in before} == before
