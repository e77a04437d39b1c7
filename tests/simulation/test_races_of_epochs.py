"""Races of changes: sender and receiver of a message are in different epochs; each race is a scripted test.

Races have the numbers of the list of races that a simple protocol gets wrong. Where the design makes a race
impossible, the test says why, and checks random clusters.
"""

from typing import Any

import pytest
from stories import (
    active,
    answer,
    demand,
    hold_kind,
    is_idle,
    lively,
    needs,
    only,
    places,
    play,
    rest,
    suspended,
    told_with_luck,
    tree_children,
    tree_parent,
    volume,
    watch,
)

from mallob_py.protocol import messages
from mallob_py.protocol.config import Matching, Reuse
from mallob_py.protocol.pe import PE
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.network import Hold
from mallob_py.simulation.plan import draw_plan
from mallob_py.simulation.scenario import Scenario

# --- race 1: newer and older epochs -----------------------------------------------------------------


@told_with_luck
def test_race_1_a_query_from_a_newer_epoch_waits_until_its_receiver_has_that_epoch(seed: int) -> None:
    cluster = lively(8, seed, 0)
    client = seed % 8
    cluster.submit(1, client)
    rest(cluster)
    cluster.submit(2, client, max_demand=1)
    rest(cluster)
    ((rank, kept),) = suspended(cluster, 1)
    parent = places(cluster, 1)[3]
    needs(tree_parent(cluster, rank) not in (None, parent) and not tree_children(cluster, rank))
    queries, denials = watch(cluster, messages.Query), watch(cluster, messages.Denied)
    late = hold_kind(cluster, messages.Epoch, dest=rank)
    answer(cluster, rank, active(cluster, rank).number)
    play(cluster)
    assert volume(cluster, 1, parent) == 8
    assert volume(cluster, 1, rank) == 7
    assert [dest for _, dest, _ in queries] == [rank]
    assert is_idle(cluster, rank)
    late.release()
    rest(cluster)
    assert not denials
    assert active(cluster, rank).number == kept, "the suspended worker goes on"


def _parked_in_lives(
    monkeypatch: pytest.MonkeyPatch, *matchers: tuple[Matching, int]
) -> set[type[messages.Message]]:
    """Return the kinds of messages that had to wait for their epoch in some random runs with these
    matchers.
    """
    parked: set[type[messages.Message]] = set()
    park = PE._park

    def spy(pe: PE, epoch: int, source: int, message: Any) -> None:
        parked.add(type(message))
        park(pe, epoch, source, message)

    monkeypatch.setattr(PE, "_park", spy)
    for seed in range(1000, 1080):
        plan = draw_plan(seed)
        if (plan.config.matcher, plan.config.random_hops) in matchers:
            Scenario(plan).run()
    assert parked, "the seeds are too tame"
    return parked


def test_race_1_an_adoption_by_prefix_sums_never_comes_from_a_newer_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tree's root numbers epochs and matches; both come down on the same channels, in order.

    So a PE with a grant for its token knows all epochs in which the matched request can have been made.
    """
    assert messages.Adopt not in _parked_in_lives(monkeypatch, (Matching.PREFIX_SUM, 0))


def test_race_1_an_adoption_at_the_end_of_a_random_walk_waits_for_its_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request on a walk may arrive before the epoch in which it was made."""
    walks = (Matching.PREFIX_SUM, 3), (Matching.ROUTING_TREE, 5), (Matching.ROUTING_TREE, -1)
    assert messages.Adopt in _parked_in_lives(monkeypatch, *walks)


@told_with_luck
def test_race_1_an_old_request_is_judged_by_the_present_volume(seed: int) -> None:
    cluster = lively(16, seed)
    late = hold_kind(cluster, messages.Adopt, index=3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(only(late, messages.Adopt) and set(places(cluster, 1)) == {0, 1, 2})
    cluster.submit(2, 7, max_demand=2)
    play(cluster)
    needs(only(late, messages.Adopt))
    ((_, rank, message),) = late.messages
    failures = watch(cluster, messages.RequestFailed)
    late.release()
    rest(cluster)
    assert message.request.epoch < cluster.pes[rank].balancer.epoch
    assert places(cluster, 1)[3] == rank, "an old request for a worker that is wanted is as good as a new one"
    assert not failures


# --- race 2: the volume drops before an answer ------------------------------------------------------


@told_with_luck
def test_race_2_whoever_is_asked_to_adopt_a_worker_beyond_the_volume_declines(seed: int) -> None:
    cluster = lively(16, seed)
    late = hold_kind(cluster, messages.Adopt, index=3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    demand(cluster, 1, 3)
    play(cluster)
    needs(only(late, messages.Adopt))
    ((_, rank, _),) = late.messages
    failures, offers = watch(cluster, messages.RequestFailed), watch(cluster, messages.Offer)
    late.release()
    rest(cluster)
    assert [(message.index, source) for source, _, message in failures] == [(3, rank)]
    assert not offers
    assert is_idle(cluster, rank)


@told_with_luck
def test_race_2_an_offer_beyond_the_volume_is_rejected_and_its_worker_is_gone_already(seed: int) -> None:
    cluster = lively(16, seed)
    late = hold_kind(cluster, messages.Offer, index=3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(bool(late.messages))
    rank, parent = places(cluster, 1)[3], places(cluster, 1)[1]
    demand(cluster, 1, 3)
    play(cluster)
    needs(volume(cluster, 1, parent) == 3)
    assert is_idle(cluster, rank), "it needs no answer to know that it is not wanted"
    rejections = watch(cluster, messages.Rejected)
    late.release()
    rest(cluster)
    assert [dest for _, dest, _ in rejections] == [rank]


@told_with_luck
def test_race_2_a_child_tells_the_parent_of_an_epoch_that_the_parent_had_before_it_accepted(
    seed: int,
) -> None:
    cluster = lively(32, seed, 16)
    late_offer = hold_kind(cluster, messages.Offer, index=3)
    cluster.submit(1, seed % 32, max_demand=4)
    play(cluster)
    needs(only(late_offer, messages.Offer))
    child, parent = places(cluster, 1)[3], places(cluster, 1)[1]
    needs(tree_parent(cluster, child) not in (None, parent) and not tree_children(cluster, child))
    needs(child != seed % 32)
    late_epochs = hold_kind(cluster, messages.Epoch, dest=child)
    demand(cluster, 1, 3)
    play(cluster)
    demand(cluster, 1, 4)
    # The parent asks again, but no other PE can answer faster.
    late_adoptions = hold_kind(cluster, messages.Adopt)
    play(cluster)
    needs(only(late_adoptions, messages.Adopt) and bool(late_epochs.messages))
    late_offer.release()
    play(cluster)
    assert active(cluster, child).accepted_epoch == cluster.pes[parent].balancer.epoch
    news = watch(cluster, messages.ChildLeft)
    late_adoptions.release()
    play(cluster)
    late_epochs.release()
    rest(cluster)
    assert (child, parent) in [(source, dest) for source, dest, _ in news]
    assert places(cluster, 1)[3] != -1


def _held_back_child(cluster: Cluster, seed: int) -> tuple[Hold, int, int]:
    """Submit a job of four workers, and hold back the adoption of the last worker.

    Returns the held adoption, the PE of the last worker, and the PE of this worker's parent.
    """
    late_child = hold_kind(cluster, messages.Adopt, index=3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(only(late_child, messages.Adopt) and 1 in places(cluster, 1))
    ((_, child, _),) = late_child.messages
    parent = places(cluster, 1)[1]
    needs(tree_parent(cluster, parent) not in (None, child) and not tree_children(cluster, parent))
    return late_child, child, parent


@told_with_luck
def test_race_2_a_parent_keeps_a_child_that_came_later_than_an_epoch_without_room_for_it(seed: int) -> None:
    """The parent accepts before it gets two epochs: one without room for the child, one with room again."""
    cluster = lively(16, seed, reuse=Reuse.NONE)
    late_child, child, parent = _held_back_child(cluster, seed)
    late_epochs = hold_kind(cluster, messages.Epoch, dest=parent)
    for workers in (2, 4):
        demand(cluster, 1, workers)
        play(cluster)
    needs(only(late_child, messages.Adopt))
    late_child.release()
    play(cluster)
    needs(not is_idle(cluster, child) and active(cluster, child).accepted_epoch is not None)
    number = active(cluster, child).number
    late_epochs.release()
    rest(cluster)
    assert places(cluster, 1)[3] == child
    assert active(cluster, child).number == number


@told_with_luck
def test_race_2_a_parent_accepts_a_child_from_an_epoch_with_room_for_it_that_it_has_not_seen(
    seed: int,
) -> None:
    """The parent need not ask for another child when that epoch comes."""
    cluster = lively(16, seed)
    late_child, child, parent = _held_back_child(cluster, seed)
    demand(cluster, 1, 2)
    play(cluster)
    late_epochs = hold_kind(cluster, messages.Epoch, dest=parent)
    demand(cluster, 1, 4)
    play(cluster)
    needs(only(late_child, messages.Adopt) and only(late_epochs, messages.Epoch))
    rejections = watch(cluster, messages.Rejected)
    late_child.release()
    play(cluster)
    assert volume(cluster, 1, parent) == 2
    assert active(cluster, child).accepted_epoch == cluster.pes[parent].balancer.epoch
    late_epochs.release()
    rest(cluster)
    assert places(cluster, 1)[3] == child
    assert not rejections


# --- races that random clusters found ---------------------------------------------------------------


@told_with_luck
def test_a_parent_sends_away_a_child_that_came_later_than_the_epoch_in_which_the_parent_leaves(
    seed: int,
) -> None:
    cluster = lively(32, seed, 16, reuse=Reuse.NONE)
    client = seed % 32
    late_adoption = hold_kind(cluster, messages.Adopt, index=3)
    cluster.submit(1, client, max_demand=4)
    play(cluster)
    needs(only(late_adoption, messages.Adopt))
    _, child, _ = late_adoption.messages[0]
    parent = places(cluster, 1)[1]
    needs(tree_parent(cluster, parent) not in (None, child) and not tree_children(cluster, parent))
    late_epochs = hold_kind(cluster, messages.Epoch, dest=parent)
    demand(cluster, 1, 1)
    play(cluster)
    demand(cluster, 1, 4)
    play(cluster)
    assert active(cluster, parent).index == 1, "it has not heard that it is to leave"
    needs(not [1 for message in late_adoption.messages if not isinstance(message[2], messages.Adopt)])
    rejections = watch(cluster, messages.Rejected)
    late_adoption.release()
    play(cluster)
    needs(not is_idle(cluster, child) and active(cluster, child).path[-1] == parent and not rejections)
    assert active(cluster, child).accepted_epoch is not None
    late_epochs.release()
    rest(cluster)
    assert (parent, child) in [(source, dest) for source, dest, _ in rejections]


@told_with_luck
def test_race_6_a_failure_of_a_newer_epoch_waits_until_its_receiver_has_that_epoch(seed: int) -> None:
    """Otherwise the parent would ask again and again in its old epoch, and fail each time."""
    cluster = lively(16, seed)
    late_child, _, parent = _held_back_child(cluster, seed)
    late_epochs = hold_kind(cluster, messages.Epoch, dest=parent)
    demand(cluster, 1, 2)
    play(cluster)
    needs(only(late_child, messages.Adopt) and only(late_epochs, messages.Epoch))
    failures, asked = watch(cluster, messages.RequestFailed), watch(cluster, messages.Supply)
    late_child.release()
    play(cluster)
    assert [dest for _, dest, _ in failures] == [parent]
    assert parent not in [source for source, _, _ in asked]
    late_epochs.release()
    rest(cluster)
    assert set(places(cluster, 1)) == {0, 1}
