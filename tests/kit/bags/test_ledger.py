"""A worker's accounts and loans, one message after the other."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from fake_context import FakeContext
from msgspec.structs import replace

from mallob_py.kit.bags import BagApplication, BagError, ledger, messages
from mallob_py.kit.bags.application import BagWorker as BagWorker
from mallob_py.kit.bags.others import GONE_MAX, KNOWN_MAX
from mallob_py.simulation.bags import TreeBag, TreeWork

ROOT, LEFT, RIGHT = (0, 10), (1, 11), (2, 12)
WORK = TreeWork(seed=5, depth=8)
TOTAL = WORK.expected()


class Worker:
    """A ledger with its address; its methods return the ledger's messages as (receiver, message)."""

    def __init__(self, address: tuple[int, int], bounds: ledger.Bounds = ledger.BOUNDS) -> None:
        self.address = address
        self.ledger = ledger.Ledger(WORK, seed=address[1], settle_s=1.0, bounds=bounds)

    def sent(self) -> list:
        sent, self.ledger.outbox = self.ledger.outbox, []
        return sent

    def hear(self, source: tuple[int, int], message: object, now: float = 0.0) -> list:
        self.ledger.receive(source, message, now)
        return self.sent()

    def work(self, count: int = 1 << 30, now: float = 0.0) -> list:
        while self.ledger.process(count, now):
            if count < 1 << 30:
                break
        return self.sent()


@pytest.fixture
def root() -> Worker:
    worker = Worker(ROOT)
    worker.ledger.open_root(0.0)
    worker.ledger.process(3, 0.0)
    return worker


def ask(asker: Worker) -> messages.Lifeline:
    asker.ledger.neighbours_changed(0.0)
    [message] = [message for dest, message in asker.sent() if dest is ledger.NEIGHBOURS]
    assert isinstance(message, messages.Lifeline)
    return message


def lend(lender: Worker, borrower: Worker) -> messages.Lend:
    """Let `borrower` ask `lender` for tasks; return the loan that the borrower has received."""
    [(dest, message)] = lender.hear(borrower.address, ask(borrower))
    assert dest == borrower.address
    borrower.hear(lender.address, message)
    return message


def test_a_worker_alone_does_all(root: Worker) -> None:
    assert root.work() == []
    assert root.ledger.books.is_finished
    assert tuple(map(int, root.ledger.books.result())) == TOTAL
    assert root.ledger.books.done() == TOTAL[0]


def test_what_is_lent_comes_back_as_a_result(root: Worker) -> None:
    left = Worker(LEFT)
    loan = lend(root, left)
    root.work()
    assert not root.ledger.books.is_finished
    [(dest, repayment)] = left.work()
    assert dest == ROOT
    assert isinstance(repayment, messages.Settle)
    assert repayment.final
    assert root.hear(LEFT, repayment) == [(LEFT, messages.Forget(loan.number))]
    assert root.ledger.books.is_finished
    assert tuple(map(int, root.ledger.books.result())) == TOTAL


def test_numbers_of_numpy_that_a_bag_tells_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    process, expected = TreeBag.process, TreeBag.expected_tasks
    monkeypatch.setattr(TreeBag, "process", lambda bag, count: np.int64(process(bag, count)))
    monkeypatch.setattr(TreeBag, "expected_tasks", lambda bag: np.float64(expected(bag)))
    root, left = Worker(ROOT), Worker(LEFT)
    root.ledger.open_root(0.0)
    root.ledger.process(3, 0.0)
    asked = ask(left)
    [(_, loan)] = root.hear(LEFT, asked)
    left.hear(ROOT, loan)
    [(_, repayment)] = left.work()
    assert all(map(messages.encode, (asked, loan, repayment)))
    root.work()
    root.hear(LEFT, repayment)
    assert tuple(map(int, root.ledger.books.result())) == TOTAL


def test_a_bag_may_expect_more_tasks_than_any_float(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TreeBag, "expected_tasks", lambda bag: 10**400)
    root, left = Worker(ROOT), Worker(LEFT)
    root.ledger.open_root(0.0)
    root.ledger.process(3, 0.0)
    [(_, loan)] = root.hear(LEFT, ask(left))
    assert isinstance(loan, messages.Lend)
    assert root.ledger.books.expected_left() == math.inf


def test_a_bag_is_lent_in_parts_of_so_many_bytes_and_the_rest_stays() -> None:
    root, borrowers = (
        Worker(ROOT, ledger.Bounds(loan_bytes=32)),
        [Worker((each, 20 + each)) for each in range(3, 8)],
    )
    root.ledger.open_root(0.0)
    root.ledger.process(14, 0.0)
    sizes = [len(lend(root, borrower).bag) for borrower in borrowers]
    assert max(sizes) <= 32
    for borrower in borrowers:
        [(_, repayment)] = borrower.work()
        root.hear(borrower.address, repayment)
    root.work()
    assert tuple(map(int, root.ledger.books.result())) == TOTAL


def test_a_task_that_is_too_large_is_lent_all_the_same() -> None:
    root, left = Worker(ROOT, ledger.Bounds(loan_bytes=1)), Worker(LEFT)
    root.ledger.open_root(0.0)
    root.ledger.process(20, 0.0)
    assert len(lend(root, left).bag) == 16, "a single one"


def test_a_large_state_is_told_and_asked_after_more_rarely() -> None:
    bounds = ledger.Bounds(told_bytes_per_s=4, small_state_bytes=16)
    root, left = Worker(ROOT, bounds), Worker(LEFT, bounds)
    root.ledger.open_root(0.0)
    root.ledger.process(20, 0.0)
    loan = lend(root, left)
    lent_s = (len(loan.bag) - 16) / 4
    assert lent_s > 0
    root.ledger.tick(ledger.PROBE_S + 2 * lent_s - 0.1)
    assert not any(isinstance(message, messages.Probe) for _, message in root.sent())
    root.ledger.tick(ledger.PROBE_S + 2 * lent_s)
    assert (LEFT, messages.Probe(loan.number)) in root.sent()

    left.ledger.tick(1.0)
    [told] = [message for _, message in left.sent() if isinstance(message, messages.Settle)]
    pause_s = (len(told.state.result) + sum(map(len, told.state.bags)) - 16) / 4
    assert pause_s > 0
    left.ledger.tick(2.0 + pause_s - 0.1)
    assert not any(isinstance(message, messages.Settle) for _, message in left.sent())
    left.ledger.tick(2.0 + pause_s)
    assert any(isinstance(message, messages.Settle) for _, message in left.sent())
    root.hear(LEFT, told, now=100.0)
    root.ledger.tick(100.0 + ledger.PROBE_S + 2 * pause_s - 0.1)
    assert not any(isinstance(message, messages.Probe) for _, message in root.sent())


def test_a_large_result_and_a_large_best_solution_count_as_a_large_state() -> None:
    bounds = ledger.Bounds(told_bytes_per_s=4, small_state_bytes=16)
    assert bounds.pause_s(messages.State(1, bytes(10), (b"12", b"3456"))) == 0.0
    assert bounds.pause_s(messages.State(1, bytes(100), (b"1234",), 0, bytes(40))) == (144 - 16) / 4


def test_who_asks_again_before_the_loan_has_come_is_served_once(root: Worker) -> None:
    left = Worker(LEFT)
    wanted = ask(left)
    [(_, loan)] = root.hear(LEFT, wanted)
    assert root.hear(LEFT, ask(left)) == []
    left.hear(ROOT, loan)
    left.work()
    [(_, second)] = root.hear(LEFT, ask(left), now=0.001)
    assert isinstance(second, messages.Lend), "it has run out of tasks once more"


def test_who_still_asks_when_a_loan_should_have_come_is_served_again(root: Worker) -> None:
    left = Worker(LEFT)
    root.hear(LEFT, ask(left))
    [(_, again)] = root.hear(LEFT, ask(left), now=ledger.SERVE_AGAIN_S)
    assert isinstance(again, messages.Lend)


def test_a_repayment_that_comes_twice_counts_once(root: Worker) -> None:
    left = Worker(LEFT)
    loan = lend(root, left)
    [(_, repayment)] = left.work()
    root.hear(LEFT, repayment)
    assert root.hear(LEFT, repayment) == [(LEFT, messages.Forget(loan.number))]
    root.work()
    assert tuple(map(int, root.ledger.books.result())) == TOTAL


def test_a_repayment_is_sent_again_until_it_is_confirmed(root: Worker) -> None:
    left = Worker(LEFT)
    loan = lend(root, left)
    [(_, repayment)] = left.work()
    left.ledger.tick(1.0)
    assert (ROOT, repayment) in left.sent()
    left.hear(ROOT, messages.Forget(loan.number))
    left.ledger.tick(100.0)
    assert not any(isinstance(message, messages.Settle) for _, message in left.sent())


@pytest.mark.parametrize("settled", [False, True])
def test_the_work_of_a_borrower_that_is_gone_is_done_by_its_lender(root: Worker, settled: bool) -> None:
    left = Worker(LEFT)
    loan = lend(root, left)
    if settled:
        left.work(5)
        left.ledger.tick(1.0)
        for dest, message in left.sent():
            if dest == ROOT:
                root.hear(LEFT, message)
        assert root.ledger.books.done() == 3 + 5
    root.ledger.undelivered(LEFT, messages.Probe(loan.number), 2.0)
    root.work()
    assert tuple(map(int, root.ledger.books.result())) == TOTAL
    # the result of work that the borrower still does is dropped
    [(_, repayment)] = left.work()
    assert root.hear(LEFT, repayment) == [(LEFT, messages.Forget(loan.number))]
    assert tuple(map(int, root.ledger.books.result())) == TOTAL


def test_a_silent_borrower_is_asked_after_and_then_done_without(root: Worker) -> None:
    left = Worker(LEFT)
    loan = lend(root, left)
    now = 0.0
    for _ in range(ledger.PROBES_MAX):
        now += ledger.PROBE_S
        root.ledger.tick(now)
        assert (LEFT, messages.Probe(loan.number)) in root.sent()
    root.ledger.tick(now + ledger.PROBE_S)
    root.work()
    assert tuple(map(int, root.ledger.books.result())) == TOTAL


def test_a_process_that_was_started_anew_does_not_know_its_loan(root: Worker) -> None:
    loan = lend(root, Worker(LEFT))
    anew = Worker(LEFT)
    [(dest, answer)] = anew.hear(ROOT, messages.Probe(loan.number))
    assert (dest, answer) == (ROOT, messages.Unknown(loan.number))
    root.hear(LEFT, answer)
    root.work()
    assert tuple(map(int, root.ledger.books.result())) == TOTAL


def test_who_has_nothing_waits_as_a_lifeline_until_there_is_work(root: Worker) -> None:
    left, right = Worker(LEFT), Worker(RIGHT)
    assert left.hear(RIGHT, ask(right)) == []
    loan = root.hear(LEFT, ask(left))[0][1]
    [cut, (dest, onward)] = left.hear(ROOT, loan)
    assert cut == (ledger.NEIGHBOURS, messages.Cut())
    assert dest == RIGHT
    assert isinstance(onward, messages.Lend)


def test_more_bags_than_were_asked_for_are_refused_rather_than_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    split_into = TreeBag.split_into
    monkeypatch.setattr(TreeBag, "split_into", lambda bag, parts: split_into(bag, parts + 1))
    root, left = Worker(ROOT), Worker(LEFT)
    root.hear(LEFT, ask(left))
    with pytest.raises(BagError, match=r"split_into\(1\) has made 2 bags"):
        root.ledger.open_root(0.0)


def test_a_lifeline_that_was_cut_gets_nothing(root: Worker) -> None:
    left, right = Worker(LEFT), Worker(RIGHT)
    left.hear(RIGHT, ask(right))
    left.hear(RIGHT, messages.Cut())
    loan = root.hear(LEFT, ask(left))[0][1]
    assert left.hear(ROOT, loan) == [(ledger.NEIGHBOURS, messages.Cut())]


def test_a_request_that_finds_nothing_goes_on_to_others_a_few_times(root: Worker) -> None:
    left = Worker(LEFT)
    left.hear(ROOT, messages.Cut())  # so left knows the root
    [(dest, onward)] = left.hear(RIGHT, messages.WorkWanted(None, 7, 2, 0))
    assert (dest, onward.asker, onward.hops) == (ROOT, RIGHT, 1)
    assert onward.others == (ROOT,)
    assert left.hear(RIGHT, messages.WorkWanted(None, 7, 0, 1)) == []
    [(dest, message)] = root.hear(LEFT, onward)
    assert dest == RIGHT
    assert isinstance(message, messages.Lend)


def test_a_request_looks_at_a_few_and_the_richest_of_them_gives() -> None:
    first, rich, poor = Worker(ROOT), Worker(LEFT), Worker(RIGHT)
    thief = (7, 17)
    for number, worker in enumerate((first, rich, poor)):
        worker.ledger.open_root(0.0)
        nodes = [node for node in worker.ledger.books.root.bag.nodes for _ in range((1, 3, 2)[number])]
        worker.ledger.books.root.bag = Measured(nodes)
    first.hear(LEFT, messages.Cut())
    rich.hear(RIGHT, messages.Cut())
    [(dest, onward)] = first.hear(thief, messages.WorkWanted(None, 7, 2, 1, looks=2))
    assert (dest, onward.asker, onward.looks, onward.richest) == (LEFT, thief, 1, None)
    [(dest, onward)] = rich.hear(ROOT, onward)
    assert (dest, onward.looks, onward.richest) == (RIGHT, 0, None)
    [(dest, onward)] = poor.hear(LEFT, onward)
    assert (dest, onward.asker, onward.looks, onward.most) == (LEFT, thief, 0, 0)
    [(dest, loan)] = rich.hear(RIGHT, onward)
    assert dest == thief
    assert isinstance(loan, messages.Lend)


def test_a_request_does_not_look_around_where_nobody_knows_how_much_is_left(root: Worker) -> None:
    root.hear(LEFT, messages.Cut())
    [(dest, loan)] = root.hear(RIGHT, messages.WorkWanted(None, 7, 2, 1, looks=2))
    assert dest == RIGHT
    assert isinstance(loan, messages.Lend)


def test_only_who_knows_many_has_its_request_look_around() -> None:
    for known, looks in ((3, 0), (8, ledger.LOOKS), (KNOWN_MAX, ledger.LOOKS)):
        worker = Worker(RIGHT)
        for number in range(known):
            worker.hear((number, 1), messages.Cut())
        worker.ledger.neighbours_changed(0.0)
        [message] = [message for _, message in worker.sent() if isinstance(message, messages.WorkWanted)]
        assert message.looks == looks


def test_workers_come_to_know_others_by_requests_and_bags(root: Worker) -> None:
    far, farther = (8, 8), (9, 9)
    root.hear(LEFT, messages.WorkWanted(None, 7, 1, 0, (far,)))
    left = Worker(LEFT)
    left.hear(ROOT, messages.Lend(5, root.ledger.books.root.bag.to_bytes(), (farther,)))
    assert farther in left.ledger.others.known
    right = Worker(RIGHT)
    right.hear(LEFT, messages.WorkWanted(None, 7, 0, 0, (far,)))
    assert far in right.ledger.others.known
    for number in range(3 * KNOWN_MAX):
        right.hear(LEFT, messages.WorkWanted(None, 7, 0, 0, ((number, 1),)))
    assert len(right.ledger.others.known) == KNOWN_MAX


def test_who_hears_its_own_request_knows_itself_and_does_not_ask_itself() -> None:
    left = Worker(LEFT)
    own = messages.WorkWanted(LEFT, left.ledger.token, 1, 0)
    left.hear(RIGHT, own)
    left.hear(RIGHT, messages.WorkWanted(None, 7, 0, 0, (LEFT,)))
    assert set(left.ledger.others.known) == {RIGHT}


class Measured(TreeBag):
    """A tree bag that knows how many tasks are left, and counts the questions for this number."""

    counted = 0

    def expected_tasks(self) -> float:
        self.counted += 1
        bag = TreeBag(list(self.nodes))
        return bag.process(1 << 30)

    def split(self) -> Measured | None:
        given = super().split()
        return None if given is None else Measured(given.nodes)


class Counted(Measured):
    """A bag that claims to have `left` tasks."""

    def __init__(self, left: int) -> None:
        super().__init__([])
        self.left = left

    def process(self, count: int) -> int:
        done = min(count, self.left)
        self.left -= done
        return done

    def is_empty(self) -> bool:
        return self.left == 0

    def expected_tasks(self) -> float:
        return self.left

    def split(self) -> Counted:
        given = Counted(self.left // 2)
        self.left -= given.left
        return given


def test_who_is_nearly_done_asks_already_and_gives_nothing_away() -> None:
    worker = Worker(ROOT)
    worker.ledger.open_root(0.0)
    worker.hear(LEFT, messages.Cut())
    worker.ledger.books.root.bag = Measured(worker.ledger.books.root.bag.nodes)
    chunk = TOTAL[0] // 5
    worker.ledger.level_tasks = 0.0
    assert worker.work(chunk) == [], "four chunks are left"
    worker.work(chunk)
    [(dest, message)] = worker.work(chunk + 10)
    assert (dest, type(message)) == (LEFT, messages.WorkWanted)
    assert (message.hops, message.above) == (ledger.HOPS, 0)
    assert worker.ledger.books.has_work
    assert isinstance(worker.hear(RIGHT, messages.WorkWanted(None, 7, 0, 1))[0][1], messages.Lend)
    while worker.ledger.books.root.bag.expected_tasks() >= chunk:
        worker.work(10)
    worker.ledger.chunk_tasks = chunk
    assert worker.hear(RIGHT, messages.WorkWanted(None, 7, 0, 2)) == []


def test_what_is_left_is_not_counted_after_each_chunk_but_anew_when_some_of_it_was_given_away() -> None:
    worker = Worker(ROOT)
    worker.ledger.open_root(0.0)
    worker.hear(LEFT, messages.Cut())
    bag = worker.ledger.books.root.bag = Measured(worker.ledger.books.root.bag.nodes)
    worker.ledger.level_tasks = 0.0
    chunk = TOTAL[0] // 50
    for _ in range(8):
        worker.work(chunk)
    assert bag.counted == 1
    worker.hear(RIGHT, messages.WorkWanted(None, 7, 0, 1))
    before = bag.counted
    worker.work(chunk)
    assert bag.counted > before
    assert worker.ledger.books.has_work


def owner(address: tuple[int, int], copies: int) -> Worker:
    """Return a worker that has the tasks of WORK `copies` times, and knows the worker LEFT."""
    worker = Worker(address)
    worker.ledger.open_root(0.0)
    root = worker.ledger.books.root
    root.bag = Measured([node for node in root.bag.nodes for _ in range(copies)])
    worker.hear(LEFT, messages.Cut())
    worker.ledger.level_tasks = worker.ledger.next_level(worker.ledger.books.expected_tasks())
    return worker


def test_who_has_work_is_given_half_by_somebody_who_has_much_more() -> None:
    poor, equal, rich = owner(RIGHT, 3), owner(LEFT, 4), owner(ROOT, 7)
    bag = poor.ledger.books.root.bag
    first = bag.expected_tasks()
    while not (sent := poor.work(1)):
        pass
    assert bag.expected_tasks() == pytest.approx((1 - 1 / ledger.LEVEL_PARTS_MIN) * first, abs=2)
    [(dest, wanted)] = sent
    assert dest == LEFT
    assert wanted.above == ledger.RICHER * poor.ledger.books.root.bag.expected_tasks()
    assert equal.hear(RIGHT, wanted) == [], "it has not twice as much, and does not pass it on"
    assert equal.hear(RIGHT, replace(wanted, most=0.0)) == [], "though it was found to have most before"
    [(dest, loan)] = rich.hear(RIGHT, wanted)
    assert dest == RIGHT
    assert isinstance(loan, messages.Lend)
    poor.hear(ROOT, loan)
    assert len(poor.ledger.books.accounts) == 2


def test_who_works_on_several_accounts_gives_of_the_one_with_most_left() -> None:
    for asks in (messages.WorkWanted(None, 7, 0, 1), messages.Lifeline(7, 1)):
        rich, other = owner(ROOT, 5), owner(LEFT, 1)
        [(_, small)] = other.hear(RIGHT, messages.WorkWanted(None, 8, 0, 1))
        rich.hear(LEFT, small)
        rich.ledger.books.accounts[1].bag = Measured(rich.ledger.books.accounts[1].bag.nodes)
        before = [account.bag.expected_tasks() for account in rich.ledger.books.accounts]
        [(_, loan)] = rich.hear(RIGHT, asks)
        assert isinstance(loan, messages.Lend)
        after = [account.bag.expected_tasks() for account in rich.ledger.books.accounts]
        assert after[0] < 0.8 * before[0]
        assert after[1] == before[1]
        rich.hear(RIGHT, messages.Cut())


def test_of_those_looked_at_nobody_gives_who_has_not_much_more() -> None:
    poor, first, second = owner(RIGHT, 1), owner(LEFT, 1), owner(ROOT, 1)
    left = poor.ledger.books.root.bag.expected_tasks()
    wanted = messages.WorkWanted(None, 7, 0, 1, (), 1, most=ledger.RICHER * left, above=ledger.RICHER * left)
    second.ledger.others.hear_of((RIGHT,))
    first.ledger.others.known = {ROOT: None}
    [(dest, onward)] = first.hear(RIGHT, wanted)
    assert (dest, onward.asker, onward.richest) == (ROOT, RIGHT, RIGHT)
    assert second.hear(LEFT, onward) == [], "who asks need not hear of it"


@pytest.mark.parametrize(
    ("known", "parts"), [(1, ledger.LEVEL_PARTS_MIN), (10, 10), (50, ledger.LEVEL_PARTS_MAX)]
)
def test_who_has_work_looks_for_more_each_time_a_share_of_what_is_left_is_done(
    known: int, parts: int
) -> None:
    worker = owner(ROOT, 1)
    worker.ledger.others.hear_of((1000 + each, 0) for each in range(known - 1))
    bag = worker.ledger.books.root.bag = Counted(10_000)
    worker.ledger.level_tasks = worker.ledger.next_level(10_000)
    lefts = [bag.expected_tasks()]
    while len(lefts) < 7:
        if worker.work(1):
            lefts.append(bag.expected_tasks())
    done = [1 - after / before for before, after in itertools.pairwise(lefts)]
    assert done == pytest.approx([1 / parts] * 6, rel=0.05)
    worker.hear(RIGHT, messages.WorkWanted(None, 7, 0, 1))
    assert worker.work(1), "as half of what was left is given away"


def test_lifelines_are_not_sent_with_each_request_but_to_new_neighbours_and_after_a_while() -> None:
    def lines(sent: list) -> int:
        return sum(isinstance(message, messages.Lifeline) for _, message in sent)

    worker, other = Worker(LEFT), owner(ROOT, 2)
    worker.ledger.neighbours_changed(0.0)
    assert lines(worker.sent()) == 1
    step_s = ledger.LIFELINE_AGAIN_S / 50
    sent_s = [
        step * step_s for step in range(49) if worker.ledger.tick(step * step_s) or lines(worker.sent())
    ]
    assert sent_s == []
    worker.ledger.neighbours_changed(0.5 * ledger.LIFELINE_AGAIN_S)
    assert lines(worker.sent()) == 1
    for step in range(200):
        worker.ledger.tick(0.5 * ledger.LIFELINE_AGAIN_S + step * step_s)
    assert 2 <= lines(worker.sent()) <= 4, "they may get lost"
    [(_, loan)] = other.hear(LEFT, messages.WorkWanted(None, 7, 0, 1))
    worker.hear(ROOT, loan)
    worker.work()
    worker.ledger.neighbours_changed(1.0)
    assert lines(worker.sent()) == 1


def test_who_has_gone_is_not_asked_again_though_others_still_tell_of_it() -> None:
    worker = Worker(ROOT)
    worker.hear(LEFT, messages.Cut())
    worker.hear(RIGHT, messages.Cut())
    worker.ledger.undelivered(LEFT, messages.Cut(), 0.0)
    worker.hear(RIGHT, messages.WorkWanted(None, 7, 0, 1, (LEFT,)))
    assert list(worker.ledger.others.known) == [RIGHT]
    worker.hear(RIGHT, messages.Return(5, messages.State(0, b"", ()), ()))
    assert not worker.ledger.others.known, "it hands over, so it leaves"
    worker.hear(LEFT, messages.Cut())
    assert list(worker.ledger.others.known) == [LEFT], "it is there after all"
    for number in range(2 * GONE_MAX):
        worker.ledger.undelivered((number, 1), messages.Cut(), 0.0)
    assert len(worker.ledger.others.gone) == GONE_MAX


def test_who_has_work_is_known_even_to_those_who_know_many_and_who_has_none_is_not() -> None:
    worker = Worker(ROOT)
    for number in range(KNOWN_MAX):
        worker.hear((number, 1), messages.Cut())
    worker.hear((1000, 1), messages.WorkWanted(None, 7, 0, 1))
    worker.hear((1001, 1), messages.WorkWanted(None, 8, 0, 1, most=2.0, above=2.0))
    worker.hear((1002, 1), messages.Lend(9, WORK.first_bag().to_bytes()))
    assert (1000, 1) not in worker.ledger.others.known
    assert {(1001, 1), (1002, 1)} < set(worker.ledger.others.known)
    assert len(worker.ledger.others.known) == KNOWN_MAX


def test_one_that_leaves_hands_over_its_work_and_what_it_has_lent(root: Worker) -> None:
    left, right = Worker(LEFT), Worker(RIGHT)
    lend(root, left)
    left.work(4)
    onward = lend(left, right)
    left.ledger.leave(1.0)
    [(dest, message)] = left.sent()
    assert dest == ROOT
    assert isinstance(message, messages.Return)
    assert not left.ledger.has_left
    answers = root.hear(LEFT, message)
    assert (RIGHT, messages.Moved(onward.number)) in answers
    left.hear(ROOT, answers[0][1])
    assert left.ledger.has_left
    # the message to the worker that has left comes back, and goes to the worker that has taken over
    [(_, repayment)] = right.work()
    assert left.hear(RIGHT, repayment) == []
    [(dest, again)] = right.hear(ROOT, messages.Moved(onward.number))
    assert dest == ROOT
    root.hear(RIGHT, again)
    root.work()
    assert tuple(map(int, root.ledger.books.result())) == TOTAL
    assert left.ledger.books.wasted == right.ledger.books.wasted == 0


def test_a_borrower_that_was_not_told_of_its_new_lender_is_told_again_before_it_gives_up(
    root: Worker,
) -> None:
    left, right = Worker(LEFT), Worker(RIGHT)
    lend(root, left)
    left.work(4)
    onward = lend(left, right)
    right.work(2)
    left.ledger.leave(0.0)
    [(_, message)] = left.sent()
    root.hear(LEFT, message)  # the message that root is right's lender from now on gets lost
    right.ledger.tick(1.0)
    [(dest, settlement)] = right.sent()
    assert dest == LEFT
    right.ledger.undelivered(LEFT, settlement, 1.0)
    root.ledger.tick(ledger.MOVED_AGAIN_S)
    assert root.sent() == [(RIGHT, messages.Moved(onward.number))]
    right.hear(ROOT, messages.Moved(onward.number), ledger.MOVED_AGAIN_S)
    right.ledger.tick(1.0 + ledger.ORPHANED_S)
    [(dest, settlement)] = right.sent()
    assert dest == ROOT
    root.hear(RIGHT, settlement, 1.0 + ledger.ORPHANED_S)
    root.ledger.tick(1.0 + ledger.ORPHANED_S + ledger.PROBE_S)
    assert root.sent() == [(RIGHT, messages.Probe(onward.number))]  # right knows root
    [(_, repayment)] = right.work()
    root.hear(RIGHT, repayment)
    root.work()
    assert tuple(map(int, root.ledger.books.result())) == TOTAL
    assert right.ledger.books.wasted == 0


def test_a_settlement_that_comes_back_from_a_former_lender_makes_nobody_give_up(root: Worker) -> None:
    left, right = Worker(LEFT), Worker(RIGHT)
    lend(root, left)
    left.work(4)
    onward = lend(left, right)
    right.work(2)
    right.ledger.tick(1.0)
    [(dest, settlement)] = right.sent()
    assert dest == LEFT
    left.ledger.leave(1.0)
    [(_, message)] = left.sent()
    root.hear(LEFT, message)
    right.hear(ROOT, messages.Moved(onward.number), 1.0)
    right.ledger.undelivered(LEFT, settlement, 1.0)  # left is not right's lender now
    right.ledger.tick(1.0 + ledger.ORPHANED_S)
    assert right.ledger.books.has_work
    for dest, repayment in (*right.sent(), *right.work()):
        if dest == ROOT:
            root.hear(RIGHT, repayment)
    root.work()
    assert tuple(map(int, root.ledger.books.result())) == TOTAL
    assert right.ledger.books.wasted == 0


def test_who_hears_nothing_of_a_lender_that_is_gone_throws_its_work_away(root: Worker) -> None:
    left, right = Worker(LEFT), Worker(RIGHT)
    lend(root, left)
    onward = lend(left, right)
    right.work(2)
    right.ledger.tick(1.0)
    settlement = next(message for dest, message in right.sent() if dest == LEFT)
    right.ledger.undelivered(LEFT, settlement, 1.0)
    right.work(3)
    right.ledger.tick(1.0 + ledger.ORPHANED_S)
    assert not right.ledger.books.has_work
    assert right.ledger.books.wasted == 3  # tasks whose results may already have reached the lender's lender
    assert right.hear(ROOT, messages.Moved(onward.number))[-1] == (ROOT, messages.Unknown(onward.number))


def test_a_checkpoint_is_the_whole_job(root: Worker) -> None:
    left, right = Worker(LEFT), Worker(RIGHT)
    lend(root, left)
    left.work(6)
    lend(left, right)
    left.ledger.tick(1.0)
    for dest, message in left.sent():
        if dest == ROOT:
            root.hear(LEFT, message)
    root.work(7)
    again = Worker((3, 13))
    again.ledger.open_root(0.0, root.ledger.books.checkpoint())
    assert again.ledger.books.done() == 3 + 6 + 7
    again.work()
    assert tuple(map(int, again.ledger.books.result())) == TOTAL


def test_what_was_done_for_nobody_is_told_with_the_next_account(root: Worker) -> None:
    left = Worker(LEFT)
    loan = lend(root, left)
    left.work(2)
    root.ledger.undelivered(LEFT, messages.Probe(loan.number), 1.0)
    left.hear(ROOT, messages.Forget(loan.number))
    assert root.ledger.books.wasted_in_all() == 0
    lend(root, left)
    for dest, message in left.work():
        if dest == ROOT:
            root.hear(LEFT, message)
    root.work()
    assert tuple(map(int, root.ledger.books.result())) == TOTAL
    assert root.ledger.books.wasted_in_all() == 2


def test_what_a_checkpoint_holds_is_not_in_vain_if_another_root_goes_on_from_it(root: Worker) -> None:
    again = Worker((3, 13))
    again.ledger.open_root(0.0, root.ledger.books.checkpoint())
    again.work(2)
    again.ledger.close_root()
    assert again.ledger.books.wasted == 2


def test_a_settlement_that_was_overtaken_is_passed_over(root: Worker) -> None:
    left = Worker(LEFT)
    lend(root, left)
    settlements = []
    for now in (1.0, 2.0):
        left.work(2)
        left.ledger.tick(now)
        settlements += [message for _, message in left.sent() if isinstance(message, messages.Settle)]
    for settlement in reversed(settlements):
        root.hear(LEFT, settlement)
    assert root.ledger.books.done() == 3 + 4


def test_a_root_that_leaves_waits_for_what_it_has_lent_and_its_checkpoint_has_it_then(root: Worker) -> None:
    left = Worker(LEFT)
    lend(root, left)
    left.work(5)
    root.ledger.leave(1.0)
    assert not root.ledger.has_left
    left.ledger.leave(1.0)
    [(_, message)] = [sent for sent in left.sent() if isinstance(sent[1], messages.Return)]
    root.hear(LEFT, message)
    assert root.ledger.has_left
    following = Worker(RIGHT)
    following.ledger.open_root(2.0, root.ledger.books.checkpoint())
    assert following.ledger.books.done() == 3 + 5
    following.work()
    assert tuple(following.ledger.books.result()) == TOTAL


def test_who_leaves_takes_no_loan(root: Worker) -> None:
    left = Worker(LEFT)
    [(_, loan)] = root.hear(LEFT, ask(left))
    left.ledger.leave(0.0)
    assert left.hear(ROOT, loan) == [(ROOT, messages.Unknown(loan.number))]


def test_a_loan_that_another_has_by_now_is_not_taken_back(root: Worker) -> None:
    left = Worker(LEFT)
    loan = lend(root, left)
    root.ledger.undelivered(RIGHT, messages.Probe(loan.number), 1.0)
    root.work()
    assert not root.ledger.books.is_finished


def test_a_bag_that_was_lent_empty_and_comes_back_holds_nobody_up(root: Worker) -> None:
    left, right = Worker(LEFT), Worker(RIGHT)
    lend(root, left)
    bag = left.ledger.books.accounts[-1].bag
    assert isinstance(bag, TreeBag)
    bag.split = lambda: TreeBag([])  # type: ignore[method-assign]
    [(_, empty)] = left.hear(RIGHT, ask(right))
    left.work()
    left.ledger.undelivered(RIGHT, empty, 1.0)
    [(dest, repayment)] = left.sent()
    assert dest == ROOT
    assert repayment.final


def test_nobody_lends_to_itself(root: Worker) -> None:
    assert root.hear(LEFT, messages.WorkWanted(ROOT, root.ledger.token, 1, 0)) == []


def test_a_bag_comes_back_from_its_bytes() -> None:
    bag = WORK.first_bag()
    bag.process(3)
    assert WORK.bag_from_bytes(bag.to_bytes()).nodes == bag.nodes
    assert TreeBag([]).is_empty()


class Small(BagApplication):
    name = "SMALL"

    def first_bag(self, payload: object, configuration: object) -> TreeBag:
        return WORK.first_bag()

    def bag_from_bytes(self, data: bytes, payload: object, configuration: object) -> TreeBag:
        return WORK.bag_from_bytes(data)


def test_a_worker_of_many_small_bags_does_not_take_ever_more_tasks_at_a_time() -> None:
    worker = BagWorker(Small(), FakeContext({}, 1, {}))
    data = TreeBag([(1, 0)]).to_bytes()
    for number in range(1, 200):
        worker.ledger.receive(ROOT, messages.Lend(number, data), 0.0)
        worker.work(time.monotonic())
    assert worker.ledger.done_here == 199
    assert worker.count < 1000
