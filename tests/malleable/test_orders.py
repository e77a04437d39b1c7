"""The order of steps when a malleable program shrinks or grows."""

import subprocess
import sys
from collections.abc import Sequence

import pytest

from mallob_py.malleable import OrderError, Place, PlaceProcesses
from mallob_py.malleable.orders import carry_out
from mallob_py.malleable.wire import Grow, Shrink


class Recorder:
    """A handler, processes and a scheduler that record all calls."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.story: list[object] = []
        self.places = [Place(number, host) for number, host in enumerate(hosts)]
        self.chosen: list[Place] | None = None

    def pre_shrink(self, count: int) -> Sequence[Place]:
        self.story.append(("pre_shrink", count))
        return self.places[-count:] if self.chosen is None else self.chosen

    def post_shrink(self, now: int, removed: Sequence[Place]) -> None:
        self.story.append(("post_shrink", now, [place.id for place in removed]))

    def pre_grow(self, count: int) -> None:
        self.story.append(("pre_grow", count))

    def post_grow(self, now: int, continued: Sequence[Place], added: Sequence[Place]) -> None:
        self.story.append(("post_grow", now, [one.id for one in continued], [one.id for one in added]))

    def start(self, hosts: Sequence[str]) -> Sequence[Place]:
        self.story.append(("start", *hosts))
        new = [Place(len(self.places) + number, host) for number, host in enumerate(hosts)]
        self.places += new
        return new

    def end(self, places: Sequence[Place]) -> None:
        self.story.append(("end", [place.id for place in places]))
        self.places = [place for place in self.places if place not in places]

    def release(self, hosts: Sequence[str]) -> None:
        self.story.append(("release", *hosts))


def test_hosts_are_released_after_their_processes_and_before_the_program_goes_on() -> None:
    told = Recorder(["a", "b", "c"])
    carry_out(Shrink(2), told, told, told.release)
    assert told.story == [
        ("pre_shrink", 2),
        ("end", [1, 2]),
        ("release", "b", "c"),
        ("post_shrink", 1, [1, 2]),
    ]


def test_processes_start_between_the_two_calls_of_growth() -> None:
    told = Recorder(["a"])
    carry_out(Grow(("b", "c")), told, told, told.release)
    assert told.story == [("pre_grow", 2), ("start", "b", "c"), ("post_grow", 3, [0], [1, 2])]


@pytest.mark.parametrize("chosen", [[], [Place(0, "a"), Place(0, "a")], [Place(0, "a"), Place(7, "z")]])
def test_a_choice_of_other_places_than_there_are_ends_no_process(chosen: list[Place]) -> None:
    told = Recorder(["a", "b", "c"])
    told.chosen = chosen
    with pytest.raises(OrderError, match=r"pre_shrink\(2\) has chosen"):
        carry_out(Shrink(2), told, told, told.release)
    assert told.story == [("pre_shrink", 2)]


def test_more_places_than_there_are_cannot_be_released() -> None:
    told = Recorder(["a"])
    with pytest.raises(OrderError, match="2 places must be released, but there are only 1"):
        carry_out(Shrink(2), told, told, told.release)
    assert not told.story


def test_ids_of_places_are_never_used_again() -> None:
    def sleeper(place: Place) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])

    processes = PlaceProcesses(sleeper, ["a", "b"])
    gone = processes.process(processes.places[1])
    processes.end(processes.places[1:])
    assert gone.poll() is not None
    assert processes.start(["c"]) == [Place(2, "c")]
    assert processes.places == [Place(0, "a"), Place(2, "c")]
    processes.end(processes.places)


def test_a_process_that_ignores_its_end_is_killed() -> None:
    ignores = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"

    def stubborn(place: Place) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", ignores], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    processes = PlaceProcesses(stubborn, ["a"], grace_s=0.1)
    process = processes.process(processes.places[0])
    processes.end(processes.places)
    assert process.returncode == -9
    assert process.stdout is not None
    process.stdout.close()
