"""The pool that this process is a worker of, for functions that want calls themselves.

A call that waits for others must not keep them from being done. So an executor made within a call gets its
calls from `pool`: they are offered to all workers of the job, and one of this process's threads does them
meanwhile, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mallob_py.kit.calls.values import Pickled


class InnerPool(Protocol):
    """Takes calls of one executor that was made within a call."""

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is a callback of one of its futures."""
        ...

    def submit(
        self,
        function: Callable[..., Any],
        known: Pickled | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Future[Any]:
        """Have it called, here or elsewhere; only here if `known`, the function as it was, is None."""
        ...

    def close(self) -> None:
        """There will be no further calls; those that were submitted are done all the same."""
        ...


class Here(Protocol):
    """A worker's process, as the functions that it calls may know it."""

    def inner_pool(self) -> InnerPool:
        """A pool for an executor made within the running call."""
        ...

    def report_progress(self, done: float, total: float | None) -> None:
        """The running call tells how far it is."""
        ...


#: None: this process is no worker of calls
worker: Here | None = None
