"""The program that passes on a remote shell's standard error, and keeps the end of this text in a file.

Like the shell, the program outlives the process that started it. It imports almost nothing, like
`guard_process.py`.

    words_process.py FILE
"""

from __future__ import annotations

import os
import sys

#: smallest number of bytes that are kept of the text's end; the file has at most twice this size
KEPT_BYTES = 1 << 12


def pass_on(source: int, target: int, path: str) -> None:
    """Pass the text of `source` on until its end; skip text that cannot be passed on or kept."""
    said = b""
    while more := os.read(source, KEPT_BYTES):
        _write(target, more)
        said = (said + more)[-KEPT_BYTES:]
        try:  # noqa: SIM105
            _keep(path, more, said)
        except OSError:
            pass


def _write(target: int, text: bytes) -> None:
    try:
        while text:
            text = text[os.write(target, text) :]
    except OSError:
        pass


def _keep(path: str, more: bytes, said: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_size + len(more) > 2 * KEPT_BYTES:
            os.ftruncate(file, 0)
            more = said
        os.write(file, more)
    finally:
        os.close(file)


if __name__ == "__main__":
    pass_on(0, 2, sys.argv[1])
