"""Orders to a running service: how many ranks it must have, and which ranks must leave.

`<api-dir>/orders/` belongs to the service's user alone (mode 0700). An order is a file `<id>.json`, written
under a name that starts with "~" and renamed; its answer is `<id>.answer`, removed by the order's author. The
service carries out orders one by one, the oldest first.

An order is decided once. From then on its file names the ranks that leave (`Departure`), so that another rank
can go on with the order. A restarted service ignores earlier orders.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import stat
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeAlias

import msgspec

from mallob_py.service import ServiceError
from mallob_py.service.store import own_folder
from mallob_py.service.store.in_folder import InotifyWatch, Watching, is_remote

#: name of the folder of orders below the api folder
FOLDER = "orders"
#: file in the folder `orders` with the number of ranks after the last order; no one else uses this name
_RANKS = "mallob-py.ranks"
_ORDER, _ANSWER = ".json", ".answer"
#: names of orders; other names are not ours
_ORDER_NAME = re.compile(rf"[0-9a-f]{{32}}\{_ORDER}")
#: names of files that a former service may have left; no one else uses these names
_NAMES = re.compile(rf"~?([0-9a-f]{{32}}({_ORDER}|{_ANSWER})|{_RANKS})".replace(".", r"\."))
#: polling period without inotify
_POLL_S = 0.2
_ORDER_BYTES_MAX = 1 << 20
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class HostShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host, and the greatest number of new ranks on it; None: no bound."""

    name: str
    most: int | None = None


class Resize(msgspec.Struct, frozen=True, tag="resize", forbid_unknown_fields=True):
    """An order to change the number of ranks by `by`, or to `to`; new ranks start on `hosts`, if given.

    `remote_shell`: the command that reaches other hosts, if given.
    """

    by: int | None = None
    to: int | None = None
    hosts: tuple[HostShare, ...] = ()
    remote_shell: tuple[str, ...] = ()


class Drain(msgspec.Struct, frozen=True, tag="drain", forbid_unknown_fields=True):
    """An order to a rank, or to all ranks of a host: begin nothing new, and leave within `grace_s`."""

    place: str
    grace_s: float


class Departure(msgspec.Struct, frozen=True, tag="departure", forbid_unknown_fields=True):
    """The ranks that leave. `ordered`: time of the order, by the service's clock; `before`: number of ranks.

    `stays`: a rank that was to leave, but stays since all others were lost.
    """

    leaves: tuple[int, ...]
    grace_s: float
    before: int
    ordered: float
    stays: int | None = None


Order: TypeAlias = Resize | Drain | Departure


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to an order; `refusal`: why nothing was done; "": the order was carried out."""

    refusal: str = ""
    before: int = 0
    after: int = 0
    took_s: float = 0.0


def _replace(path: Path, content: object) -> None:
    hidden = path.with_name(f"~{path.name}")
    try:
        with open(own_folder.open_to_write(hidden), "wb") as file:
            file.write(msgspec.json.encode(content))
        hidden.rename(path)
    except OSError as error:
        if error.errno in NO_ROOM:  # the empty file is this command's
            with contextlib.suppress(OSError):
                hidden.unlink()
        raise


class OrderFolder:
    """The service's side of orders. Raises ServiceError if the folder cannot be made or others may enter."""

    def __init__(
        self,
        api_dir: Path,
        is_new_service: bool,
        watching: Watching = Watching.AUTO,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.path = api_dir / FOLDER
        try:
            own_folder.make(self.path)
            with own_folder.opened(self.path) as folder:
                if not own_folder.is_private(folder):
                    raise ServiceError(f"{self.path} is open to others, so no orders are taken: chmod 700 it")
                if is_new_service:
                    own_folder.remove_files(folder, _NAMES)
            polls = watching is Watching.POLL or is_remote(self.path)
            self._watch = None
            if not polls:
                try:
                    self._watch = InotifyWatch(self.path)
                except OSError as error:  # inotify fails, for example, if all instances are in use
                    log(f"inotify does not work here ({error.strerror}); polling {self.path}")
                    polls = True
            #: polling period; inf: inotify reports news
            self.poll_s = _POLL_S if polls else math.inf
        except OSError as error:
            raise ServiceError(f"{self.path} cannot be used for orders: {error.strerror}") from error

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when there is news; None: poll."""
        return None if self._watch is None else self._watch.fileno()

    def hear(self) -> None:
        """Take in news, also of our own writing; without this call the descriptor stays readable."""
        if self._watch is not None:
            self._watch.news()

    def oldest(self, but: Collection[str] = ()) -> str | None:
        """Return the name of the oldest order that is not in `but`."""
        self.hear()
        found = []
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                if _ORDER_NAME.fullmatch(entry.name) and entry.name not in but:
                    with contextlib.suppress(FileNotFoundError):
                        found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
        return min(found)[1] if found else None

    def read(self, name: str) -> Order | None:
        """Read an order; None: the order was withdrawn. Raises ServiceError if the file is no order."""
        try:
            # `open_file` neither waits at a pipe nor follows a link out of this folder.
            with open(own_folder.open_file(self.path / name, os.O_RDONLY), "rb") as content:
                order: Order = msgspec.json.decode(content.read(_ORDER_BYTES_MAX), type=Order)
                return order
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ServiceError(f"cannot be read: {error.strerror}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ServiceError(f"no order: {error}") from error

    def is_there(self, name: str) -> bool:
        return os.path.lexists(self.path / name)

    def decide(self, name: str, order: Order) -> None:
        """Write down an order's decision, in case another rank must go on. Raises OSError.

        The decision is written into the existing file: a rank that stalled since it read the order must not
        bring back an order that another rank has answered.
        """
        with contextlib.suppress(FileNotFoundError):
            file = own_folder.open_file(self.path / name, os.O_WRONLY)
            try:
                os.pwrite(file, msgspec.json.encode(order).ljust(os.fstat(file).st_size), 0)
            finally:
                os.close(file)

    def answer(self, name: str, answer: Answer) -> bool:
        """Write the answer and remove the order if it is a file; return whether none is left. Raises OSError.

        An order that was withdrawn gets no answer.
        """
        if not self.is_there(name):
            return True
        _replace(self.path / (name.removesuffix(_ORDER) + _ANSWER), answer)
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.lstat(self.path / name).st_mode):
                (self.path / name).unlink(missing_ok=True)
        return not self.is_there(name)

    def note_ranks(self, ranks: int) -> None:
        """Write down the number of ranks, for a restart after the loss of all ranks. Raises OSError."""
        _replace(self.path / _RANKS, ranks)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


# --- functions for other processes ---------------------------------------------------------


def give(api_dir: Path, order: Order) -> Path:
    """Give an order to the service of a folder; return the order's file. Raises ServiceError."""
    path = api_dir / FOLDER / f"{uuid.uuid4().hex}{_ORDER}"
    try:
        _replace(path, order)
    except FileNotFoundError:
        raise ServiceError(f"the service on {api_dir} takes no orders") from None
    except PermissionError:
        raise ServiceError(f"only the user who runs the service on {api_dir} may give it orders") from None
    except OSError as error:
        raise ServiceError(f"cannot write an order to {path.parent}: {error.strerror}") from error
    return path


def answer_to(order: Path) -> Answer | None:
    """Return the answer to an order and remove its file; None: no answer yet. Raises ServiceError."""
    path = order.with_suffix(_ANSWER)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Answer)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ServiceError(f"the answer {path} cannot be read: {error}") from error
    path.unlink(missing_ok=True)
    return found


def ordered_ranks(api_dir: Path) -> int | None:
    """Return the number of ranks after the last order to the last service; None: there was no order."""
    try:
        return msgspec.json.decode((api_dir / FOLDER / _RANKS).read_bytes(), type=int)
    except (OSError, msgspec.MsgspecError):
        return None


def take_back(order: Path) -> None:
    """Withdraw an order, unless its execution has begun."""
    with contextlib.suppress(OSError):
        order.unlink(missing_ok=True)
        order.with_suffix(_ANSWER).unlink(missing_ok=True)
