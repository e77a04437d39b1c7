"""The output of experiments: parallel runs, tables as text, JSON and Markdown, figures.

Experiments can take hours. So each run's result is kept as soon as the run ends, as a line of JSON, even if
other runs fail.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from mallob_py.text_table import Cell, format_cell, format_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ASK_AGAIN_S = 0.1

Job = TypeVar("Job")
Played = TypeVar("Played")
Run = TypeVar("Run", bound=Hashable)
Outcome = TypeVar("Outcome", bound=msgspec.Struct)


class Table(msgspec.Struct, frozen=True):
    """One table of results."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def text(self) -> str:
        return f"{self.title}\n\n{format_table(self.header, self.rows)}"

    def markdown(self) -> str:
        lines = [self.header, ("---",) * len(self.header)]
        lines += [tuple(format_cell(cell) for cell in row) for row in self.rows]
        return "\n".join([f"{self.title}\n", *(f"| {' | '.join(line)} |" for line in lines)])


class _Kept(msgspec.Struct, frozen=True):
    """A line of `<name>-runs.jsonl`: a run and its result."""

    run: str
    result: msgspec.Raw


class Output:
    """The folder of an experiment's results. All methods may raise OSError.

    `resume`: if the folder already contains the result of a run, `done` returns that result; new results are
    added to the same file.
    """

    def __init__(self, folder: Path, name: str, resume: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = name
        self._runs = folder / f"{name}-runs.jsonl"
        # An unwritable file must be noticed now; a writable file keeps its content until a run has ended.
        self._runs.open("ab").close()
        self._mode = "wb"
        self._before = dict(self._read()) if resume else {}

    def keep(self, run: str, result: msgspec.Struct) -> None:
        """Add the result of one run to `<name>-runs.jsonl`."""
        lines = [] if self._mode == "ab" else [_Kept(*before) for before in self._before.items()]
        lines.append(_Kept(run, msgspec.Raw(msgspec.json.encode(result))))
        with self._runs.open(self._mode) as file:
            self._mode = "ab"
            file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def done(self, run: str, kind: type[Outcome], play: Callable[[], Outcome]) -> Outcome:
        """Return the result of `run`: from the folder if `resume` is set; else play the run and keep it."""
        with suppress(KeyError, msgspec.ValidationError):
            return msgspec.json.decode(self._before[run], type=kind)
        outcome = play()
        self.keep(run, outcome)
        return outcome

    def _read(self) -> Iterator[tuple[str, msgspec.Raw]]:
        """Read the kept results, except for a last line that was cut off by a kill."""
        for line in self._runs.read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                kept = msgspec.json.decode(line, type=_Kept)
                yield kept.run, kept.result

    def play(
        self,
        play: Callable[[Run], Outcome],
        runs: Iterable[Run],
        processes: int | None,
        name: Callable[[Run], str],
    ) -> dict[Run, Outcome]:
        """Call `play` for each run by `side_by_side`, for equal runs once; return the outcome of each run."""
        todo = list(dict.fromkeys(runs))
        return dict(zip(todo, side_by_side(play, todo, processes, name, self.keep), strict=True))

    def tables(self, tables: Sequence[Table], remarks: str) -> None:
        """Print the tables; write them as Markdown and JSON."""
        for table in tables:
            print(f"{table.text()}\n", flush=True)
        print(f"{remarks}\n", flush=True)
        parts = [*(table.markdown() for table in tables), remarks]
        (self._folder / f"{self._name}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        encoded = msgspec.json.format(msgspec.json.encode(tables), indent=1)
        (self._folder / f"{self._name}.json").write_bytes(encoded + b"\n")

    def figure(self, name: str, draw: Callable[[Figure], None]) -> None:
        """Draw a figure by `write_figure`."""
        write_figure(self._folder, name, draw)


def write_figure(folder: Path, name: str, draw: Callable[[Figure], None]) -> None:
    """Draw a figure and write it as PNG and SVG; report if matplotlib is missing. Raises OSError."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"no figure {name}: matplotlib is missing (pip install matplotlib)", file=sys.stderr)
        return
    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    draw(figure)
    for suffix in ("png", "svg"):
        path = folder / f"{name}.{suffix}"
        figure.savefig(path, dpi=110, metadata={"Date": None} if suffix == "svg" else None)
        print(f"wrote {path}", file=sys.stderr)


def _begin() -> None:
    """Set up a process that plays runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _interruptible(play: Callable[[Job], Played], job: Job) -> Played:
    """Let Ctrl-C end this process while it plays a run, but not while it sends a result, for which the pool
    would wait for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return play(job)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _submit(pool: ProcessPoolExecutor, play: Callable[[Job], Played], job: Job) -> Future[Played]:
    """Submit a run; new processes of the pool ignore Ctrl-C until they are ready for it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return pool.submit(_interruptible, play, job)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _end_all(pool: ProcessPoolExecutor) -> None:
    """End all processes of the pool, also processes that were about to begin when Ctrl-C came.

    Returns when the pool's own thread has ended, too. Otherwise the interpreter, at its end, could write to
    that thread's pipe after the pipe was closed.
    """
    ending = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True})
    ending.start()
    while ending.is_alive():
        for child in multiprocessing.active_children():
            if child.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGINT)
        ending.join(_ASK_AGAIN_S)


def side_by_side(
    play: Callable[[Job], Played],
    jobs: Iterable[Job],
    processes: int | None,
    name: Callable[[Job], str],
    keep: Callable[[str, Played], None],
) -> list[Played]:
    """Return the outcomes of `play` for all jobs, in their order; `processes` processes play (default: one
    per core).

    After each run, `keep(name, outcome)` is called and a line is printed. After an error or Ctrl-C, no
    further run begins.
    """
    todo = list(jobs)
    outcomes: dict[int, Played] = {}
    processes = processes or os.cpu_count() or 1
    began_s = time.monotonic()
    # Ctrl-C reaches all processes; the pool's processes end silently, and this one reports.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _begin) as pool:
        running: dict[Future[Played], int] = {}
        # Runs are not submitted all at once: after an error, the pool would still play them.
        waiting = deque(enumerate(todo))
        try:
            while waiting or running:
                while waiting and len(running) < processes:
                    number, job = waiting.popleft()
                    running[_submit(pool, play, job)] = number
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number = running.pop(future)
                    outcomes[number] = future.result()
                    run = name(todo[number])
                    keep(run, outcomes[number])
                    done = f"{len(outcomes)} of {len(todo)} runs done ({run})"
                    print(f"{done}, {time.monotonic() - began_s:.0f} s", file=sys.stderr)
        except KeyboardInterrupt:
            _end_all(pool)
            raise
    return [outcomes[number] for number in range(len(todo))]
