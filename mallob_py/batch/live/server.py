"""The live scheduler's process: accepts requests, keeps the folder, starts keepers, gives orders.

The policy decides (`scheduler`). Each decision must be on disk before it is carried out: first run.json is
written, then the keeper started or the order given. So a scheduler that is killed and restarted finds each
job with its keeper, waiting, or ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType

import msgspec

from mallob_py.async_loop import LoopWatch
from mallob_py.batch.job import Job, Kind
from mallob_py.batch.live import requests, script
from mallob_py.batch.live.chart import Bar, Chart
from mallob_py.batch.live.folder import Clock, Folder, FolderError, JobFolder, Run, Submitted
from mallob_py.batch.live.forecast import outlook
from mallob_py.batch.live.launch import AGAIN_S, TOKEN, Allotment, RunEnd, Status, is_passing
from mallob_py.batch.live.launch import Launch as KeeperLaunch
from mallob_py.batch.live.machine_nodes import Machine, MachineNodes
from mallob_py.batch.live.nodes import LOCALHOST
from mallob_py.batch.live.scheduler import Effect, Launch, LiveScheduler, OrderGrow, OrderShrink, Rebind
from mallob_py.batch.policy import Policy, PolicyError, Running, no_remark
from mallob_py.loop_rate import shown
from mallob_py.malleable import wire
from mallob_py.malleable.sockets import connect, listen
from mallob_py.runtime.processes import adopt_orphans, import_places, kill_adopted, python, signals_held_back

#: the greatest number of waiting jobs; further jobs are refused
WAITING_MAX = 100_000
#: the time limit [s] of each line of a job's answer, as in ElasticJobScheduler
_LINE_S = 20.0
#: the pause for other work after a decision, in multiples of the time that the decision took
_SHARE = 5
#: the variables of a job's orders; a job submitted by another job must not inherit that job's orders
_ORDERS = ("SCHEDULER_SOCKET", "JOB_SOCKET")
_KEEPER_POLL_S = 0.05
#: the greatest number of jobs that a reason names
_NAMED = 5
#: the greatest number of silent connections; a further one closes the oldest, so that no job can occupy all
_SILENT_MAX = 256
#: the number of jobs which ended before this start and are read for the chart
_BARS_AT_START = 200


def serve(path: Path, policy: Policy, machine: Machine, *, binds: bool, default_s: float) -> int:
    """Schedule jobs until SIGINT or SIGTERM; running jobs continue after it. Raises FolderError, OSError.

    `binds`: jobs get cores of their own. `default_s`: the required time [s] of jobs that specify none.
    """
    folder = Folder(path)
    folder.open()
    server = _Server(folder, policy, machine, binds, default_s)
    return server.loop.run(server.run())


class _Entry(msgspec.Struct):
    """A waiting or running job."""

    folder: JobFolder
    wishes: script.Wishes
    submit_s: float
    run: Run | None = None
    #: the descriptor of the keeper's process; -1: unknown
    pidfd: int = -1
    #: whether the job accepts no more orders, as it has reported, or because it failed to carry out an order
    is_rigid: bool = False
    #: the reason why the last attempt to start the job failed
    trouble: str = ""


class _Server:
    def __init__(
        self, folder: Folder, policy: Policy, machine: Machine, binds: bool, default_s: float
    ) -> None:
        self.loop = LoopWatch(self._say)
        self._folder = folder
        self._binds = binds
        self.default_s = default_s
        self._scheduler = LiveScheduler(policy, 0)
        self._nodes = MachineNodes(folder, machine, self._scheduler, self._say, self._want_decision)
        self._entries: dict[int, _Entry] = {}
        self._chart = Chart(_ended_bars(folder))
        #: number -> waiting job that must wait for other jobs
        self._held: dict[int, Submitted] = {}
        self._next = folder.next_number()
        self._epoch_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        #: the process ids of keepers that are child processes
        self._keepers: set[int] = set()
        self._silent: dict[asyncio.StreamWriter, None] = {}
        self._is_wanted = False
        self._decided_s = (-math.inf, 0.0)
        self._timer: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None

    async def run(self) -> int:
        adopt_orphans()  # processes whose keepers were killed
        self._restore()
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        server = await asyncio.start_unix_server(self._take, sock=listen(str(self._folder.socket)))
        scheduler = self._scheduler
        names = [node.name for node in self._nodes.book if node.offered]
        where = "" if names == [LOCALHOST] else f" of {counted(len(names), 'node')}"
        self._say(
            f"scheduling {counted(scheduler.slots, 'slot')}{where} by {scheduler.policy.name} "
            f"in {self._folder.path}"
        )
        self._want_decision()
        if self._nodes.machine.changes:
            self._start_task(self._nodes.follow())
        await stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._folder.socket)
        going_on = len(self._scheduler.running)
        waiting = len(self._scheduler.waiting)
        self._say(
            f"stopped; {going_on} job{'s go' if going_on != 1 else ' goes'} on,"
            f" {waiting} wait{'s' * (waiting == 1)} for the next start"
        )
        return 0

    # --- restart ------------------------------------------------------------------------------

    def _restore(self) -> None:
        jobs = [(job, job.submitted(), job.run()) for job in self._folder.jobs()]
        self._set_clock([max(one.submit_s, run.start_s if run else 0.0) for _, one, run in jobs])
        self._nodes.assume([slot for _, _, run in jobs if run for slot in run.slots])
        taken, guests = set[int](), list[_Entry]()
        for job, submitted, run in jobs:
            entry = _Entry(job, submitted.wishes, submitted.submit_s, run)
            self._entries[job.number] = entry
            if run is not None and job.has_keeper:
                if run.factor < 1.0:
                    guests.append(entry)
                else:
                    self._scheduler.restore(self._job(entry), run.start_s, run.slots)
                if run.address:
                    self._scheduler.ready(job.number)
                self._start_task(self._watch(entry, None))
                taken.update(run.slots)
            elif (job.status() is not None or job.begun() is not None) and self._bury(entry):
                pass
            elif job.is_cancelled:
                self._end(entry, Status(RunEnd.CANCELLED))
            else:
                job.forget_run()
                entry.run = None
                self._hold(entry, submitted)
        for guest in guests:
            assert guest.run is not None
            self._scheduler.restore_guest(
                self._job(guest), guest.run.start_s, guest.run.slots, guest.run.factor
            )
        self._nodes.restore(taken)

    def _set_clock(self, times_s: list[float]) -> None:
        """Continue the folder's clock, which runs while the host is up, even without a scheduler."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        before = self._folder.clock()
        now_s = max([0.0 if before is None else before.now_s, *times_s])
        if before is not None and before.boot == boot:
            now_s = max(now_s, before.now_s + up_s - before.up_s)
        self._epoch_s = up_s - now_s
        self._folder.write_clock(Clock(boot, up_s, now_s))

    @property
    def _now_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self._epoch_s

    def _job(self, entry: _Entry) -> Job:
        return entry.wishes.job(entry.folder.number, entry.submit_s)

    # --- decisions ----------------------------------------------------------------------------

    def _want_decision(self) -> None:
        """Schedule a decision after all pending events and a pause for other work since the last decision."""
        if not self._is_wanted:
            self._is_wanted = True
            ended_s, took_s = self._decided_s
            delay_s = max(0.0, ended_s + _SHARE * took_s - self._now_s)
            asyncio.get_running_loop().call_later(delay_s, self._decide)

    def _want_decision_later(self) -> None:
        """Schedule a decision in `AGAIN_S`, so that failed actions are repeated even if no event comes."""
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._decide_again)

    def _decide_again(self) -> None:
        self._again = None
        self._want_decision()

    def _decide(self) -> None:
        self._is_wanted = False
        now_s = self._now_s
        scheduler = self._scheduler
        try:
            scheduler.decide(now_s)
        except PolicyError as error:
            self._say(f"policy: {error}")
        except Exception as error:  # an error of the user's own policy
            self._say(f"policy {scheduler.policy.name}: {type(error).__name__}: {error}")
        self._chart.note(now_s, _moved_bars(scheduler, self._entries))
        took_s = self._now_s - now_s
        effects, scheduler.effects = scheduler.effects, []
        for effect in effects:
            try:
                self._carry_out(effect)
            except Exception as error:  # the other effects must still be carried out
                self._say(f"job {effect.job}: {type(error).__name__}: {error}")
        if hosts := self._nodes.book.leaving(scheduler.taken):
            for host in hosts:
                self._nodes.book.drain(host, "is given back")
            self._start_task(self._nodes.give_back(hosts))
        # The time to start jobs does not count in `took_s`.
        self._decided_s = (self._now_s, took_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if scheduler.wake_s < math.inf:
            delay_s = max(0.0, scheduler.wake_s - self._now_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._want_decision)

    def _carry_out(self, effect: Effect) -> None:
        if (entry := self._entries.get(effect.job)) is None:
            return  # the job has ended meanwhile
        match effect:
            case Launch(_, slots, mates, factor):
                hosts = [self._entries[mate] for mate in mates if mate in self._entries]
                self._slow_down(hosts, entry.wishes.required_s)
                try:
                    keeper = self._launch(entry, list(slots), factor)
                except Exception as error:
                    self._slow_down(hosts, -entry.wishes.required_s)
                    self._not_launched(entry, error)
                else:
                    entry.trouble = ""
                    self._start_task(self._watch(entry, keeper))
            case Rebind():
                self._rebind(entry)
            case OrderShrink(_, count):
                self._start_task(self._shrink(entry, count))
            case OrderGrow(_, slots):
                self._start_task(self._grow(entry, slots))

    def _not_launched(self, entry: _Entry, error: Exception) -> None:
        """Let a job wait again if its start failed for a reason that may pass (a full disk); else end it."""
        if not is_passing(error):
            self._scheduler.ended(entry.folder.number)
            self._end(entry, Status(RunEnd.NOT_STARTED, error=str(error)))
            self._want_decision()
            return
        if entry.trouble != str(error):
            entry.trouble = str(error)
            self._say(f"job {entry.folder.number} {entry.wishes.name} waits again: {error}")
        entry.run = None
        with contextlib.suppress(OSError):  # a restarted scheduler would discard the run
            entry.folder.forget_run()
        self._scheduler.put_back(self._job(entry))
        self._want_decision_later()

    def _write_run(self, entry: _Entry) -> None:
        """Write a job's run.json, with its present slots. Raises OSError."""
        assert entry.run is not None
        slots = self._scheduler.slots_of(entry.folder.number)
        entry.run = msgspec.structs.replace(entry.run, slots=slots)
        entry.folder.write("run", entry.run)

    async def _write_run_in_the_end(self, entry: _Entry) -> None:
        """Write a running job's run.json; wait while the disk is full. Raises OSError for other failures."""
        while entry.folder.number in self._scheduler.running:
            try:
                self._write_run(entry)
                return
            except OSError as error:
                if not is_passing(error):
                    raise
            await asyncio.sleep(AGAIN_S)

    # --- jobs ---------------------------------------------------------------------------------

    def _launch(self, entry: _Entry, slots: list[int], factor: float) -> subprocess.Popen[bytes]:
        """Start the keeper of a job; return its process. Raises OSError."""
        job = entry.folder
        entry.run = Run(self._now_s, slots, factor=factor)
        job.write("run", entry.run)
        submitted = job.submitted()
        hosts = [self._nodes.book.host_of(slot) for slot in slots]
        (job.path / "nodes").write_text("".join(f"{host}\n" for host in hosts), encoding="utf-8")
        launch = KeeperLaunch(
            [str(job.script)],
            entry.wishes.folder or submitted.directory,
            {name: value for name, value in submitted.environment.items() if name not in _ORDERS}
            | dict(self._nodes.machine.environment)
            | self._variables(entry, len(slots)),
            self._limit_s(entry),
            remote=self._nodes.machine.shell(hosts[0]),
            takes_orders=entry.wishes.kind in (Kind.MALLEABLE, Kind.EVOLVING),
            allotment=self._allotment(entry) if self._binds else None,
            output=script.on_node(entry.wishes.output, _name_of(hosts[0])),
            errors=script.on_node(entry.wishes.errors, _name_of(hosts[0])),
        )
        job.write("launch", launch)
        lock = job.lock()
        assert lock is not None, "a job that waits has no keeper"
        try:
            with open(job.path / "keeper.log", "ab") as log, signals_held_back(signal.SIGUSR1):
                process = subprocess.Popen(
                    [*python(), "-m", "mallob_py.batch.live.keeper", str(job.path), str(lock)],
                    env=os.environ | import_places(),
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
        finally:
            os.close(lock)
        self._keepers.add(process.pid)
        where = "" if set(hosts) == {LOCALHOST} else f" of {', '.join(sorted(set(hosts)))}"
        self._say(
            f"job {job.number} {entry.wishes.name} starts on {counted(len(slots), 'slot')}{where}"[:1000]
        )
        return process

    def _variables(self, entry: _Entry, nodes: int) -> dict[str, str]:
        """Return ElasticJobScheduler's environment variables for a job.

        SCHEDULER_IP and SCHEDULER_PORT are placeholders: orders come through JOB_SOCKET, notices go to
        SCHEDULER_SOCKET.
        """
        job, kind = entry.folder, entry.wishes.kind
        variables = {
            "NODES": str(nodes),
            "NODE_FILE": str(job.path / "nodes"),
            "SCHEDULER_IP": "127.0.0.1",
            "SCHEDULER_PORT": "0",
            "ELASTIC": kind.value if kind in (Kind.MALLEABLE, Kind.EVOLVING) else Kind.RIGID.value,
            "JOBNAME": entry.wishes.name,
            "SCRIPT_DIR": job.submitted().directory,
            TOKEN: job.token,
        }
        if kind in (Kind.MALLEABLE, Kind.EVOLVING):
            variables |= {"SCHEDULER_SOCKET": str(self._folder.socket), "JOB_SOCKET": str(job.orders)}
        return variables

    async def _watch(self, entry: _Entry, process: subprocess.Popen[bytes] | None) -> None:
        """Wait until a job's keeper has ended, then end the job or let it wait again.

        `process`: the keeper; None: the keeper was started before a restart and is no child process.
        """
        job = entry.folder
        if process is not None:
            entry.pidfd = await _pidfd_of(process.pid)
        else:
            while (begun := job.begun()) is None and job.has_keeper:
                await asyncio.sleep(_KEEPER_POLL_S)  # the keeper has just been started
            with contextlib.suppress(OSError):
                entry.pidfd = await _pidfd_of(begun.keeper) if begun is not None else -1
        # While the lock is held, the process id in begun.json is still the keeper's.
        if process is not None or (entry.pidfd >= 0 and job.has_keeper):
            if job.is_cancelled:
                self._signal(entry)
            await _readable(entry.pidfd)
        if process is not None:
            process.wait()
            self._keepers.discard(process.pid)
        if entry.pidfd >= 0:
            os.close(entry.pidfd)
            entry.pidfd = -1
        if await self._bury_in_the_end(entry):
            self._scheduler.ended(job.number)
        else:
            job.forget_run()
            entry.run = None
            self._scheduler.put_back(self._job(entry))
            self._nodes.offer()
        self._want_decision()

    async def _bury_in_the_end(self, entry: _Entry) -> bool:
        """Repeat `_bury` while it fails for a reason that may pass: until then, no job can get the slots."""
        while True:
            try:
                return self._bury(entry)
            except (OSError, FolderError) as error:
                if not is_passing(error):
                    self._end(entry, Status(RunEnd.KEEPER_KILLED, error=str(error)))
                    return True
            await asyncio.sleep(AGAIN_S)

    def _bury(self, entry: _Entry) -> bool:
        """Clean up after a job whose keeper has ended; return False if the job waits again, else True."""
        job = entry.folder
        status = job.status()
        if status is None:
            job.kill_leftovers()
            kill_adopted(self._keepers)  # processes without the job's mark in their environment
            if job.begun() is not None:
                status = Status(RunEnd.KEEPER_KILLED)
            elif job.is_cancelled:
                status = Status(RunEnd.CANCELLED)
            else:
                status = Status(RunEnd.NOT_STARTED, error=f"see {job.path.name}/keeper.log")
        if status.ending in (RunEnd.UNREACHABLE, RunEnd.NODE_LOST) and entry.run is not None:
            host = self._nodes.book.host_of(entry.run.slots[0])
            self._nodes.book.set_down(host, status.error)
            self._say(f"node {host} is down: {status.error}")
        if status.ending is RunEnd.UNREACHABLE and not job.is_cancelled:
            self._say(f"job {job.number} {entry.wishes.name} has not begun and waits again")
            return False
        self._end(entry, status)
        return True

    def _end(self, entry: _Entry, status: Status) -> None:
        """End a job, and each job that thereby cannot start, however long the chain of jobs is."""
        ends = deque([(entry, status)])
        while ends:
            entry, status = ends.popleft()
            self._end_alone(entry, status)
            for number, submitted in list(self._held.items()):
                if entry.folder.number in submitted.comes_after:
                    waiting = self._entries[number]
                    failed = self._settle(waiting, submitted, {entry.folder.number: status})
                    if failed is not None:
                        ends.append((waiting, failed))

    def _end_alone(self, entry: _Entry, status: Status) -> None:
        try:
            self._folder.end(entry.folder, status)
        except (OSError, FolderError) as error:
            self._say(f"job {entry.folder.number}: its end cannot be saved: {error}")
            if is_passing(error):
                self._start_task(self._write_end_later(entry.folder, status))
        del self._entries[entry.folder.number]
        self._say(f"job {entry.folder.number} {entry.wishes.name} has ended: {status}")

    async def _write_end_later(self, job: JobFolder, status: Status) -> None:
        error: Exception | None = None
        while error is None or is_passing(error):
            await asyncio.sleep(AGAIN_S)
            try:
                self._folder.end(job, status)
                return
            except (OSError, FolderError) as again:
                error = again

    def _signal(self, entry: _Entry) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(entry.pidfd, signal.SIGTERM)

    # --- orders -------------------------------------------------------------------------------

    async def _shrink(self, entry: _Entry, count: int) -> None:
        number, left = entry.folder.number, count
        try:
            reader, writer = await self._give(entry, wire.Shrink(count))
            with contextlib.closing(writer):
                while left:
                    host = (await asyncio.wait_for(reader.readline(), _LINE_S)).decode().strip()
                    if not host:
                        raise wire.WireError("broke off")
                    self._release(number, host)
                    left -= 1
                    await self._write_run_in_the_end(entry)
        except (OSError, ValueError) as error:
            self._order_failed(entry, error, was_taken=True)
        self._want_decision()

    def _release(self, job: int, host: str) -> None:
        """Record that a job has left a slot on a host, but not its script's first slot. Raises WireError."""
        if (running := self._scheduler.running.get(job)) is None:
            return
        slots = [slot for slot in running.nodes[1:] if self._nodes.book.host_of(slot) == host]
        if not slots:
            raise wire.WireError(f"released {host[:40]!r}, where it has nothing to release")
        self._scheduler.released(job, slots[-1:])
        self._rebind(self._entries[job])

    async def _grow(self, entry: _Entry, slots: Sequence[int]) -> None:
        was_taken = False
        try:
            # Without this file, a restarted scheduler would give the slots to other jobs.
            await self._write_run_in_the_end(entry)
            _, writer = await self._give(entry, wire.Grow(tuple(map(self._nodes.book.host_of, slots))))
            was_taken = True
            writer.close()
            self._scheduler.grown(entry.folder.number)
            self._rebind(entry)
        except (OSError, ValueError) as error:
            self._order_failed(entry, error, was_taken)
        self._want_decision()

    async def _give(
        self, entry: _Entry, order: wire.Order
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert entry.run is not None
        self._say(f"job {entry.folder.number} {entry.wishes.name}: {wire.order_line(order)}")
        # Connecting to a Unix socket succeeds or fails at once.
        connection = connect(entry.run.address, 0.0)
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        writer.write(f"{wire.order_line(order)}\n".encode())
        await asyncio.wait_for(writer.drain(), _LINE_S)
        return reader, writer

    def _order_failed(self, entry: _Entry, error: Exception, was_taken: bool) -> None:
        number = entry.folder.number
        if number not in self._scheduler.running:
            return  # the job has ended meanwhile
        self._scheduler.order_failed(number, was_taken)
        if entry.is_rigid:
            return  # the job has reported meanwhile that it accepts no more orders
        why = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", "") or error
        self._say(f"job {number} {entry.wishes.name} counts as rigid from now on: {why}")
        self._give_no_more_orders(entry)

    def _give_no_more_orders(self, entry: _Entry) -> None:
        entry.is_rigid = True
        assert entry.run is not None
        entry.run = msgspec.structs.replace(entry.run, address="")
        with contextlib.suppress(OSError):  # a restarted scheduler would find out again
            self._write_run(entry)

    # --- requests and notices -----------------------------------------------------------------

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, TimeoutError), contextlib.closing(writer):
            if _user_of(writer.get_extra_info("socket")) not in (os.geteuid(), 0):
                return
            if len(self._silent) >= _SILENT_MAX:
                oldest = next(iter(self._silent))
                del self._silent[oldest]
                oldest.close()
            self._silent[writer] = None
            try:
                line = await asyncio.wait_for(_request_or_notice(reader), _LINE_S)
            finally:
                self._silent.pop(writer, None)
            if line.startswith(b"{"):
                writer.write(msgspec.json.encode(await self._answer(line)) + b"\n")
                await asyncio.wait_for(writer.drain(), _LINE_S)
            elif line:
                self._notice(line.decode().rstrip("\n"))

    async def _answer(self, line: bytes) -> requests.Answer:
        try:
            request: requests.Request = msgspec.json.decode(line, type=requests.Request)
        except (msgspec.DecodeError, RecursionError) as error:
            return requests.Refused(f"not a request: {error}")
        match request:
            case requests.Submit():
                return self._submit(request)
            case requests.Cancel(job, task):
                return self._cancel(job, task)
            case requests.Queue():
                return self._queue(request)
            case requests.Explain(job):
                return self._explain(job)
            case requests.Nodes():
                return self._nodes.lines(
                    {job: self._entries[job].wishes.name for job in self._scheduler.running}
                )
            case requests.Bars(seconds):
                self._chart.note(self._now_s, _moved_bars(self._scheduler, self._entries))
                names = [
                    (slot, str(place) if node.name == LOCALHOST else f"{node.name}.{place}")
                    for node in self._nodes.book
                    for place, slot in enumerate(node.slots)
                ]
                return requests.Gantt(self._now_s, names, self._chart.since(self._now_s - seconds))
            case requests.Drain(node, reason):
                return self._nodes.change(lambda: self._nodes.book.drain(node, reason))
            case requests.Resume(node):
                return self._nodes.change(lambda: self._nodes.book.resume(node))
            case requests.GiveBack(node):
                return self._nodes.change(lambda: self._nodes.leave(node))
            case requests.TakeIn(count):
                return await self._nodes.take_in(count)

    def _submit(self, request: requests.Submit) -> requests.Answer:
        if len(self._scheduler.waiting) >= WAITING_MAX:
            return requests.Refused(f"{WAITING_MAX} jobs wait already")
        if len(request.script) > script.SCRIPT_MAX_BYTES:
            return requests.Refused(f"the script has more than {script.SCRIPT_MAX_BYTES} bytes")
        try:
            wishes = script.parse_script(request.script, request.name, request.headers, self.default_s)
        except script.ScriptError as error:
            return requests.Refused(str(error))
        if wishes.nodes_min > self._nodes.book.most:
            return requests.Refused(f"it needs {wishes.nodes_min} nodes, there are {self._nodes.book.most}")
        if (request.after or request.after_ok) and len(self._held) >= WAITING_MAX:
            return requests.Refused(f"{WAITING_MAX} jobs wait for other jobs already")
        for other in (*request.after, *request.after_ok):
            if not 0 < other < self._next:
                return requests.Refused(f"there is no job {other} to wait for")
        environment = dict(request.environment)
        if script.ARRAY_TASK in environment:
            environment.setdefault(script.ARRAY_JOB, str(self._next))
        wishes = wishes.as_of(self._next, request.directory, environment)
        before = [
            [task for other in others for task in self._tasks_of(other, wishes.array)]
            for others in (request.after, request.after_ok)
        ]
        submitted = Submitted(self._next, self._now_s, wishes, request.directory, environment, *before)
        try:
            job = self._folder.add(submitted, request.script, request.encoding)
        except OSError as error:
            return requests.Refused(f"the job cannot be saved: {error}")
        self._next += 1
        entry = self._entries[job.number] = _Entry(job, wishes, submitted.submit_s)
        self._hold(entry, submitted)
        return requests.Done(job.number)

    def _hold(self, entry: _Entry, submitted: Submitted) -> None:
        """Let a new or restored job wait as `_settle` does, or end it."""
        if (failed := self._settle(entry, submitted)) is not None:
            self._end(entry, failed)

    def _settle(
        self, entry: _Entry, submitted: Submitted, ended: Mapping[int, Status] = MappingProxyType({})
    ) -> Status | None:
        """Let a job wait for the jobs that it comes after or, if all have ended, for its turn.

        Return the status with which the job must end if a job in `after_ok` did not end well, else None.
        `ended`: job that has just ended -> its status.
        """
        number = entry.folder.number
        was_held = self._held.pop(number, None) is not None
        for other in submitted.after_ok:
            if other in self._entries:
                continue
            status = ended.get(other) or self._folder.outcome(other)
            if status is None or not status.is_well:
                how = "it is not known how"
                if status is not None:  # without its reason, which may name a long chain of jobs
                    how = status.ending.value if status.error else str(status)
                return Status(RunEnd.NOT_STARTED, error=f"job {other}, which it needs, has ended: {how}")
        # Folders of jobs that have ended may be removed at any time.
        left = [other for other in submitted.after_ok if other in self._entries]
        if left != submitted.after_ok:
            submitted = msgspec.structs.replace(submitted, after_ok=left)
            with contextlib.suppress(OSError):
                entry.folder.write("job", submitted)
        if not self._entries.keys().isdisjoint(submitted.comes_after):
            self._held[number] = submitted
        else:
            take_in = self._scheduler.admit if was_held else self._scheduler.submit
            take_in(self._job(entry))
            self._want_decision()
        return None

    def _tasks_of(self, number: int, array: int = 0) -> list[int]:
        """Return a job's number and, if it is an array's, the numbers of the tasks that have not ended.

        `array`: the array of the job that names the number; this array's number means only its first task.
        """
        if number == array:
            return [number]
        others = (task for task, entry in self._entries.items() if entry.wishes.array == number != task)
        return [number, *others]

    def _cancel(self, number: int, task: int) -> requests.Answer:
        """Cancel a job, all tasks of an array, or one task of an array (`task` from 0 on)."""
        entries = [self._entries[job] for job in self._tasks_of(number) if job in self._entries]
        if task >= 0:
            entries = [one for one in entries if (one.wishes.array, one.wishes.task) == (number, task)]
            if not entries:
                return requests.Refused(f"no task {task} of an array {number} runs or waits")
        if not entries:
            known = 0 < number < self._next
            return requests.Refused(
                f"job {number} has ended already" if known else f"there is no job {number}"
            )
        for entry in entries:
            try:
                entry.folder.cancel()  # on disk before the client gets the answer
            except OSError as error:
                return requests.Refused(f"the cancellation cannot be saved: {error}")
        for entry in entries:
            self._cancel_task(entry)
        return requests.Done(number)

    def _cancel_task(self, entry: _Entry) -> None:
        number = entry.folder.number
        if self._held.pop(number, None) is not None:
            self._end(entry, Status(RunEnd.CANCELLED))
        elif self._scheduler.knows(number):
            self._scheduler.withdraw(number)
            self._end(entry, Status(RunEnd.CANCELLED))
            self._want_decision()
        elif entry.pidfd >= 0:
            self._signal(entry)

    def _queue(self, request: requests.Queue) -> requests.Answer:
        now_s, scheduler = self._now_s, self._scheduler
        running = [self._line(self._entries[job], now_s, one) for job, one in scheduler.running.items()]
        free = scheduler.free_slots
        numbers = chain((job.id for job in scheduler.waiting), self._held)
        waiting = [
            self._waiting_line(self._entries[number], now_s, free)
            for number in islice(numbers, request.waiting)
        ]
        ended = list[requests.JobLine]()
        asked, unknown = self._folder.ended_among(job for job in request.jobs if job not in self._entries)
        for job in [*asked, *(self._folder.ended(request.ended) if request.ended else ())]:
            try:
                submitted, run, status = job.submitted(), job.run(), job.status()
            except (OSError, FolderError):
                continue  # a user is removing the job's folder
            entry = _Entry(job, submitted.wishes, submitted.submit_s, run)
            line = self._line(entry, now_s if run is None else run.start_s)
            ran_s = 0.0 if status is None else status.ran_s
            ended.append(msgspec.structs.replace(line, state=str(status), ran_s=ran_s))
        turns = shown(self.loop.per_second())
        waiting_count = len(scheduler.waiting) + len(self._held)
        policy = scheduler.policy.name
        return requests.Jobs(policy, running, waiting, ended, waiting_count, turns, unknown)

    def _explain(self, number: int) -> requests.Answer:
        entry, now_s, scheduler = self._entries.get(number), self._now_s, self._scheduler
        if entry is None:
            if (status := self._folder.outcome(number)) is None:
                return requests.Refused(f"there is no job {number}, neither live nor ended")
            return requests.Explained([f"Job {number} has ended: {status}."])
        running = scheduler.running.get(number)
        line = self._line(entry, now_s, running)
        if running is None:
            line = self._waiting_line(entry, now_s, scheduler.free_slots)
        name = f"Job {number} {line.name}"
        if running is not None:
            most_s = max(0.0, running.estimated_end_s - now_s)
            where = f"on {counted(line.nodes, 'slot')} for {line.ran_s:.0f} s"
            remark = getattr(scheduler.policy, "remark", no_remark)(running)
            story = f"{name} {line.state} {where}, and for {most_s:.0f} s more at most."
            return requests.Explained([story, remark] if remark else [story])
        lines = [f"{name} has waited for {line.waited_s:.0f} s: {line.reason}."]
        if entry.trouble:
            lines.append(f"The last attempt to start it failed: {entry.trouble}.")
        if number not in self._held:
            lines += outlook(number, scheduler, now_s)
        return requests.Explained(lines)

    def _line(self, entry: _Entry, now_s: float, running: Running | None = None) -> requests.JobLine:
        wishes = entry.wishes
        start_s = now_s if running is None else running.start_s
        return requests.JobLine(
            entry.folder.number,
            wishes.name,
            wishes.kind.value,
            _state(entry, running, self._scheduler.slots),
            0 if running is None else running.size,
            wishes.nodes_min,
            wishes.nodes_max,
            start_s - entry.submit_s,
            now_s - start_s,
            wishes.required_s,
            _output_of(entry),
            array=wishes.array,
        )

    def _waiting_line(self, entry: _Entry, now_s: float, free: int) -> requests.JobLine:
        line, slots = self._line(entry, now_s), self._scheduler.slots
        if (held := self._held.get(line.job)) is not None:
            others = [str(job) for job in sorted(held.comes_after) if job in self._entries]
            more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
            reason = f"comes after job {', '.join(others[:_NAMED])}{more}"
        elif line.nodes_min > slots:
            reason = f"wants {counted(line.nodes_min, 'slot')} of {slots}"
        elif line.nodes_min > free:
            reason = f"wants {counted(line.nodes_min, 'slot')}, {free} free"
        else:
            reason = f"its turn has not come: {self._scheduler.policy.name}"
        return msgspec.structs.replace(line, reason=reason)

    # --- cores of jobs ------------------------------------------------------------------------

    def _limit_s(self, entry: _Entry) -> float:
        assert entry.run is not None
        return entry.wishes.required_s / entry.run.factor + entry.run.extra_s

    def _allotment(self, entry: _Entry) -> Allotment:
        """Return a running job's allotment on its first node."""
        assert entry.run is not None
        node = self._nodes.book.node_of(entry.run.slots[0])
        places = {slot: place for place, slot in enumerate(node.slots)}
        shares = self._scheduler.shares_of(entry.folder.number)
        parts = [(places[slot], first, last) for slot, first, last in shares if slot in places]
        return Allotment(parts, len(node.slots), self._limit_s(entry))

    def _slow_down(self, mates: Sequence[_Entry], guest_s: float) -> None:
        """Extend mates' time limits by their guest's required time [s]; negative: the guest did not begin."""
        for mate in mates:
            if mate.run is not None:  # None: the mate itself could not be started
                mate.run = msgspec.structs.replace(mate.run, extra_s=mate.run.extra_s + guest_s)
                self._rebind(mate)

    def _rebind(self, entry: _Entry) -> None:
        """Write a running job's slots and allotment, and tell its keeper; no effect if jobs are not bound."""
        if not self._binds or entry.pidfd < 0:
            return
        with contextlib.suppress(OSError):
            self._write_run(entry)
            entry.folder.write("allotment", self._allotment(entry))
            signal.pidfd_send_signal(entry.pidfd, signal.SIGUSR1)

    def _notice(self, line: str) -> None:
        try:
            notice = wire.parse_notice(line)
        except wire.WireError as error:
            self._say(f"no notice: {error}")
            return
        entry = self._entries.get(_number_of(notice.address))
        if entry is None or entry.run is None or str(entry.folder.orders) != notice.address:
            self._say(f"no job takes orders at {notice.address[:200]}")
            return
        number, kind = entry.folder.number, entry.wishes.kind
        if isinstance(notice, wire.Progress):
            self._scheduler.progressed(number, notice.done, self._now_s)
            return
        if isinstance(notice, wire.Ready | wire.Wanted) and kind in (Kind.MALLEABLE, Kind.EVOLVING):
            if entry.is_rigid:
                return  # the job stays rigid
            if not entry.run.address:
                entry.run = msgspec.structs.replace(entry.run, address=notice.address)
                with contextlib.suppress(OSError):  # if this write fails, a restart makes the job rigid
                    self._write_run(entry)
                self._scheduler.ready(number)
            if isinstance(notice, wire.Wanted):
                self._scheduler.wish(number, notice.count)
        elif isinstance(notice, wire.Wish):
            most = min(notice.count, entry.wishes.nodes_max)
            if not entry.run.address or not self._scheduler.bound(number, most):
                return
            self._say(f"job {number} {entry.wishes.name} has work for {counted(most, 'slot')}")
        elif isinstance(notice, wire.Unready):
            self._give_no_more_orders(entry)
            self._scheduler.unready(number)
        elif isinstance(notice, wire.Release) and kind is Kind.EVOLVING:
            try:
                self._release(number, notice.host)
            except wire.WireError as error:
                self._say(f"job {number} {entry.wishes.name}: {error}")
                return
            with contextlib.suppress(OSError):  # if this write fails, a restart still gives the job this slot
                self._write_run(entry)
        self._want_decision()

    # --- output and connections ---------------------------------------------------------------

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _say(self, line: str) -> None:
        """Print a line; ignore errors, such as a closed pipe or a letter that the encoding lacks."""
        with contextlib.suppress(OSError, ValueError):
            print(line, flush=True)


def _moved_bars(scheduler: LiveScheduler, entries: Mapping[int, _Entry]) -> dict[int, Bar | None]:
    """Return job -> its present bar (None: it does not run) for jobs that moved since the last call."""

    def bar_of(job: int) -> Bar | None:
        if (one := scheduler.running.get(job)) is None or job not in entries:
            return None
        name, slots = entries[job].wishes.name, scheduler.slots_of(job)
        return Bar(job, name, slots, one.start_s, share=min(one.factor, 1.0))

    moved, scheduler.moved = scheduler.moved, set()
    return {job: bar_of(job) for job in moved}


def _ended_bars(folder: Folder) -> list[Bar]:
    """Return the chart's bars of jobs that ended before this start, on their last slots."""
    bars = []
    for job in folder.ended(_BARS_AT_START):
        with contextlib.suppress(OSError, FolderError):
            run, status = job.run(), job.status()
            if run is not None and status is not None:
                name, end_s = job.submitted().wishes.name, run.start_s + status.ran_s
                bars.append(Bar(job.number, name, run.slots, run.start_s, end_s, min(run.factor, 1.0)))
    return bars


def _output_of(entry: _Entry) -> str:
    """Return the path of a job's output; a node in the path is filled in once the job has begun."""
    output, host = entry.wishes.output or str(entry.folder.output), None
    if script.on_node(output, None) != output:
        with contextlib.suppress(OSError):
            host = _name_of((entry.folder.path / "nodes").read_text().partition("\n")[0])
    return script.on_node(output, host)


def _name_of(host: str) -> str:
    return os.uname().nodename if host == LOCALHOST else host


def _state(entry: _Entry, running: Running | None, slots: int) -> str:
    if running is None:
        return "waits" if entry.wishes.nodes_min <= slots else "waits for nodes"
    if entry.folder.is_cancelled:
        return "is ending"
    if running.target is not None:
        return f"{'grows' if running.target > running.size else 'shrinks'} to {running.target}"
    takes_orders = running.job.is_malleable or (
        running.job.kind is Kind.EVOLVING and entry.run is not None and entry.run.address
    )
    return "runs, takes orders" if takes_orders else "runs"


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _number_of(address: str) -> int:
    name = os.path.basename(os.path.dirname(address))
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 10 else 0


async def _request_or_notice(reader: asyncio.StreamReader) -> bytes:
    """Read a line; return b"" if the connection ends before the line. Requests may be longer than a reader's
    buffer.

    Raises ValueError for a line that is too long, and OSError.
    """
    parts = list[bytes]()
    size = 0
    while size <= requests.REQUEST_MAX_BYTES:
        try:
            return b"".join([*parts, await reader.readuntil()])
        except asyncio.IncompleteReadError:
            return b""
        except asyncio.LimitOverrunError as error:
            parts.append(await reader.readexactly(error.consumed))
        if not parts[0].startswith(b"{"):
            break
        size += len(parts[-1])
    raise ValueError("the line is too long")


def _user_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user


async def _pidfd_of(pid: int) -> int:
    """Return a descriptor of a process; wait while the system has none left. Raises OSError for other
    failures.
    """
    while True:
        try:
            return os.pidfd_open(pid)
        except OSError as error:
            if not is_passing(error):
                raise
        await asyncio.sleep(AGAIN_S)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)
