"""What the experiments have in common: runs side by side, a table as text, JSON and Markdown, figures."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from mallob_py.service.text_table import Cell, format_cell, format_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


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


class Output:
    """The folder that an experiment's results go to."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = name

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
        """Draw a figure and write it as PNG and SVG; say so where matplotlib is missing."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            print(f"no figure {name}: matplotlib is missing (pip install 'mallob-py[plot]')", file=sys.stderr)
            return
        figure = Figure(figsize=(8.0, 4.5), layout="constrained")
        draw(figure)
        for suffix in ("png", "svg"):
            path = self._folder / f"{name}.{suffix}"
            figure.savefig(path, dpi=110, metadata={"Date": None} if suffix == "svg" else None)
            print(f"wrote {path}", file=sys.stderr)


def side_by_side(
    play: Callable[[Job], Outcome], jobs: Iterable[Job], processes: int | None, name: Callable[[Job], str]
) -> list[Outcome]:
    """`play` of all jobs, in order, by so many processes (default: one per core); says what is done."""
    todo = list(jobs)
    outcomes = []
    began_s = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        for job, outcome in zip(todo, pool.map(play, todo), strict=True):
            outcomes.append(outcome)
            spent_s = time.monotonic() - began_s
            print(f"{len(outcomes)} of {len(todo)} runs done ({name(job)}), {spent_s:.0f} s", file=sys.stderr)
    return outcomes
