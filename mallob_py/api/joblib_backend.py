"""A backend that runs the calls of joblib, and thus of scikit-learn, on an executor.

from joblib import parallel_config
from mallob_py import Executor, register_joblib_backend

register_joblib_backend()
with Executor(".api") as executor, parallel_config(backend="mallob", executor=executor):
    search.fit(X, y)
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from joblib import register_parallel_backend
from joblib.parallel import AutoBatchingMixin, BatchedCalls, ParallelBackendBase

from mallob_py.api.executor import Executor
from mallob_py.kit.calls.values import dump, load, restored, snapshot

#: name of the backend in joblib
NAME = "mallob"


def register_joblib_backend() -> None:
    """Make joblib know the backend "mallob". Raises ImportError without joblib."""
    register_parallel_backend(NAME, MallobBackend)


class MallobBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """A backend of joblib: runs batches on `executor` or, if it is None, on a new executor for `api_dir`."""

    supports_retrieve_callback = True
    default_n_jobs = -1
    uses_threads = False
    supports_sharedmem = False

    def __init__(
        self, *args: Any, executor: Executor | None = None, api_dir: str = ".api", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._executor = executor
        self._api_dir = api_dir
        self._own: Executor | None = None
        self._futures: set[Future[Any]] = set()

    def _pool(self) -> Executor:
        if self._executor is not None:
            return self._executor
        if self._own is None:
            self._own = Executor(self._api_dir)
        return self._own

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of workers for `n_jobs`: -1: as many as the executor can have, -2: one fewer."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 has no meaning")
        wanted = -1 if n_jobs is None else n_jobs
        return wanted if wanted > 0 else max(1, self._pool().workers + 1 + wanted)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        """Take joblib's settings; return the number of workers for `n_jobs`."""
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Callable[[Future[Any]], None]) -> Future[Any]:
        """Hand in a batch of calls."""
        if isinstance(func, BatchedCalls) and len(func) > 1:
            func = _OneByOne(func)
        future: Future[Any] = self._pool().submit(func)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, future: Future[Any]) -> Any:
        """Return the results of the batch, or raise its exception."""
        results = future.result()
        return [*map(restored, results)] if isinstance(results, _Snapshots) else results

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel all batches."""
        for future in tuple(self._futures):
            future.cancel()

    def terminate(self) -> None:
        """End the backend's own executor, if there is one."""
        if self._own is not None:
            self._own.shutdown(cancel_futures=True)
            self._own = None


class _Snapshots(list[Any]):
    """A batch's results, each pickled when its call returned."""


class _OneByOne:
    """A batch whose calls are pickled one by one, so that they share no objects."""

    def __init__(self, batch: BatchedCalls) -> None:
        terms = batch._backend, batch._n_jobs
        self._calls = [dump(BatchedCalls([item], terms), "a call of joblib's") for item in batch.items]

    def __call__(self) -> _Snapshots:
        return _Snapshots(snapshot(load(call)()[0]) for call in self._calls)
