"""Output for notebooks and terminals: progress bars drawn by tqdm, and small tables in HTML."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from html import escape
from typing import Any, Protocol

#: period of redrawing a bar while the program waits for results
BAR_PERIOD_S = 0.1


class Bar(Protocol):
    """A progress bar; `n` is the number of units done."""

    n: float

    def update(self, more: float) -> object:
        """Count `more` further units as done."""
        ...

    def close(self) -> object:
        """End the bar."""
        ...


class _NoBar:
    n = 0.0

    def update(self, more: float) -> None: ...

    def close(self) -> None: ...


#: invisible bar, used if no bar is wanted
NO_BAR = _NoBar()


def check_progress(is_wanted: bool) -> None:
    """Raise ImportError if bars are wanted and tqdm is not installed."""
    if is_wanted:
        _tqdm()


def progress_bar(is_wanted: bool, total: int | None, unit: str) -> Bar:
    """Return a bar of tqdm, or an invisible one if none is wanted. Raises ImportError without tqdm."""
    if not is_wanted:
        return NO_BAR
    bar: Bar = _tqdm()(total=total, unit=f" {unit}s")
    return bar


def _tqdm() -> Any:
    """Return tqdm's bar for this terminal or notebook. Raises ImportError."""
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ModuleNotFoundError as error:
        raise ImportError("progress=True needs tqdm: pip install 'mallob-py[progress]'") from error


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Return HTML of a title and a table of names and values; all texts are escaped."""
    body = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items()
    )
    return f"<div><b>{escape(title)}</b><table>{body}</table></div>"
