"""Objects kept in workers: handles, and regions of shared memory that hold one pickled object each.

A region is a memfd, sealed against every change. It has no name in any folder, and the kernel frees it when
the last process that has it ends in any way. Processes of the same host and user open it through /proc, which
the kernel allows to no other user except root. A process unpickles the object once; the object's arrays are
read-only views of the region.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import pickle
import secrets
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from mallob_py.kit.calls.wire import Buffer
from mallob_py.kit.payload import application_named_in, decode_description, description_parts

_T = TypeVar("_T")
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Region:
    """A pickled object in shared memory. `fd` -1: a copy in private memory."""

    def __init__(self, memory: memoryview, fd: int = -1) -> None:
        self.memory = memory
        self.fd = fd
        self._mutex = threading.Lock()
        self._loaded: list[Any] = []

    def __del__(self) -> None:
        if self.fd >= 0:
            with suppress(OSError):
                os.close(self.fd)

    def value(self) -> Any:
        """Return the object, unpickled at the first call. Raises any error of unpickling."""
        with self._mutex:
            if not self._loaded:
                pickled, *buffers = decode_description(self.memory).payload.values()
                self._loaded.append(pickle.loads(pickled.data, buffers=buffers))
            return self._loaded[0]


#: random id (mark) of a shared object -> the object's region in this process
regions: dict[str, Region] = {}
#: random id (mark) of a shared object -> a handle to the object in use in this process
_handles: WeakValueDictionary[str, Shared[Any]] = WeakValueDictionary()


class Shared(Generic[_T]):
    """A handle to an object that `Executor.share` keeps in workers. As an argument, only the handle is sent.

    Attributes:
        size_bytes: the size of the object in shared memory.
    """

    def __init__(self, mark: str, size_bytes: int, region: Region | None = None) -> None:
        self._mark = mark
        self.size_bytes = size_bytes
        #: the object's region if the object was shared within a call and is sent with its handle; None:
        #: processes find the region by the mark
        self._region = region

    @property
    def value(self) -> _T:
        """The object. All calls in a process get the same object; its arrays are read-only.

        Raises:
            LookupError: the executor is shut down, or is not the one that shared the object.
        """
        region = self._region or regions.get(self._mark) or fetch(self._mark)
        found: _T = region.value()
        return found

    def __repr__(self) -> str:
        return f"<Shared {self.size_bytes} bytes>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._region is not None:
            memory = self._region.memory
            return _by_value, (pickle.PickleBuffer(memory) if protocol >= 5 else bytes(memory),)
        return _handle, (self._mark, self.size_bytes)


def fetch_nothing(mark: str) -> Region:
    """Raise LookupError, outside of workers."""
    raise LookupError(
        f"the shared object {mark[:8]} does not exist here: its executor is shut down, or is another executor"
    )


#: function that gets a region which this process does not have; in a worker, it asks the executor
fetch: Callable[[str], Region] = fetch_nothing


def _handle(mark: str, size_bytes: int) -> Shared[Any]:
    """Return this process's first handle with this id, which keeps the object; else a new handle."""
    found = _handles.get(mark)
    return Shared(mark, size_bytes) if found is None else found


def _by_value(memory: Buffer) -> Shared[Any]:
    view = memoryview(memory).toreadonly()
    return Shared("", view.nbytes, Region(view))


def share(buffers: Sequence[Buffer]) -> tuple[Shared[Any], str, Region]:
    """Put a pickle and its buffers into shared memory. Raises OSError."""
    import numpy as np  # imported late: only processes that share objects need numpy

    mark = secrets.token_hex(16)
    payload = {str(number): np.frombuffer(buffer, np.uint8) for number, buffer in enumerate(buffers)}
    region = regions[mark] = _written(description_parts(mark, {}, payload))
    handle = _handles[mark] = Shared(mark, region.memory.nbytes)
    return handle, mark, region


def share_within_call(buffers: Sequence[Buffer]) -> Shared[Any]:
    """Return a handle that is sent together with the object. Raises OSError."""
    handle, mark, region = share(buffers)
    del regions[mark]
    return Shared("", handle.size_bytes, region)


def received(memory: Buffer, mark: str) -> Region:
    """Put the bytes of another host's region into shared memory of this host. Raises OSError."""
    region = regions[mark] = _written([memory])
    return region


def opened(pid: int, number: int, mark: str, users: Collection[int]) -> Region:
    """Open the region that process `pid` of this host has as descriptor `number`.

    Raises OSError if the descriptor is not of the region `mark`, or if its owner is not among `users`.
    """
    fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        is_sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        region = Region(_mapped(fd)) if is_sealed and os.fstat(fd).st_uid in users else None
        if region is None or application_named_in(region.memory) != mark:
            raise PermissionError(f"descriptor {number} of process {pid} is not the shared object")
    except BaseException:
        os.close(fd)
        raise
    region.fd = fd
    regions[mark] = region
    return region


def _written(parts: Sequence[Buffer]) -> Region:
    fd = os.memfd_create("mallob-py-shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        with open(fd, "wb", closefd=False) as file:
            file.writelines(parts)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return Region(_mapped(fd), fd)
    except BaseException:
        os.close(fd)
        raise


def _mapped(fd: int) -> memoryview:
    # A private mapping shares the pages, too, and older kernels allow only private mappings of a sealed
    # region.
    return memoryview(mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_PRIVATE, mmap.PROT_READ))
