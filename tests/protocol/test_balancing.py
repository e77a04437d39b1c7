"""The all-reduction of job events: order, aggregation, versions; and the rule of volumes."""

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.protocol import PeerViolation
from mallob_py.protocol.balancing import Balancer, local_rule, standing, volumes_of
from mallob_py.protocol.effects import Outbox, Send
from mallob_py.protocol.messages import Epoch, Events, JobEvent
from mallob_py.protocol.volumes import fair_volumes


def _event(job: int, version: int = 1, demand: int = 1, priority: float = 1.0, rank: float = 0.0) -> JobEvent:
    return JobEvent(job=job, version=version, demand=demand, priority=priority, standing=rank)


class Balancers:
    """`size` balancers and the messages between them, delivered in the order of sending."""

    def __init__(self, size: int, delay_s: float = 0.0) -> None:
        self.outs = [Outbox(rank, size) for rank in range(size)]
        self.heard: list[list[tuple[int, list[int]]]] = [[] for _ in range(size)]
        self.sent: list[Events | Epoch] = []
        self.all = [
            Balancer(out, delay_s, local_rule(size), self._listener(rank))
            for rank, out in enumerate(self.outs)
        ]
        self._queue: deque[tuple[int, Events | Epoch]] = deque()

    def _listener(self, rank: int):  # type: ignore[no-untyped-def]
        def on_epoch(_now: float, ended: list[int]) -> None:
            self.heard[rank].append((self.all[rank].epoch, ended))

        return on_epoch

    def run(self, now: float = 0.0) -> None:
        while True:
            for balancer, out in zip(self.all, self.outs, strict=True):
                balancer.flush(now)
                for effect in out.effects:
                    assert isinstance(effect, Send)
                    assert isinstance(effect.message, Events | Epoch)
                    self._queue.append((effect.dest, effect.message))
                out.effects.clear()
            if not self._queue:
                return
            dest, message = self._queue.popleft()
            self.sent.append(message)
            self.all[dest].receive(message, now)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16])
def test_everybody_hears_of_every_job_in_the_same_epochs(size: int) -> None:
    net = Balancers(size)
    for job in range(size):
        net.all[job].author(_event(job, demand=2))
    net.run()
    assert all(balancer.jobs == net.all[0].jobs for balancer in net.all)
    assert set(net.all[0].jobs) == set(range(size))
    assert all(heard == net.heard[0] for heard in net.heard)
    assert [epoch for epoch, _ in net.heard[0]] == list(range(1, net.all[0].epoch + 1))
    assert sum(net.all[0].image.volumes.values()) == size == net.all[0].total_volume


def test_one_pe_balances_alone_and_at_once() -> None:
    net = Balancers(1)
    net.all[0].author(_event(1, demand=5))
    net.run()
    assert net.all[0].volume(1) == 1
    assert not net.sent


def test_events_within_the_delay_are_gathered_and_the_newest_version_stands() -> None:
    net = Balancers(2, delay_s=1.0)
    leaf = next(balancer for balancer, out in zip(net.all, net.outs, strict=True) if out.rank == 0)
    leaf.author(_event(1, version=1))
    net.run(now=0.0)
    for version in (2, 3, 4):
        leaf.author(_event(1, version=version, demand=version))
        net.run(now=0.5)
    assert leaf.next_deadline() == 1.0
    assert leaf.jobs[1].version == 1
    net.run(now=1.0)
    assert leaf.jobs[1].version == 4
    ups = [message for message in net.sent if isinstance(message, Events)]
    assert [[event.version for event in message.events] for message in ups] == [[1], [4]]
    assert leaf.next_deadline() == math.inf


def test_an_older_version_does_not_supersede_a_newer_one_on_the_way() -> None:
    net = Balancers(1, delay_s=1.0)
    net.all[0].author(_event(9))
    net.run(now=0.0)
    net.all[0].author(_event(1, version=5, demand=0))
    net.all[0].author(_event(1, version=4, demand=7))
    net.run(now=1.0)
    assert 1 not in net.all[0].jobs


def test_an_older_version_that_comes_late_changes_nothing() -> None:
    net = Balancers(3)
    net.all[0].author(_event(1, version=2, demand=1))
    net.run()
    net.all[0].author(_event(1, version=1, demand=3))
    net.run()
    assert [balancer.image.volumes for balancer in net.all] == [{1: 1}] * 3


def test_the_end_of_a_job_that_nobody_knows_reaches_everybody() -> None:
    """Another PE may already run a worker of the job."""
    net = Balancers(3)
    net.all[2].author(_event(1, version=99, demand=0))
    net.run()
    assert [heard[-1][1] for heard in net.heard] == [[1]] * 3
    assert net.all[0].volume(1) is None


def test_volumes_follow_the_news_and_ended_jobs_are_told_of() -> None:
    net = Balancers(4)
    net.all[0].author(_event(1, demand=1))
    net.run()
    net.all[0].author(_event(2, demand=4))
    net.run()
    assert net.all[3].image.volumes == {1: 1, 2: 3}
    net.all[0].author(_event(1, version=2, demand=0))
    net.run()
    assert net.heard[3][-1] == (3, [1])
    assert net.all[3].image.volumes == {2: 4}


def test_a_job_that_waits_has_volume_0_and_one_that_has_ended_has_none() -> None:
    net = Balancers(2)
    for job in (1, 2, 3):
        net.all[0].author(_event(job, rank=float(job)))
    net.run()
    assert [net.all[1].volume(job) for job in (1, 2, 3, 4)] == [0, 1, 1, None]
    net.all[0].author(_event(1, version=2, demand=0))
    net.run()
    assert net.all[1].volume(1) is None


def test_an_epoch_out_of_order_is_a_violation() -> None:
    net = Balancers(3)
    with pytest.raises(PeerViolation, match="epoch 2 after epoch 0"):
        net.all[0].receive(Epoch(2, ()), 0.0)


def test_twice_the_priority_outweighs_the_ageing_time() -> None:
    ageing_s = 60.0
    assert standing(2.0, 160.0, ageing_s) == pytest.approx(standing(1.0, 100.0, ageing_s))
    assert standing(2.0, 159.0, ageing_s) > standing(1.0, 100.0, ageing_s)
    assert standing(2.0, 161.0, ageing_s) < standing(1.0, 100.0, ageing_s)


def test_with_more_jobs_than_pes_those_of_best_standing_run() -> None:
    jobs = {job: _event(job, rank=float(rank)) for job, rank in ((1, -3), (2, -1), (3, -2), (4, -9))}
    assert volumes_of(jobs, 2) == {2: 1, 3: 1}


def test_a_waiting_job_is_overtaken_for_a_bounded_time_only() -> None:
    """A wait of ten times the ageing time makes up for a thousandfold priority."""
    old = _event(0, priority=1.0, rank=standing(1.0, 0.0, 60.0))
    for arrival_s, runs_first in ((1.0, False), (590.0, False), (599.0, True), (1e6, True)):
        young = _event(1, priority=1000.0, rank=standing(1000.0, arrival_s, 60.0))
        assert (volumes_of({0: old, 1: young}, 1) == {0: 1}) is runs_first


def test_a_job_alone_gets_what_it_wants_up_to_all_pes() -> None:
    assert volumes_of({1: _event(1, demand=5)}, 8) == {1: 5}
    assert volumes_of({1: _event(1, demand=50)}, 8) == {1: 8}


def test_no_job_no_volumes() -> None:
    assert volumes_of({}, 8) == {}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 8))
def test_volumes_are_fair_whatever_way_leads_to_them(standings: list[int], size: int) -> None:
    jobs = {
        number: _event(number, demand=1 + number % 3, rank=float(one)) for number, one in enumerate(standings)
    }
    fair = fair_volumes(
        [each.priority for each in jobs.values()],
        [each.demand for each in jobs.values()],
        size,
        job_ids=list(jobs),
        standing=standings if len(standings) > size else None,
    )
    assert volumes_of(jobs, size) == {job: volume for job, volume in enumerate(fair.tolist()) if volume}


def test_more_jobs_than_pes_are_told_apart_by_their_standing_without_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mallob_py.protocol.volumes.fair_volumes", None)
    jobs = {number: _event(number, rank=-float(number)) for number in range(20)}
    assert volumes_of(jobs, 4) == dict.fromkeys(range(4), 1)
