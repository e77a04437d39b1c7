"""The pool that this process is a worker of, for functions that want calls themselves.

A call that waits for others must not keep them from being done. So an executor made within a call gets its
calls from `pool`: they are offered to all workers of the job, and one of this process's threads does them
meanwhile, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol


class InnerPool(Protocol):
    """Takes calls of one executor that was made within a call."""

    def submit(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Future[Any]:
        """Have it called, here or elsewhere."""
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
