"""A service that waits for the end of another one and goes on with its jobs: the change loses nothing."""

import contextlib
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Running, needs_mpiexec, poll_until, serving
from test_bags_move import APPS, NAPS, SUM, checkpoints, naps_until
from waiting import DEADLINE_S

pytestmark = [needs_mpiexec, pytest.mark.slow]

WAITS = "waiting until it ends"


@contextlib.contextmanager
def beside(service: Running, folder: Path, *options: str) -> Iterator[Running]:
    """Yield a second service on the same api folder, which waits for the first one's end."""
    second = Running(folder, "--wait", "--api-dir", str(service.api_dir), *options, ranks=2, env=APPS)
    second.api_dir = service.api_dir
    try:
        poll_until(lambda: WAITS in second.output, lambda: second.output)
        yield second
    finally:
        second.kill()


def test_a_second_service_goes_on_with_all_jobs_of_the_first_one_when_that_ends(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "first", ranks=2, env=APPS) as first,
        beside(first, tmp_path / "second") as second,
    ):
        bag = first.submit("bag", application="NAPS", configuration=naps_until(tmp_path / "go"))
        poll_until(lambda: checkpoints(first), "there is a checkpoint")
        short = {"application": "SLEEP", "wallclock_limit": "50ms"}
        replies = [first.submit(f"job{number}", **short) for number in range(50)]
        poll_until(lambda: any(map(Path.exists, replies)), "some jobs have ended")
        assert first.stop() == 0
        seen = {path: path.stat().st_mtime_ns for path in replies if path.exists()}
        assert not bag.exists()
        (tmp_path / "go").touch()
        second.await_ready()
        results = [second.reply(path)["result"]["outcome"] for path in replies]
        assert Counter(results) == {"wallclock-limit": len(replies)}
        result = second.reply(bag)["result"]
        assert (result["value"], result["tasks"]) == (SUM, NAPS)
        assert result["tasks_restored"] > 0
        assert seen == {path: path.stat().st_mtime_ns for path in seen}, "no job was answered again"
        assert second.output.count(WAITS) == 1
        assert second.stop() == 0
        assert list((second.box() / "journal").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_waits_ends_when_it_is_asked_to(number: signal.Signals, tmp_path: Path) -> None:
    with serving(tmp_path / "first", ranks=1) as first, beside(first, tmp_path / "second") as second:
        assert second.stop(number) == 0
        assert first.process.poll() is None


def test_the_time_limit_counts_while_a_service_waits(tmp_path: Path) -> None:
    limit = ("--time-limit", "1s")
    with serving(tmp_path / "first", ranks=1) as first, beside(first, tmp_path / "second", *limit) as second:
        assert second.process.wait(DEADLINE_S) == 0
        assert "accepting" not in second.output
