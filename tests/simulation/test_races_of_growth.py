"""Races while job trees grow and shrink, each told as a story: requests, grants, offers, epochs.

Numbers are those of the list of races that a naive version misses. Where the design makes one
impossible, the test says why and looks on while random clusters live.
"""

from __future__ import annotations

from typing import Any

import pytest
from stories import (
    active,
    answer,
    cluster_of,
    crash,
    demand,
    hold_kind,
    is_idle,
    kinds_held,
    lively,
    needs,
    only,
    places,
    play,
    processes_of,
    rest,
    suspended,
    told_with_luck,
    tree_children,
    tree_parent,
    volume,
    watch,
)

from mallob_py.protocol.config import Matching, Reuse
from mallob_py.protocol.local_workers import LocalWorkers
from mallob_py.protocol.messages import (
    Accepted,
    Adopt,
    ChildLeft,
    Denied,
    Epoch,
    Events,
    Grant,
    Message,
    Offer,
    Query,
    Rejected,
    RequestFailed,
    Supply,
    TokenReturned,
    VoidRequest,
    VoidToken,
)
from mallob_py.protocol.pe import PE
from mallob_py.simulation.cluster import Cluster, Hold
from mallob_py.simulation.plan import draw_plan
from mallob_py.simulation.scenario import Scenario

# --- 1: newer and older epochs --------------------------------------------------------------------


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
    queries, denials = watch(cluster, Query), watch(cluster, Denied)
    late = hold_kind(cluster, Epoch, dest=rank)
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


def _parked_in_lives(monkeypatch: pytest.MonkeyPatch, *matchers: tuple[Matching, int]) -> set[type[Message]]:
    """What had to wait for its epoch in some random lives with these matchers and random hops."""
    parked: set[type[Message]] = set()
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

    So whoever holds a grant of a token knows all epochs in which its request can have been made.
    """
    assert Adopt not in _parked_in_lives(monkeypatch, (Matching.PREFIX_SUM, 0))


def test_race_1_an_adoption_at_the_end_of_a_random_walk_waits_for_its_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A walk may be quicker than the epoch in which its request was made."""
    walks = (Matching.PREFIX_SUM, 3), (Matching.ROUTING_TREE, 5), (Matching.ROUTING_TREE, -1)
    assert Adopt in _parked_in_lives(monkeypatch, *walks)


@told_with_luck
def test_race_1_an_old_request_is_judged_by_the_present_volume(seed: int) -> None:
    cluster = lively(16, seed)
    late = hold_kind(cluster, Adopt, index=3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(only(late, Adopt) and set(places(cluster, 1)) == {0, 1, 2})
    cluster.submit(2, 7, max_demand=2)
    play(cluster)
    needs(only(late, Adopt))
    ((_, rank, message),) = late.messages
    failures = watch(cluster, RequestFailed)
    late.release()
    rest(cluster)
    assert message.request.epoch < cluster.pes[rank].balancer.epoch
    assert places(cluster, 1)[3] == rank, "an old request for a worker that is wanted is as good as a new one"
    assert not failures


# --- 2: the volume drops in between -----------------------------------------------------------------


@told_with_luck
def test_race_2_whoever_is_asked_to_adopt_a_worker_beyond_the_volume_declines(seed: int) -> None:
    cluster = lively(16, seed)
    late = hold_kind(cluster, Adopt, index=3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    demand(cluster, 1, 3)
    play(cluster)
    needs(only(late, Adopt))
    ((_, rank, _),) = late.messages
    failures, offers = watch(cluster, RequestFailed), watch(cluster, Offer)
    late.release()
    rest(cluster)
    assert [(message.index, source) for source, _, message in failures] == [(3, rank)]
    assert not offers
    assert is_idle(cluster, rank)


@told_with_luck
def test_race_2_an_offer_beyond_the_volume_is_rejected_and_its_worker_is_gone_already(seed: int) -> None:
    cluster = lively(16, seed)
    late = hold_kind(cluster, Offer, index=3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(bool(late.messages))
    rank, parent = places(cluster, 1)[3], places(cluster, 1)[1]
    demand(cluster, 1, 3)
    play(cluster)
    needs(volume(cluster, 1, parent) == 3)
    assert is_idle(cluster, rank), "it needs no answer to know that it is not wanted"
    rejections = watch(cluster, Rejected)
    late.release()
    rest(cluster)
    assert [dest for _, dest, _ in rejections] == [rank]


@told_with_luck
def test_race_2_a_child_tells_the_parent_of_an_epoch_that_the_parent_had_before_it_accepted(
    seed: int,
) -> None:
    cluster = lively(32, seed, 16)
    late_offer = hold_kind(cluster, Offer, index=3)
    cluster.submit(1, seed % 32, max_demand=4)
    play(cluster)
    needs(only(late_offer, Offer))
    child, parent = places(cluster, 1)[3], places(cluster, 1)[1]
    needs(tree_parent(cluster, child) not in (None, parent) and not tree_children(cluster, child))
    needs(child != seed % 32)
    late_epochs = hold_kind(cluster, Epoch, dest=child)
    demand(cluster, 1, 3)
    play(cluster)
    demand(cluster, 1, 4)
    # The parent asks again, but nobody else may be quicker.
    late_adoptions = hold_kind(cluster, Adopt)
    play(cluster)
    needs(only(late_adoptions, Adopt) and bool(late_epochs.messages))
    late_offer.release()
    play(cluster)
    assert active(cluster, child).accepted_epoch == cluster.pes[parent].balancer.epoch
    news = watch(cluster, ChildLeft)
    late_adoptions.release()
    play(cluster)
    late_epochs.release()
    rest(cluster)
    assert (child, parent) in [(source, dest) for source, dest, _ in news]
    assert places(cluster, 1)[3] != -1


# --- 3: previous incarnations ---------------------------------------------------------------------


@told_with_luck
def test_race_3_an_acceptance_of_a_former_stay_is_not_taken_for_one_of_this_stay(seed: int) -> None:
    cluster = lively(5, seed, 0, reuse=Reuse.NONE)
    late = hold_kind(cluster, Accepted, index=3)
    client = seed % 5
    cluster.submit(1, client, max_demand=4)
    play(cluster)
    needs(bool(late.messages))
    child = places(cluster, 1)[3]
    demand(cluster, 1, 3)
    play(cluster)
    spare = [rank for rank in range(5) if is_idle(cluster, rank) and rank != child]
    needs(len(spare) == 1)
    cluster.submit(2, spare[0], max_demand=1)
    play(cluster)
    demand(cluster, 1, 4)
    play(cluster)
    needs(places(cluster, 1).get(3) == child and len(kinds_held(late, Accepted)) == 2)
    needs(only(late, Accepted))
    news, offers = watch(cluster, ChildLeft), watch(cluster, Offer)
    late.release()
    rest(cluster)
    assert [message.context < active(cluster, child).context for _, _, message in news] == [True]
    assert not offers, "the parent does not take the old news for news of the present child"
    assert places(cluster, 1)[3] == child


@told_with_luck
def test_race_3_a_rejection_of_a_former_stay_does_not_end_this_stay(seed: int) -> None:
    cluster = lively(5, seed, 0, reuse=Reuse.NONE)
    late_offer = hold_kind(cluster, Offer, index=3)
    cluster.submit(1, seed % 5, max_demand=4)
    play(cluster)
    needs(only(late_offer, Offer))
    child = places(cluster, 1)[3]
    demand(cluster, 1, 3)
    play(cluster)
    spare = [rank for rank in range(5) if is_idle(cluster, rank) and rank != child]
    needs(only(late_offer, Offer) and len(spare) == 1)
    late_rejection = hold_kind(cluster, Rejected)
    late_offer.release()
    play(cluster)
    cluster.submit(2, spare[0], max_demand=1)
    play(cluster)
    demand(cluster, 1, 4)
    play(cluster)
    needs(places(cluster, 1).get(3) == child and len(kinds_held(late_rejection, Rejected)) == 1)
    news = watch(cluster, ChildLeft)
    late_rejection.release()
    rest(cluster)
    assert places(cluster, 1)[3] == child
    assert not news, "it has never left"


# --- 4: two adopters for one seat -------------------------------------------------------------------


def _hold_first_adoption(cluster: Cluster, index: int) -> Hold:
    """Somebody else may get the seat meanwhile."""
    kept: list[int] = []

    def test(_source: int, dest: int, message: Message) -> bool:
        if isinstance(message, Adopt) and message.request.index == index and not kept:
            kept.append(dest)
            return True
        return False

    return cluster.hold(test)


@told_with_luck
def test_race_4_the_first_of_two_adopters_gets_the_seat_and_the_other_is_idle_again(seed: int) -> None:
    cluster = lively(16, seed)
    late = _hold_first_adoption(cluster, 3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    demand(cluster, 1, 3)
    play(cluster)
    demand(cluster, 1, 4)
    play(cluster)
    needs(only(late, Adopt))
    ((_, loser, _),) = late.messages
    winner = places(cluster, 1)[3]
    rejections = watch(cluster, Rejected)
    late.release()
    rest(cluster)
    assert places(cluster, 1)[3] == winner
    assert [dest for _, dest, _ in rejections] == [loser]
    assert is_idle(cluster, loser)


@told_with_luck
def test_race_4_the_second_adopter_of_a_seat_sends_the_children_away_that_it_has_taken_in(seed: int) -> None:
    cluster = lively(16, seed, reuse=Reuse.NONE)
    late_parent, late_child = _hold_first_adoption(cluster, 1), _hold_first_adoption(cluster, 3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    demand(cluster, 1, 1)
    play(cluster)
    demand(cluster, 1, 4)
    play(cluster)
    needs(only(late_parent, Adopt) and only(late_child, Adopt))
    ((_, loser, _),), ((_, child, message),) = late_parent.messages, late_child.messages
    needs(message.request.path[-1] == loser)
    winners = places(cluster, 1)
    needs(set(winners) == {0, 1, 2, 3})
    late_rejection = hold_kind(cluster, Rejected, dest=loser)
    late_parent.release()
    play(cluster)
    late_child.release()
    play(cluster)
    assert active(cluster, child).accepted_epoch is not None
    rejections = watch(cluster, Rejected)
    late_rejection.release()
    rest(cluster)
    assert [(source, dest) for source, dest, _ in rejections if source == loser] == [(loser, child)]
    assert is_idle(cluster, loser)
    assert is_idle(cluster, child)
    assert places(cluster, 1) == winners


# --- 5: matched as idle, but busy -------------------------------------------------------------------


def _pe_takes_its_own_job_while_its_token_is_granted(seed: int) -> tuple[Any, int, Any]:
    """A PE's grant is late; meanwhile it has run its own job 2. Nobody else is idle."""
    cluster = lively(8, seed, 0)
    rank = 1 + seed % 7
    late = hold_kind(cluster, Grant, dest=rank)
    cluster.submit(1, max_demand=7)
    play(cluster)
    needs(any(message.tokens for message in kinds_held(late, Grant)) and not tree_children(cluster, rank))
    cluster.submit(2, rank, max_demand=1)
    needs(places(cluster, 2) == {0: rank})
    return cluster, rank, late


@told_with_luck
def test_race_5_a_request_whose_idle_pe_has_found_work_takes_part_again(seed: int) -> None:
    cluster, rank, late = _pe_takes_its_own_job_while_its_token_is_granted(seed)
    voids = watch(cluster, VoidToken)
    late.release()
    rest(cluster)
    needs(bool(voids))
    assert [source for source, _, _ in voids] == [rank]
    assert places(cluster, 2)[0] == rank, "nobody has thrown it out"


def test_race_5_whoever_is_asked_to_adopt_is_never_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its token is granted a PE takes no other work: its own jobs ask too, queries are denied."""
    adoptions: list[bool] = []
    receive = LocalWorkers.receive_adopt

    def spy(workers: LocalWorkers, request: Any, now: float) -> None:
        adoptions.append(workers.active is None)
        receive(workers, request, now)

    monkeypatch.setattr(LocalWorkers, "receive_adopt", spy)
    for seed in range(2000, 2040):
        Scenario(draw_plan(seed)).run()
    assert len(adoptions) > 100
    assert all(adoptions)


# --- 6: cancelled requests ---------------------------------------------------------------------------


@told_with_luck
def test_race_6_the_tokens_of_a_cancelled_bulk_request_take_part_again(seed: int) -> None:
    cluster = lively(16, seed)
    cluster.submit(1, max_demand=15)
    rest(cluster)
    demand(cluster, 1, 1)
    rest(cluster)
    root = places(cluster, 1)[0]
    # Nobody is reused: all of them forget.
    for rank, number in suspended(cluster, 1):
        crash(cluster, rank, number)
    active(cluster, root).seats.past.take_all()
    needs(tree_parent(cluster, root) is not None)
    late = hold_kind(cluster, Grant, dest=root)
    demand(cluster, 1, 15)
    play(cluster)
    needs(sum(message.requests for message in kinds_held(late, Grant)) == 14)
    # The grant is on its way; the request is withdrawn before it arrives.
    cluster.call(root, lambda pe: [pe.matcher.withdraw(1, subtree) for subtree in (1, 2)])
    voids, returned = watch(cluster, VoidRequest), watch(cluster, TokenReturned)
    adoptions = watch(cluster, Adopt)
    late.release()
    play(cluster)
    assert voids
    needs(bool(returned))
    assert not adoptions
    idle = sum(is_idle(cluster, rank) for rank in range(16))
    assert [pe.matcher.supply() for pe in cluster.pes if pe.matcher.is_root()] == [(0, idle)]
    for seat in (1, 2):
        cluster.call(root, lambda pe, seat=seat: pe.receive(root, RequestFailed(1, seat, 0), cluster.now))  # type: ignore[misc]
    rest(cluster)
    assert len(places(cluster, 1)) == 15


@told_with_luck
def test_race_6_a_job_that_ends_while_its_request_is_granted_gives_all_tokens_back(seed: int) -> None:
    cluster = lively(8, seed, 0)
    late = hold_kind(cluster, Grant)
    cluster.submit(1)
    needs(places(cluster, 1) == {0: 0})
    play(cluster)
    needs(sum(message.requests for message in kinds_held(late, Grant)) > 0)
    cluster.interrupt(1)
    late.release()
    rest(cluster)
    assert all(is_idle(cluster, rank) for rank in range(8))


# --- found by random clusters ---------------------------------------------------------------------


@told_with_luck
def test_a_root_adopted_by_its_client_from_a_refreshed_request_asks_for_its_children_itself(
    seed: int,
) -> None:
    cluster = cluster_of(2, seed, reuse=Reuse.NONE)
    cluster.submit(1)
    rest(cluster)
    cluster.submit(2, 1, priority=9.0, max_demand=1)
    cluster.submit(3, 1, priority=9.0, max_demand=1)
    rest(cluster)
    assert volume(cluster, 1) == 0
    here, there = (active(cluster, rank).job for rank in (0, 1))
    late = hold_kind(cluster, Supply, source=0)
    cluster.interrupt(there)
    play(cluster)
    assert volume(cluster, 1) == 1
    assert cluster.pes[0].matcher.is_asking(1, 0)
    cluster.interrupt(here)
    play(cluster)
    assert places(cluster, 1)[0] == 0
    late.release()
    rest(cluster)
    assert places(cluster, 1) == {0: 0, 1: 1}


@told_with_luck
def test_a_parent_sends_away_a_child_that_came_later_than_the_epoch_in_which_the_parent_leaves(
    seed: int,
) -> None:
    cluster = lively(32, seed, 16, reuse=Reuse.NONE)
    client = seed % 32
    late_adoption = hold_kind(cluster, Adopt, index=3)
    cluster.submit(1, client, max_demand=4)
    play(cluster)
    needs(only(late_adoption, Adopt))
    _, child, _ = late_adoption.messages[0]
    parent = places(cluster, 1)[1]
    needs(tree_parent(cluster, parent) not in (None, child) and not tree_children(cluster, parent))
    late_epochs = hold_kind(cluster, Epoch, dest=parent)
    demand(cluster, 1, 1)
    play(cluster)
    demand(cluster, 1, 4)
    play(cluster)
    assert active(cluster, parent).index == 1, "it has not heard that it is to leave"
    needs(not [1 for message in late_adoption.messages if not isinstance(message[2], Adopt)])
    rejections = watch(cluster, Rejected)
    late_adoption.release()
    play(cluster)
    needs(not is_idle(cluster, child) and active(cluster, child).path[-1] == parent and not rejections)
    assert active(cluster, child).accepted_epoch is not None
    late_epochs.release()
    rest(cluster)
    assert (parent, child) in [(source, dest) for source, dest, _ in rejections]


@told_with_luck
def test_a_request_without_a_taker_does_not_look_for_one_for_ever_when_its_worker_is_there(seed: int) -> None:
    """Another request for the same worker has been fulfilled; all PEs are busy."""
    cluster, rank, late_grant = _pe_takes_its_own_job_while_its_token_is_granted(seed)
    late_void = hold_kind(cluster, VoidToken)
    late_grant.release()
    play(cluster)
    needs(only(late_void, VoidToken))
    demand(cluster, 1, 1)
    play(cluster)
    demand(cluster, 1, 7)
    play(cluster)
    needs(len(places(cluster, 1)) == 7 and not is_idle(cluster, rank))
    needs(only(late_void, VoidToken))
    late_void.release()
    rest(cluster)


@told_with_luck
def test_a_request_without_a_taker_goes_back_to_its_parent_in_the_next_epoch(seed: int) -> None:
    """It is carried on only as long as its parent certainly is there; all PEs are busy meanwhile."""
    cluster, rank, late_grant = _pe_takes_its_own_job_while_its_token_is_granted(seed)
    late_news = hold_kind(cluster, Events, source=rank)
    idle = [place for place in range(8) if is_idle(cluster, place)]
    needs(len(idle) == 1 and not tree_children(cluster, idle[0]))
    more_late_news = hold_kind(cluster, Events, source=idle[0])
    cluster.submit(3, idle[0], max_demand=1)
    needs(places(cluster, 3) == {0: idle[0]})
    late_grant.release()
    play(cluster)
    carriers = [pe.rank for pe in cluster.pes if not pe.matcher.is_at_rest()]
    needs(len(carriers) == 1 and not volume(cluster, 2) and not volume(cluster, 3))
    (missing,) = set(range(7)) - set(places(cluster, 1))
    needs(places(cluster, 1)[(missing - 1) // 2] != carriers[0])
    failures = watch(cluster, RequestFailed)
    late_news.release()
    more_late_news.release()
    rest(cluster)
    assert (carriers[0], missing) in [(source, message.index) for source, _, message in failures]
    assert (volume(cluster, 1), volume(cluster, 2), volume(cluster, 3)) == (6, 1, 1)


@told_with_luck
def test_a_failure_that_overtakes_the_adoption_of_the_parent_to_be_is_not_lost(seed: int) -> None:
    cluster = lively(16, seed, reuse=Reuse.NONE)
    late_parent = hold_kind(cluster, Adopt, index=1)
    late_child = hold_kind(cluster, Adopt, index=3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(only(late_parent, Adopt) and only(late_child, Adopt))
    request, parent = late_child.messages[0][2].request, late_parent.messages[0][1]
    needs((request.subtree, request.path[-1]) == (1, parent))
    demand(cluster, 1, 2)
    play(cluster)
    needs(only(late_parent, Adopt) and only(late_child, Adopt))
    failures = watch(cluster, RequestFailed)
    late_child.release()
    play(cluster)
    needs(only(late_parent, Adopt))
    assert [(dest, message.index) for _, dest, message in failures] == [(parent, 3)]
    assert cluster.pes[parent].workers.early_count == 1
    demand(cluster, 1, 4)
    play(cluster)
    needs(only(late_parent, Adopt))
    late_parent.release()
    rest(cluster)
    assert set(places(cluster, 1)) == {0, 1, 2, 3}


@told_with_luck
def test_an_offer_that_overtakes_the_adoption_of_the_parent_to_be_waits_for_it(seed: int) -> None:
    cluster = lively(16, seed)
    late_parent = hold_kind(cluster, Adopt, index=1)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(only(late_parent, Adopt) and 3 in places(cluster, 1))
    parent, child = late_parent.messages[0][1], places(cluster, 1)[3]
    needs(cluster.pes[parent].workers.early_count == 1)
    late_parent.release()
    rest(cluster)
    assert places(cluster, 1)[1] == parent
    assert places(cluster, 1)[3] == child
    assert len(processes_of(cluster, 1)) == 4


@told_with_luck
def test_a_child_whose_parent_to_be_declines_is_sent_away(seed: int) -> None:
    """The child has adopted in an epoch that wanted it; the parent hears of one that does not."""
    cluster = lively(32, seed, 16, reuse=Reuse.NONE)
    late_parent = hold_kind(cluster, Adopt, index=1)
    cluster.submit(1, seed % 32, max_demand=4)
    play(cluster)
    needs(only(late_parent, Adopt) and 3 in places(cluster, 1))
    parent, child = late_parent.messages[0][1], places(cluster, 1)[3]
    needs(tree_parent(cluster, child) not in (None, parent) and not tree_children(cluster, child))
    late_epochs = hold_kind(cluster, Epoch, dest=child)
    demand(cluster, 1, 1)
    play(cluster)
    needs(only(late_parent, Adopt) and cluster.pes[parent].workers.early_count == 1)
    rejections = watch(cluster, Rejected)
    late_parent.release()
    play(cluster)
    assert is_idle(cluster, parent)
    assert [(source, dest) for source, dest, _ in rejections] == [(parent, child)]
    late_epochs.release()
    rest(cluster)
    assert set(places(cluster, 1)) == {0}


@told_with_luck
def test_a_child_of_somebody_who_has_left_is_sent_away_when_the_token_under_way_there_comes_back(
    seed: int,
) -> None:
    """As long as it is under way, it might make the child's parent of that PE again."""
    cluster = lively(16, seed, reuse=Reuse.NONE)
    late_child = _hold_first_adoption(cluster, 3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(only(late_child, Adopt))
    ((_, child, message),) = late_child.messages
    parent = message.request.path[-1]
    demand(cluster, 1, 1)
    play(cluster)
    late_token, late_grants = hold_kind(cluster, TokenReturned, dest=parent), hold_kind(cluster, Grant)
    cluster.submit(2, (seed + 5) % 16)
    play(cluster)
    cluster.interrupt(2)
    late_grants.release()
    play(cluster)
    demand(cluster, 1, 4)
    play(cluster)
    needs(only(late_token, TokenReturned) and only(late_child, Adopt))
    late_child.release()
    play(cluster)
    assert cluster.pes[parent].workers.early_count == 1
    rejections = watch(cluster, Rejected)
    late_token.release()
    rest(cluster)
    assert [(source, dest) for source, dest, _ in rejections] == [(parent, child)]


@told_with_luck
def test_race_6_a_failure_of_a_newer_epoch_waits_until_its_receiver_has_that_epoch(seed: int) -> None:
    """Else the parent would ask in its old epoch again and again, and be told no each time."""
    cluster = lively(16, seed)
    late_child = hold_kind(cluster, Adopt, index=3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(only(late_child, Adopt) and 1 in places(cluster, 1))
    ((_, child, _),) = late_child.messages
    parent = places(cluster, 1)[1]
    needs(tree_parent(cluster, parent) not in (None, child) and not tree_children(cluster, parent))
    late_epochs = hold_kind(cluster, Epoch, dest=parent)
    demand(cluster, 1, 2)
    play(cluster)
    needs(only(late_child, Adopt) and only(late_epochs, Epoch))
    failures, asked = watch(cluster, RequestFailed), watch(cluster, Supply)
    late_child.release()
    play(cluster)
    assert [dest for _, dest, _ in failures] == [parent]
    assert parent not in [source for source, _, _ in asked]
    late_epochs.release()
    rest(cluster)
    assert set(places(cluster, 1)) == {0, 1}


@told_with_luck
def test_race_2_a_parent_keeps_a_child_that_came_later_than_an_epoch_without_room_for_it(seed: int) -> None:
    """The parent accepts ahead of two epochs: one without room for the child, one with room again."""
    cluster = lively(16, seed, reuse=Reuse.NONE)
    late_child = hold_kind(cluster, Adopt, index=3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(only(late_child, Adopt) and 1 in places(cluster, 1))
    ((_, child, _),) = late_child.messages
    parent = places(cluster, 1)[1]
    needs(tree_parent(cluster, parent) not in (None, child) and not tree_children(cluster, parent))
    late_epochs = hold_kind(cluster, Epoch, dest=parent)
    for workers in (2, 4):
        demand(cluster, 1, workers)
        play(cluster)
    needs(only(late_child, Adopt))
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
    """It need not ask for another one when that epoch comes."""
    cluster = lively(16, seed)
    late_child = hold_kind(cluster, Adopt, index=3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(only(late_child, Adopt) and 1 in places(cluster, 1))
    ((_, child, _),) = late_child.messages
    parent = places(cluster, 1)[1]
    needs(tree_parent(cluster, parent) not in (None, child) and not tree_children(cluster, parent))
    demand(cluster, 1, 2)
    play(cluster)
    late_epochs = hold_kind(cluster, Epoch, dest=parent)
    demand(cluster, 1, 4)
    play(cluster)
    needs(only(late_child, Adopt) and only(late_epochs, Epoch))
    rejections = watch(cluster, Rejected)
    late_child.release()
    play(cluster)
    assert volume(cluster, 1, parent) == 2
    assert active(cluster, child).accepted_epoch == cluster.pes[parent].balancer.epoch
    late_epochs.release()
    rest(cluster)
    assert places(cluster, 1)[3] == child
    assert not rejections
