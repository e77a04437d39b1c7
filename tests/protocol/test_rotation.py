"""With more jobs than PEs, volumes rotate: the jobs' shares over time, and the order of turns."""

import math
from collections import defaultdict
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mallob_py.protocol.balancing import Image, local_rule, volumes_of
from mallob_py.protocol.messages import Epoch, JobEvent
from mallob_py.protocol.rotation import Slices, back_in_s, fair_shares

SLICES = Slices(0.5, 0.05)


class Rotating:
    """The rule, called as by the root of the tree of ranks; each job's root worker goes to a free PE."""

    def __init__(self, size: int, slices: Slices | None = SLICES) -> None:
        self.size = size
        self.rule = local_rule(size, slices)
        self.image = Image({}, {}, 0)
        self.epochs = 0
        self.now = 0.0
        self.moves = 0
        self.received: dict[int, float] = defaultdict(float)
        #: how often a root was on another PE than at its turn before
        self.changes = 0
        #: whether roots hand over their work before they leave
        self.leaves = False
        self.is_one_host = False
        #: job -> its user, if there are several users
        self.users: dict[int, int] = {}
        self._versions: dict[int, int] = defaultdict(int)
        self._roots: dict[int, int] = {}
        self._residents: dict[int, set[int]] = defaultdict(set)

    def hear(self, *events: JobEvent, elapsed_s: float = 0.0) -> None:
        for job, volume in self.image.volumes.items():
            self.received[job] += volume * elapsed_s
        self.now += elapsed_s
        self.epochs += 1
        before = self.image.volumes
        self.image = self.rule(self.image, Epoch(self.epochs, events, elapsed_s, self.is_one_host))
        self._move(before)

    def _move(self, before: Iterable[int]) -> None:
        volumes, rotation = self.image.volumes, self.image.rotation
        taken = {self._roots[job] for job in volumes if job in before and job in self._roots}
        for job in volumes:
            if job in before and job in self._roots:
                continue
            place = rotation.places.get(job)
            if place is None or place in taken:
                free = [pe for pe in range(self.size) if pe not in taken]
                place = min(free, key=lambda pe: pe in rotation.places.values())
            self.moves += place not in self._residents[job]
            self.changes += place != self._roots.get(job, place)
            self._residents[job].add(place)
            taken.add(place)
            self._roots[job] = place

    def event(self, job: int, priority: float = 1.0, demand: int = 1) -> JobEvent:
        self._versions[job] += 1
        root = self._roots.get(job, -1)
        user = self.users.get(job, 0)
        return JobEvent(job, self._versions[job], demand, priority, -self.now, root, self.leaves, user)

    def come(self, *jobs: int, priority: float = 1.0, demand: int = 1) -> None:
        self.hear(*(self.event(job, priority, demand) for job in jobs))

    def go(self, job: int) -> None:
        self.hear(JobEvent(job, 2**62, 0, 1.0, 0.0))

    def play(self, seconds: float) -> dict[int, float]:
        """Let time pass, with an epoch whenever one is due; return the PE time that each job received."""
        before, until_s = dict(self.received), self.now + seconds
        while self.now < until_s - 1e-9:
            elapsed_s = min(self.image.rotation.next_s, until_s - self.now)
            told = [
                self.event(job, event.priority, event.demand)
                for job, event in self.image.jobs.items()
                if event.root != self._roots.get(job, -1)
            ]
            self.hear(*told, elapsed_s=elapsed_s)
        return {job: total - before.get(job, 0.0) for job, total in self.received.items()}


_JOBS = st.lists(
    st.tuples(st.sampled_from((0.01, 0.5, 1.0, 1.0, 3.0, 100.0)), st.integers(1, 9)), min_size=2, max_size=30
)


@settings(max_examples=200)
@given(jobs=_JOBS, data=st.data())
def test_shares_use_all_pes_and_are_proportional_to_priorities_up_to_demands(
    jobs: list[tuple[float, int]], data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, len(jobs) - 1))
    events = {job: JobEvent(job, 1, d, p, 0.0) for job, (p, d) in enumerate(jobs)}
    shares = fair_shares(events, size)
    assert math.fsum(shares.values()) == pytest.approx(size)
    alphas = [shares[job] / p for job, (p, d) in enumerate(jobs) if shares[job] < d * (1 - 1e-9)]
    alpha = max(alphas, default=math.inf)
    assert alphas == pytest.approx([alpha] * len(alphas))
    for job, (p, d) in enumerate(jobs):
        assert shares[job] <= d
        assert shares[job] == pytest.approx(min(d, alpha * p))


@settings(max_examples=100)
@given(jobs=_JOBS, data=st.data())
def test_at_any_moment_all_pes_are_used_and_each_job_has_its_share_rounded_down_or_up(
    jobs: list[tuple[float, int]], data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, len(jobs) - 1))
    some = Rotating(size)
    some.hear(*(some.event(job, p, d) for job, (p, d) in enumerate(jobs)))
    for _ in range(20):
        shares = fair_shares(some.image.jobs, size)
        assert sum(some.image.volumes.values()) == size
        for job, share in shares.items():
            assert math.floor(share + 1e-9) <= some.image.volumes.get(job, 0) <= math.ceil(share - 1e-9)
        places = [place for job, place in some.image.rotation.places.items() if job in some.image.volumes]
        assert len(places) == len(set(places))
        some.play(some.image.rotation.next_s)


@pytest.mark.parametrize(
    ("size", "jobs"), [(1, 2), (1, 5), (4, 5), (4, 6), (4, 8), (4, 9), (4, 18), (16, 17), (16, 25)]
)
def test_over_30_seconds_equal_jobs_receive_equal_pe_seconds(size: int, jobs: int) -> None:
    some = Rotating(size)
    some.come(*range(jobs))
    some.play(10.0)
    received = some.play(30.0)
    assert sum(received.values()) == pytest.approx(30.0 * size)
    for amount in received.values():
        assert amount == pytest.approx(30.0 * size / jobs, rel=0.05, abs=SLICES.slice_s)
    assert max(abs(account.lag_s) for account in some.image.rotation.accounts.values()) < 4 * SLICES.slice_s


def test_over_time_jobs_receive_by_priority_and_demand() -> None:
    some = Rotating(4)
    priorities = {0: 1.0, 1: 1.0, 2: 2.0, 3: 4.0, 4: 0.5, 5: 10.0, 6: 1.0}
    for job, priority in priorities.items():
        some.come(job, priority=priority, demand=2 if job == 5 else 4)
    some.play(20.0)
    shares = fair_shares(some.image.jobs, 4)
    assert shares[5] == pytest.approx(2.0)
    received = some.play(60.0)
    for job, share in shares.items():
        assert received[job] == pytest.approx(60.0 * share, rel=0.05, abs=2 * SLICES.slice_s)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(
    "priorities",
    [(1.0,) * 5, (1.0,) * 7, (1.0,) * 13, (1.0,) * 20, (1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 8.0)],
)
def test_over_any_30_seconds_shares_are_off_by_a_twentieth(
    priorities: tuple[float, ...], leaves: bool
) -> None:
    some = Rotating(4)
    some.is_one_host, some.leaves = True, leaves
    some.hear(*(some.event(job, priority, 4) for job, priority in enumerate(priorities)))
    some.play(20.0)
    shares = some.image.rotation.shares
    parts = [some.play(0.25) for _ in range(360)]
    for begin in range(len(parts) - 120):
        for job, share in shares.items():
            received_s = sum(part[job] for part in parts[begin : begin + 120])
            assert received_s == pytest.approx(30.0 * share, rel=0.05)


@pytest.mark.parametrize("jobs", [4, 5, 12])
def test_a_new_job_runs_at_once_whoever_runs(jobs: int) -> None:
    some = Rotating(4)
    some.come(*range(jobs))
    for new in range(100, 110):
        some.play(3.3)
        some.come(new)
        assert some.image.volumes.get(new) == 1
        some.play(SLICES.first_s * 0.9)
        assert some.image.volumes.get(new) == 1, "its first turn is as long as that"
        some.go(new)


def test_a_new_job_runs_at_once_beside_a_priority_beyond_the_precision_of_floats() -> None:
    some = Rotating(1)
    some.hear(JobEvent(1, 1, 1, 1e9, 0.0))
    some.play(3.0)
    some.hear(JobEvent(2, 1, 1, 1e-9, 3.0))
    some.play(30.0)
    assert 0.0 < some.received[2] < 5.0


def test_who_goes_on_and_on_comes_after_those_that_are_new_but_not_for_ever() -> None:
    """An endless stream of new jobs gets its share, and a job that does not end goes on."""
    some = Rotating(1)
    some.come(0)
    some.play(1.0)
    waited_s = longest_s = 0.0
    for new in range(1, 200):
        some.come(new)
        had = some.received[0]
        some.play(SLICES.first_s)
        some.go(new)
        waited_s = 0.0 if some.received[0] > had else waited_s + SLICES.first_s
        longest_s = max(longest_s, waited_s)
    assert longest_s < 10 * SLICES.slice_s


@pytest.mark.parametrize(("size", "brief"), [(1, 1), (1, 5), (1, 20), (4, 4), (4, 20), (16, 40)])
def test_a_stream_of_brief_jobs_leaves_a_long_job_of_another_user_its_share(size: int, brief: int) -> None:
    some = Rotating(size)
    some.users = dict.fromkeys(range(size), 1)
    some.come(*range(size), priority=1.0 / size)
    some.play(1.0)
    before = sum(some.received.values())
    new, stream = size, list[int]()
    while some.now < 31.0:
        while len(stream) < brief:
            stream.append(new)
            some.users[new] = 2
            some.come(new, priority=1.0 / brief)
            new += 1
        some.play(0.02)
        for job in [job for job in stream if some.received[job] >= 0.099]:
            stream.remove(job)
            some.go(job)
    worked_s = sum(some.received[job] for job in range(size)) - before
    assert worked_s > 0.4 * 30.0 * size


def test_within_a_user_in_debt_new_jobs_come_first() -> None:
    some = Rotating(1)
    some.users = {0: 1} | dict.fromkeys(range(1, 200), 2)
    some.come(0, 1)
    for new in range(2, 60):
        some.come(new)
        some.play(0.2)
        some.go(new)
    debt_s = some.image.rotation.debts_s[2]
    assert debt_s > SLICES.slice_s
    worked_s = some.received[1]
    some.come(100)
    while some.received[100] < 0.3:
        some.play(0.05)
        assert some.received[1] == worked_s


def test_a_debt_is_forgotten_while_each_job_has_a_pe() -> None:
    some = Rotating(1)
    some.users = {0: 1, 1: 2, 2: 2}
    some.come(0)
    some.play(1.0)
    some.come(1)
    some.play(0.4)
    some.go(1)
    assert some.image.rotation.debts_s[2] == pytest.approx(0.2, rel=0.1)
    some.play(60.0)
    some.hear()
    assert not some.image.rotation.debts_s


def test_who_has_attained_less_comes_first_up_to_a_few_slices() -> None:
    some = Rotating(1)
    some.come(0, 1)
    some.play(10.0)
    some.come(2)
    assert some.play(2.0)[2] > 1.8


def test_a_job_that_comes_later_does_not_get_all_that_the_others_had_before() -> None:
    some = Rotating(1)
    some.come(0, 1)
    some.play(100.0)
    some.come(2)
    worked = some.play(30.0)
    assert 9.5 < worked[2] < 13.0
    assert worked[0] == pytest.approx(worked[1], abs=SLICES.slice_s)


def test_jobs_come_back_to_where_they_were() -> None:
    some = Rotating(4)
    some.come(*range(8))
    some.play(20.0)
    moves = some.moves
    some.play(60.0)
    assert some.moves == moves


def test_jobs_that_cannot_share_without_it_move_a_few_times() -> None:
    some = Rotating(4)
    some.come(*range(5))
    some.play(60.0)
    moves = some.moves
    some.play(60.0)
    assert some.moves <= moves + 2


@pytest.mark.parametrize("jobs", [5, 6, 7])
def test_between_hosts_a_job_that_leaves_in_order_goes_on_where_it_was_last_more_often(jobs: int) -> None:
    changes, received = [], {}
    for leaves in (False, True):
        some = Rotating(4)
        some.leaves = leaves
        some.come(*range(jobs))
        some.play(20.0)
        before = some.changes
        received = some.play(60.0)
        changes.append(some.changes - before)
    assert changes[1] < 0.75 * changes[0]
    assert received == pytest.approx(dict.fromkeys(range(jobs), 240.0 / jobs), abs=3.0)


@pytest.mark.parametrize("jobs", [6, 7, 13])
def test_on_one_host_a_job_goes_on_where_it_was_last_or_anywhere(jobs: int) -> None:
    some = Rotating(4)
    some.is_one_host = True
    some.come(*range(jobs))
    for _ in range(100):
        some.play(some.image.rotation.next_s)
        rotation = some.image.rotation
        for job, place in rotation.places.items():
            assert place == rotation.accounts[job].homes[-1]
    assert some.changes > 20


def test_when_a_job_that_rests_is_next_is_foretold() -> None:
    some = Rotating(2)
    some.come(*range(6))
    some.play(20.0)
    for _ in range(20):
        running = some.image.volumes.keys()
        resting = next(job for job in range(6) if job not in running)
        foretold_s = back_in_s(some.image.rotation, running, resting, SLICES)
        waited_s = 0.0
        while resting not in some.image.volumes:
            waited_s += some.image.rotation.next_s
            some.play(some.image.rotation.next_s)
        assert waited_s == pytest.approx(foretold_s, abs=SLICES.slice_s + 0.01)


def test_equal_jobs_need_one_epoch_for_each_slice() -> None:
    some = Rotating(16)
    some.come(*range(32))
    some.play(20.0)
    epochs = some.epochs
    some.play(10.0)
    assert some.epochs - epochs <= 10.0 / SLICES.slice_s + 2


def test_nothing_changes_while_there_are_no_more_jobs_than_pes() -> None:
    with_turns, without = Rotating(4), Rotating(4, None)
    for job in range(4):
        for some in (with_turns, without):
            some.come(job, demand=3)
        assert with_turns.image.volumes == without.image.volumes
        assert with_turns.image.rotation.next_s == math.inf


def test_what_a_job_is_behind_is_known_when_it_has_to_share_again() -> None:
    """Otherwise the same job would have to wait whenever another job comes."""
    some = Rotating(2)
    some.come(0, 1)
    victims = set()
    for new in range(2, 8):
        some.play(1.0)
        some.come(new)
        some.play(0.04)
        victims |= {0, 1} - some.image.volumes.keys()
        some.go(new)
        assert some.image.volumes == volumes_of(some.image.jobs, 2)
    assert victims == {0, 1}


def test_what_jobs_that_are_gone_had_is_forgotten_by_and_by() -> None:
    some = Rotating(3)
    for job in range(9):
        some.come(job, priority=1.0 + job % 3, demand=1 + job % 2)
        some.play(0.37)
        if job % 4 == 3:
            some.go(job - 1)
    some.play(60.0)
    accounts = some.image.rotation.accounts
    assert accounts.keys() == some.image.jobs.keys()
    assert math.fsum(account.lag_s for account in accounts.values()) == pytest.approx(0.0, abs=1e-3)


def test_all_jobs_may_end_at_once() -> None:
    some = Rotating(1)
    some.come(1, 2, 3)
    some.hear(*(JobEvent(job, 2**62, 0, 1.0, 0.0) for job in (1, 2, 3)), elapsed_s=0.1)
    assert not some.image.volumes
    assert not some.image.rotation.accounts


def test_a_job_that_had_a_slice_before_is_not_new() -> None:
    some = Rotating(1)
    some.hear(JobEvent(1, 1, 1, 1.0, 0.0), JobEvent(2, 1, 1, 1.0, 1.0, 0, had_slice=True))
    assert some.image.volumes == {1: 1}


def test_a_job_that_came_just_before_there_were_more_jobs_than_pes_is_new() -> None:
    some = Rotating(1)
    some.come(1)
    some.hear(JobEvent(2, 1, 1, 1.0, -1.0), elapsed_s=0.01)
    assert some.play(0.2) == {1: pytest.approx(0.1), 2: pytest.approx(0.1)}


def test_a_job_that_had_a_slice_before_there_were_more_jobs_than_pes_is_not_new() -> None:
    some = Rotating(1)
    some.come(1)
    some.play(0.4)
    assert some.image.rotation.accounts
    some.hear(elapsed_s=0.2)
    assert not some.image.rotation.accounts
    some.come(2)
    assert some.image.volumes == {2: 1}


def test_a_job_that_began_before_its_first_event_is_new() -> None:
    some = Rotating(1)
    some.hear(JobEvent(1, 1, 1, 1.0, 0.0), JobEvent(2, 1, 1, 1.0, 1.0, 0))
    assert some.image.volumes == {2: 1}
