"""A service's last line names all remaining work, and where it is."""

from pathlib import Path

from mallob_py.service.telemetry.status_writer import Leftovers, last_words

FOLDER = Path("/data/api/jobs.0")


def test_a_service_without_unanswered_jobs_says_so() -> None:
    assert (
        last_words(FOLDER, Leftovers(0, 0, 0, 0, 0)) == "ended; every job of /data/api/jobs.0 has its reply"
    )


def test_everything_that_is_left_is_named_with_its_place() -> None:
    assert last_words(FOLDER, Leftovers(1, 20, 2, 3, 1)) == (
        "ended; kept in /data/api/jobs.0/journal for the next start: 1 running job, 20 waiting jobs, "
        "2 chains of revisions; not yet written to /data/api/jobs.0/out: 3 replies; "
        "not yet looked at in /data/api/jobs.0/in: 1 job file"
    )
