"""The fork server: the process, one per rank, from which worker processes are forked.

The server never initialises MPI, has imported the applications in use, has a single thread, and only forks,
reaps and reports. So a new worker process costs a fork instead of an interpreter start, and shares the
server's memory until it writes there.

`mallob_py.runtime.workers.links.ForkServer` forks the server from the rank before MPI starts (`be_server`),
and starts a replacement as `python -m mallob_py.runtime.workers.fork_server <control socket fd> <pid of the
rank>`. If one process forks all ranks, which run a single job, another process meanwhile imports the
application for the servers of all ranks (`import_for_servers`).

Guarantees
- The server ends with all children when the control socket closes, at the latest when its rank ends. When the
  server ends, the kernel kills its children by SIGKILL, which also ends stopped processes.
- A child also dies when no process holds its *lifeline*, the writing end of a pipe that is passed on with the
  child's socket; another rank may hold both (`giving.py`).
- Every child's end is reported once, with its reason. Processes that a child has left in its group are
  killed.
- SIGINT, SIGTERM and SIGHUP are meant for the rank only, and ignored here.
"""

from __future__ import annotations

import fcntl
import gc
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from mallob_py import launchers
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.notices import tell_error
from mallob_py.runtime.processes import (
    STOP_SIGNALS,
    close_all_but,
    die_with,
    import_places,
    raise_descriptor_limit,
    set_title,
    use_no_input,
    want_no_numeric_threads,
)

if TYPE_CHECKING:
    from mallob_py.runtime.workers.output import OutputKeeper, Printed
    from mallob_py.runtime.workers.process import AppRegistry

    Work: TypeAlias = Callable[[socket.socket, AppRegistry, wire.Configure, Printed | None], None]

_PACKET_BYTES = 1 << 16
#: exit status of a worker that had too little memory to begin (EX_OSERR)
_NO_MEMORY = 71


def exit_reason(status: int) -> str:
    """Return a wait status in words for people."""
    code = os.waitstatus_to_exitcode(status)
    if code == _NO_MEMORY:
        return "out of memory before it could begin: raise --memory-limit"
    if code >= 0:
        return f"exit status {code}"
    with suppress(ValueError):
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"killed by signal {-code}"


#: title in `ps` of a forked server and of its workers
_TITLE = "mallob-py: fork_server"
#: delay before looking again for the installed applications
_RETRY_S = 0.5


class _Child:
    __slots__ = ("pid", "pidfd", "serial")

    def __init__(self, serial: int, pid: int, pidfd: int) -> None:
        self.serial = serial
        self.pid = pid
        self.pidfd = pidfd


class Server:
    """A fork server: forks, reaps and reports until the rank closes the control socket."""

    def __init__(self, control: socket.socket, registry: AppRegistry, work: Work) -> None:
        self._registry = registry
        self._work = work
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._children: dict[int, _Child] = {}
        self._serial = 0
        self._generation = 0
        self._configuration = wire.Configure((), None)
        self._keeper: OutputKeeper | None = None
        #: delay before finding and reporting the applications' names, which takes time; None: not asked for
        self._names_delay_s: float | None = None

    def run(self) -> None:
        try:
            while True:
                ready = self._selector.select(self._names_delay_s)
                if not ready:
                    self._report_names()
                for key, _ in ready:
                    if key.data is None:
                        self._serve_request()
                    elif key.data is self._keeper:
                        # Nothing reads workers' output any more, so workers would block: all must begin anew.
                        raise EOFError
                    else:
                        self._reap(key.data)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self._kill_all()

    def _report_names(self) -> None:
        try:
            names = self._registry.names()
        except (OSError, ImportError):  # most likely no descriptor is free
            self._names_delay_s = _RETRY_S
            return
        self._names_delay_s = None
        self._report(wire.Applications(names))

    def _serve_request(self) -> None:
        packet = self._control.recv(_PACKET_BYTES)
        if not packet:
            raise EOFError
        match wire.decode_to_server(packet):
            case wire.Configure() as configuration:
                self._configure(configuration)
            case wire.Fork(count):
                for _ in range(count):
                    self._fork()
            case wire.Import(application):
                self._import(application)
            case wire.FindApplications():
                self._names_delay_s = 0.0

    def _configure(self, configuration: wire.Configure) -> None:
        self._configuration = configuration
        if configuration.output_dir and self._keeper is None:
            from mallob_py.runtime.workers.output import OutputKeeper

            with suppress(OSError):  # without a keeper of output, workers print to standard error
                self._keeper = OutputKeeper(configuration.output_dir)
                self._selector.register(self._keeper.pidfd, selectors.EVENT_READ, self._keeper)
        for name in configuration.preload:
            _prepare_application(self._registry, name)
        # Keep present objects out of the children's garbage collections, which would write to (and so copy)
        # every page that holds such an object.
        gc.collect()
        gc.freeze()

    def _import(self, application: str) -> None:
        _prepare_application(self._registry, application)
        gc.collect()
        gc.freeze()
        self._generation += 1
        self._report(wire.Imported(application, self._generation))

    def _fork(self) -> None:
        try:
            child = self._forked()
        except OSError as error:
            self._report(wire.ForkFailed(str(error.strerror)))
            return
        self._serial = child.serial
        self._children[child.serial] = child

    def _forked(self) -> _Child:
        """Fork a child, and send the rank its socket, pidfd and lifeline. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, ExitStack() as sent, ExitStack() as undo:
            with theirs:
                line, lifeline = os.pipe()
                sent.callback(os.close, lifeline)
                server_pid = os.getpid()
                try:
                    pid = os.fork()
                    if pid == 0:
                        self._become_worker(theirs.detach(), line, server_pid)
                finally:
                    os.close(line)
            with suppress(OSError):  # parent and child both do this: either may run first
                os.setpgid(pid, pid)
            undo.callback(_kill_and_reap, pid)
            pidfd = os.pidfd_open(pid)
            undo.callback(os.close, pidfd)
            child = _Child(self._serial + 1, pid, pidfd)
            self._selector.register(pidfd, selectors.EVENT_READ, child)
            undo.callback(self._selector.unregister, pidfd)
            packet = wire.encode(wire.Forked(child.serial, pid, self._generation))
            # The kernel refuses more descriptors if too many of this user's wait to be received.
            socket.send_fds(self._control, [packet], [ours.fileno(), pidfd, lifeline])
            undo.pop_all()
        return child

    def _become_worker(self, fd: int, line: int, server_pid: int) -> None:
        """Run as a worker, in the child; never returns."""
        status = 1
        try:
            die_with(server_pid, signal.SIGKILL)
            os.setpgid(0, 0)
            printed = None
            if self._keeper is not None:
                with suppress(OSError):
                    printed = self._keeper.redirect(self._serial)
            close_all_but(fd, line, *(() if printed is None else (printed.pipe,)))
            _die_without(line)
            connection = socket.socket(fileno=fd)
            self._work(connection, self._registry, self._configuration, printed)
        except MemoryError:
            status = _NO_MEMORY
        except BaseException as error:
            tell_error(error)
        finally:
            os._exit(status)

    def _reap(self, child: _Child) -> None:
        # While the child is not reaped, its process id, also the group's number, cannot be reused.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        _, status, usage = os.wait4(child.pid, 0)
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.serial]
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        cpu_s, peak_bytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10
        self._report(wire.Exited(child.serial, exit_reason(status), cpu_s, was_killed, peak_bytes))

    def _report(self, message: wire.FromServer) -> None:
        self._control.send(wire.encode(message))

    def _kill_all(self) -> None:
        for child in self._children.values():
            signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        for child in self._children.values():
            os.waitpid(child.pid, 0)


def _die_without(line: int) -> None:
    """Have the kernel kill this process when no other process holds the writing end of the pipe `line`."""
    fcntl.fcntl(line, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGKILL)  # SIGKILL ends a stopped process, too
    fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)


def _kill_and_reap(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def import_for_servers(orders: socket.socket, preload: Sequence[str], parent_pid: int) -> NoReturn:
    """Import applications once for the servers of several ranks, and fork these servers; never returns.

    The servers' control sockets arrive by `orders`, one by one, until `orders` is closed. Must be called in a
    process forked for this purpose, with a single thread.
    """
    status = 1
    try:
        die_with(parent_pid, signal.SIGKILL)
        os.setsid()
        use_no_input()
        registry, work = _prepare()
        for name in preload:
            _prepare_application(registry, name)
        gc.freeze()
        gc.enable()
        controls = []
        while descriptors := socket.recv_fds(orders, 1, 1)[1]:
            controls.append(socket.socket(fileno=descriptors[0]))
        orders.close()
        for control in controls:
            if os.fork() == 0:
                for other in controls:
                    if other is not control:
                        other.close()
                set_title(_TITLE)
                Server(control, registry, work).run()
                break
        status = 0
    except BaseException as error:
        tell_error(error)
    finally:
        os._exit(status)


def be_server(control: socket.socket, rank_pid: int) -> NoReturn:
    """Run as the server of a rank; must be called in a fork of the rank, which has one thread and no MPI."""
    status = 1
    try:
        die_with(rank_pid, signal.SIGKILL)
        os.setpgid(0, 0)  # a terminal's Ctrl-C must reach only the rank
        gc.freeze()  # collections would copy memory shared with the rank
        signal.set_wakeup_fd(-1)
        own = control.detach()
        close_all_but(own)
        use_no_input()
        os.dup2(2, 1)  # only the rank writes to stdout: results
        os.environ.update(import_places())
        set_title(_TITLE)
        Server(socket.socket(fileno=own), *_prepare()).run()
        status = 0
    except BaseException as error:
        tell_error(error)
    finally:
        os._exit(status)


def _prepare() -> tuple[AppRegistry, Work]:
    """Prepare this process for importing applications; return their registry, and what workers run."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # The forking process may have blocked these signals; programs that applications start would inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    raise_descriptor_limit()
    want_no_numeric_threads()
    # A worker that starts MPI by accident must not find the rank's connection to its launcher.
    for name in list(os.environ):
        if name.startswith(launchers.PREFIXES):
            del os.environ[name]
    # Imported late, since numpy reads its limit of threads when it is imported.
    from mallob_py.runtime.workers.process import AppRegistry, work

    return AppRegistry.discover(), work


def _prepare_application(registry: AppRegistry, name: str) -> None:
    # The exception is not lost: a process that runs or reads such a job raises it again.
    with suppress(Exception):
        registry.prepared(name)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    die_with(int(sys.argv[2]), signal.SIGKILL)
    Server(control, *_prepare()).run()


if __name__ == "__main__":
    main()
