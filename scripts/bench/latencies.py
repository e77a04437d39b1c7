"""Times of jobs' events, from the event logs of a service."""

from collections.abc import Iterable

from common import BenchmarkError, DroppedJob

from mallob_py.log_events import LogEvent
from mallob_py.service.telemetry.event_log import Event


class Timeline:
    """The times of jobs' events, in seconds since 1970."""

    def __init__(self, events: Iterable[Event]) -> None:
        events = list(events)
        starts = [event.fields["unix_s"] for event in events if event.event == LogEvent.START]
        if not starts:
            raise BenchmarkError("the event log has no event `start`, whose time is needed")
        self._start_unix_s = float(starts[0])
        self._ids: dict[str, int] = {}
        self._started: dict[int, dict[int, float]] = {}
        for event in events:
            self._add(event)

    def _add(self, event: Event) -> None:
        job = event.fields.get("job")
        if job is None:
            return
        moment = self._start_unix_s + event.t
        if event.event == LogEvent.ACCEPTED:
            self._ids[f"{event.fields['user']}.{event.fields['name']}"] = job
        if event.event == LogEvent.STARTED:
            self._started.setdefault(job, {}).setdefault(event.fields.get("index", 0), moment)

    def all_active_s(self, job: DroppedJob, workers: int) -> float | None:
        """Return the time from a job's drop until `workers` workers have started; None: fewer started."""
        started = sorted(self._started.get(self._ids.get(job.identity, -1), {}).values())
        return started[workers - 1] - job.dropped_unix_s if len(started) >= workers else None
