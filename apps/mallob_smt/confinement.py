"""The sandbox of an engine's process, which may only compute in memory and write to its open descriptors.

Any user who may submit jobs can send a script, and engines have commands and options that name files. Known
commands of this kind never reach an engine (see `commands`); the sandbox stops unknown ones. With Landlock,
which most kernels since 5.13 have, the process cannot open any file, neither to read nor to write, and cannot
connect to any address (since kernel 6.7).
"""

from __future__ import annotations

import ctypes
import resource
import signal
import struct

_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # the same on all architectures
_VERSION_QUERY = 1
_PR_SET_NO_NEW_PRIVS = 38
#: version of Landlock that added rights on files -> number of rights on files in this version
_FILE_BITS = {1: 13, 2: 14, 3: 15, 5: 16}
_NETWORK_VERSION, _NETWORK_BITS = 4, 0b11
#: size of the stack: terms may be nested a hundred thousand deep, and engines use recursion
_STACK_BYTES = 120 << 20


def confine(file_bytes_max: int) -> bool:
    """Confine this process and its children for ever. Return whether the kernel supports the sandbox.

    In any case, no file, in memory or on a disk, can become larger than `file_bytes_max`. All imports must be
    done and all files must be open before this call.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return _forbid_files()


def deepen_stack() -> None:
    """Enlarge the stack as far as the limits of this process allow."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = _STACK_BYTES if hard == resource.RLIM_INFINITY else min(_STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))


def _forbid_files() -> bool:
    library = ctypes.CDLL(None)
    version = library.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_QUERY)
    if version < 1:
        return False
    bits = max(bits for since, bits in _FILE_BITS.items() if since <= version)
    rights = struct.pack("<Q", (1 << bits) - 1)
    if version >= _NETWORK_VERSION:
        rights += struct.pack("<Q", _NETWORK_BITS)
    ruleset = library.syscall(_CREATE_RULESET, rights, ctypes.c_size_t(len(rights)), 0)
    if ruleset < 0:
        return False
    library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return bool(library.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
