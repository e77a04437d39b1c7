"""One PE whose peers the test plays: the order of its actions, and when it gives up."""

from typing import Any, TypeVar

import pytest

from mallob_py.protocol import PeerViolation, messages, stimuli
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import AnyEffect, JobEnded, JobOver, Log, Send, StartWorker
from mallob_py.protocol.pe import PE

_SIZE = 3
#: parent of the ranks 0 and 2 in the tree of ranks
_PARENT = 1
_DESCRIPTION = messages.Description(1, b"x")
_Kind = TypeVar("_Kind", bound=messages.Message)


def _request(
    job: int,
    index: int = 0,
    epoch: int = 0,
    hops: int = 0,
    description: messages.Description | None = _DESCRIPTION,
) -> messages.Request:
    return messages.Request(
        job=job,
        subtree=index,
        position=0,
        count=1,
        base=0,
        epoch=epoch,
        path=(_PARENT,),
        hops=hops,
        asked_s=0.0,
        description=description,
    )


class Played:
    """PE 2 of 3, a leaf in the tree of ranks, with a clock."""

    def __init__(self, **settings: Any) -> None:
        self.pe = PE(2, _SIZE, Config(**settings))
        self.now = 0.0
        self.epoch = 0
        self._version = 0

    def hear(self, message: messages.AnyMessage) -> list[AnyEffect]:
        self.pe.handle(stimuli.Received(_PARENT, message), self.now)
        return self.pe.take_effects()

    def hear_epoch(self, **demands: int) -> list[AnyEffect]:
        """Let the next epoch bring these demands (`job_1` is the demand of job 1); return the effects."""
        self.epoch += 1
        self._version += 1
        events = tuple(
            messages.JobEvent(int(name.removeprefix("job_")), self._version, demand, 1.0, 0.0)
            for name, demand in demands.items()
        )
        return self.hear(messages.Epoch(self.epoch, events, elapsed_s=1.0))

    def wait_until(self, when_s: float) -> list[AnyEffect]:
        while self.pe.deadline_s <= when_s:
            self.now = max(self.now, self.pe.deadline_s)
            self.pe.handle(stimuli.Tick(), self.now)
        self.now = when_s
        return self.pe.take_effects()


def _sent(effects: list[AnyEffect], kind: type[_Kind]) -> list[_Kind]:
    return [
        effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)
    ]


def _jobs_offered(effects: list[AnyEffect]) -> list[int]:
    return [offer.job for offer in _sent(effects, messages.Offer)]


# --- requests that found no PE -------------------------------------------------------------------------


def test_race_5_a_request_goes_on_from_a_pe_that_cannot_take_it_and_its_hops_are_counted() -> None:
    played = Played(hops_max=2)
    played.pe.handle(stimuli.HostRests(100.0), played.now)
    assert not _sent(played.hear(messages.Adopt(_request(1, hops=1))), messages.RequestFailed)
    (effect,) = _sent(played.hear(messages.Grant(0, 1, 0, 0)), messages.MeetRequest)
    assert effect.request.hops == 2


def test_race_5_a_request_that_has_met_busy_pes_too_often_goes_back_to_its_parent() -> None:
    played = Played(hops_max=2)
    played.pe.handle(stimuli.HostRests(100.0), played.now)
    effects = played.hear(messages.Adopt(_request(1, hops=2)))
    assert _sent(effects, messages.RequestFailed) == [messages.RequestFailed(1, 0, 0)]
    assert not [supply for supply in _sent(effects, messages.Supply) if supply.requests]


# --- messages of later epochs --------------------------------------------------------------------------


def test_race_1_messages_that_wait_for_an_epoch_are_handled_in_the_order_in_which_they_came() -> None:
    played = Played()
    for job in (2, 1):
        assert not _jobs_offered(played.hear(messages.Prefer(_request(job, epoch=1))))
    assert _jobs_offered(played.hear_epoch(job_1=1, job_2=1)) == [2]


def test_race_1_a_message_waits_for_its_own_epoch_though_later_ones_came_before() -> None:
    played = Played()
    played.hear(messages.Prefer(_request(1, epoch=2)))
    played.hear(messages.Prefer(_request(2, epoch=1)))
    assert _jobs_offered(played.hear_epoch(job_1=1, job_2=1)) == [2]


# --- epochs that begin ---------------------------------------------------------------------------------


def test_it_is_told_that_a_job_is_over_even_where_it_has_no_worker() -> None:
    played = Played()
    played.hear_epoch(job_1=1, job_2=1)
    assert [effect for effect in played.hear_epoch(job_1=0) if isinstance(effect, JobOver)] == [JobOver(1)]


def test_a_root_whose_job_is_to_wait_leaves() -> None:
    """The root leaves because its job has no volume; the job is not over, so the worker is kept for later."""
    played = Played()
    played.hear_epoch(job_1=1)
    played.hear(messages.Adopt(_request(1, epoch=1)))
    worker = played.pe.workers.active
    assert worker is not None
    played.pe.handle(stimuli.WorkerStarted(worker.number), played.now)
    played.hear_epoch(**{f"job_{job}": 1 for job in range(1, 20)})
    assert played.pe.balancer.volume(1) == 0
    assert played.pe.workers.active is None
    assert list(played.pe.workers.suspended) == [1]


def test_a_root_that_is_accepted_after_its_turn_gives_the_memory_back() -> None:
    played = Played()
    played.hear_epoch(job_1=1)
    (offer,) = _sent(played.hear(messages.Adopt(_request(1, epoch=1, description=None))), messages.Offer)
    played.hear_epoch(**{f"job_{job}": 1 for job in range(1, 20)})
    assert played.pe.workers.active is None
    past = (messages.PastWorker(0, 0, 1),)
    effects = played.hear(messages.Accepted(1, 0, offer.stay, 1, -1, past, None))
    assert _sent(effects, messages.Remember) == [messages.Remember(1, -1, past)]


# --- descriptions ------------------------------------------------------------------------------------------


class _Unheard(Played):
    """A PE that ran the root of a job unknown to all other PEs, and has sent the result."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.wait_until(0.01)  # the PE has offered itself as idle
        effects = self.hear(messages.Prefer(_request(1)))
        assert [supply.tokens for supply in _sent(effects, messages.Supply)] == [-1]
        (self.offer,) = _sent(effects, messages.Offer)
        (started,) = (effect for effect in effects if isinstance(effect, StartWorker))
        self.pe.handle(stimuli.WorkerStarted(started.worker), self.now)
        self.wait_until(0.02)
        self.pe.handle(stimuli.WorkerAnswered(started.worker, b""), self.now)
        self.told = self.pe.take_effects()


def test_the_pe_of_an_unheard_job_is_its_clients_for_a_moment_and_then_everybodys() -> None:
    played = _Unheard()
    assert not _sent(played.told, messages.Supply)
    until_s = played.now + Config().turnaround_s
    assert not _sent(played.wait_until(until_s - 1e-6), messages.Supply)
    assert [supply.tokens for supply in _sent(played.wait_until(until_s), messages.Supply)] == [1]


def test_a_job_that_is_handed_to_the_pe_of_an_unheard_one_is_adopted_and_no_supply_is_told() -> None:
    played = _Unheard()
    effects = played.hear(messages.Prefer(_request(2))) + played.wait_until(played.now + 1.0)
    assert _jobs_offered(effects) == [2]
    assert not _sent(effects, messages.Supply)


def test_the_pe_of_a_job_that_others_know_is_everybodys_at_once() -> None:
    played = Played()
    played.wait_until(0.005)
    played.hear_epoch(job_1=1)
    (started,) = (one for one in played.hear(messages.Prefer(_request(1))) if isinstance(one, StartWorker))
    played.wait_until(0.01)
    played.pe.handle(stimuli.WorkerAnswered(started.worker, b""), played.now)
    assert [supply.tokens for supply in _sent(played.pe.take_effects(), messages.Supply)] == [1]


def test_a_root_that_is_accepted_after_its_result_has_nothing_more_to_say() -> None:
    played = _Unheard()
    late = messages.Accepted(1, 0, played.offer.stay, 0, -1, (), None)
    assert not _sent(played.hear(late), messages.ChildLeft)
    other = messages.Accepted(1, 0, played.offer.stay + 1, 0, -1, (), None)
    assert _sent(played.hear(other), messages.ChildLeft)


def test_a_root_whose_place_was_granted_is_in_the_tree_at_once_and_may_be_accepted_once_more() -> None:
    played = Played()
    effects = played.hear(messages.Prefer(_request(1), is_granted=True))
    (offer,) = _sent(effects, messages.Offer)
    assert offer.granted_epoch == 0
    assert [effect.event for effect in effects if isinstance(effect, Log)].count("adopted") == 1
    played.hear_epoch(job_1=1)
    accepted = messages.Accepted(1, 0, offer.stay, 1, -1, (), None)
    assert not any(isinstance(effect, Log) for effect in played.hear(accepted))
    with pytest.raises(PeerViolation, match="accepted twice"):
        played.hear(accepted)


def test_a_root_whose_place_was_granted_leaves_if_it_is_rejected() -> None:
    played = Played()
    (offer,) = _sent(played.hear(messages.Prefer(_request(1), is_granted=True)), messages.Offer)
    played.hear(offer.rejection())
    assert played.pe.workers.active is None


def test_no_place_is_granted_to_a_root_that_was_suspended_here() -> None:
    played = Played()
    played.hear_epoch(job_1=1)
    played.hear(messages.Adopt(_request(1, epoch=1)))
    played.hear_epoch(**{f"job_{job}": 1 for job in range(1, 20)})
    assert list(played.pe.workers.suspended) == [1]
    played.hear_epoch(**{f"job_{job}": 0 for job in range(2, 20)})
    (offer,) = _sent(played.hear(messages.Prefer(_request(1, epoch=3), is_granted=True)), messages.Offer)
    assert offer.granted_epoch == -1


def test_race_11_a_worker_whose_description_comes_after_its_acceptance_starts_once() -> None:
    played = Played()
    played.hear_epoch(job_1=2)
    (offer,) = _sent(
        played.hear(messages.Adopt(_request(1, index=1, epoch=1, description=None))), messages.Offer
    )
    effects = played.hear(messages.Accepted(1, 1, offer.stay, 1, 0, (), None))
    effects += played.hear(messages.Described(1, offer.stay + 1, _DESCRIPTION))  # for another stay
    assert not any(isinstance(effect, StartWorker) for effect in effects)
    effects = played.hear(messages.Described(1, offer.stay, _DESCRIPTION)) + played.hear(
        messages.Described(1, offer.stay, _DESCRIPTION)
    )
    assert [effect.job for effect in effects if isinstance(effect, StartWorker)] == [1]


# --- a PE that stays free for a suspended worker ---------------------------------------------------------


def test_a_pe_keeps_itself_free_when_its_suspended_worker_is_deserved_again_and_not_in_each_epoch() -> None:
    played = Played(reuse_patience_s=1.0)
    played.hear_epoch(job_1=2)
    started = played.hear(messages.Adopt(_request(1, index=1, epoch=1)))
    (offer,) = _sent(started, messages.Offer)
    played.hear(messages.Accepted(1, 1, offer.stay, 1, 0, (), None))
    (start,) = (effect for effect in started if isinstance(effect, StartWorker))
    played.pe.handle(stimuli.WorkerStarted(start.worker), played.now)
    played.hear_epoch(job_1=1)
    assert list(played.pe.workers.suspended) == [1]
    assert played.pe.workers.is_free()
    played.hear_epoch(job_1=2)
    assert not played.pe.workers.is_free(), "its parent may query it"
    played.wait_until(1.5)
    assert played.pe.workers.is_free()
    played.hear_epoch(job_2=1)
    assert played.pe.balancer.volume(1) == 2
    assert played.pe.workers.is_free(), "it has waited for this growth already"


@pytest.mark.parametrize("is_draining", [False, True])
def test_a_pe_that_is_to_be_empty_does_not_take_its_suspended_worker_back(*, is_draining: bool) -> None:
    played = Played()
    played.hear_epoch(job_1=2)
    started = played.hear(messages.Adopt(_request(1, index=1, epoch=1)))
    (offer,) = _sent(started, messages.Offer)
    played.hear(messages.Accepted(1, 1, offer.stay, 1, 0, (), None))
    (start,) = (effect for effect in started if isinstance(effect, StartWorker))
    played.pe.handle(stimuli.WorkerStarted(start.worker), played.now)
    played.hear_epoch(job_1=1)
    played.hear_epoch(job_1=2)
    assert list(played.pe.workers.suspended) == [1]
    if is_draining:
        played.pe.handle(stimuli.Drain(), played.now)
    answer = played.hear(messages.Query(_request(1, index=1, epoch=3)))
    assert (_sent(answer, messages.Denied) == [messages.Denied(1, 1)]) == is_draining
    assert bool(_sent(answer, messages.Offer)) != is_draining


# --- budgets ---------------------------------------------------------------------------------------------


def test_a_change_of_volume_is_charged_from_its_epoch_on() -> None:
    """The job has one worker (the root) for ten seconds, then three workers for five, then two for one."""
    played = Played(threads=1)
    played.pe.handle(stimuli.JobSubmitted(1, stimuli.JobParameters(), _DESCRIPTION), played.now)
    (start,) = (effect for effect in played.pe.take_effects() if isinstance(effect, StartWorker))
    played.pe.handle(stimuli.WorkerStarted(start.worker), played.now)
    played.wait_until(10.0)
    played.hear_epoch(job_1=3)
    played.wait_until(15.0)
    played.hear_epoch(job_1=2)
    played.wait_until(16.0)
    played.pe.handle(stimuli.JobInterrupted(1), played.now)
    (ended,) = (effect for effect in played.pe.take_effects() if isinstance(effect, JobEnded))
    assert ended.stats.pe_s == pytest.approx(10 * 1 + 5 * 3 + 1 * 2)
