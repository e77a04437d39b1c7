"""The pool to which this process belongs as a worker, for functions that make calls themselves.

A call that waits for other calls must not prevent their execution. So an executor made within a call hands
its calls to an `InnerPool`: the pool offers them to all workers of the job, and meanwhile one thread of this
process executes them one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mallob_py.kit.calls.values import Pickled


class InnerPool(Protocol):
    """The pool that takes the calls of an executor made within a call."""

    @property
    def is_own_thread(self) -> bool:
        """Tell whether the caller is a callback of one of the pool's futures."""
        ...

    def submit(
        self,
        function: Callable[..., Any],
        known: Pickled | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Future[Any]:
        """Submit a call. `known`: the pickled function; None: only this process may execute the call."""
        ...

    def close(self) -> None:
        """Accept no further calls; execute the submitted ones."""
        ...


class Here(Protocol):
    """A worker's process, as seen by the functions that it calls."""

    def inner_pool(self) -> InnerPool:
        """Return a pool for an executor made within the running call."""
        ...

    def report_progress(self, done: float, total: float | None) -> None:
        """Report how much of the running call is done."""
        ...


#: the worker whose process this is; None: this process is no worker of calls
worker: Here | None = None
