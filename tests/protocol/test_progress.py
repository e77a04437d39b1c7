"""A job's progress and rate, from the reports of its root."""

from mallob_py.protocol.progress import WINDOW_S, Progress, Progression


def progression(*reports: tuple[float, float]) -> Progression:
    """Return the progression after reports, given as (time, done)."""
    progression = Progression()
    for now, done in reports:
        progression.note(Progress(done), now)
    return progression


def test_a_job_that_tells_nothing_has_no_progress() -> None:
    assert Progression().last is None
    assert Progression().rate(1.0) == 0.0


def test_the_rate_is_that_of_the_last_seconds() -> None:
    told = progression(*((float(second), 100.0 * second) for second in range(11)), (11.0, 2000.0))
    assert told.last == Progress(2000.0)
    assert told.rate(11.0) == (2000.0 - 600.0) / (11.0 - 6.0)


def test_who_says_nothing_any_more_gets_slower_and_stands_still_at_last() -> None:
    told = progression((0.0, 0.0), (1.0, 100.0))
    assert told.rate(2.0) == 50.0
    assert told.rate(1.0 + WINDOW_S) == 0.0
    assert told.last == Progress(100.0)


def test_a_job_that_begins_anew_has_a_new_rate() -> None:
    told = progression((0.0, 0.0), (1.0, 1000.0), (2.0, 10.0), (3.0, 30.0))
    assert told.rate(3.0) == 20.0


def test_what_is_remembered_does_not_grow() -> None:
    told = progression(*((each * 0.2, float(each)) for each in range(1000)))
    assert len(told._reports) <= WINDOW_S / 0.2 + 2
