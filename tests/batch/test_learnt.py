"""Run times predicted from ended jobs, for any policy."""

from collections.abc import Iterable

import msgspec
import pytest
from workloads import rigid

from mallob_py.batch.costs import Delays
from mallob_py.batch.job import Job, Kind, Truth, Wish, Workload
from mallob_py.batch.live.scheduler import LiveScheduler
from mallob_py.batch.policies.backfilling import Fcfs
from mallob_py.batch.policies.learnt import Learnt
from mallob_py.batch.policy import Action, View
from mallob_py.batch.registry import PolicyTextError, policy_of
from mallob_py.batch.simulator import simulate


class _Watching:
    """FCFS that records the estimates that it is shown."""

    name = "watching"
    wants_all_arrivals = True

    def __init__(self) -> None:
        self._policy = Fcfs()
        self.waiting: dict[int, float] = {}
        self.ends: list[tuple[float, int, float]] = []

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> list[Action]:
        self.waiting |= {job.id: job.estimate_s for job in view.queue}
        self.ends += [(view.now_s, one.job.id, end_s) for end_s, _, one in view.ends]
        return list(self._policy.decide(view))


def _of(workload: Workload, *owners: str) -> Workload:
    """Return the workload with these users as the owners of its jobs, all in one queue."""
    jobs = [
        msgspec.structs.replace(job, queue="all", user=user)
        for job, user in zip(workload.jobs, owners, strict=True)
    ]
    return msgspec.structs.replace(workload, jobs=jobs)


def test_a_job_that_comes_is_expected_to_use_the_part_that_others_of_its_queue_have_used() -> None:
    workload = _of(rigid((0, 1, 10, 100), (0, 1, 30, 100), (50, 1, 5, 1000), nodes=2), "a", "b", "b")
    by_queue, by_user = _Watching(), _Watching()
    simulate(workload, Learnt(by_queue))
    simulate(workload, Learnt(by_user, "user"))
    assert by_queue.waiting == {0: 100.0, 1: 100.0, 2: pytest.approx(1000 * (1 + 0.1 + 0.3) / 3)}
    assert by_user.waiting[2] == pytest.approx(1000 * (1 + 0.3) / 2)


def test_a_job_over_its_expected_time_is_expected_to_run_as_long_again_but_not_over_its_estimate() -> None:
    quick, others = [(0, 1, 0.001, 100)] * 4, [(at_s, 1, 1, 1) for at_s in (300, 400, 700)]
    workload = _of(rigid(*quick, (1, 1, 1000, 1000), *others, nodes=4), *"aaaaabbb")
    watching = _Watching()
    simulate(workload, Learnt(watching, "user"))
    ends_s = {(now_s, job): end_s for now_s, job, end_s in watching.ends}
    assert watching.waiting[4] == pytest.approx(200.0, rel=1e-3)
    assert [ends_s[now_s, 4] for now_s in (300, 400, 700)] == [599.0, 599.0, 1001.0]


def test_a_policy_that_learns_overtakes_where_estimates_would_not_let_it() -> None:
    # The head can have all nodes at 100; the last job requests 200 s and takes 20 s, like an earlier job.
    workload = _of(
        rigid((0, 1, 20, 200), (0, 1, 2000, 2000), (21, 2, 5, 5), (22, 1, 20, 200), nodes=2), *"abca"
    )
    assert simulate(workload, policy_of("easy:extra=no")).starts_s[3] == 22.0
    assert policy_of("easy:extra=no,learn=user").name == "easy:extra=no,learn=user"


def test_learn_is_a_setting_of_every_policy_and_says_what_it_takes() -> None:
    assert isinstance(policy_of("fair:learn=yes"), Learnt)
    assert not isinstance(policy_of("fair:learn=no"), Learnt)
    assert not isinstance(policy_of("cp:learn=yes"), Learnt)
    with pytest.raises(PolicyTextError, match="learn is 'maybe', not yes, no, queue or user"):
        policy_of("easy:learn=maybe")


def test_who_learns_sees_which_jobs_take_orders_and_how_many_nodes_they_can_use() -> None:
    seen: dict[float, tuple[Kind, int]] = {}

    class Seeing(Fcfs):
        def decide(self, view: View) -> Iterable[Action]:
            for one in view.running.values():
                seen[view.now_s] = one.job.kind, one.job.high
            return super().decide(view)

    own = Job(0, 0.0, 2, 100.0, Kind.MALLEABLE, 1, 4)
    workload = Workload([own], [Truth(20.0, wishes=(Wish(0.5, 3),))], 4)
    simulate(workload, Learnt(Seeing()), delays=Delays(start_s=1.0, ready_s=6.0))
    assert seen == {6.0: (Kind.MALLEABLE, 4), 11.0: (Kind.MALLEABLE, 3)}
    jobs = LiveScheduler(Learnt(Seeing()), 4)
    jobs.submit(own)
    jobs.decide(1.0)
    jobs.submit(Job(1, 1.0, 4, 100.0))
    jobs.decide(2.0)
    assert seen[2.0] == (Kind.MOLDABLE, 4)


def test_what_was_learnt_stays_when_a_live_scheduler_plans_anew() -> None:
    watching = _Watching()
    jobs = LiveScheduler(Learnt(watching), 1)
    for number in range(3):
        jobs.submit(Job(number, 0.0, 1, 100.0))
    jobs.decide(0.0)
    jobs.ended(0)
    jobs.withdraw(2)
    jobs.decide(20.0)
    jobs.submit(Job(3, 20.0, 1, 100.0))
    jobs.decide(20.0)
    assert watching.waiting[3] == pytest.approx(60.0)
