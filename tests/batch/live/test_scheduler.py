"""Tests of the live scheduler without processes: the tests themselves report that jobs are ready, have shrunk
or have ended.
"""

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from seeds import seeds

from mallob_py.batch.job import Job, Kind
from mallob_py.batch.live.scheduler import Effect, Launch, LiveScheduler, OrderGrow, OrderShrink, Rebind
from mallob_py.batch.live.script import ANY_NUMBER
from mallob_py.batch.policy import Action, PolicyError, Resize, Share, Start, View
from mallob_py.batch.registry import policy_names, policy_of

SLOTS = 8


def job(number: int, low: int, high: int = 0, kind: Kind | None = None, required_s: float = 100.0) -> Job:
    kind = kind or (Kind.MALLEABLE if high else Kind.RIGID)
    return Job(number, 0.0, low, required_s, kind, low, high or low, ANY_NUMBER, number)


class Scripted:
    """A policy that returns the actions that the test sets."""

    name = "scripted"
    wants_all_arrivals = True

    def __init__(self) -> None:
        self.rate_period_s = 0.0
        self.next: list[Action] = []
        self.begun = 0

    def begin(self, nodes: int) -> None:
        self.begun += 1

    def decide(self, view: View) -> Iterable[Action]:
        actions, self.next = self.next, []
        return actions


def effects_of(scheduler: LiveScheduler, now_s: float) -> list[Effect]:
    scheduler.decide(now_s)
    effects, scheduler.effects = scheduler.effects, []
    return effects


@pytest.fixture
def policy() -> Scripted:
    return Scripted()


@pytest.fixture
def scheduler(policy: Scripted) -> LiveScheduler:
    """Return a scheduler with malleable job 1, of 1 to 6 nodes, on the slots 0 to 3."""
    scheduler = LiveScheduler(policy, SLOTS)
    scheduler.submit(job(1, 1, 6))
    policy.next = [Start(1, 4)]
    assert effects_of(scheduler, 1.0) == [Launch(1, (0, 1, 2, 3))]
    return scheduler


def leave(scheduler: LiveScheduler, number: int) -> None:
    """Let a job release one slot, if it still runs."""
    running = scheduler.running.get(number)
    scheduler.released(number, [0] if running is None else running.nodes[:1])


def free(scheduler: LiveScheduler) -> int:
    return SLOTS - sum(len(scheduler.slots_of(job)) for job in scheduler.running)


def test_a_job_that_has_not_said_that_it_is_ready_cannot_be_resized(
    scheduler: LiveScheduler, policy: Scripted
) -> None:
    scheduler.submit(job(2, 1))
    policy.next = [Resize(1, 5)]
    with pytest.raises(PolicyError, match="job 1 is resized, but is moldable"):
        scheduler.decide(2.0)
    scheduler.ready(1)
    policy.next = [Resize(1, 5)]
    assert effects_of(scheduler, 3.0) == [OrderGrow(1, (4,))]


def test_an_evolving_job_gets_what_it_asks_for_once_that_delays_nobody() -> None:
    scheduler = LiveScheduler(policy_of("easy"), SLOTS)
    scheduler.submit(job(1, 2, 6, Kind.EVOLVING))
    assert effects_of(scheduler, 1.0) == [Launch(1, (0, 1))]
    scheduler.submit(job(2, 4, required_s=50.0))
    assert effects_of(scheduler, 2.0) == [Launch(2, (2, 3, 4, 5))]
    scheduler.wish(2, 1)  # a rigid job's wish has no effect
    scheduler.wish(1, 3)
    assert effects_of(scheduler, 3.0) == []
    scheduler.wish(1, 2)
    assert effects_of(scheduler, 4.0) == [OrderGrow(1, (7, 6))]
    scheduler.grown(1)
    assert scheduler.slots_of(1) == [0, 1, 7, 6]
    # Job 3 is to start at 52 s on four slots, when five slots will be free.
    scheduler.submit(job(3, 4))
    scheduler.wish(1, 1)
    assert effects_of(scheduler, 5.0) == []
    scheduler.ended(2)
    assert effects_of(scheduler, 6.0) == [Launch(3, (2, 3, 4, 5))]
    scheduler.released(1, [7])
    scheduler.wish(1, 1)
    scheduler.order_failed(1, was_taken=False)
    assert effects_of(scheduler, 7.0) == []


def test_a_job_that_has_told_its_work_is_malleable_within_that_bound(policy: Scripted) -> None:
    scheduler = LiveScheduler(policy, SLOTS)
    scheduler.submit(job(1, 1, 6, Kind.EVOLVING))
    policy.next = [Start(1, 2)]
    assert effects_of(scheduler, 1.0) == [Launch(1, (0, 1))]
    scheduler.submit(job(2, SLOTS - 1))  # a waiting job, so that job 1 gets no free slots without a request
    assert scheduler.bound(1, 4)
    assert not scheduler.bound(1, 4), "a wish that is told again is no news"
    shown = scheduler.running[1].job
    assert (shown.is_malleable, shown.low, shown.high) == (True, 1, 4)
    assert effects_of(scheduler, 1.5) == []
    scheduler.submit(job(3, SLOTS))
    policy.next = [Resize(1, 5)]
    with pytest.raises(PolicyError, match="job 1 is to run on 5 nodes; it can run on 1 to 4"):
        scheduler.decide(2.0)
    policy.next = [Resize(1, 3)]
    assert effects_of(scheduler, 3.0) == [OrderGrow(1, (2,))]
    scheduler.grown(1)
    scheduler.bound(1, 100)
    assert scheduler.running[1].job.high == 6, "of its own bounds it keeps both"
    scheduler.bound(1, 1)
    assert scheduler.running[1].job.high == 3, "a policy sees no job above its most nodes"
    assert effects_of(scheduler, 4.0) == [OrderShrink(1, 2)]
    scheduler.released(1, [2])
    scheduler.released(1, [1])
    assert scheduler.running[1].job.high == 1
    scheduler.unready(1)
    assert not scheduler.bound(1, 4)
    assert (scheduler.running[1].job.kind, scheduler.running[1].job.high) == (Kind.MOLDABLE, 6)


def test_a_job_that_reports_its_progress_has_a_rate_a_period_after_it_settled_on_its_slots() -> None:
    policy = Scripted()
    policy.rate_period_s = 2.0
    scheduler = LiveScheduler(policy, SLOTS)
    scheduler.submit(job(1, 1, 6))
    policy.next = [Start(1, 4)]
    effects_of(scheduler, 1.0)
    scheduler.ready(1)
    running = scheduler.running[1]

    def rates(*reports: tuple[float, float]) -> list[float | None]:
        found = []
        for now_s, done in reports:
            scheduler.progressed(1, done, now_s)
            found.append(running.rate)
        return found

    # Work reported before 12 s, while the job settles, does not count.
    assert rates((10.0, 0.0), (11.9, 100.0), (12.0, 200.0), (13.9, 210.0)) == [None] * 4
    assert rates((14.0, 220.0), (16.0, 240.0)) == [10.0, 10.0]
    assert effects_of(scheduler, 16.0) == [], "the news is that it is ready; a report is none"
    assert not scheduler.has_news
    policy.next = [Resize(1, 2)]
    scheduler.submit(job(2, SLOTS))
    assert effects_of(scheduler, 17.0) == [OrderShrink(1, 2)]
    assert rates((18.0, 9000.0)) == [10.0], "nothing counts during an order"
    scheduler.released(1, [0, 1])
    assert rates((20.0, 9000.0), (22.0, 9001.0), (24.0, 9011.0)) == [None, None, 5.0]
    policy.next = [Resize(1, 3)]
    scheduler.submit(job(3, SLOTS))
    effects_of(scheduler, 25.0)
    scheduler.grown(1)
    assert rates((26.0, 9020.0), (28.0, 9030.0), (29.0, 5.0), (31.0, 25.0)) == [None, None, None, 10.0], (
        "work that was lost is counted anew"
    )
    scheduler.progressed(7, 1.0, 31.0)  # no job has this number
    scheduler.ended(1)
    scheduler.progressed(1, 30.0, 32.0)


def test_what_a_job_has_no_work_for_it_keeps_until_another_waits() -> None:
    scheduler = LiveScheduler(policy_of("easy"), SLOTS)
    scheduler.submit(job(1, 1, 6, Kind.EVOLVING))
    assert effects_of(scheduler, 1.0) == [Launch(1, (0,))]
    scheduler.bound(1, 4)
    assert effects_of(scheduler, 2.0) == [OrderGrow(1, (3, 2, 1))], (
        "free slots, under a policy without resizes"
    )
    scheduler.grown(1)
    scheduler.bound(1, 2)
    assert effects_of(scheduler, 3.0) == []
    scheduler.submit(job(2, 6))
    assert effects_of(scheduler, 4.0) == [OrderShrink(1, 2)]
    scheduler.released(1, [3])
    scheduler.released(1, [2])
    assert effects_of(scheduler, 5.0) == [Launch(2, (2, 3, 4, 5, 6, 7))]
    scheduler.bound(1, 1)
    assert effects_of(scheduler, 6.0) == []
    scheduler.submit(job(3, 1, 3))
    assert effects_of(scheduler, 7.0) == [OrderShrink(1, 1)]
    scheduler.released(1, [1])
    assert effects_of(scheduler, 8.0) == [Launch(3, (1,))]
    scheduler.ready(3)
    scheduler.bound(1, 3)
    scheduler.ended(2)
    assert effects_of(scheduler, 9.0) == [OrderGrow(1, (3, 2))]


def test_jobs_give_back_what_the_first_waiting_job_lacks_and_nothing_if_it_cannot_start_then(
    policy: Scripted,
) -> None:
    scheduler = LiveScheduler(policy, SLOTS)
    for number in (1, 2):
        scheduler.submit(job(number, 1, 6))
        policy.next = [Start(number, 3)]
        effects_of(scheduler, 1.0)
        scheduler.ready(number)
        scheduler.bound(number, 1)
    assert effects_of(scheduler, 2.0) == []
    scheduler.submit(job(3, 7))
    scheduler.submit(job(4, 3))
    assert effects_of(scheduler, 3.0) == []
    scheduler.withdraw(3)
    scheduler.submit(job(5, 7))
    assert effects_of(scheduler, 4.0) == [OrderShrink(1, 1)]
    assert effects_of(scheduler, 5.0) == []
    scheduler.withdraw(4)
    scheduler.order_failed(1, was_taken=False)
    assert effects_of(scheduler, 6.0) == []
    scheduler.withdraw(5)
    scheduler.submit(job(6, 4))
    assert effects_of(scheduler, 7.0) == [OrderShrink(2, 2)]


def test_slots_are_free_only_when_the_job_has_named_them(scheduler: LiveScheduler, policy: Scripted) -> None:
    scheduler.ready(1)
    policy.next = [Resize(1, 2)]
    assert effects_of(scheduler, 2.0) == [OrderShrink(1, 2)]
    assert free(scheduler) == 4
    leave(scheduler, 1)
    assert (free(scheduler), scheduler.running[1].target) == (5, 2)
    leave(scheduler, 1)
    assert (free(scheduler), scheduler.running[1].target) == (6, None)


def test_nobody_waits_for_a_job_that_does_not_answer(scheduler: LiveScheduler, policy: Scripted) -> None:
    scheduler.ready(1)
    policy.next = [Resize(1, 2)]
    effects_of(scheduler, 2.0)
    leave(scheduler, 1)
    scheduler.order_failed(1, was_taken=True)
    assert (free(scheduler), scheduler.running[1].target) == (5, None)
    assert not scheduler.running[1].job.is_malleable


@pytest.mark.parametrize(("was_taken", "left"), [(True, 2), (False, 4)])
def test_slots_of_an_order_that_was_lost_stay_with_a_job_that_may_know_of_them(
    scheduler: LiveScheduler, policy: Scripted, was_taken: bool, left: int
) -> None:
    scheduler.ready(1)
    policy.next = [Resize(1, 6)]
    effects_of(scheduler, 2.0)
    assert free(scheduler) == 2
    scheduler.order_failed(1, was_taken)
    assert free(scheduler) == left


def test_a_job_that_ends_during_an_order_leaves_all_its_slots(
    scheduler: LiveScheduler, policy: Scripted
) -> None:
    scheduler.ready(1)
    policy.next = [Resize(1, 6)]
    effects_of(scheduler, 2.0)
    scheduler.ended(1)
    for late in (scheduler.grown, scheduler.ready):
        late(1)
    leave(scheduler, 1)
    scheduler.order_failed(1, was_taken=True)
    assert free(scheduler) == SLOTS


@pytest.mark.parametrize(
    ("actions", "error"),
    [
        ([Start(7, 1)], "job 7 is started, but is not in the queue"),
        ([Start(2, 3)], "job 2 is started on 3 nodes; it can run on 2 to 2"),
        ([Start(2, (0, 1))], r"job 2 is to get nodes that are not free, or one of them twice: \(0, 1\)"),
        ([Start(3, 5)], "job 3 is to get 5 nodes; 4 are free"),
        ([Share(2, (1,))], "job 2 is to share nodes, but here every job has its own"),
        ([Resize(1, 7)], "job 1 is to run on 7 nodes; it can run on 1 to 6"),
        ([Resize(1, 5), Resize(1, 4)], "job 1 is resized, but its last resize is still pending"),
    ],
)
def test_impossible_actions_name_policy_and_job_and_do_no_harm(
    scheduler: LiveScheduler, policy: Scripted, actions: Sequence[Action], error: str
) -> None:
    scheduler.ready(1)
    scheduler.submit(job(2, 2))
    scheduler.submit(job(3, 5))
    policy.next = list(actions)
    with pytest.raises(PolicyError, match=f"scripted: {error}"):
        scheduler.decide(2.0)
    assert policy.begun == 2
    assert [one.id for one in scheduler.waiting] == [2, 3]
    policy.next = [Start(2, 2)]
    scheduler.ready(1)
    scheduler.submit(job(4, 1))
    assert isinstance(effects_of(scheduler, 3.0)[-1], Launch)


def test_a_job_that_needs_more_slots_than_there_are_waits_unseen_until_there_are(
    scheduler: LiveScheduler, policy: Scripted
) -> None:
    scheduler.submit(job(2, 9))
    policy.next = [Start(2, 9)]
    assert effects_of(scheduler, 2.0) == []
    assert [one.id for one in scheduler.waiting] == [2]
    scheduler.offer(range(13))
    assert effects_of(scheduler, 3.0) == [Launch(2, (4, 5, 6, 7, 8, 9, 10, 11, 12))]


def test_slots_that_are_withheld_stay_with_their_job_and_are_nobody_s_afterwards(
    scheduler: LiveScheduler, policy: Scripted
) -> None:
    scheduler.offer((2, 3, 6, 7))
    scheduler.submit(job(2, 3))
    policy.next = [Start(2, 3)]
    with pytest.raises(PolicyError, match="job 2 is to get 3 nodes; 2 are free"):
        scheduler.decide(2.0)
    scheduler.ended(1)
    policy.next = [Start(2, 3)]
    assert effects_of(scheduler, 3.0) == [Launch(2, (2, 3, 6))]
    scheduler.ended(2)
    scheduler.offer((0, 1, 2, 3, 6, 7))
    scheduler.submit(job(3, 6))
    policy.next = [Start(3, 6)]
    assert effects_of(scheduler, 4.0) == [Launch(3, (0, 1, 2, 3, 6, 7))]


def test_preferred_and_most_nodes_are_shown_within_the_machine_and_kept_beyond(policy: Scripted) -> None:
    scheduler = LiveScheduler(policy_of("backfilling"), 2)
    scheduler.submit(Job(1, 0.0, 6, 60.0, Kind.MOLDABLE, 1, 9, ANY_NUMBER, 1))
    assert effects_of(scheduler, 1.0) == [Launch(1, (0, 1))]
    assert scheduler.running[1].job.high == 9


def test_a_job_that_has_not_begun_after_all_waits_where_it_stood(
    scheduler: LiveScheduler, policy: Scripted
) -> None:
    scheduler.submit(job(2, 5))
    scheduler.put_back(job(1, 1, 6))
    assert [one.id for one in scheduler.waiting] == [1, 2]
    policy.next = [Start(2, 5), Start(1, 3)]
    assert effects_of(scheduler, 2.0) == [Launch(2, (0, 1, 2, 3, 4)), Launch(1, (5, 6, 7))]


def test_a_job_that_is_over_its_time_is_about_to_end(scheduler: LiveScheduler) -> None:
    scheduler.submit(job(2, 8))
    scheduler.decide(150.0)
    assert scheduler.running[1].estimated_end_s > 150.0


def test_a_guest_shares_the_cores_of_its_mate_s_slots_until_either_of_them_ends() -> None:
    scheduler = LiveScheduler(policy_of("sd"), 2)
    for number, required_s in ((1, 600.0), (2, 20.0)):
        scheduler.submit(job(number, 2, 2, Kind.MALLEABLE, required_s))
    assert effects_of(scheduler, 0.0) == [Launch(1, (0, 1)), Launch(2, (0, 1), (1,), 0.5)]
    assert scheduler.shares_of(1) == [(0, 0.5, 1.0), (1, 0.5, 1.0)]
    assert scheduler.shares_of(2) == [(0, 0.0, 0.5), (1, 0.0, 0.5)]
    assert [one.estimated_end_s for one in scheduler.running.values()] == [620.0, 40.0]
    scheduler.ended(2)
    assert effects_of(scheduler, 30.0) == [Rebind(1)]
    assert scheduler.shares_of(1) == [(0, 0.0, 1.0), (1, 0.0, 1.0)]
    scheduler.submit(job(3, 2, 2, Kind.MALLEABLE, 20.0))
    assert effects_of(scheduler, 31.0) == [Launch(3, (0, 1), (1,), 0.5)]
    scheduler.ended(1)
    scheduler.submit(job(4, 1, required_s=1000.0))
    assert effects_of(scheduler, 32.0) == [Rebind(3)], "the guest has the slots for itself"
    assert scheduler.shares_of(3) == [(0, 0.0, 1.0), (1, 0.0, 1.0)]
    scheduler.ended(3)
    assert effects_of(scheduler, 33.0) == [Launch(4, (0,))]


def test_guests_and_mates_are_known_again_after_a_restart() -> None:
    scheduler = LiveScheduler(policy_of("sd"), 1)
    long, short = (job(number, 1, 1, Kind.MALLEABLE, 600.0 / number) for number in (1, 30))
    scheduler.restore(long, 0.0, [0])
    scheduler.restore_guest(short, 5.0, [0], 0.25)
    assert scheduler.shares_of(1) == [(0, 0.25, 1.0)]
    assert scheduler.shares_of(30) == [(0, 0.0, 0.25)]
    scheduler.ended(30)
    scheduler.submit(job(31, 1, 1, Kind.MALLEABLE, 20.0))
    assert effects_of(scheduler, 10.0) == [Rebind(1), Launch(31, (0,), (1,), 0.5)]


SHARING = ["sd", "sd:mates=1,waits=map"]
LIVE = [name for name in policy_names() if not getattr(policy_of(name), "shares_nodes", False)]


def test_policies_that_need_shared_nodes_are_known() -> None:
    assert set(policy_names()) - set(LIVE) == {"cp", "pbsfifo", "pbswalltime", "sd"}


class Cluster:
    """Random jobs that come, become ready, obey orders or not, and end; all invariants are checked."""

    def __init__(self, policy: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.policy = policy
        self.scheduler = LiveScheduler(policy_of(policy), SLOTS)
        self.now_s = 0.0
        self.count = 0
        self.orders: list[OrderShrink | OrderGrow] = []
        self.kinds: dict[int, Kind] = {}
        self.jobs: dict[int, Job] = {}
        self.withheld: set[int] = set()

    def step(self) -> None:
        self.now_s += self.random.choice((0.0, 0.5, 7.0, 70.0))
        deeds = [self.submit, self.submit, self.ready, self.obey, self.obey, self.end, self.withdraw]
        deeds += [self.maintain, self.wish, self.wish, self.progress]
        self.random.choice(deeds)()
        if self.random.random() < 0.05:
            self.restart()
        self.decide()

    def decide(self) -> None:
        for effect in effects_of(self.scheduler, self.now_s):
            if isinstance(effect, OrderShrink | OrderGrow):
                self.orders.append(effect)
            if isinstance(effect, OrderGrow) or (isinstance(effect, Launch) and not effect.mates):
                assert self.withheld.isdisjoint(effect.slots)
        self.check()

    def submit(self) -> None:
        self.count += 1
        low = self.random.randint(1, SLOTS)
        kind = self.random.choice(list(Kind))
        high = low if kind is Kind.RIGID else self.random.randint(low, SLOTS)
        self.kinds[self.count] = kind
        self.jobs[self.count] = job(self.count, low, high, kind, self.random.choice((5.0, 60.0, 600.0)))
        self.scheduler.submit(self.jobs[self.count])

    def ready(self) -> None:
        able = [one for one in self.scheduler.running if self.kinds[one] is Kind.MALLEABLE]
        if able:
            self.scheduler.ready(self.random.choice(able))

    def wish(self) -> None:
        """Let a job report a new bound of its work, or an evolving job request slots."""
        if self.scheduler.running:
            wishing = self.random.choice(list(self.scheduler.running))
            tell = self.random.choice((self.scheduler.bound, self.scheduler.wish))
            tell(wishing, self.random.randint(1, SLOTS))

    def progress(self) -> None:
        if self.scheduler.running:
            reporting = self.random.choice(list(self.scheduler.running))
            self.scheduler.progressed(reporting, self.random.choice((0.0, self.now_s)), self.now_s)

    def obey(self) -> None:
        if not self.orders:
            return
        order = self.orders.pop(self.random.randrange(len(self.orders)))
        if self.random.random() < 0.2:
            self.scheduler.order_failed(order.job, self.random.random() < 0.5)
        elif isinstance(order, OrderGrow):
            self.scheduler.grown(order.job)
        else:
            self.leave(order)

    def leave(self, order: OrderShrink) -> None:
        """Let a job release slots of its own choice."""
        if (running := self.scheduler.running.get(order.job)) is not None:
            self.scheduler.released(order.job, self.random.sample(running.nodes, order.count))

    def end(self) -> None:
        if self.scheduler.running:
            self.scheduler.ended(self.random.choice(list(self.scheduler.running)))

    def withdraw(self) -> None:
        if self.scheduler.waiting and self.random.random() < 0.3:
            self.scheduler.withdraw(self.random.choice(list(self.scheduler.waiting)).id)

    def maintain(self) -> None:
        """Withhold a slot, or offer it again."""
        slot = self.random.randrange(SLOTS)
        if slot in self.withheld:
            self.withheld.discard(slot)
        elif self.random.random() < 0.3:
            self.withheld.add(slot)
        self.scheduler.offer(set(range(SLOTS)) - self.withheld)

    def restart(self) -> None:
        """Restart the scheduler: pending orders are lost, and jobs are restored from the disk."""
        before, self.orders = self.scheduler, []
        self.scheduler = LiveScheduler(policy_of(self.policy), SLOTS)
        self.scheduler.offer(set(range(SLOTS)) - self.withheld)
        for one in before.running.values():
            if one.factor == 1.0:
                self.scheduler.restore(self.jobs[one.job.id], one.start_s, before.slots_of(one.job.id))
        for one in before.running.values():
            if one.factor < 1.0:
                self.scheduler.restore_guest(one.job, one.start_s, one.nodes, one.factor)
        for waiting in before.waiting:
            self.scheduler.submit(waiting)

    def check(self) -> None:
        taken = sorted(share for one in self.scheduler.running for share in self.scheduler.shares_of(one))
        for (slot, _, last), (next_slot, first, _) in pairwise(taken):
            assert slot < next_slot or last <= first, "no core is anybody else's"
        assert {slot for slot, _, _ in taken} <= set(range(SLOTS))
        for running in self.scheduler.running.values():
            assert running.job.low <= running.size <= running.job.high
            assert running.target is None or any(one.job == running.job.id for one in self.orders)
        assert not set(self.scheduler.running) & {one.id for one in self.scheduler.waiting}


@pytest.mark.parametrize(
    "policy",
    [
        *LIVE,
        "elastic:start=code,shrink=code,grow=code",
        "fair:overtake=any",
        "curve:curve=fitted,period_s=5",
        "sd",
        "sd:mates=1,waits=map",
    ],
)
@pytest.mark.parametrize("seed", seeds(12))
def test_every_policy_keeps_the_books_right_and_starts_every_job(policy: str, seed: int) -> None:
    cluster = Cluster(policy, seed)
    for _ in range(150):
        cluster.step()
    cluster.withheld.clear()
    cluster.scheduler.offer(range(SLOTS))
    for _ in range(20 * cluster.count):
        if not cluster.scheduler.waiting:
            break
        cluster.now_s += 100.0
        if cluster.orders:
            cluster.obey()
        else:
            cluster.end()
        cluster.decide()
    assert not cluster.scheduler.waiting


def test_a_slot_that_is_released_during_an_order_to_grow_ends_no_order() -> None:
    scheduler = LiveScheduler(policy_of("easy"), SLOTS)
    scheduler.submit(job(1, 2, SLOTS, Kind.EVOLVING))
    assert effects_of(scheduler, 1.0) == [Launch(1, (0, 1))]
    scheduler.wish(1, 2)
    assert effects_of(scheduler, 2.0) == [OrderGrow(1, (3, 2))]
    scheduler.released(1, [1])
    scheduler.wish(1, 2)
    assert effects_of(scheduler, 3.0) == [], "an order is pending"
    assert scheduler.slots_of(1) == [0, 3, 2]
    scheduler.grown(1)
    assert effects_of(scheduler, 4.0) == [OrderGrow(1, (4, 1))]
    scheduler.grown(1)
    scheduler.ended(1)
    assert scheduler.free_slots == SLOTS
    scheduler.submit(job(2, SLOTS))
    assert effects_of(scheduler, 5.0) == [Launch(2, tuple(range(SLOTS)))]


@pytest.mark.parametrize("policy", ["easy", "easy:learn=yes", "fair", "fair:learn=yes", "elastic"])
def test_a_job_that_releases_slots_below_its_smallest_number_may_run_on_what_it_has(policy: str) -> None:
    scheduler = LiveScheduler(policy_of(policy), 4)
    scheduler.submit(job(1, 3, 3, Kind.EVOLVING))
    assert effects_of(scheduler, 1.0) == [Launch(1, (0, 1, 2))]
    scheduler.bound(1, 3)
    scheduler.released(1, [2])
    scheduler.released(1, [1])
    scheduler.submit(job(2, 2))
    effects = effects_of(scheduler, 2.0)
    assert Launch(2, (1, 2)) in effects
    assert scheduler.slots_of(1)[0] == 0
    for effect in effects:
        if isinstance(effect, OrderGrow):
            scheduler.grown(1)
    scheduler.ended(2)
    for now_s in (100.0, 200.0):
        if any(isinstance(effect, OrderGrow) for effect in effects_of(scheduler, now_s)):
            scheduler.grown(1)
    assert len(scheduler.slots_of(1)) == 3
