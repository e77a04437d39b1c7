"""A network between two hosts: carries the bytes of connections, and may cut connections."""

import contextlib
import select
import selectors
import socket
import struct
import threading

_PART_BYTES = 4096
_RESET = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Listens at `address`, and connects each caller with `target`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._other: dict[socket.socket, socket.socket] = {}
        self._is_open = True
        #: number of connections carried so far
        self.carried = 0
        #: whether connections are reset as soon as they are made
        self.is_broken = False
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Reset all connections, and stop listening."""
        if not self._is_open:
            return
        self._is_open = False
        self._thread.join()
        self.cut()
        self._selector.close()
        self._listener.close()

    def cut(self) -> None:
        """Reset all connections, at both ends."""
        with self._lock:
            for each in list(self._other):
                self._reset(each)

    def _carry(self) -> None:
        while self._is_open:
            for key, _ in self._selector.select(0.05):
                with self._lock, contextlib.suppress(OSError):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj in self._other:
                        assert isinstance(key.fileobj, socket.socket)
                        self._pass_on(key.fileobj)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        if self.is_broken:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            near.close()
            return
        far = socket.create_connection(self.target)
        self.carried += 1
        for one, other in ((near, far), (far, near)):
            self._other[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket) -> None:
        other = self._other[source]
        if not select.select((), (other,), (), 0.01)[1]:
            return
        with contextlib.suppress(OSError):
            if data := source.recv(_PART_BYTES):
                assert other.send(data) == len(data), "who may be written to has room for so little"
                return
        self._reset(source)
        self._reset(other)

    def _reset(self, each: socket.socket) -> None:
        if self._other.pop(each, None) is not None:
            self._selector.unregister(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            each.close()
