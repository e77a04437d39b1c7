"""A worker's books: its accounts and the loans that it gave.

A *loan* is a part of an account's bag that another worker works on; the account keeps a copy of the part
until the loan is settled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from mallob_py.kit.bags.bag import Bag, Work
from mallob_py.kit.bags.incumbent import Incumbent
from mallob_py.kit.bags.messages import Address, Return, Settle, State
from mallob_py.kit.bags.values import check_value, decode_value, encode_value

#: delay before an unconfirmed repayment is sent again; the delay grows
REPAY_AGAIN_S = 0.5


class Counted(NamedTuple):
    """Number of tasks done, their result, and the best solution known (None: no solution)."""

    tasks: int
    result: Any
    best: Any


class What(Enum):
    """Kinds of change to a worker's books."""

    #: an account is opened: account 0 for the job, which is new or goes on after `done` tasks from a
    #: checkpoint; any other account for a loan
    OPENED = "opened"
    #: a loan is given from an account
    LENT = "lent"
    #: an account's state is reported: `own` tasks done by this worker, `done` tasks in all, `final`: no tasks
    #: are left
    TOLD = "told"
    #: an account is returned to its lender; `done` excludes the account's loans
    RETURNED = "returned"
    #: a loan is closed; the tasks and results of its state with the number `seq` are added to the account
    TAKEN = "taken"
    #: a loan given by another worker is taken over into the account
    INHERITED = "inherited"
    #: an account is dropped
    DROPPED = "dropped"
    #: the root's account is settled: the job is done
    FINISHED = "finished"


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a log of loans: what has changed at time `t`. See `What`."""

    t: float
    what: What
    account: int
    loan: int = 0
    seq: int = 0
    done: int = 0
    own: int = 0
    final: bool = False


@dataclass(slots=True)
class Loan:
    borrower: Address
    #: the state to take back if the loan fails
    copy: State
    #: number of the last settlement
    seq: int = 0
    probe_s: float = math.inf
    probes: int = 0
    #: whether the loan was taken over, and its borrower has not been heard from since
    is_inherited: bool = False


@dataclass(slots=True)
class Account:
    """Tasks that a worker does for one lender. Account 0, at the root, has the job itself and no lender."""

    #: number of the loan for which the account was opened; 0: the job itself
    number: int
    lender: Address | None
    bag: Bag | None
    done: int = 0
    #: number of tasks, out of `done`, that this worker did itself on this account
    own: int = 0
    wasted: int = 0
    result: Any = None
    #: loan number -> loan given from this account
    loans: dict[int, Loan] = field(default_factory=dict)
    seq: int = 0
    settle_s: float = math.inf
    #: message that repaid or returned the account; it is repeated until the lender confirms it
    last_words: Settle | Return | None = None
    repeat_delay_s: float = REPAY_AGAIN_S
    #: time at which the account is given up unless another lender takes it over; infinity: the lender is
    #: there
    orphaned_until_s: float = math.inf
    #: number of tasks done when results were last taken out of the bag; -1: they were never taken out
    gathered: int = -1
    #: number of tasks done that was last reported to the lender
    told: int = 0
    #: number of splits after the first one until the bag that was lent last was small enough
    halvings: int = 0

    def has_work(self) -> bool:
        return self.bag is not None and not self.bag.is_empty()

    def untold(self) -> int:
        """Return the number of tasks that are known here to be done, and not yet reported to the lender."""
        return max(0, self.done + sum(loan.copy.done for loan in self.loans.values()) - self.told)


class Books:
    """The books of one worker. `log`: a list to which each change appends an entry, or None.

    Entries must be written to a file before messages are sent. `now` is the time of the present step.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        #: accounts; the last account with tasks is worked on first
        self.accounts: list[Account] = []
        #: number of a loan given -> the account from which it was given
        self.given: dict[int, Account] = {}
        self.incumbent = Incumbent(work.minimizes)
        self.log: list[Entry] | None = None
        self.now = 0.0
        #: size of the largest bag sent or reported [bytes]
        self.largest_bag = 0
        #: number of tasks that were done in vain and not yet reported to any lender
        self.wasted = 0

    def open_root(self, checkpoint: bytes | None = None) -> None:
        """Begin the job, or go on from a checkpoint."""
        assert self.root is None, "the job has begun"
        account = Account(0, None, None)
        self.accounts.insert(0, account)
        if checkpoint is None:
            account.bag = self._work.first_bag()
            self.look_for_better(account.bag)
        else:
            self.take_in(account, msgspec.msgpack.decode(checkpoint, type=State))
            account.told = account.done
        self._teach(account.bag)
        self.note(What.OPENED, account, done=account.done)

    def open(self, number: int, lender: Address, data: bytes) -> Account:
        """Open an account for a loan."""
        account = Account(number, lender, self._work.bag_from_bytes(data))
        self._teach(account.bag)
        self.accounts.append(account)
        self.note(What.OPENED, account)
        return account

    @property
    def root(self) -> Account | None:
        return self.accounts[0] if self.accounts and self.accounts[0].number == 0 else None

    def checkpoint(self) -> bytes:
        """Return the state of the whole job, as known to the root, as bytes."""
        assert self.root is not None
        state = self.state(self.root)
        self.note(What.TOLD, self.root, done=state.done, own=self.root.own)
        return msgspec.msgpack.encode(state)

    @staticmethod
    def counted(checkpoint: bytes) -> Counted:
        """Return the number of tasks done in a checkpoint, their result, and the best solution."""
        state = msgspec.msgpack.decode(checkpoint, type=State)
        result, best = (decode_value(data) if data else None for data in (state.result, state.best))
        return Counted(state.done, result, best)

    @property
    def is_finished(self) -> bool:
        """Tell whether this is the root and the whole job is done."""
        account = self.root
        return account is not None and not account.has_work() and not account.loans

    def result(self) -> Any:
        """Return the result of the whole job; None: there was no task."""
        assert self.is_finished
        assert self.root is not None
        self.gather(self.root)
        self.note(What.FINISHED, self.root, done=self.root.done, own=self.root.own)
        return self.root.result

    @property
    def best(self) -> Any:
        """The best solution known to this worker (None: no solution); at the job's end, the best of all."""
        return self.incumbent.best

    def expected_left(self) -> float:
        """Return the expected number of tasks left in the job, as known to the root; infinity: unknown."""
        assert self.root is not None
        bag = self.root.bag
        left = expected_of(bag) if bag is not None and not bag.is_empty() else 0.0
        for loan in self.root.loans.values():
            for data in loan.copy.bags:
                if left == math.inf:
                    return left
                left += expected_of(self._work.bag_from_bytes(data))
        return left

    def done(self) -> int:
        """Return the number of tasks done for the job, as reported to the root."""
        assert self.root is not None
        return self.root.done + sum(loan.copy.done for loan in self.root.loans.values())

    def wasted_in_all(self) -> int:
        """Return the number of tasks done in vain, as reported to the root."""
        assert self.root is not None
        told = sum(loan.copy.wasted for loan in self.root.loans.values())
        return self.wasted + self.root.wasted + told

    @property
    def has_work(self) -> bool:
        return any(account.has_work() for account in self.accounts)

    def expected_tasks(self) -> float:
        bags = (account.bag for account in self.accounts)
        return sum(expected_of(bag) for bag in bags if bag is not None and not bag.is_empty())

    # --- solutions found -------------------------------------------------------------------

    def look_for_better(self, bag: Bag) -> None:
        """If a bag has found a better solution, let the bags of all accounts learn it."""
        if self.incumbent.found(bag.best(), self.now):
            for account in self.accounts:
                if account.bag is not bag:
                    self._teach(account.bag)

    def hear_of_better(self, data: bytes) -> None:
        if self.incumbent.heard(data, self.now):
            for account in self.accounts:
                self._teach(account.bag)

    def _teach(self, bag: Bag | None) -> None:
        if bag is not None and self.incumbent.best is not None:
            bag.learn(self.incumbent.best)

    # --- entries of the log ----------------------------------------------------------------

    def note(
        self,
        what: What,
        account: Account,
        loan: int = 0,
        seq: int = 0,
        done: int = 0,
        own: int = 0,
        final: bool = False,
    ) -> None:
        if self.log is not None:
            self.log.append(Entry(self.now, what, account.number, loan, seq, done, own, final))

    def account(self, number: int) -> Account | None:
        return next((each for each in self.accounts if each.number == number and number != 0), None)

    def add(self, account: Account, number: int, loan: Loan) -> None:
        account.loans[number] = loan
        self.given[number] = account

    def remove(self, account: Account, number: int) -> None:
        del account.loans[number]
        del self.given[number]

    def drop(self, account: Account) -> None:
        """Drop an account and its loans."""
        self.accounts.remove(account)
        self.note(What.DROPPED, account)
        self.wasted += account.untold()
        for number in account.loans:
            del self.given[number]

    def told_wasted(self, account: Account) -> None:
        """Add the unreported tasks done in vain to this account, which reports them."""
        account.wasted, self.wasted = account.wasted + self.wasted, 0

    def take_in(self, account: Account, state: State) -> None:
        self.hear_of_better(state.best)
        account.done += state.done
        account.wasted += state.wasted
        if state.result:
            account.result = self._fold(account.result, decode_value(state.result))
        for data in state.bags:
            bag = self._work.bag_from_bytes(data)
            if account.bag is None:
                self._teach(bag)
                account.bag = bag
            else:
                account.bag.merge(bag)

    def gather(self, account: Account) -> None:
        """Move the result from the account's bag into the account."""
        if account.bag is not None and account.done != account.gathered:
            result = account.bag.take_result()
            if result is not None:
                check_value(result)
            account.result = self._fold(account.result, result)
            account.gathered = account.done

    def state(self, account: Account) -> State:
        """Return the account's state to report, including its loans as of their last settlements."""
        self.gather(account)
        done, wasted, result = account.done, account.wasted, account.result
        bags: list[bytes] = []
        if account.has_work():
            assert account.bag is not None
            bags.append(account.bag.to_bytes())
        for loan in account.loans.values():
            done += loan.copy.done
            wasted += loan.copy.wasted
            if loan.copy.result:
                result = self._fold(result, decode_value(loan.copy.result))
            bags.extend(loan.copy.bags)
        account.told = done
        self.largest_bag = max(self.largest_bag, *map(len, bags), 0)
        return State(done, result_bytes(result), tuple(bags), wasted, self.incumbent.data)

    def _fold(self, one: Any, other: Any) -> Any:
        if one is None or other is None:
            return other if one is None else one
        return self._work.fold(one, other)


def expected_of(bag: Bag) -> float:
    """Return the expected number of tasks left in a bag."""
    try:
        return float(bag.expected_tasks())
    except OverflowError:  # an exact integer beyond all floats
        return math.inf


def result_bytes(result: Any) -> bytes:
    return b"" if result is None else encode_value(result)
