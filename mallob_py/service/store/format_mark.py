"""The format of a client's folder: a number in `jobs.<i>/.format`.

    0   no such file: folders of services before this file was introduced
    1   the same names and contents, and this file

At its start, a service brings a folder of an older format up to `FORMAT`. It refuses a folder of a newer
format, whose journal it might misread. If an older service would misread a change to names in the journal,
its files, checkpoints, `.finished`, `.last_id`, `.running` or the history, the change must raise `FORMAT`,
convert the former format in `settle`, and add a folder of the former format to the tests
(`scripts/format_sample.py`).
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from mallob_py.service import ServiceError
from mallob_py.service.store import own_folder
from mallob_py.service.store.flush_policy import FlushPolicy

FORMAT = 1
_NAME = ".format"
_TEXT = re.compile(rb"mallob-py folder ([0-9]{1,9})\n")
_BYTES_MAX = 100


def format_of(client_dir: Path) -> int:
    """Return the number of the folder's format; 0 also for a damaged mark. Raises OSError."""
    path = client_dir / _NAME
    own_folder.remove_if_foreign(path)  # another user's file could keep us from starting
    with contextlib.suppress(FileNotFoundError):
        told = _TEXT.fullmatch(own_folder.read_file(path, bytes_max=_BYTES_MAX))
        return 0 if told is None else int(told[1])
    return 0


def settle(client_dir: Path, flush_policy: FlushPolicy) -> None:
    """Bring a folder that we have locked up to our format. Raises OSError; ServiceError if it is newer."""
    found = format_of(client_dir)
    if found > FORMAT:
        raise ServiceError(
            f"{client_dir} is of format {found}, and this mallob-py knows formats up to {FORMAT}: install the"
            " version that wrote it, or a newer one"
        )
    if found == FORMAT:
        return
    mark = b"mallob-py folder %d\n" % FORMAT
    own_folder.replace_file(client_dir / _NAME, mark, 0o644, flush_policy.flush)
