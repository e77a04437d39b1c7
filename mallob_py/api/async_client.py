"""The client for asyncio: `await client.solve(...)`, any number at a time.

    from mallob_py import AsyncClient

    async with AsyncClient(".api") as client:
        answer = await client.solve([[1, 2], [-1]])
        async for answer in client.as_completed(formulas):
            print(answer.place, answer.satisfiable)

All work that may block (reading formulas, writing job files) is done by one thread, in the order of the
calls; a second thread looks for replies. So a thousand awaited jobs need two threads, and the event loop is
never blocked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from mallob_py.api.client import Answer, Client
from mallob_py.api.formulas import FormulaLike
from mallob_py.api.optimization import Optimum, maximizing, minimizing
from mallob_py.api.shown import progress_bar
from mallob_py.service.telemetry.status import ServiceStatus

_T = TypeVar("_T")


class AsyncClient:
    """Hands jobs to the service on the folder `api_dir` from an event loop.

    Cancelling an asyncio task that awaits a job interrupts the job.
    """

    def __init__(self, api_dir: str | os.PathLike[str] = ".api", **options: Any) -> None:
        """Create a client of the service on a folder.

        Args:
            api_dir: the folder of the service.
            **options: further arguments of `Client`.

        Raises:
            ServiceError: the folder does not exist.
        """
        self._client = Client(api_dir, **options)
        self._thread = ThreadPoolExecutor(1, "mallob-py-async")

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<AsyncClient on {str(self._client.api_dir)!r}>"

    async def solve(self, formula: FormulaLike, assumptions: Iterable[int] = (), **fields: Any) -> Answer:
        """Hand in a job, as `Client.submit` does, and wait for its answer.

        Raises what `submit` and its future raise.
        """
        return await self._ended(partial(self._client.submit, formula, assumptions, **fields))

    async def solve_smt(self, script: str | os.PathLike[str], **fields: Any) -> Answer:
        """Run a script in SMT-LIB 2 and wait for its answer, as `Client.solve_smt` does."""
        return await self._ended(partial(self._client.submit_smt, script, **fields))

    async def run(self, application: str, *files: str | os.PathLike[str], **settings: Any) -> Answer:
        """Run a job of any application, as `Client.run` does: `await client.run("UTS", depth=12)`."""
        return await self._ended(partial(self._client.submit_run, application, *files, **settings))

    async def minimize(
        self, formula: Any, objective: Mapping[int, int] | None = None, **fields: Any
    ) -> Optimum:
        """Find the smallest value of an objective, as `Client.minimize` does."""
        return await self._ended(lambda: self._client.optimize(minimizing(formula, objective), **fields))

    async def maximize(self, formula: Any, objective: Mapping[int, int], **fields: Any) -> Optimum:
        """Find the largest value of an objective, as `Client.maximize` does."""
        return await self._ended(lambda: self._client.optimize(maximizing(formula, objective), **fields))

    async def as_completed(
        self, formulas: Iterable[FormulaLike], *, progress: bool = False, **fields: Any
    ) -> AsyncIterator[Answer]:
        """Hand in all formulas at once, and yield each answer when it comes.

        If the iteration ends early, also by an exception, the unanswered jobs are interrupted.

        Args:
            formulas: formulas as `Client.submit` takes them.
            progress: whether to show a bar of answered jobs, drawn by tqdm.
            **fields: further arguments of `Client.submit`.

        Yields:
            Answers, whose `place` is the index of the answered formula, from 0.

        Raises:
            JobError: a job was refused or failed.
            ImportError: `progress` is true, and tqdm is not installed.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Queue[tuple[int, Future[Answer]]] = asyncio.Queue()

        def has_ended(place: int, future: Future[Answer]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended.put_nowait, (place, future))

        given = list(formulas)
        bar = progress_bar(progress, len(given), "job")
        jobs = [_Job(self._thread, partial(self._client.submit, each, **fields)) for each in given]
        try:
            for place, job in enumerate(jobs):
                job.add_done_callback(partial(has_ended, place))
            for _ in jobs:
                place, future = await ended.get()
                answer = dataclasses.replace(future.result(), place=place)
                bar.update(1)
                yield answer
        finally:
            bar.close()
            for job in jobs:
                job.interrupt()

    async def interrupt(self, name: str) -> None:
        """End a job of this client's user, as `Client.interrupt` does."""
        await self._call(partial(self._client.interrupt, name))

    async def status(self) -> ServiceStatus:
        """Return the service's status, as `Client.status` does."""
        return await self._call(self._client.status)

    async def aclose(self) -> None:
        """Close the client, which interrupts its unanswered jobs."""
        try:
            await self._call(self._client.close)
        finally:
            self._thread.shutdown(wait=False)

    async def _call(self, function: Callable[[], _T]) -> _T:
        return await asyncio.wrap_future(self._thread.submit(function))

    async def _ended(self, submit: Callable[[], Future[_T]]) -> _T:
        """Hand in a job and wait for its end; if the task is cancelled, interrupt the job."""
        job = _Job(self._thread, submit)
        try:
            return await asyncio.shield(asyncio.wrap_future(job))
        except asyncio.CancelledError:
            job.interrupt()
            raise


class _Job(Future[_T]):
    """The future outcome of a job; a thread hands the job in and interrupts it."""

    def __init__(self, thread: ThreadPoolExecutor, submit: Callable[[], Future[_T]]) -> None:
        super().__init__()
        self._thread = thread
        self._job: Future[_T] | None = None
        #: future of the call that hands in the job; an interruption cancels it if the call has not begun
        self._submission = thread.submit(self._submit, submit)

    def interrupt(self) -> None:
        """Order the end of the job, unless the job has ended; do not wait for the end."""
        if not self.done() and not self._submission.cancel():
            with suppress(RuntimeError):  # the client is closed, and has ended its jobs
                self._thread.submit(self._cancel_job)

    def _cancel_job(self) -> None:
        if self._job is not None:
            self._job.cancel()

    def _submit(self, submit: Callable[[], Future[_T]]) -> None:
        try:
            self._job = submit()
        except BaseException as error:
            self.set_exception(error)
        else:
            self._job.add_done_callback(self._settle)

    def _settle(self, job: Future[_T]) -> None:
        if job.cancelled():
            self.cancel()
        elif (error := job.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(job.result())
