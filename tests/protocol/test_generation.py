"""Generations: the members of the system during losses, joins and leaves, for all orders of messages."""

import random
from collections import defaultdict, deque

import pytest
from seeds import seeds

from mallob_py.protocol.generation import (
    AnyChange,
    Begin,
    End,
    EndReason,
    Halt,
    Heard,
    Lost,
    Membership,
    Ordered,
    Strayed,
    Tell,
    TimePassed,
)
from mallob_py.protocol.placement import (
    Generation,
    coordinator_of,
    first_generation,
    heir_of,
    name_of,
    number_of,
)
from mallob_py.protocol.rank_messages import AnyGenerationMessage, Fenced, Outdated, Propose, Ready, Suspect

_PATIENCE_S = 1.0


class _Net:
    """Ranks, the messages under way between them, and the changes that each rank made."""

    def __init__(self, count: int, seed: int = 0) -> None:
        first = first_generation((2,) * count)
        self.first = first
        self.choose = random.Random(seed)
        self.ranks = {address: Membership(address, first, _PATIENCE_S) for address in first.members}
        self.dead: set[int] = set()
        self.hung: set[int] = set()
        self.now = 0.0
        self.on_their_way: defaultdict[tuple[int, int], deque[AnyGenerationMessage]] = defaultdict(deque)
        self.done: defaultdict[int, list[Halt | Begin | End]] = defaultdict(list)
        #: number g -> generation that some rank has begun
        self.begun: dict[int, Generation] = {first.g: first}

    def tell(self, address: int, change: AnyChange) -> None:
        rank = self.ranks[address]
        rank.handle(change, self.now)
        for effect in rank.take_effects():
            if isinstance(effect, Tell):
                self.on_their_way[address, effect.address].append(effect.message)
                continue
            self.done[address].append(effect)
            if isinstance(effect, Begin):
                assert self.begun.setdefault(effect.after.g, effect.after) == effect.after
                assert effect.before is None or effect.before.g < effect.after.g
                assert address in effect.after.members

    def live(self) -> list[int]:
        return [each for each, rank in self.ranks.items() if each not in self.dead and not rank.has_ended]

    def awake(self) -> list[int]:
        return [each for each in self.live() if each not in self.hung]

    def step(self) -> bool:
        """Deliver a random message; return False if there is none."""
        pairs = [pair for pair, waiting in self.on_their_way.items() if waiting and pair[1] not in self.hung]
        if not pairs:
            return False
        source, dest = self.choose.choice(pairs)
        message = self.on_their_way[source, dest].popleft()
        if dest in self.awake():
            self.tell(dest, Heard(source, message))
        return True

    def find_dead(self) -> bool:
        """Let a rank notice that a member is dead or hangs; return False if there is nothing to notice."""
        silent = self.dead | self.hung | {each for each, one in self.ranks.items() if one.has_ended}
        for address in self.awake():
            generation = self.ranks[address].generation
            if generation is None:
                continue
            unnoticed = sorted(silent & set(generation.members) - self.ranks[address].lost)
            if unnoticed:
                self.tell(address, Lost(self.choose.choice(unnoticed)))
                return True
        return False

    def settle(self) -> None:
        for _ in range(100_000):
            if self.step() or self.find_dead():
                continue
            due = min((self.ranks[each].deadline_s for each in self.awake()), default=float("inf"))
            if due == float("inf"):
                return
            self.now = max(self.now, due)
            for each in self.awake():
                self.tell(each, TimePassed())
        raise AssertionError("no rest")

    def let_all_speak(self) -> None:
        """Let each rank hear from the awake ranks that its generation has left out."""
        for source in self.awake():
            for dest in self.awake():
                one, two = self.ranks[source].generation, self.ranks[dest].generation
                if one is not None and two is not None and source not in two.members:
                    self.tell(dest, Strayed(source, one.g))

    def present(self) -> Generation:
        """Return the generation that all live ranks have begun, which must be the same one."""
        present = {self.ranks[each].generation for each in self.awake()}
        assert len(present) == 1, present
        (generation,) = present
        assert generation is not None
        return generation


def test_g_is_unique_for_number_and_coordinator() -> None:
    assert number_of(name_of(7, 3)) == 7
    assert coordinator_of(name_of(7, 3)) == 3
    assert name_of(7, 3) > name_of(7, 4) > name_of(6, 0)


def test_a_lost_rank_is_left_out_and_all_others_begin() -> None:
    net = _Net(4)
    net.dead.add(2)
    net.tell(3, Lost(2))
    net.settle()
    assert net.present() == Generation(name_of(2, 0), (0, 1, 3), (2, 2, 2))
    assert [type(each) for each in net.done[1]] == [Halt, Begin]
    assert net.done[1][1] == Begin(net.first, net.present())


def test_of_two_ranks_one_goes_on_alone() -> None:
    net = _Net(2)
    net.dead.add(0)
    net.tell(1, Lost(0))
    assert net.present().members == (1,)
    assert not any(net.on_their_way.values())


def test_a_loss_during_a_change_makes_another_proposal() -> None:
    net = _Net(5)
    net.dead.add(2)
    net.tell(0, Lost(2))
    net.dead.add(3)
    net.tell(4, Lost(3))
    net.settle()
    assert net.present().members == (0, 1, 4)
    for address in (0, 1, 4):
        assert [type(each) for each in net.done[address]].count(Halt) == 1


def test_the_coordinator_lost_in_the_middle_of_its_commit_is_followed_by_the_next() -> None:
    net = _Net(4)
    net.dead.add(3)
    net.tell(0, Lost(3))
    while net.ranks[0].generation == net.first:
        net.step()
    net.dead.add(0)
    net.on_their_way[0, 2].clear()  # rank 0's last message reached only rank 1
    net.settle()
    assert net.present().members == (1, 2)
    assert [type(each) for each in net.done[1]] == [Halt, Begin, Halt, Begin]
    assert [type(each) for each in net.done[2]] == [Halt, Begin]
    assert net.done[2][1] == Begin(net.first, net.present())


def test_who_hangs_and_wakes_up_ends() -> None:
    net = _Net(4)
    net.hung.add(0)
    net.tell(1, Lost(0))
    net.settle()
    assert net.present().members == (1, 2, 3)
    net.hung.clear()
    net.tell(0, Lost(3))  # rank 0 has not heard from rank 3 for long
    net.settle()
    assert net.done[0][-1] == End(EndReason.FENCED)
    assert net.present().members == (1, 2, 3)


def test_a_late_message_of_one_that_was_left_out_tells_it_to_end() -> None:
    net = _Net(3)
    net.hung.add(2)
    net.tell(0, Lost(2))
    net.settle()
    net.hung.clear()
    net.tell(1, Strayed(2, net.first.g))
    net.settle()
    assert net.done[2] == [End(EndReason.FENCED)]


def test_a_part_of_a_fallen_apart_system_with_the_lesser_generation_ends() -> None:
    net = _Net(4)
    for one, other in ((0, (2, 3)), (2, (0, 1))):
        for lost in other:
            net.tell(one, Lost(lost))
    for (source, dest), waiting in net.on_their_way.items():
        if (source < 2) != (dest < 2):
            waiting.clear()
    while net.step():
        pass
    low, high = net.ranks[0].generation, net.ranks[2].generation
    assert low is not None
    assert high is not None
    assert (low.members, high.members) == ((0, 1), (2, 3))
    greater, lesser = (0, 2) if low.g > high.g else (2, 0)
    net.tell(greater, Strayed(lesser, min(low.g, high.g)))
    net.tell(lesser + 1, Strayed(greater + 1, max(low.g, high.g)))
    while net.step():
        pass
    assert [each for each in range(4) if net.ranks[each].has_ended] == [lesser, lesser + 1]


def test_who_joins_begins_with_the_others() -> None:
    net = _Net(2)
    net.ranks[2] = Membership(2, None, _PATIENCE_S)
    net.tell(1, Ordered(joins=((2, 5),)))
    net.settle()
    assert net.present() == Generation(name_of(2, 0), (0, 1, 2), (2, 2, 5))
    assert net.done[2] == [Begin(None, net.present())]


def test_who_leaves_frees_what_it_has_and_ends_after_all_are_ready() -> None:
    net = _Net(3)
    net.tell(2, Ordered(leaves=(0,)))
    net.settle()
    assert net.done[0] == [Halt(), End(EndReason.LEFT)]
    assert net.present().members == (1, 2)


def test_who_leaves_and_hears_first_from_those_who_have_begun_has_left() -> None:
    net = _Net(3)
    net.tell(0, Ordered(leaves=(2,)))
    proposal = net.on_their_way[0, 2].popleft()
    net.tell(2, Heard(0, proposal))
    net.tell(2, Heard(1, Fenced(name_of(2, 0))))
    assert net.done[2] == [Halt(), End(EndReason.LEFT)]


def test_an_order_outlives_the_coordinator_that_was_asked() -> None:
    net = _Net(3)
    net.tell(2, Ordered(leaves=(1,)))
    net.dead.add(0)
    net.settle()
    assert net.present().members == (2,)
    assert net.done[1][-1] == End(EndReason.LEFT)


def test_the_last_member_cannot_leave() -> None:
    net = _Net(2)
    net.tell(0, Ordered(leaves=(0, 1)))
    net.settle()
    assert net.present().members == (0,)
    net.tell(0, Ordered(leaves=(0,)))
    assert net.present().members == (0,)
    assert not net.ranks[0].is_halted


def test_of_those_who_are_left_and_all_are_to_leave_one_stays() -> None:
    net = _Net(3)
    net.tell(2, Ordered(leaves=(1, 2)))
    net.dead.add(0)
    net.settle()
    assert net.present().members == (1,)
    assert net.done[2][-1] == End(EndReason.LEFT)


def test_who_has_promised_and_hears_no_more_looks_for_the_next_coordinator() -> None:
    net = _Net(3)
    net.dead.add(2)
    net.tell(0, Lost(2))
    while not net.ranks[1].is_halted:
        net.step()
    net.dead.add(0)
    net.on_their_way.clear()
    net.now = net.ranks[1].deadline_s
    net.tell(1, TimePassed())
    assert net.present().members == (1,)


def test_a_proposal_is_beyond_what_anybody_has_promised() -> None:
    net = _Net(4)
    net.dead.add(0)
    net.tell(1, Heard(2, Suspect((0,), name_of(9, 0))))
    net.settle()
    assert net.present().number == 10
    assert net.present().members == (1, 2, 3)


def test_nobody_promises_less_than_it_has_promised() -> None:
    net = _Net(3)
    more, less = (Generation(name_of(number, 0), (0, 1, 2), (2, 2, 2)) for number in (9, 8))
    net.tell(1, Heard(0, Propose(more)))
    net.tell(1, Heard(0, Propose(less)))
    assert list(net.on_their_way[1, 0]) == [Ready(more.g), Outdated(more.g)]


def test_who_has_promised_more_than_its_coordinator_knows_is_asked_again() -> None:
    net = _Net(3)
    net.tell(0, Heard(2, Suspect((), name_of(9, 1))))
    net.settle()
    assert net.present().number == 10


def test_an_old_fence_ends_nobody() -> None:
    net = _Net(2)
    net.tell(0, Heard(1, Fenced(net.first.g)))
    assert not net.ranks[0].has_ended


@pytest.mark.parametrize(("address", "heir"), [(3, 3), (4, 3), (0, 1), (9, 6)])
def test_the_heir_is_the_next_lower_member(address: int, heir: int) -> None:
    assert heir_of(address, (1, 3, 6)) == heir


def test_all_who_live_come_to_one_generation_whatever_happens() -> None:
    """Deaths, detected hangs, false suspicions, joins and leaves come at random moments."""
    for seed in seeds(2000):
        net = _Net(random.Random(seed).choice((2, 3, 4, 6, 9)), seed)
        choose = net.choose
        accused: set[int] = set()
        for _ in range(choose.choice((1, 3, 8))):
            for _ in range(choose.choice((0, 1, 5, 30))):
                net.step()
            awake = net.awake()
            if len(awake) < 2:
                break
            address = choose.choice(awake)
            match choose.choice(("die", "hang", "wake", "accuse", "join", "leave")):
                case "die":
                    net.dead.add(address)
                case "hang":
                    net.hung.add(address)
                    accused.add(address)
                case "wake":
                    net.hung.clear()
                case "accuse":
                    other = choose.choice([each for each in awake if each != address])
                    accused.add(other)
                    net.tell(address, Lost(other))
                case "join":
                    new = max(net.ranks) + 1
                    net.ranks[new] = Membership(new, None, _PATIENCE_S)
                    net.tell(address, Ordered(joins=((new, choose.randint(1, 3)),)))
                case "leave":
                    net.tell(choose.choice(awake), Ordered(leaves=(address,)))
            if choose.random() < 0.3:
                net.now += _PATIENCE_S / 2
        net.settle()
        net.hung.clear()
        net.settle()
        net.let_all_speak()
        net.settle()
        members = [each for each in net.awake() if net.ranks[each].generation is not None]
        if not members:
            continue  # all ranks suspected each other
        generation = {net.ranks[each].generation for each in members}
        assert len(generation) == 1, f"seed {seed}: {generation}"
        (present,) = generation
        assert present is not None
        assert set(present.members) == set(members), f"seed {seed}"
        for address, done in net.done.items():
            ended = [each for each in done if isinstance(each, End)]
            if ended and ended[0].why is EndReason.FENCED and address in net.first.members:
                assert accused, f"seed {seed}: rank {address} has ended for nothing"
