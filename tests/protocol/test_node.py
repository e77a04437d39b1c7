"""A rank as a pure machine: what its PEs, other ranks and the executor of its effects exchange."""

import pytest

from mallob_py.protocol import PeerViolation, rank_effects, rank_messages, rank_stimuli
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import LeaveWorker, StartWorker
from mallob_py.protocol.growth import PATIENCE_S
from mallob_py.protocol.messages import Description, Epoch, TreeMessage
from mallob_py.protocol.node import Node
from mallob_py.protocol.placement import Generation, name_of
from mallob_py.protocol.random_walk import NO_LIMIT
from mallob_py.protocol.rank_book import Origin
from mallob_py.protocol.stimuli import JobParameters, JobSubmitted, WorkerLeft, WorkerStarted

G = name_of(1, 0)


def node_of(rank: int, *capacities: int, survives: bool = True, **settings: object) -> Node:
    processes = {each: rank_messages.RankProcess(each + 6, "h", 0, 0) for each in range(len(capacities))}
    config = Config(**settings)  # type: ignore[arg-type]
    origin = Origin(capacities, 0.0, processes)
    node = Node(rank, origin, config, patience_s=30.0, survives=survives)
    node.effects.clear()
    return node


def of_kind(node: Node, kind: type) -> list[object]:
    return [effect for effect in node.effects if isinstance(effect, kind)]


def submit(job: int) -> rank_stimuli.ToPE:
    return rank_stimuli.ToPE(0, JobSubmitted(job, JobParameters(), Description(1, b"x")))


def test_a_request_that_finds_nobody_on_its_walk_does_not_keep_the_rank() -> None:
    node = node_of(0, 2, random_hops=NO_LIMIT, turnover_max_s=0.0)
    for job in (1, 2, 3):
        node.handle(submit(job), 0.0)
    started = [each for each in of_kind(node, rank_effects.OfPE) if isinstance(each.effect, StartWorker)]  # type: ignore[attr-defined]
    assert len(started) == 2, "all PEs are busy"
    assert any(pe.matcher.is_asking(3, 0) for pe in node.pes)


def test_a_message_that_no_pe_sends_at_this_time_is_its_ranks_fault() -> None:
    node = node_of(0, 1, 1)
    node.handle(rank_stimuli.Said(1, G, 1, 0, Epoch(7, ())), 0.0)
    (accused,) = of_kind(node, rank_effects.Accuse)
    assert "epoch 7 after epoch 0" in accused.how  # type: ignore[attr-defined]
    with pytest.raises(PeerViolation, match="epoch 7 after epoch 0"):
        node.handle(rank_stimuli.Said(0, G, 0, 0, Epoch(7, ())), 0.0)


def test_a_lost_rank_ends_all_where_they_shall_not_go_on_without_it() -> None:
    node = node_of(0, 1, 1, survives=False)
    node.handle(rank_stimuli.RankLost(1, "was lost"), 0.0)
    assert of_kind(node, rank_effects.Fail) == [rank_effects.Fail("rank 1 (process 7 on h) was lost")]


def test_the_last_rank_goes_on_in_the_same_moment() -> None:
    node = node_of(0, 1, 1)
    node.handle(rank_stimuli.RankLost(1, "was lost"), 0.0)
    kinds = [type(each) for each in node.effects]
    assert (
        kinds.index(rank_effects.Bury)
        < kinds.index(rank_effects.Halted)
        < kinds.index(rank_effects.WorldChanged)
    )
    assert not node.is_halted
    assert of_kind(node, rank_effects.Say) == [
        rank_effects.Say("rank 1 (process 7 on h) was lost. 1 rank goes on (generation 2)")
    ]


def test_a_rank_that_grows_wants_to_look_after_it_in_time() -> None:
    node, process = node_of(0, 1, 1), rank_messages.RankProcess(9, "h", 0, 0)
    me = rank_messages.Peer(0, 0, process, rank_messages.Place("link"))
    node.handle(
        rank_stimuli.RanksStarted(rank_messages.Listen(3, b"s", wide=False), me, ((2, process),)), 5.0
    )
    for now in (5.0, 6.0):  # until the node's PEs rest
        node.handle(rank_stimuli.TimeCame(), now)
    assert node.deadline_s == 5.0 + PATIENCE_S


def halted() -> tuple[Node, int]:
    """Return rank 1 of three, halted for the generation without rank 2, and this generation's number g."""
    node, after = node_of(1, 1, 1, 1), name_of(2, 0)
    node.handle(rank_stimuli.Said(0, G, 0, 0, rank_messages.Propose(Generation(after, (0, 1), (1, 1)))), 0.0)
    assert rank_effects.Tell(0, G, 0, 0, rank_messages.Ready(after)) in node.effects
    assert node.is_halted
    node.effects.clear()
    return node, after


def begin(node: Node, g: int) -> None:
    node.handle(rank_stimuli.Said(0, G, 0, 0, rank_messages.Commit(g)), 0.0)
    assert not node.is_halted


def test_what_a_halted_rank_is_told_waits_for_the_next_generation() -> None:
    node, after = halted()
    node.handle(submit(1), 0.0)
    node.handle(rank_stimuli.DeskSays(1, b"here"), 0.0)
    assert not node.effects
    begin(node, after)
    assert 1 in node.pe.client.jobs
    assert of_kind(node, rank_effects.DeskHears) == [rank_effects.DeskHears(1, b"here")]


def test_what_comes_of_a_generation_too_early_waits_for_it_and_what_comes_too_late_is_dropped() -> None:
    node, after = halted()
    node.handle(rank_stimuli.Said(0, after, 0, 1, Epoch(1, ())), 0.0)
    node.handle(rank_stimuli.Said(0, after, 0, 0, rank_messages.DeskNews(b"new")), 0.0)
    node.handle(rank_stimuli.Said(0, G, 0, 1, Epoch(1, ())), 0.0)
    assert not node.effects
    begin(node, after)
    assert node.pe.balancer.epoch == 1
    assert of_kind(node, rank_effects.DeskHears) == [rank_effects.DeskHears(0, b"new")]
    node.handle(rank_stimuli.Said(0, G, 0, 1, Epoch(2, ())), 0.0)
    assert node.pe.balancer.epoch == 1


def test_a_rank_that_hears_of_its_drain_while_it_has_halted_drains_when_it_goes_on() -> None:
    node, after = halted()
    node.handle(rank_stimuli.Said(0, G, 0, 0, rank_messages.RankDrains(5.0)), 0.0)
    assert not of_kind(node, rank_effects.Tell)
    begin(node, after)
    assert rank_effects.Tell(0, after, 0, 0, rank_messages.RankDrained()) in node.effects, (
        "it has nothing to hand over"
    )
    assert node.pe.workers.giving_back.is_draining


def test_a_rank_that_is_drained_tells_who_wants_it_when_its_time_is_over() -> None:
    node = node_of(0, 1, 1)
    node.handle(submit(1), 0.0)
    node.handle(rank_stimuli.ToPE(0, WorkerStarted(0)), 0.0)
    node.handle(rank_stimuli.DrainWanted(0, 5.0), 0.0)
    assert not of_kind(node, rank_effects.Drained)
    assert node.deadline_s <= 5.0
    node.handle(rank_stimuli.TimeCame(), 5.0)
    assert of_kind(node, rank_effects.Drained) == [rank_effects.Drained(0)]


def test_a_message_that_is_given_back_in_another_generation_is_dropped() -> None:
    node, after = halted()
    begin(node, after)
    node.effects.clear()
    node.handle(rank_stimuli.Congested(G, 1, 0, TreeMessage(1, 2, 1, 3, 0, False, b"x")), 0.0)
    assert not node.effects


def test_a_member_that_is_noted_late_goes_on() -> None:
    """A peer that was taken for lost sends `Noted` when the newcomer is a member already."""
    node = node_of(0, 1, 1)
    node.take_effects()
    node.handle(rank_stimuli.Said(1, node.present.g, 0, 0, rank_messages.Noted()), 1.0)
    assert not node.effects


def test_the_roll_is_spread_and_answered() -> None:
    node = node_of(0, 1, 1, 1)
    node.handle(submit(1), 0.0)
    node.effects.clear()
    node.handle(rank_stimuli.RollWanted(), 0.0)
    asked = [
        each.rank
        for each in of_kind(node, rank_effects.Tell)
        if isinstance(each.message, rank_messages.RollCall)
    ]  # type: ignore[attr-defined]
    assert asked == [1, 2]
    node.handle(rank_stimuli.Said(1, G, 0, 0, rank_messages.RollAnswer(())), 0.0)
    assert [(place.pe, place.job) for place in node.reports.roll.workers() or ()] == [(0, 1)]


def test_the_end_is_told_to_all_once_and_waits_for_nobody_who_has_nothing() -> None:
    node = node_of(0, 1, 1)
    node.handle(rank_stimuli.EndWanted(), 0.0)
    node.handle(rank_stimuli.EndWanted(), 0.0)
    assert [each for each in node.effects if each == rank_effects.Tell(1, G, 0, 0, rank_messages.Stop())] == [
        rank_effects.Tell(1, G, 0, 0, rank_messages.Stop())
    ]
    assert of_kind(node, rank_effects.WindUp) == [rank_effects.WindUp()]
    assert node.is_over(0.0)


def test_at_the_end_a_rank_has_its_worker_hand_over_and_waits_for_that() -> None:
    node = node_of(0, 1)
    node.handle(submit(1), 0.0)
    effects = [each.effect for each in of_kind(node, rank_effects.OfPE)]  # type: ignore[attr-defined]
    (worker,) = (effect.worker for effect in effects if isinstance(effect, StartWorker))
    node.handle(rank_stimuli.ToPE(0, WorkerStarted(worker, leaves=True)), 0.1)
    node.handle(rank_stimuli.EndWanted(), 1.0)
    assert rank_effects.OfPE(0, LeaveWorker(worker)) in node.effects
    assert not node.is_over(1.0)
    node.handle(rank_stimuli.ToPE(0, WorkerLeft(worker)), 1.1)
    assert node.is_over(1.1)


def test_a_rank_that_dies_while_all_end_is_not_waited_for() -> None:
    node = node_of(0, 1, 1, 1)
    node.handle(rank_stimuli.EndWanted(), 0.0)
    node.effects.clear()
    node.handle(rank_stimuli.RankLost(1, "was lost"), 0.0)
    assert list(node.effects) == [rank_effects.Bury(1)]
    assert node.is_over(0.0)
