"""All PEs compute the volumes together: in epochs; a change waits for the next epoch; all PEs find the same
volumes.
"""

import math
import random
from collections import deque

import pytest

from mallob_py.protocol import PeerViolation, messages
from mallob_py.protocol.balancing import volumes_of
from mallob_py.protocol.distributed_balancing import DistributedBalancer
from mallob_py.protocol.effects import Outbox, Send
from mallob_py.protocol.section_search import AlphaQuestion
from mallob_py.protocol.volume_search import NO_JOBS


def _event(
    job: int, version: int = 1, demand: int = 1, priority: float = 1.0, standing: float = 0.0
) -> messages.JobEvent:
    return messages.JobEvent(job, version, demand, priority, standing)


def _volumes(balancer: DistributedBalancer) -> dict[int, int]:
    """Return the volumes above 0, by job."""
    return {job: volume for job in balancer.jobs if (volume := balancer.volume(job))}


class Net:
    """`size` balancers; messages keep their order within a pair of balancers, and overtake at random
    otherwise.
    """

    def __init__(self, size: int, delay_s: float = 0.0, seed: int = 0) -> None:
        self.outs = [Outbox(rank, size) for rank in range(size)]
        self.heard: list[list[tuple[int, list[int]]]] = [[] for _ in range(size)]
        self.all = [
            DistributedBalancer(out, delay_s, self._listener(rank)) for rank, out in enumerate(self.outs)
        ]
        self.sent: list[messages.AnyMessage] = []
        self._random = random.Random(seed)
        self._wires: dict[tuple[int, int], deque[messages.AnyMessage]] = {}

    def _listener(self, rank: int):  # type: ignore[no-untyped-def]
        return lambda _now, ended: self.heard[rank].append((self.all[rank].epoch, ended))

    def step(self, now: float = 0.0) -> bool:
        """Deliver one message; return False if there is none."""
        for rank, (balancer, out) in enumerate(zip(self.all, self.outs, strict=True)):
            balancer.flush(now)
            for effect in out.effects:
                assert isinstance(effect, Send)
                self.sent.append(effect.message)
                wire = self._wires.setdefault((rank, effect.dest), deque())
                wire.append(messages.decode(messages.encode(effect.message)))
            out.effects.clear()
        full = [(dest, wire) for (_, dest), wire in self._wires.items() if wire]
        if not full:
            return False
        dest, wire = self._random.choice(full)
        message = wire.popleft()
        self.all[dest].receive(message, now)
        return True

    def run(self, now: float = 0.0) -> None:
        while self.step(now):
            pass

    def assert_fair(self) -> None:
        """Check that all PEs have the same image, and the volumes of the local rule."""
        first = self.all[0]
        fair = volumes_of(first.jobs, len(self.all))
        for balancer in self.all:
            assert balancer.is_at_rest()
            assert balancer.jobs == first.jobs
            assert _volumes(balancer) == dict(fair)
            assert balancer.total_volume == sum(fair.values())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 33])
def test_everybody_derives_the_same_fair_volumes_in_the_same_epochs(size: int) -> None:
    choose = random.Random(size)
    net = Net(size, seed=size)
    live: dict[int, int] = {}
    for job in range(6 * size):
        for _ in range(choose.randrange(30)):
            net.step()
        net.all[choose.randrange(size)].author(
            _event(job, demand=choose.randint(1, size), priority=choose.choice((0.5, 1.0, 3.0)))
        )
        live[job] = 1
        if choose.random() < 0.4:
            net.run()
            over = choose.choice(list(live))
            del live[over]
            net.all[choose.randrange(size)].author(_event(over, version=2, demand=0))
    net.run()
    assert set(net.all[0].jobs) == set(live)
    net.assert_fair()
    assert all(heard == net.heard[0] for heard in net.heard)
    assert [epoch for epoch, _ in net.heard[0]] == list(range(1, net.all[0].epoch + 1))


def test_one_pe_balances_alone_and_at_once() -> None:
    net = Net(1)
    for job in range(5):
        net.all[0].author(_event(job, demand=5, standing=-float(job)))
    net.run()
    net.assert_fair()
    assert _volumes(net.all[0]) == {0: 1}
    assert not net.sent


def test_news_that_arrive_during_a_computation_wait_for_the_next_epoch() -> None:
    net = Net(7)
    root = next(balancer for balancer in net.all if balancer.parent is None)
    root.author(_event(1, demand=5))
    root.author(_event(2, demand=5))
    assert net.step()
    root.author(_event(3, demand=5))
    while root.epoch == 0:
        assert root.next_deadline() == math.inf
        assert net.step()
    assert set(root.jobs) == {1, 2}
    net.run()
    assert set(root.jobs) == {1, 2, 3}
    net.assert_fair()


def test_the_image_stays_that_of_the_epoch_until_the_next_one_is_settled() -> None:
    net = Net(3)
    net.all[0].author(_event(1, demand=3))
    net.run()
    net.all[0].author(_event(1, version=2, demand=2))
    net.all[0].author(_event(2))
    while net.all[0].epoch == 1:
        assert {balancer.volume(2) for balancer in net.all if balancer.epoch == 1} == {None}
        assert [balancer.volume(1) for balancer in net.all if balancer.epoch == 1].count(3) >= 1
        assert {balancer.volume(1) for balancer in net.all if balancer.epoch == 1} == {3}
        assert net.step()
    net.run()
    net.assert_fair()
    assert _volumes(net.all[2]) == {1: 2, 2: 1}


def test_as_many_jobs_as_pes_need_no_question() -> None:
    net = Net(3)
    root = next(balancer for balancer in net.all if balancer.parent is None)
    for job in range(3):
        root.author(_event(job, demand=3))
    net.run()
    net.assert_fair()
    assert {type(message) for message in net.sent} == {messages.VolumesSettled}


def test_the_end_of_a_job_that_nobody_knows_reaches_everybody() -> None:
    net = Net(3)
    net.all[2].author(_event(1, version=99, demand=0))
    net.run()
    assert [heard[-1][1] for heard in net.heard] == [[1]] * 3
    assert net.all[0].volume(1) is None


def test_an_older_version_that_comes_late_changes_nothing_for_the_deputies() -> None:
    net = Net(7)
    net.all[0].author(_event(2, demand=7))
    net.all[0].author(_event(1, version=2, demand=1))
    net.run()
    net.all[0].author(_event(1, version=1, demand=7))
    net.run()
    net.assert_fair()
    assert _volumes(net.all[0]) == {1: 1, 2: 6}


def test_the_first_question_is_asked_where_the_news_move_alpha_0() -> None:
    """Two equal jobs on 15 PEs become three: alpha_0 falls from 3.75 to 2.5, which the first question
    predicts.
    """
    net = Net(15)
    for job in (1, 2):
        net.all[job].author(_event(job, demand=15, priority=2.0))
        net.run()
    assert net.all[0].epoch_volumes.total_volume == 15
    net.sent.clear()
    net.all[3].author(_event(3, demand=15, priority=2.0))
    net.run()
    question = next(message.question for message in net.sent if isinstance(message, messages.VolumeQuestion))
    assert isinstance(question, AlphaQuestion)
    guesses = [numerator / p for numerator, p in question.pivots]
    assert math.sqrt(guesses[0] * guesses[-1]) == pytest.approx(2.5)


def test_only_the_first_question_of_an_epoch_brings_news() -> None:
    net = Net(15)
    for job in range(12):
        net.all[job].author(_event(job, demand=3, priority=1.0 + job / 7))
        net.run()
    brought: dict[int, list[int]] = {}
    for message in net.sent:
        if isinstance(message, messages.VolumeQuestion) and message.events:
            brought.setdefault(message.epoch, []).append(len(message.events))
    assert set(brought) == set(range(1, 13))
    assert all(sizes == [1] * 14 for sizes in brought.values()), "once over each of the 14 edges"


def test_events_within_the_delay_are_gathered() -> None:
    net = Net(2, delay_s=1.0)
    net.all[0].author(_event(1))
    net.run(now=0.0)
    for version in (2, 3):
        net.all[0].author(_event(1, version=version, demand=2))
        net.run(now=0.5)
    assert net.all[0].next_deadline() == 1.0
    assert net.all[0].jobs[1].version == 1
    net.run(now=1.0)
    assert net.all[1].jobs[1].version == 3
    net.assert_fair()


def test_an_epoch_out_of_order_is_a_violation() -> None:
    net = Net(3)
    with pytest.raises(PeerViolation, match="epoch 2 after epoch 0"):
        net.all[0].receive(messages.VolumesSettled(2, (), NO_JOBS), 0.0)


def test_an_answer_that_nobody_asked_for_is_a_violation() -> None:
    net = Net(2)
    net.all[0].author(_event(1, demand=2))
    net.all[1].author(_event(2, demand=2))
    net.all[0].author(_event(3, demand=2))
    net.run()
    answer = next(message for message in net.sent if isinstance(message, messages.VolumeAnswer))
    with pytest.raises(PeerViolation, match="without a question"):
        net.all[1].receive(answer, 0.0)
