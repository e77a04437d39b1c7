"""Jobs for a running service from Python, as futures.

    from mallob_py import Client

    with Client(".api") as client:
        answer = client.solve([[1, 2], [-1]])          # waits
        future = client.submit("formula.cnf.xz")       # does not
        answers = client.solve_many(formulas)

A client only reads and writes the service's folder: any number of clients may run on any hosts that see the
folder, with or without MPI. One thread of a client looks for replies to all its futures. If the service is
stopped and started again, futures are still answered; if it stays away, they end with a ServiceError.

`FormulaExecutor` does the same with the interface of the standard library's executors:

    from mallob_py import FormulaExecutor, solve

    with FormulaExecutor(".api") as executor:
        future = executor.submit(solve, "formula.cnf.xz", time_limit_s=600)
        for answer in executor.map(solve, formulas):       # in the order of the formulas
            print(answer.satisfiable)

The only callable is `solve`, with the arguments of `Client.submit`. All else is as with other executors:
`map` hands in everything at once and yields answers in order, `shutdown` waits for submitted jobs, a
cancelled future ends its job.

A formula may be a path, or an object that is converted into integers: clauses closed by 0. Up to
`_INLINE_MAX` integers go into the job file, more into a binary file beside it (content mode `raw`).
"""

from __future__ import annotations

import base64
import importlib
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, as_completed, wait
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mallob_py.api import optimization
from mallob_py.api.formulas import FormulaLike, clauses_of, literals_of, raw_content
from mallob_py.api.replies import NewFiles
from mallob_py.api.settled import IN_A_FORK, SettledOnce, all_awaited, awaited
from mallob_py.api.shown import BAR_PERIOD_S, Bar, check_progress, html_table, progress_bar
from mallob_py.service import ServiceError
from mallob_py.service import client as service
from mallob_py.service.client import PendingJobs
from mallob_py.service.jobs.durations import format_duration
from mallob_py.service.jobs.job_file import identity_of
from mallob_py.service.store.entries import reply_name
from mallob_py.service.store.flush_policy import flush_policy_of
from mallob_py.service.store.own_folder import WANTING
from mallob_py.service.store.spare_file import SpareFile
from mallob_py.service.telemetry.groups import Group, GroupState, GroupWatch, rows_of, states_of
from mallob_py.service.telemetry.status import JobStatus, ServiceStatus, read_live_status

#: the folder, beside `in` and `out`, of formulas that are not in job files
_INPUTS = "inputs"
#: greatest number of integers in a job file; a longer formula is stored in a file beside it
_INLINE_MAX = 50_000
_POLL_DELAY_MIN_S, _POLL_DELAY_MAX_S = 0.0005, 0.02
#: longest time without a service, such as during its restart, before futures end
SERVICE_TIMEOUT_S = 60.0
_SERVICE_LOOK_PERIOD_S = 1.0
_LOOK_DELAY_S = 0.02
#: longest time [s] for which a client that is closed tries to end its jobs
_CLOSE_MAX_S = 10.0


class JobError(Exception):
    """The service's error reply to a job; `field` is the job file's field at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message if not field else f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, repr=False)
class Answer:
    """A reply to a job.

    Attributes:
        satisfiable: True (SAT), False (UNSAT), or None: unknown, since a limit or an interruption ended the
            job.
        model: the literal of variable v at index v - 1, if satisfiable; None if several solutions were
            requested.
        core: assumptions that cannot hold together, if unsatisfiable; [] if the clauses alone cannot.
        reply: the whole reply, as the service wrote it.
        solutions: the solutions of a job with `configuration={"solutions": ...}`.
        text: the answer of an application that answers in bytes: for SMT, all that a solver prints.
        place: the index of the answered formula in `AsyncClient.as_completed`, from 0.
    """

    satisfiable: bool | None
    model: NDArray[np.int32] | None
    core: list[int] | None
    reply: Mapping[str, Any]
    solutions: list[NDArray[np.int32]] | None = None
    text: str | None = None
    place: int | None = None

    @property
    def result(self) -> Mapping[str, Any]:
        """The reply's part that the application wrote: for a bag of tasks, its `value` and counts."""
        found: Mapping[str, Any] = self.reply["result"]
        return found

    def __repr__(self) -> str:
        """Return one short line: `<Answer SAT, 120 variables>`, `<Answer DONE, value=92>`."""
        words = [str(self.result.get("resultstring", ""))]
        if self.model is not None:
            words.append(f"{len(self.model)} variables")
        elif self.solutions is not None:
            words.append(f"{len(self.solutions)} solutions")
        elif self.core:
            words.append(f"{len(self.core)} failed assumptions")
        elif "value" in self.result:
            words.append(f"value={self.result['value']!r:.60}")
        if self.satisfiable is None and (outcome := self.result.get("outcome", "result")) != "result":
            words.append(str(outcome))
        return f"<Answer {', '.join(words)}>"


class JobFuture(SettledOnce[Answer]):
    """The future answer to one job, called `name`; cancelling the future ends the job."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        #: whether the job's file was withdrawn, for want of a service, before a service took it in
        self.is_withdrawn = False

    def end(self, ending: Answer | Exception) -> None:
        """End the future with an answer or an exception, unless it has ended."""
        if self.wants_outcome():
            if isinstance(ending, Exception):
                self.set_exception(ending)
            else:
                self.set_result(ending)


@dataclass(frozen=True)
class _Pending:
    future: JobFuture
    submission: service.Submission
    #: file that the client wrote for the formula and must remove; None: no such file
    input_file: Path | None


class JobGroup:
    """The jobs of a client's user with the same group name, as told by the service's history."""

    def __init__(self, client: Client, name: str, futures: list[JobFuture], *, has_bar: bool = False) -> None:
        self.name = name
        self._has_bar = has_bar
        #: futures of `Client.map_formulas`, in the order of the formulas
        self.futures = futures
        self._client = client
        self._watch = GroupWatch(client.api_dir)

    def __iter__(self) -> Iterator[Answer]:
        """Yield the answers to the formulas of `Client.map_formulas`, in their order. Raises JobError."""
        bar = progress_bar(self._has_bar, len(self.futures), "job")
        try:
            for future in self.futures:
                while self._has_bar and not wait([future], BAR_PERIOD_S).done:
                    self._show(bar)
                self._show(bar)
                yield future.result()
        finally:
            bar.close()

    def as_completed(self) -> Iterator[Future[Answer]]:
        """Yield the futures as they end; `futures.index(future)` is the index of a future's formula."""
        bar = progress_bar(self._has_bar, len(self.futures), "job")
        try:
            for future in as_completed(self.futures):
                bar.update(1)
                yield future
        finally:
            bar.close()

    def _show(self, bar: Bar) -> None:
        if self._has_bar:
            bar.update(sum(future.done() for future in self.futures) - bar.n)

    def state(self) -> GroupState:
        """Return the group's state: how many jobs are solved, unsolved, failed, running, ..."""
        (state,) = states_of(self._client.api_dir, [self._look()])
        return state

    def results(self, cutoff_s: float | None = None) -> list[dict[str, Any]]:
        """Return a row for each job that has ended, as `mallob-py results --json` prints it."""
        group = self._look()
        rows = rows_of(self._client.api_dir, group, group.cutoff_s(cutoff_s))
        return [row.cells() for row in rows]

    def frame(self, cutoff_s: float | None = None) -> Any:
        """Return the results as a data frame of pandas, which must be installed. Raises ImportError."""
        try:
            pandas = importlib.import_module("pandas")
        except ModuleNotFoundError as error:
            raise ImportError("frame() needs pandas: pip install pandas; results() works without") from error
        return pandas.DataFrame(self.results(cutoff_s))

    def wait(self, timeout_s: float | None = None) -> GroupState:
        """Wait until all jobs of the group have ended.

        Raises TimeoutError; ServiceError if no service has been running for too long.
        """
        began_s, check_service = time.monotonic(), self._client.service_check()

        def check(ended: int, jobs: int) -> None:
            if timeout_s is not None and time.monotonic() >= began_s + timeout_s:
                raise TimeoutError(f"{jobs - ended} of {jobs} jobs have not ended after {timeout_s:g} s")
            check_service()

        return self._watch.wait(self._look(), check).state()

    def interrupt(self) -> None:
        """End all live jobs of the group; jobs with an interim result answer with this result."""
        for number, job in sorted(self._look().live):
            service.interrupt(self._client.api_dir, self._client.user, job, number, is_quiet=True)

    def __repr__(self) -> str:
        state = self.state()
        return f"<JobGroup {self.name}, {state.ended} of {state.jobs} ended>"

    def _look(self) -> Group:
        key = (self._client.user, self.name)
        return self._watch.look().get(key) or Group(key)


class Client:
    """Hands jobs to the service on the folder `api_dir`; several threads may use one client."""

    def __init__(
        self,
        api_dir: str | os.PathLike[str] = ".api",
        user: str = "",
        client: int = 0,
        *,
        service_timeout_s: float | None = SERVICE_TIMEOUT_S,
    ) -> None:
        """Create a client of the service on a folder; the service need not be running.

        Args:
            api_dir: the folder of the service.
            user: the user of the jobs; "": the login name.
            client: which of the service's folders `jobs.<i>` to use.
            service_timeout_s: seconds without a service, after which futures end with a ServiceError and jobs
                that no service has taken in are withdrawn; None: no limit.

        Raises:
            ServiceError: the folder does not exist.
        """
        self._api_dir = Path(api_dir).absolute()
        self._client = client
        self._user = user or service.login_name()
        self._pending: dict[str, _Pending] = {}
        #: name of a file in `out/` that may be a pending job's reply -> name of the job
        self._awaited: dict[str, str] = {}
        folder = service.folder_of(self._api_dir, client)
        self._new_replies = NewFiles(folder / "out")
        self._spare = SpareFile(os.fspath(folder / "in"))
        #: names of cancelled jobs for which no order to end could be written yet
        self._unended: set[str] = set()
        #: name of a chain's last revision -> files that the chain needs until it ends
        self._chain_files: dict[str, list[Path]] = {}
        self._mutex = threading.Lock()
        #: eventfd that wakes the thread when a job is submitted or the client is closed
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._service_timeout_s = service_timeout_s
        self._next_service_look_s = -math.inf
        self._served_s = math.inf
        self._closed = False
        self._process = os.getpid()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client on {str(self._api_dir)!r}, {len(self._pending)} jobs awaited>"

    def _repr_html_(self) -> str:
        """Return a table in HTML of this client and its service, for notebooks."""
        rows: dict[str, object] = {"user": self._user, "jobs awaited": len(self._pending)}
        status = read_live_status(self._api_dir)
        if status is None:
            rows["service"] = "none is running"
        else:
            rows |= {"ranks": status.ranks, "busy PEs": f"{status.busy} of {status.pes}"}
            rows |= {f"jobs {state}": count for state, count in status.states.items()}
        return html_table(f"Client on {self._api_dir}", rows)

    @property
    def is_served(self) -> bool:
        """Whether a service is running; until one runs, jobs wait."""
        return service.service_is_running(self._api_dir, self._client)

    @property
    def api_dir(self) -> Path:
        """The service's folder."""
        return self._api_dir

    def service_user(self) -> int:
        """Return the user id of the service that uses the folder, or used it last."""
        folder = service.folder_of(self._api_dir, self._client)
        try:
            return os.stat(folder / ".lock").st_uid
        except OSError:
            return os.stat(folder).st_uid

    def submit(
        self,
        formula: FormulaLike | None = None,
        assumptions: Iterable[int] = (),
        *,
        name: str = "",
        time_limit_s: float | None = None,
        wallclock_limit_s: float | None = None,
        cpu_limit_s: float | None = None,
        file_mode: int = service.PUBLIC,
        **fields: Any,
    ) -> JobFuture:
        """Hand in a job.

        Args:
            formula: a path, clauses (iterable or array), an object with `clauses`, or bytes of an input file.
            assumptions: literals assumed for this job.
            name: the job's name; "": a new one.
            time_limit_s: seconds that the job may have a PE.
            wallclock_limit_s: seconds from the job's start.
            cpu_limit_s: CPU seconds of all the job's workers.
            file_mode: permissions of the job's file, as `os.open` takes them.
            **fields: further fields of a job file, with `_` for `-` (`max_demand=4`).

        Returns:
            The future answer, with the job's `name`. Its exception is a JobError if the job was refused or
            failed; cancelling the future ends the job.

        Raises:
            ValueError: the formula has a bad literal, or the job's name is taken.
            TypeError: an argument has the wrong type.
            ServiceError: the job cannot be written.
            RuntimeError: the client is closed, or was made before a fork.
        """
        if os.getpid() != self._process:
            raise RuntimeError(IN_A_FORK)
        job: dict[str, Any] = {field.replace("_", "-"): value for field, value in fields.items()}
        job |= {"user": self._user, "name": name or f"py-{uuid.uuid4().hex}"}
        limits_s = {"time": time_limit_s, "wallclock": wallclock_limit_s, "cpu": cpu_limit_s}
        for kind, limit_s in limits_s.items():
            if isinstance(limit_s, Real):
                job[f"{kind}-limit"] = format_duration(float(limit_s))
            elif limit_s is not None:
                raise TypeError(f"{kind}_limit_s must be a number of seconds, not {limit_s!r}")
        input_file = self._put_formula(job, formula, literals_of(assumptions, "assumptions"))
        if job.get("incremental"):
            self._keep(job, input_file)
            input_file = None
        future = JobFuture(job["name"])
        with self._mutex:
            if self._closed:
                raise RuntimeError("the client is closed")
            if job["name"] in self._pending:
                raise ValueError(f"a job named {job['name']} has no answer yet; choose another name")
            try:
                submission = service.submit(
                    self._api_dir, job, self._client, spare=self._spare, file_mode=file_mode
                )
            except BaseException:
                _remove(input_file)
                raise
            if not self._pending:
                self._served_s = time.monotonic()
            self._pending[job["name"]] = _Pending(future, submission, input_file)
            self._awaited |= dict.fromkeys(_files_of(submission), job["name"])
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="mallob-py-client", daemon=True)
                self._thread.start()
            os.eventfd_write(self._wake, 1)
            if len(self._pending) == 1:  # the next job will probably follow this job's reply
                self._spare.prepare()
        future.add_done_callback(lambda done: self._end_cancelled(job["name"]) if done.cancelled() else None)
        return future

    def solve(self, formula: FormulaLike, assumptions: Iterable[int] = (), **fields: Any) -> Answer:
        """Hand in a job and wait for its answer. Raises what `submit` and its future raise."""
        return awaited(self.submit(formula, assumptions, **fields))

    def solve_many(self, formulas: Iterable[FormulaLike], **fields: Any) -> list[Answer]:
        """Hand in all formulas at once and return their answers. Raises what `submit` or a future raises."""
        return all_awaited(*[self.submit(formula, **fields) for formula in formulas])

    def map_formulas(
        self, formulas: Iterable[FormulaLike], group: str = "", *, progress: bool = False, **fields: Any
    ) -> JobGroup:
        """Hand in all formulas at once, as a group of jobs.

        Args:
            formulas: formulas as `submit` takes them; if one cannot be handed in, earlier ones are cancelled.
            group: the group's name; "": a new one.
            progress: whether iterations over the group show a bar of answered jobs, drawn by tqdm.
            **fields: further arguments of `submit`.

        Returns:
            The group, which yields answers.

        Raises:
            ImportError: `progress` is true, and tqdm is not installed.
        """
        check_progress(progress)
        group = group or f"py-{uuid.uuid4().hex[:12]}"
        futures: list[JobFuture] = []
        try:
            for number, formula in enumerate(formulas):
                name = f"f{number}-{uuid.uuid4().hex[:12]}"
                futures.append(self.submit(formula, name=name, group=group, **fields))
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return JobGroup(self, group, futures, has_bar=progress)

    def group(self, name: str) -> JobGroup:
        """Return the user's group of this name, with the jobs that any client handed in at any time."""
        return JobGroup(self, name, [])

    def run(
        self,
        application: str,
        *files: str | os.PathLike[str],
        name: str = "",
        priority: float = 1.0,
        max_demand: int = 0,
        time_limit_s: float | None = None,
        wallclock_limit_s: float | None = None,
        cpu_limit_s: float | None = None,
        **configuration: Any,
    ) -> Answer:
        """Run a job of any application and wait for its answer: `client.run("UTS", depth=12)`.

        Args:
            application: the application's name.
            *files: input files.
            name: the job's name; "": a new one.
            priority: the job's priority.
            max_demand: the greatest number of workers; 0: no bound.
            time_limit_s: seconds that the job may have a PE.
            wallclock_limit_s: seconds from the job's start.
            cpu_limit_s: CPU seconds of all the job's workers.
            **configuration: the application's settings.

        Returns:
            The answer. Raises what `submit` and its future raise.
        """
        future = self.submit_run(
            application,
            *files,
            name=name,
            priority=priority,
            max_demand=max_demand,
            time_limit_s=time_limit_s,
            wallclock_limit_s=wallclock_limit_s,
            cpu_limit_s=cpu_limit_s,
            **configuration,
        )
        return awaited(future)

    def submit_run(
        self,
        application: str,
        *files: str | os.PathLike[str],
        name: str = "",
        priority: float = 1.0,
        max_demand: int = 0,
        time_limit_s: float | None = None,
        wallclock_limit_s: float | None = None,
        cpu_limit_s: float | None = None,
        **configuration: Any,
    ) -> JobFuture:
        """Hand in a job of any application, as described at `run`; return and raise as `submit` does."""
        return self.submit(
            application=application,
            files=[os.path.abspath(file) for file in files],
            name=name,
            priority=priority,
            max_demand=max_demand,
            time_limit_s=time_limit_s,
            wallclock_limit_s=wallclock_limit_s,
            cpu_limit_s=cpu_limit_s,
            configuration=configuration,
        )

    def solve_smt(self, script: str | os.PathLike[str], **fields: Any) -> Answer:
        """Run a script in SMT-LIB 2 and wait for its answer.

        Args:
            script: the script's text, recognised by a parenthesis, or a path.
            **fields: arguments of `submit`; `configuration` may have `engines`, `seed` and `agreement`.

        Returns:
            The answer: `satisfiable` is the last check's answer, `text` all output, and `result["answers"]`
            the words of all checks. Raises what `submit` and its future raise.
        """
        return awaited(self.submit_smt(script, **fields))

    def submit_smt(self, script: str | os.PathLike[str], **fields: Any) -> JobFuture:
        """Hand in a script in SMT-LIB 2, as described at `solve_smt`; return and raise as `submit` does."""
        is_text = isinstance(script, str) and "(" in script
        return self.submit(script.encode() if is_text else script, application="SMT", **fields)  # type: ignore[union-attr]

    # --- optimisation -----------------------------------------------------------------------------

    def minimize(
        self, formula: Any, objective: Mapping[int, int] | None = None, **fields: Any
    ) -> optimization.Optimum:
        """Find the smallest value of an objective, {literal: weight}, or the smallest cost of `formula`.

        Without an objective, `formula` must be weighted. `fields` are arguments of `submit`. Raises
        what `submit` and its future raise.
        """
        return awaited(self.optimize(optimization.minimizing(formula, objective), **fields))

    def maximize(self, formula: Any, objective: Mapping[int, int], **fields: Any) -> optimization.Optimum:
        """Find the largest value of an objective, {literal: weight}, subject to clauses.

        `fields` and errors are those of `minimize`.
        """
        return awaited(self.optimize(optimization.maximizing(formula, objective), **fields))

    def optimize(self, task: optimization.Task, **fields: Any) -> optimization.OptimumFuture:
        """Hand in a task made by `optimization.minimizing` or `maximizing`; return the future optimum."""
        job = self.submit(task.text if task.path is None else task.path, application="MAXSAT", **fields)

        def look() -> tuple[int | None, int | None]:
            status = read_live_status(self._api_dir)
            live = None if status is None else status.job(identity_of(self._user, job.name), self._client)
            if live is None or live.interim is None:
                return None, None
            value, bound = live.interim.value, live.interim.bound
            return task.value(None if value is None else int(value)), task.value(
                None if bound is None else int(bound)
            )

        future = optimization.OptimumFuture(job.name, look, job.cancel)

        def settle(done: Future[Answer]) -> None:
            if done.cancelled():
                future.cancel()
            elif not future.wants_outcome():
                return
            elif (error := done.exception()) is not None:
                future.set_exception(error)
            else:
                reply = done.result().reply
                future.set_result(task.optimum(reply, _solution(reply["result"])))

        job.add_done_callback(settle)
        return future

    def wait(self, name: str, timeout_s: float | None = None) -> Answer:
        """Wait for the answer to a job handed in at any time, by any client.

        Args:
            name: the job's name; if this client's user has no such job, `name` is read as `USER.NAME`.
            timeout_s: the longest wait in seconds; None: no bound.

        Returns:
            The answer.

        Raises:
            JobError: the job was refused or failed.
            LookupError: there is no such job.
            TimeoutError: no reply has come in time.
            ServiceError: no service runs.
        """
        client_dir = service.folder_of(self._api_dir, self._client)
        jobs = PendingJobs(client_dir)
        identity = identity_of(self._user, name)
        path = client_dir / "out" / reply_name(identity)
        if "." in name and identity not in jobs.look().identities and service.signature_of(path) is None:
            identity, path = name, client_dir / "out" / reply_name(name)
        began_s, check_service = time.monotonic(), self.service_check()
        while identity in jobs.look().identities:
            if timeout_s is not None and time.monotonic() >= began_s + timeout_s:
                raise TimeoutError(f"no reply to {identity} after {timeout_s:g} s")
            check_service()
            time.sleep(_LOOK_DELAY_S)
        if (reply := service.read_reply(path)) is None:
            raise LookupError(service.unknown_job(client_dir, identity))
        return _answer(reply)

    def interrupt(self, name: str) -> None:
        """End a job of this client's user, whichever client handed it in; the answer is then unknown."""
        service.interrupt(self._api_dir, self._user, name, self._client, is_quiet=True)

    def status(self) -> ServiceStatus:
        """Return the service's status, at most some seconds old. Raises ServiceError if none is running."""
        status = read_live_status(self._api_dir)
        if status is None:
            raise ServiceError(f"no service is running on {self._api_dir}")
        return status

    def jobs(self) -> tuple[JobStatus, ...]:
        """Return the live jobs of all users; if very many jobs wait, only the first of them."""
        return self.status().jobs

    def end_chain(self, precursor: str) -> None:
        """End the chain of revisions whose last one is the user's job named `precursor`."""
        job = {"incremental": True, "precursor": f"{self._user}.{precursor}", "done": True}
        service.submit(
            self._api_dir, job | {"user": self._user, "name": f"py-{uuid.uuid4().hex}"}, self._client
        )
        for path in self._chain_files.pop(precursor, []):
            _remove(path)

    def take_back(self, revision: str, precursor: str) -> None:
        """Take back a refused revision: its chain ends in `precursor` again ("": the chain is empty)."""
        files = self._chain_files.pop(revision, [])
        if precursor:
            # The last file may be the revision's own: it stays with the chain's other files until the chain
            # ends.
            self._chain_files[precursor] = files
        else:
            for path in files:
                _remove(path)

    @property
    def user(self) -> str:
        """The user of the jobs."""
        return self._user

    def close(self) -> None:
        """Cancel all pending futures, which ends their jobs; in a fork, do nothing.

        Raises:
            ServiceError: for some seconds, some jobs could not be ended, for example since the disk is full;
                these jobs go on.
        """
        if os.getpid() != self._process:
            return
        with self._mutex:
            self._closed = True
            pending = list(self._pending.values())
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)
        for one in pending:
            one.future.cancel()
            _remove(one.input_file)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._new_replies.close()
        self._spare.close()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1
        until_s = time.monotonic() + _CLOSE_MAX_S
        while (error := self._end_unended()) is not None:
            if time.monotonic() > until_s:
                unended, self._unended = sorted(self._unended), set()
                names = ", ".join(unended[:3]) + ", ..." * (len(unended) > 3)
                raise ServiceError(f"cannot end these jobs, which go on: {names} ({error})")
            time.sleep(_LOOK_DELAY_S)

    # --- formulas -----------------------------------------------------------------------------

    def _put_formula(self, job: dict[str, Any], formula: Any, assumptions: list[int]) -> Path | None:
        """Add to `job` the fields that hold or name the formula; return the file written, if any."""
        if formula is not None and (other := {"files", "literals"} & job.keys()):
            raise ValueError(f"both a formula and {min(other)} are given; give one of the two")
        path = None
        if isinstance(formula, str | os.PathLike):
            job["files"] = [os.path.abspath(formula)]
        elif isinstance(formula, bytes | bytearray | memoryview):
            path = self._put_input(job, bytes(formula))
        elif formula is not None:
            integers = clauses_of(formula)
            if integers.size > _INLINE_MAX:
                path = self._put_input(job, raw_content(integers, assumptions))
                job["configuration"] = {**job.get("configuration", {}), "content-mode": "raw"}
                return path
            job["literals"] = integers.tolist()
        if assumptions:
            job["assumptions"] = assumptions
        return path

    def _put_input(self, job: dict[str, Any], content: bytes) -> Path:
        """Write an input file, and name it in the job."""
        folder = service.folder_of(self._api_dir, self._client) / _INPUTS
        folder.mkdir(exist_ok=True)
        path = folder / f"{uuid.uuid4().hex}.raw"
        path.write_bytes(content)
        flush_policy_of(folder.parent).flush([path, folder, folder.parent])
        job["files"] = [str(path)]
        return path

    def _keep(self, job: Mapping[str, Any], input_file: Path | None) -> None:
        """Keep a revision's file until its chain ends, since the service may have to read the chain again."""
        _, _, precursor = job.get("precursor", "").partition(f"{self._user}.")
        files = self._chain_files.pop(precursor, [])
        self._chain_files[job["name"]] = [*files, input_file] if input_file else files

    # --- cancelled jobs -----------------------------------------------------------------------

    def _end_cancelled(self, name: str) -> None:
        with self._mutex:
            if name not in self._pending:  # the job has ended
                return
            self._unended.add(name)
        self._end_unended()

    def _end_unended(self) -> ServiceError | None:
        """Order to end cancelled jobs. Return an error, such as a full disk, if some must be tried again."""
        for name in list(self._unended):
            try:
                self.interrupt(name)
            except ServiceError as error:
                cause = error.__cause__
                if isinstance(cause, OSError) and not isinstance(
                    cause, FileNotFoundError | NotADirectoryError
                ):
                    return error
                # The service's folder is gone, and the job with it.
            self._unended.discard(name)
        return None

    # --- replies ------------------------------------------------------------------------------

    def service_check(self) -> Callable[[], None]:
        """Return a function that raises ServiceError once the service has been away for too long."""
        served_s = time.monotonic()

        def check() -> None:
            nonlocal served_s
            now = time.monotonic()
            served_s = now if self.is_served else served_s
            self._check_service(now - served_s)

        return check

    def _check_service(self, away_s: float) -> None:
        """Raise ServiceError if the service has been away for too long."""
        if self._service_timeout_s is not None and away_s >= self._service_timeout_s:
            raise ServiceError(
                f"no service has been running on {self._api_dir} for {self._service_timeout_s:g} s;"
                " start one: mallob-py serve"
            )

    def _look_for_service(self) -> None:
        """Check once a second whether a service runs, and end the futures if none does for too long."""
        now = time.monotonic()
        if now < self._next_service_look_s:
            return
        self._next_service_look_s = now + _SERVICE_LOOK_PERIOD_S
        try:
            is_served = self.is_served
        except OSError:  # whether a service runs is unknown at this moment
            return
        if is_served:
            self._served_s = now
            return
        try:
            self._check_service(now - self._served_s)
        except ServiceError as error:
            with self._mutex:
                pending = list(self._pending.values())
                self._pending.clear()
                self._awaited.clear()
            for one in pending:
                if service.withdraw(self._api_dir, one.submission, self._client):
                    one.future.is_withdrawn = True
                    _remove(one.input_file)
                one.future.end(error)

    def _watch(self) -> None:
        """Look for replies, in the client's thread: as soon as inotify reports them, else by polling."""
        delay_s = _POLL_DELAY_MIN_S
        while True:
            with self._mutex:
                is_idle = not self._pending
            if self._new_replies.wait(self._wake, None if is_idle else delay_s):
                delay_s = _POLL_DELAY_MIN_S
            if self._closed:
                return
            files = self._new_replies.look()
            with self._mutex:  # jobs submitted during `look()` are in `_awaited` now
                names = {self._awaited[file] for file in files if file in self._awaited}
                pending = [(name, self._pending[name]) for name in names]
            endings = [
                (name, one.future, ending)
                for name, one in pending
                if (ending := _ending_of(one.submission)) is not None
            ]
            with self._mutex:
                for name, _, _ in endings:
                    self._forget(name)
            self._end_unended()
            self._look_for_service()
            for _, future, ending in endings:  # done last: the user may reuse the job's name at once
                with suppress(BaseException):  # callbacks are the user's and may raise anything
                    future.end(ending)
            delay_s = _POLL_DELAY_MIN_S if endings else min(1.2 * delay_s, _POLL_DELAY_MAX_S)

    def _forget(self, name: str) -> None:
        one = self._pending.pop(name)
        self._unended.discard(name)
        for file in _files_of(one.submission):
            del self._awaited[file]
        _remove(one.input_file)


def _ending_of(submission: service.Submission) -> Answer | Exception | None:
    """Return the answer or exception that a job's reply holds; None if no reply can be read now."""
    try:
        reply = service.reply_to(submission)
        return None if reply is None else _answer(reply)
    except Exception as error:
        cause = error.__cause__ if isinstance(error, ServiceError) else error
        return None if isinstance(cause, OSError) and cause.errno in WANTING else error


def _files_of(submission: service.Submission) -> tuple[str, str]:
    return submission.reply_path.name, submission.error_path.name


def _answer(reply: Mapping[str, Any]) -> Answer:
    if "error" in reply:
        raise JobError(str(reply["error"].get("field", "")), str(reply["error"].get("message", "")))
    result = reply["result"]
    if "solution-format" in result and "variables" not in result:
        text = _bytes_of(result).decode(errors="replace")
        return Answer({10: True, 20: False}.get(result["resultcode"]), None, None, reply, text=text)
    match result["resultcode"]:
        case 10 if "solutions" in result:
            found = _solution(result)
            ends = np.flatnonzero(found == 0)
            begins = np.concatenate((np.zeros(1, ends.dtype), ends[:-1] + 1))
            return Answer(True, None, None, reply, [found[b:e] for b, e in zip(begins, ends, strict=False)])
        case 10:
            model = _solution(result)
            # Models for Mallob's IPASIR bridge begin with a 0.
            return Answer(True, model[1:] if model.size and not model[0] else model, None, reply)
        case 20:
            return Answer(False, None, _solution(result).tolist(), reply)
    return Answer(None, None, None, reply)


def _solution(result: Mapping[str, Any]) -> NDArray[np.int32]:
    """Return the literals of a solution, whether in the reply or in a file, as numbers or packed as bits."""
    if "solution-format" in result:
        packed = _bytes_of(result)
        n_vars = int(result["variables"])
        true = np.unpackbits(np.frombuffer(packed, np.uint8), count=n_vars, bitorder="little")
        variables = np.arange(1, n_vars + 1, dtype=np.int32)
        return np.where(true, variables, -variables).astype(np.int32)
    if "solution-file" in result:
        return np.fromfile(result["solution-file"], dtype="<i4").astype(np.int32)
    return np.array(result.get("solution") or (), dtype=np.int32)


def _bytes_of(result: Mapping[str, Any]) -> bytes:
    path = result.get("solution-file")
    return Path(path).read_bytes() if path else base64.b64decode(result["solution"])


def _remove(path: Path | None) -> None:
    if path is not None:
        with suppress(OSError):  # the folder may have become read-only
            path.unlink()


def solve(*args: Any, **fields: Any) -> Answer:
    """Solve a formula with the service of the folder `.api`. Takes the arguments of `Client.solve`."""
    with Client() as client:
        return client.solve(*args, **fields)


class FormulaExecutor(Executor):
    """An executor of formulas with a client of its own; takes the arguments of `Client`."""

    def __init__(self, api_dir: str | os.PathLike[str] = ".api", **options: Any) -> None:
        self._client = Client(api_dir, **options)
        self._mutex = threading.Lock()
        self._futures: set[Future[Any]] = set()
        self._is_shut_down = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand in the call `solve(*args, **kwargs)`. Raises TypeError for any other callable."""
        if fn is not solve:
            name = getattr(fn, "__name__", repr(fn))
            raise TypeError(f"the service executes formulas, not {name}; submit(solve, formula)")
        with self._mutex:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future = self._client.submit(*args, **kwargs)
            self._futures.add(future)
        future.add_done_callback(self._forget)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more formulas; close the client when all jobs have ended, even if `wait` is false."""
        with self._mutex:
            is_first, self._is_shut_down = not self._is_shut_down, True
            futures = list(self._futures)
        if cancel_futures:
            for future in futures:
                future.cancel()
        if wait:
            self._finish(futures)
        elif is_first:
            threading.Thread(target=self._finish, args=(futures,), name="mallob-py-executor").start()

    def _finish(self, futures: list[Future[Any]]) -> None:
        wait(futures)
        self._client.close()

    def _forget(self, future: Future[Any]) -> None:
        with self._mutex:
            self._futures.discard(future)
