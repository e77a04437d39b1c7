"""Foreign files in folders that an option names; programs must leave them unchanged."""

import enum
import os
import stat
from pathlib import Path

_TEXT = "precious"


class Kind(enum.Enum):
    """The kinds of foreign entries in a folder."""

    FILE = "file"
    FOLDER = "folder"
    FIFO = "fifo"
    LINK = "link"
    LINK_TO_FOLDER = "link to folder"


def put(path: Path, kind: Kind, elsewhere: Path) -> None:
    """Put an entry of this kind at a path. Links lead to a place below `elsewhere`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    match kind:
        case Kind.FILE:
            path.write_text(_TEXT)
        case Kind.FOLDER:
            path.mkdir()
            (path / "file").write_text(_TEXT)
        case Kind.FIFO:
            os.mkfifo(path)
        case Kind.LINK:
            path.symlink_to(_made(elsewhere) / "file")
        case Kind.LINK_TO_FOLDER:
            path.symlink_to(_made(elsewhere))


def put_all(folder: Path, elsewhere: Path) -> None:
    """Put an entry of each kind, with a plain name and with a hidden name."""
    for kind in Kind:
        put(folder / f"my {kind.value}", kind, elsewhere)
        put(folder / f".my {kind.value}", kind, elsewhere)


def found(*tops: Path) -> dict[Path, str]:
    """Return the content of each file."""
    paths = [path for top in tops for path in (top, *top.rglob("*"))]
    return {path: _content(path) for path in paths}


def _content(path: Path) -> str:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"to {os.readlink(path)}"
    text = path.read_text() if stat.S_ISREG(status.st_mode) else ""
    return f"{stat.filemode(status.st_mode)} {text}"


def _made(elsewhere: Path) -> Path:
    if not elsewhere.exists():
        (elsewhere / "in it").mkdir(mode=0o700, parents=True)
        elsewhere.chmod(0o700)
        for path in (elsewhere / "file", elsewhere / ".hidden", elsewhere / "1", elsewhere / "in it" / "1"):
            path.write_text(_TEXT)
    return elsewhere
