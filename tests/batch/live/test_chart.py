"""The Gantt chart of a live scheduler: a bar for each span of time in which a job has the same slots."""

from hypothesis import given
from hypothesis import strategies as st

from mallob_py.batch.live.chart import BARS_MAX, Bar, Chart


def _running(slots_of: dict[int, tuple[int, ...]], start_s: float) -> dict[int, Bar | None]:
    return {job: Bar(job, f"j{job}", slots, start_s) for job, slots in slots_of.items()}


@given(
    st.lists(
        st.dictionaries(st.integers(1, 4), st.sets(st.integers(0, 5), min_size=1).map(tuple), max_size=3),
        max_size=20,
    )
)
def test_at_any_time_the_bars_are_what_ran_then(moments: list[dict[int, tuple[int, ...]]]) -> None:
    chart = Chart()
    before: dict[int, tuple[int, ...]] = {}
    starts: dict[int, float] = {}
    for time_s, slots_of in enumerate(moments):
        starts = {job: starts.get(job, float(time_s)) for job in slots_of}
        moved: dict[int, Bar | None] = dict.fromkeys(before.keys() - slots_of.keys())
        moved |= {
            job: Bar(job, "j", slots, starts[job])
            for job, slots in slots_of.items()
            if before.get(job) != slots
        }
        chart.note(float(time_s), moved)
        before = slots_of
    for time_s, slots_of in enumerate(moments):
        shown = {
            bar.job: tuple(bar.slots)
            for bar in chart.since(-1.0)
            if bar.start_s <= time_s and (bar.end_s is None or time_s < bar.end_s)
        }
        assert shown == slots_of


def test_a_job_begins_when_it_was_started_and_not_when_it_was_seen_first() -> None:
    chart = Chart()
    chart.note(9.0, _running({1: (0,)}, start_s=2.0))
    chart.note(12.0, {1: None})
    assert chart.since(0.0) == [Bar(1, "j1", (0,), 2.0, 12.0)]
    assert chart.since(12.0) == []


def test_what_is_kept_is_bounded() -> None:
    chart = Chart()
    for job in range(2 * BARS_MAX):
        chart.note(float(job), {job - 1: None, **_running({job: (0,)}, float(job))})
    bars = chart.since(-1.0)
    assert len(bars) == BARS_MAX + 1
    assert bars[-1].end_s is None
