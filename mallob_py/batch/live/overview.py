"""The overview of a live scheduler for a web page: its queue, and which jobs were on which slots."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mallob_py.batch.live.requests import Bars, Gantt, Jobs, LiveError, Queue, ask

_WAITING, _ENDED = 50, 20
_SECONDS = 600.0


class BatchOverview(msgspec.Struct, frozen=True):
    """The overview, or the error that says why there is none."""

    error: str = ""
    jobs: Jobs | None = None
    chart: Gantt | None = None


def batch_overview(folder: Path) -> BatchOverview:
    try:
        jobs, chart = ask(folder, Queue(_WAITING, _ENDED)), ask(folder, Bars(_SECONDS))
    except LiveError as error:
        return BatchOverview(str(error))
    assert isinstance(jobs, Jobs)
    assert isinstance(chart, Gantt)
    return BatchOverview("", jobs, chart)
