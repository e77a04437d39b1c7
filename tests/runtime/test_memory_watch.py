"""Which rank gives back what when memory is short, and in which order; the memory is simulated."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from mallob_py.runtime.memory import Reserve, Room
from mallob_py.runtime.memory_watch import HostVote, MemoryWatch

TOTAL = 1000
RESERVE = Reserve(size_bytes=100)


class Host:
    """A host's free memory; memory that ranks give back is free from the next check on."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.left = TOTAL
        self.coming = 0
        self.now_s = 0.0
        self.given: list[tuple[int, str]] = []
        self.complaints: list[str] = []
        self.events: list[tuple[str, Mapping[str, object]]] = []
        votes = [HostVote(folder / "board", place, ranks) for place in range(ranks)]
        self.reclaimables = [FakeReclaimable(self, rank) for rank in range(ranks)]
        self.watches = [
            MemoryWatch(
                RESERVE,
                lambda: [Room(self.left, TOTAL)],
                reclaimable,
                vote,
                lambda event, fields: self.events.append((event, fields)),
                self.complaints.append,
            )
            for reclaimable, vote in zip(self.reclaimables, votes, strict=True)
        ]

    def look(self, times: int = 1) -> list[tuple[int, str]]:
        """Let all ranks check the memory once a second; return what they give back."""
        self.given.clear()
        for _ in range(times):
            self.now_s += 1.0
            for watch in self.watches:
                watch.look(self.now_s)
            self.left += self.coming
            self.coming = 0
        return list(self.given)


class FakeReclaimable:
    """The sizes of what a rank can give back."""

    def __init__(self, host: Host, rank: int) -> None:
        self._host = host
        self._rank = rank
        self.kept: list[int] = []
        self.past: list[int] = []
        self.unused: list[int] = []
        self.running: list[int] = []
        self.paused: list[int] = []
        self.spares = 1

    def _give(self, what: str, sizes: list[int], wanted: int) -> int:
        given = 0
        while sizes and given < wanted:
            given += sizes[0]
            self._host.given.append((self._rank, what))
            self._host.coming += sizes.pop(0)
        return given

    def give_back_processes(self, wanted_bytes: int) -> int:
        self.spares = 0
        return self._give("kept", self.kept, wanted_bytes)

    def give_back_past(self, wanted_bytes: int) -> int:
        return self._give("past", self.past, wanted_bytes)

    def give_back_descriptions(self, wanted_bytes: int) -> int:
        return self._give("unused", self.unused, wanted_bytes)

    def largest_bytes(self) -> int:
        return max(self.running, default=0)

    def pause_largest(self) -> int:
        self.running.sort(reverse=True)
        self.paused.append(self.running[0])
        return self._give("running", self.running, 1)

    def smallest_paused_bytes(self) -> int | None:
        return min(self.paused, default=None)

    def unpause_smallest(self) -> None:
        size = min(self.paused)
        self.paused.remove(size)
        self.running.append(size)
        self._host.coming -= size
        self._host.given.append((self._rank, "unpaused"))

    def end_shortage(self) -> None:
        self.spares = 1


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, 1)


@pytest.fixture
def wide(tmp_path: Path) -> Host:
    """Return a host with four ranks."""
    return Host(tmp_path, 4)


def test_with_more_than_the_reserve_left_nothing_is_given_back(host: Host) -> None:
    host.reclaimables[0].past = [50]
    host.left = 100
    assert host.look(5) == []
    assert (host.complaints, host.events) == ([], [])


def test_what_is_kept_goes_first_then_past_workers_then_descriptions_and_running_workers_last(
    host: Host,
) -> None:
    reclaimable = host.reclaimables[0]
    reclaimable.kept, reclaimable.past = [1, 1], [1, 1]
    reclaimable.unused, reclaimable.running = [1], [30, 20]
    host.left = 40
    order = [what for _, what in host.look(10)]
    assert order == ["kept", "kept", "past", "past", "unused", "running", "running"]


def test_no_more_is_given_back_than_is_missing(host: Host) -> None:
    reclaimable = host.reclaimables[0]
    reclaimable.past, reclaimable.running = [30, 30, 30, 30], [500]
    host.left = 50
    assert host.look(10) == [(0, "past"), (0, "past")]


def test_no_process_stands_ready_while_memory_is_short(host: Host) -> None:
    host.left = 99
    host.look()
    assert host.reclaimables[0].spares == 0
    host.left = 110
    host.look()
    assert host.reclaimables[0].spares == 0, "hardly enough"
    host.left = 125
    host.look()
    assert host.reclaimables[0].spares == 1


def test_running_workers_are_paused_the_largest_first_with_time_between(host: Host) -> None:
    reclaimable = host.reclaimables[0]
    reclaimable.running = [5, 20, 10]
    host.left = 0
    assert host.look() == [], "by the first look nobody knows who else is in need"
    assert host.look() == [(0, "running")]
    assert reclaimable.paused == [20]
    assert host.look(2) == []
    assert host.look(1) == [(0, "running")]
    assert reclaimable.paused == [20, 10]


def test_of_all_ranks_of_a_host_the_one_with_the_largest_worker_pauses_it_alone(wide: Host) -> None:
    for reclaimable, sizes in zip(wide.reclaimables, ([10], [30, 5], [30], []), strict=True):
        reclaimable.running = sizes
    wide.left = 75
    assert wide.look(20) == [(1, "running")]
    wide.left = 0
    assert wide.look(2) == [(2, "running")]
    assert wide.look(3) == [(0, "running")]


def test_no_worker_is_paused_while_other_ranks_have_something_else_to_give(wide: Host) -> None:
    wide.reclaimables[0].running = [1000]
    wide.reclaimables[3].past = [20] * 10
    wide.left = 0
    wide.look(10)
    assert wide.left >= 100
    assert wide.reclaimables[0].running == [1000]


def test_ranks_that_have_enough_together_give_back_their_parts_only(wide: Host) -> None:
    for reclaimable in wide.reclaimables:
        reclaimable.past = [10] * 10
    wide.left = 20
    assert len(wide.look()) == 8
    assert wide.left == 100


def test_there_is_one_line_for_a_host_in_an_episode_and_one_event_for_each_rank(wide: Host) -> None:
    wide.left = 40
    wide.look(5)
    (line,) = wide.complaints
    assert "40" not in line.split("short of memory")[0]
    assert "Lower --pes, --job-cache or --memory-limit" in line
    assert [event for event, _ in wide.events] == ["short of memory"] * 4


def test_episodes_that_follow_closely_are_not_complained_of_again(host: Host) -> None:
    for left in (50, 200, 50, 200):
        host.left = left
        host.look()
    assert len(host.complaints) == 1
    host.left = 50
    host.look(70)
    host.left = 200
    host.look()
    host.left = 50
    host.look()
    assert len(host.complaints) == 2


def test_each_step_is_logged_with_its_size(host: Host) -> None:
    host.reclaimables[0].past = [60]
    host.left = 50
    host.look(2)
    host.left = 500
    host.look()
    assert host.events == [
        ("short of memory", {"left_bytes": 50, "reserve_bytes": 100}),
        ("gave back memory", {"what": "suspended workers", "bytes": 60}),
        ("enough memory", {"left_bytes": 500}),
    ]


def test_a_paused_worker_goes_on_when_there_is_room_for_all_it_had_and_not_before(host: Host) -> None:
    reclaimable = host.reclaimables[0]
    reclaimable.running = [300]
    host.left = 90
    host.look(2)
    assert (host.left, reclaimable.paused) == (390, [300])
    assert host.look(30) == [], "it alone was too much"
    host.left = 400
    assert host.look() == [(0, "unpaused")]
    assert host.left == 100


def test_paused_workers_go_on_one_at_a_time_on_all_ranks_of_a_host(wide: Host) -> None:
    for reclaimable in wide.reclaimables:
        reclaimable.paused = [50]
    wide.left = 900
    assert [len(wide.look(10)) for _ in range(5)] == [1, 1, 1, 1, 0]


def test_the_tightest_of_host_and_groups_counts(tmp_path: Path) -> None:
    host = Host(tmp_path, 1)
    events = host.events
    watch = MemoryWatch(
        Reserve(share=0.1),
        lambda: [Room(500, 1000), Room(5, 100)],
        host.reclaimables[0],
        HostVote(tmp_path / "other", 0, 1),
        lambda event, fields: events.append((event, fields)),
        host.complaints.append,
    )
    watch.look(1.0)
    assert events == [("short of memory", {"left_bytes": 5, "reserve_bytes": 10})]


def test_where_nothing_can_be_measured_nothing_is_done(tmp_path: Path) -> None:
    host = Host(tmp_path, 1)
    vote = HostVote(tmp_path / "other", 0, 1)
    watch = MemoryWatch(RESERVE, list, host.reclaimables[0], vote, lambda *_: None, host.complaints.append)
    watch.look(1.0)
    assert host.complaints == []


def test_a_rank_that_is_gone_does_not_win_the_vote_for_ever(tmp_path: Path) -> None:
    gone, left = (HostVote(tmp_path / "board", place, 2) for place in range(2))
    gone.bid(70)
    left.bid(40)
    assert not left.wins_turn(1.0, 3.0)
    left.withdraw(0)
    assert left.wins_turn(1.0, 3.0)


def test_a_rank_with_a_large_number_has_room_for_its_bid_before_memory_is_short(tmp_path: Path) -> None:
    path = tmp_path / "board"
    for place in (0, 5000):
        HostVote(path, place, 2)
    assert path.stat().st_size == 16 + 8 * 5001
    assert path.stat().st_blocks * 512 >= 2 * 4096
