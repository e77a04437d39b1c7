"""A process that is to become a rank: its messages, their receivers, and when it gives up."""

from mallob_py.protocol import rank_messages
from mallob_py.protocol.joining import Connect, Keep, Newcomer, Refused
from mallob_py.protocol.placement import Generation, name_of
from mallob_py.protocol.rank_effects import Tell
from mallob_py.protocol.rank_stimuli import RankLost, Said, TimeCame

HOST, OTHER, RANK = 0, 1, 5
PATIENCE_S = 2.0


def peer(rank: int) -> rank_messages.Peer:
    return rank_messages.Peer(
        rank, 0, rank_messages.RankProcess(rank, "here", 0, 0), rank_messages.Place(f"rank{rank}")
    )


ME = rank_messages.Joining(peer(RANK).process, 0, rank_messages.Place("me"), 2)


def newcomer() -> Newcomer:
    """Return a newcomer that has sent its address to its host, the rank that has started it."""
    it = Newcomer(RANK, ME, peer(HOST), PATIENCE_S, now=0.0)
    assert list(it.effects) == [Connect(peer(HOST)), Tell(HOST, 0, 0, 0, ME)]
    it.effects.clear()
    return it


def told(it: Newcomer, rank: int, message: rank_messages.AnyWireMessage) -> list[object]:
    it.handle(Said(rank, 0, 0, 0, message), 1.0)
    effects: list[object] = list(it.effects)
    it.effects.clear()
    return effects


def test_a_newcomer_is_connected_when_all_peers_have_noted_it() -> None:
    it = newcomer()
    welcome = rank_messages.Welcome((peer(HOST), peer(OTHER)), 0.0, (1, 1))
    assert told(it, HOST, welcome) == [Connect(peer(OTHER)), Tell(OTHER, 0, 0, 0, ME)]
    assert told(it, OTHER, rank_messages.Noted()) == [Tell(HOST, 0, 0, 0, rank_messages.Connected())]
    assert sorted(it.peers) == [HOST, OTHER]


def test_a_newcomer_waits_for_no_peer_that_is_lost() -> None:
    it = newcomer()
    told(it, HOST, rank_messages.Welcome((peer(HOST), peer(OTHER)), 0.0, (1, 1)))
    it.handle(RankLost(OTHER, "was lost"), 1.0)
    assert Tell(HOST, 0, 0, 0, rank_messages.Connected()) in it.effects


def test_a_newcomer_answers_a_later_one() -> None:
    it, later = newcomer(), rank_messages.Peer(7, 0, peer(7).process, None)
    joining = rank_messages.Joining(peer(7).process, 0, rank_messages.Place("rank7"), 1)
    assert told(it, 7, joining) == [Connect(later), Tell(7, 0, 0, 0, rank_messages.Noted())]


def test_a_newcomer_ends_when_its_host_is_lost_before_it_joins() -> None:
    it = newcomer()
    it.handle(RankLost(HOST, "was lost"), 1.0)
    assert list(it.effects) == [Refused("rank 0, which has started rank 5, is gone")]


def test_a_newcomer_begins_with_no_member_that_it_has_not_connected_to() -> None:
    it = newcomer()
    told(it, HOST, rank_messages.Welcome((peer(HOST), peer(OTHER)), 0.0, (1, 1)))
    stranger = rank_messages.Propose(Generation(name_of(2, HOST), (HOST, OTHER, 4, RANK), (1, 1, 1, 2)))
    why = "rank 4 has joined meanwhile, and is not connected to this rank"
    assert told(it, HOST, stranger) == [Refused(why)]


def test_a_newcomer_to_whom_no_rank_speaks_for_long_ends() -> None:
    it = newcomer()
    told(it, HOST, rank_messages.Welcome((), 0.0, (1,)))
    assert it.deadline_s == 1.0 + 3 * PATIENCE_S
    it.handle(TimeCame(), it.deadline_s - 0.1)
    assert not it.effects
    it.handle(TimeCame(), it.deadline_s)
    assert list(it.effects) == [Refused("rank 5 was not taken in")]


def test_what_is_for_the_member_is_kept() -> None:
    it = newcomer()
    assert told(it, HOST, rank_messages.Beat()) == [Keep(Said(HOST, 0, 0, 0, rank_messages.Beat()))]
