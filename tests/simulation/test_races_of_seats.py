"""Races for a place in a job tree, as scripted tests: adoptions, offers, and their order.

Races have the numbers of the list of races that a simple protocol gets wrong.
"""

from stories import (
    active,
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
    told_with_luck,
    tree_children,
    tree_parent,
    watch,
)

from mallob_py.protocol import messages
from mallob_py.protocol.config import Reuse
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.network import Hold

# --- race 3: previous incarnations ------------------------------------------------------------------


@told_with_luck
def test_race_3_an_acceptance_of_a_former_stay_is_not_taken_for_one_of_this_stay(seed: int) -> None:
    cluster = lively(5, seed, 0, reuse=Reuse.NONE)
    late = hold_kind(cluster, messages.Accepted, index=3)
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
    needs(places(cluster, 1).get(3) == child and len(kinds_held(late, messages.Accepted)) == 2)
    needs(only(late, messages.Accepted))
    news, offers = watch(cluster, messages.ChildLeft), watch(cluster, messages.Offer)
    late.release()
    rest(cluster)
    assert [message.stay < active(cluster, child).stay for _, _, message in news] == [True]
    assert not offers, "the parent does not take the old news for news of the present child"
    assert places(cluster, 1)[3] == child


@told_with_luck
def test_race_3_a_rejection_of_a_former_stay_does_not_end_this_stay(seed: int) -> None:
    cluster = lively(5, seed, 0, reuse=Reuse.NONE)
    late_offer = hold_kind(cluster, messages.Offer, index=3)
    cluster.submit(1, seed % 5, max_demand=4)
    play(cluster)
    needs(only(late_offer, messages.Offer))
    child = places(cluster, 1)[3]
    demand(cluster, 1, 3)
    play(cluster)
    spare = [rank for rank in range(5) if is_idle(cluster, rank) and rank != child]
    needs(only(late_offer, messages.Offer) and len(spare) == 1)
    late_rejection = hold_kind(cluster, messages.Rejected)
    late_offer.release()
    play(cluster)
    cluster.submit(2, spare[0], max_demand=1)
    play(cluster)
    demand(cluster, 1, 4)
    play(cluster)
    needs(places(cluster, 1).get(3) == child and len(kinds_held(late_rejection, messages.Rejected)) == 1)
    news = watch(cluster, messages.ChildLeft)
    late_rejection.release()
    rest(cluster)
    assert places(cluster, 1)[3] == child
    assert not news, "it has never left"


# --- race 4: two adopters of one position in a tree -------------------------------------------------


def _hold_first_adoption(cluster: Cluster, index: int) -> Hold:
    """Hold the first adoption of this index, so that another PE may get the seat meanwhile."""
    kept: list[int] = []

    def test(_source: int, dest: int, message: messages.Message) -> bool:
        if isinstance(message, messages.Adopt) and message.request.index == index and not kept:
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
    needs(only(late, messages.Adopt))
    ((_, loser, _),) = late.messages
    winner = places(cluster, 1)[3]
    rejections = watch(cluster, messages.Rejected)
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
    needs(only(late_parent, messages.Adopt) and only(late_child, messages.Adopt))
    ((_, loser, _),), ((_, child, message),) = late_parent.messages, late_child.messages
    needs(message.request.path[-1] == loser)
    winners = places(cluster, 1)
    needs(set(winners) == {0, 1, 2, 3})
    late_rejection = hold_kind(cluster, messages.Rejected, dest=loser)
    late_parent.release()
    play(cluster)
    late_child.release()
    play(cluster)
    assert active(cluster, child).accepted_epoch is not None
    rejections = watch(cluster, messages.Rejected)
    late_rejection.release()
    rest(cluster)
    assert [(source, dest) for source, dest, _ in rejections if source == loser] == [(loser, child)]
    assert is_idle(cluster, loser)
    assert is_idle(cluster, child)
    assert places(cluster, 1) == winners


# --- races that random clusters found: children before their parents --------------------------------


@told_with_luck
def test_a_failure_that_overtakes_the_adoption_of_the_parent_to_be_is_not_lost(seed: int) -> None:
    cluster = lively(16, seed, reuse=Reuse.NONE)
    late_parent = hold_kind(cluster, messages.Adopt, index=1)
    late_child = hold_kind(cluster, messages.Adopt, index=3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(only(late_parent, messages.Adopt) and only(late_child, messages.Adopt))
    request, parent = late_child.messages[0][2].request, late_parent.messages[0][1]
    needs((request.subtree, request.path[-1]) == (1, parent))
    demand(cluster, 1, 2)
    play(cluster)
    needs(only(late_parent, messages.Adopt) and only(late_child, messages.Adopt))
    failures = watch(cluster, messages.RequestFailed)
    late_child.release()
    play(cluster)
    needs(only(late_parent, messages.Adopt))
    assert [(dest, message.index) for _, dest, message in failures] == [(parent, 3)]
    assert len(cluster.pes[parent].workers.parenting.early) == 1
    demand(cluster, 1, 4)
    play(cluster)
    needs(only(late_parent, messages.Adopt))
    late_parent.release()
    rest(cluster)
    assert set(places(cluster, 1)) == {0, 1, 2, 3}


@told_with_luck
def test_an_offer_that_overtakes_the_adoption_of_the_parent_to_be_waits_for_it(seed: int) -> None:
    cluster = lively(16, seed)
    late_parent = hold_kind(cluster, messages.Adopt, index=1)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(only(late_parent, messages.Adopt) and 3 in places(cluster, 1))
    parent, child = late_parent.messages[0][1], places(cluster, 1)[3]
    needs(len(cluster.pes[parent].workers.parenting.early) == 1)
    late_parent.release()
    rest(cluster)
    assert places(cluster, 1)[1] == parent
    assert places(cluster, 1)[3] == child
    assert len(processes_of(cluster, 1)) == 4


@told_with_luck
def test_a_child_whose_parent_to_be_declines_is_sent_away(seed: int) -> None:
    """The child has adopted in an epoch with a seat for it; the parent gets an epoch without this seat."""
    cluster = lively(32, seed, 16, reuse=Reuse.NONE)
    late_parent = hold_kind(cluster, messages.Adopt, index=1)
    cluster.submit(1, seed % 32, max_demand=4)
    play(cluster)
    needs(only(late_parent, messages.Adopt) and 3 in places(cluster, 1))
    parent, child = late_parent.messages[0][1], places(cluster, 1)[3]
    needs(tree_parent(cluster, child) not in (None, parent) and not tree_children(cluster, child))
    late_epochs = hold_kind(cluster, messages.Epoch, dest=child)
    demand(cluster, 1, 1)
    play(cluster)
    needs(only(late_parent, messages.Adopt) and len(cluster.pes[parent].workers.parenting.early) == 1)
    rejections = watch(cluster, messages.Rejected)
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
    """While the token is under way, it might make the PE the child's parent again."""
    cluster = lively(16, seed, reuse=Reuse.NONE)
    late_child = _hold_first_adoption(cluster, 3)
    cluster.submit(1, seed % 16, max_demand=4)
    play(cluster)
    needs(only(late_child, messages.Adopt))
    ((_, child, message),) = late_child.messages
    parent = message.request.path[-1]
    demand(cluster, 1, 1)
    play(cluster)
    late_token, late_grants = (
        hold_kind(cluster, messages.TokenReturned, dest=parent),
        hold_kind(cluster, messages.Grant),
    )
    cluster.submit(2, (seed + 5) % 16)
    play(cluster)
    cluster.interrupt(2)
    late_grants.release()
    play(cluster)
    demand(cluster, 1, 4)
    play(cluster)
    needs(only(late_token, messages.TokenReturned) and only(late_child, messages.Adopt))
    late_child.release()
    play(cluster)
    assert len(cluster.pes[parent].workers.parenting.early) == 1
    rejections = watch(cluster, messages.Rejected)
    late_token.release()
    rest(cluster)
    assert [(source, dest) for source, dest, _ in rejections] == [(parent, child)]
