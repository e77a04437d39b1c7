"""Workers' output, in a file per job: `<folder>/<job>.log`, and `<job>.1.log` with older output.

Standard output and error of worker processes and their children go into pipes, which a separate process, the
*keeper*, reads: so a worker that prints without end slows down only itself. Each worker process has a slot in
shared memory that names its present job. Before a process turns to another job, or gives a result, it waits
until the keeper has read its output, at most for `PATIENCE_S`.

Bounds: at `SIZE_MAX_BYTES` a file becomes the file with older output, so at least the last megabyte of each
job is kept; beyond `FILES_MAX` files, or `FOLDER_MAX_BYTES` in all, the oldest files are removed. Only
regular files of this user with a single name are written or removed; links, FIFOs and other users' files
under our names are left alone. Output that cannot be written to a file (a full disk), or that belongs to no
job (while an input is read), goes to the rank's standard error.

The keeper ends after its fork server, when it has read the remaining output.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import select
import signal
import socket
import stat
import struct
import sys
import termios
import time
from contextlib import suppress
from typing import NoReturn

from mallob_py.runtime.processes import close_all_but, die_with, set_title

#: name of the output folder inside a service's folder
OUTPUT_FOLDER = "output"
SIZE_MAX_BYTES = 1 << 20
FILES_MAX = 2000
FOLDER_MAX_BYTES = 512 << 20
#: number of new files after which old files are removed
_NEW_FILES = 100
PATIENCE_S = 0.2
_POLL_S = 0.001
#: pause before the keeper tries again to take in a pipe if no descriptor is free
_RETRY_S = 0.01
_READ_BYTES = 1 << 16
#: greatest number of bytes read from each pipe at the end; later output is lost
_LAST_BYTES = 1 << 20
_JOB = struct.Struct("q")
_DESCRIPTOR = struct.Struct("i")
#: number of slots: more than a fork server has live processes
_SLOTS = 1 << 16
_OURS = re.compile(r"[0-9]+(\.1)?\.log")


def log_names(job: int) -> tuple[str, str]:
    """Return the names of a job's files: with older output, with the newest output."""
    return f"{job}.1.log", f"{job}.log"


class Printed:
    """A worker process's view of its output: names the present job, and waits until output is read."""

    def __init__(self, slots: mmap.mmap, slot: int, pipe: int) -> None:
        """`pipe`: the pipe's writing end, in case an application closes standard output and error."""
        self._slots = slots
        self._place = slot * _JOB.size
        self.pipe = pipe

    def turn_to(self, job: int) -> None:
        """Assign all further output to a job; 0: to no job."""
        self.settle()
        _JOB.pack_into(self._slots, self._place, job)

    def settle(self) -> None:
        """Wait until the keeper has read the output so far, at most for `PATIENCE_S`."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # an application may have closed or replaced the streams
                stream.flush()
        deadline_s = 0.0
        while _unread_bytes(self.pipe):
            now = time.monotonic()
            deadline_s = deadline_s or now + PATIENCE_S
            if now > deadline_s:
                return
            time.sleep(_POLL_S)


def _unread_bytes(pipe: int) -> int:
    unread = bytearray(4)
    try:
        fcntl.ioctl(pipe, termios.FIONREAD, unread)
    except OSError:
        return 0
    return int.from_bytes(unread, sys.byteorder)


class OutputKeeper:
    """The process that writes workers' output to files, as seen by the fork server that starts it."""

    def __init__(self, folder: str) -> None:
        """Start the keeper. Raises OSError."""
        self._slots = mmap.mmap(-1, _JOB.size * _SLOTS)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            server_pid = os.getpid()
            pid = os.fork()
            if pid == 0:
                _be_keeper(folder, theirs, self._slots, server_pid)
        #: descriptor that is readable when the keeper's process has ended
        self.pidfd = os.pidfd_open(pid)

    def redirect(self, serial: int) -> Printed:
        """Redirect the output of this process, a new worker, to the keeper. Raises OSError."""
        slot = serial % _SLOTS
        read_end, write_end = os.pipe()
        printed = Printed(self._slots, slot, write_end)
        _JOB.pack_into(self._slots, slot * _JOB.size, 0)
        socket.send_fds(self._control, [_JOB.pack(slot)], [read_end])
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        os.close(read_end)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        return printed


def _be_keeper(folder: str, control: socket.socket, slots: mmap.mmap, server_pid: int) -> NoReturn:
    try:
        wake, wake_writer = os.pipe()
        os.set_blocking(wake_writer, False)
        signal.set_wakeup_fd(wake_writer)
        signal.signal(signal.SIGTERM, _note)
        os.setpgid(0, 0)
        die_with(server_pid, signal.SIGTERM)
        set_title("mallob-py: output")
        close_all_but(control.fileno(), wake, wake_writer)
        _Keeper(OutputFiles(folder), control, slots, wake).run()
    finally:
        os._exit(0)


def _note(number: int, frame: object) -> None:
    """Do nothing: a signal only has to wake the keeper."""


class _Keeper:
    def __init__(self, files: OutputFiles, control: socket.socket, slots: mmap.mmap, wake: int) -> None:
        self._files = files
        self._control = control
        self._slots = slots
        self._wake = wake
        #: pipe of a worker process -> the process's slot
        self._pipes: dict[int, int] = {}
        self._epoll = select.epoll()
        for descriptor in (control.fileno(), wake):
            self._epoll.register(descriptor, select.EPOLLIN)

    def run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                if descriptor == self._wake:
                    self._read_the_rest()
                    return
                if descriptor != self._control.fileno():
                    self._read(descriptor)
                elif not self.welcome():
                    self._epoll.unregister(descriptor)

    def welcome(self) -> bool:
        """Take in the pipe of a new worker process; return False if no more will come."""
        # Not by `recv_fds`, which ignores its flags (Python 3.11).
        space = socket.CMSG_LEN(_DESCRIPTOR.size)
        data, ancillary, _, _ = self._control.recvmsg(_JOB.size, space, socket.MSG_PEEK)
        if data and not ancillary:
            # No descriptor is free. The pipe must stay in the socket: the worker may not write to a pipe
            # without a reader.
            time.sleep(_RETRY_S)
            return True
        self._control.recv(_JOB.size)
        for _, _, descriptor in ancillary:
            (pipe,) = _DESCRIPTOR.unpack(descriptor)
            os.set_blocking(pipe, False)
            self._pipes[pipe] = _JOB.unpack(data)[0]
            self._epoll.register(pipe, select.EPOLLIN)
        return bool(data)

    def _read(self, pipe: int) -> int:
        """Read from a pipe, and write that output to its job's file; return the number of bytes read."""
        try:
            data = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self._files.add(_JOB.unpack_from(self._slots, self._pipes[pipe] * _JOB.size)[0], data)
        else:
            self._epoll.unregister(pipe)
            del self._pipes[pipe]
            os.close(pipe)
        return len(data)

    def _read_the_rest(self) -> None:
        for pipe in tuple(self._pipes):
            left = _LAST_BYTES
            while left > 0 and (count := self._read(pipe)):
                left -= count


class OutputFiles:
    """The output files of one folder, to which other keepers may write, too."""

    def __init__(
        self,
        folder: str,
        size_max_bytes: int = SIZE_MAX_BYTES,
        files_max: int = FILES_MAX,
        folder_max_bytes: int = FOLDER_MAX_BYTES,
    ) -> None:
        self._folder = folder
        self._size_max_bytes = size_max_bytes
        self._files_max = files_max
        self._folder_max_bytes = folder_max_bytes
        self._new_files = _NEW_FILES - 1

    def add(self, job: int, data: bytes) -> None:
        """Append to a job's file; write the rest to standard error if that fails."""
        try:
            written = self._append(job, data) if job else 0
        except OSError:
            written = 0
        with suppress(OSError):
            if written < len(data):
                os.write(2, data[written:])

    def _append(self, job: int, data: bytes) -> int:
        with suppress(FileExistsError):
            os.mkdir(self._folder)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            older, newest = log_names(job)
            file = _opened(newest, folder)
            try:
                size_bytes = os.fstat(file).st_size
                written = os.write(file, data)
                if size_bytes + written > self._size_max_bytes:
                    _set_aside(file, newest, older, folder)
            finally:
                os.close(file)
            if not size_bytes:
                with suppress(OSError):  # the output is written, so old files may stay for now
                    self._note_new_file(folder)
            return written
        finally:
            os.close(folder)

    def _note_new_file(self, folder: int) -> None:
        self._new_files += 1
        if self._new_files < _NEW_FILES:
            return
        self._new_files = 0
        found = []
        for name in filter(_OURS.fullmatch, os.listdir(folder)):
            with suppress(FileNotFoundError):
                found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
        total_bytes = 0
        for number, (name, status) in enumerate(sorted(found, key=lambda one: -one[1].st_mtime_ns), 1):
            total_bytes += status.st_size
            is_beyond = number > self._files_max or total_bytes > self._folder_max_bytes
            if is_beyond and _is_ours(status):
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)


def _opened(name: str, folder: int) -> int:
    """Open a file to append to it. Raises OSError, also if the file is not ours (`_is_ours`)."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(name, flags, 0o666, dir_fd=folder)
    if _is_ours(os.fstat(file)):
        return file
    os.close(file)
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), name)


def _is_ours(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid()


def _set_aside(file: int, newest: str, older: str, folder: int) -> None:
    """Rename `newest` to `older`, unless another keeper just did. If that fails, truncate the file."""
    try:
        if os.stat(newest, dir_fd=folder, follow_symlinks=False).st_ino == os.fstat(file).st_ino:
            os.rename(newest, older, src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:
        pass
    except OSError:
        os.ftruncate(file, 0)
