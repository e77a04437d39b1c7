"""The ledger: one worker's accounts and loans, a pure state machine that knows who works on what for whom.

Theory of operation
-------------------
A worker works on *accounts*. The root's first account is the job itself. A worker that is asked for work
splits a bag and *lends* one half, whose bytes it keeps as a copy until the loan is settled. The borrower
opens an account for the loan, works, and lends in turn. An account whose bag is empty and whose loans are all
settled is repaid: the lender folds the result into its own account and drops the copy. The job is done when
the root's account has no tasks and no loans left; there is no other detection of termination.

Messages, where `number` is the number of a loan, drawn by its lender and unique in the job:

    WORK_WANTED(hops, need)     from a worker without tasks to a random known worker. Among many workers, a
                                few are looked at before the richest of them gives, because few workers
                                have most of the tasks, and random requests hardly ever reach them. A worker
                                that cannot give passes the request on, up to `hops` times. Now and then,
                                workers with tasks ask, too, for half of the tasks of a much richer worker
                                (`above`): so tasks spread before any worker runs out of them.
    LIFELINE(need)              a request to the neighbours if no other request has found work. They keep it
                                until they can give,
    CUT()                       or until the asker tells them that another worker gave.
    LEND(number, bag, chunk)    the answer, directly to the asker. `chunk`: tasks that the lender does at a
                                time, a hint for a borrower that has done no tasks yet.
    SETTLE(number, seq, state)  borrower to lender, now and then: the tasks done so far and the tasks left,
                                including the tasks lent on. It becomes the lender's copy. `final`: no
                                tasks are left.
    RETURN(number, state, ...)  borrower to lender when the borrower leaves: as SETTLE, and the loans that the
                                borrower gave, with their copies. The lender takes these loans over,
    MOVED(number)               and tells their borrowers.
    FORGET(number)              lender to borrower: the loan is repaid, or not in the books: drop the account.
    PROBE(number)               lender to a silent borrower: do you still work on the loan?
    UNKNOWN(number)             borrower to lender: no.
    BETTER(best)                to the neighbours: a better solution is known (see `incumbent`).

LEND and all messages with a state carry the best solution, too.

Why no task is lost or counted twice
- A loan is settled at most once, because settling removes it from the books in the same step; messages for a
  number that is not in the books are answered by FORGET and ignored.
- A lender takes its copy back (the tasks done into its result, the tasks left into its bag) if LEND comes
  back, if the borrower does not know the loan, or if the borrower was silent for too long. Later work of the
  borrower counts for nothing. So a worker that dies, or is stopped for ever, costs work and no more.
- A copy is all that was lent: the state in SETTLE contains the tasks that the borrower has lent
  on. So no other worker needs to survive, and the root's own state is always a checkpoint of the whole job.
- Messages may be lost without a report, and come back if their receiver has left; between two workers they
  keep their order. A worker that waits asks again.

This module knows no clock, processes or sockets: messages, times and "do this many tasks" come in, messages
to addresses go out. `simulation.bags` and the real worker drive the same object.
"""

from __future__ import annotations

import math
import random
from operator import index, itemgetter
from typing import NamedTuple

from msgspec.structs import replace

from mallob_py.kit.bags import messages
from mallob_py.kit.bags.bag import Bag, BagError, Work
from mallob_py.kit.bags.books import Account, Books, Loan, What, expected_of, result_bytes
from mallob_py.kit.bags.others import Others

#: first and longest delay before a worker without tasks asks again. The delay grows slowly: among thousands
#: of workers, only many requests find the last workers with tasks
ASK_AGAIN_S = 0.002
ASK_GROWTH = 1.25
ASK_AGAIN_MAX_S = 2.0
#: time after a loan in which the lender does not answer a repetition of the borrower's request, because the
#: loan is on its way
SERVE_AGAIN_S = 0.1
#: greatest number of served requests that are remembered
SERVED_MAX = 256
#: time after which lifelines (requests that neighbours keep) are sent again, because they may get lost
LIFELINE_AGAIN_S = 0.05
#: delay before a worker that just ran out of tasks asks again; busy workers read messages every few
#: milliseconds
FIRST_REQUEST_S = 0.004
#: number of chunks left from which on a worker asks for more tasks
CHUNKS_AHEAD = 2.0
#: greatest number of chunks between two checks of the number of tasks left
CHUNKS_UNSEEN_MAX = 8
#: greatest number of times that a request is passed on by workers that cannot serve it
HOPS = 1
#: greatest number of times that a request is passed on to compare how many tasks workers have; then the
#: worker with the most tasks lends some
LOOKS = 1
#: greatest number of such passes per known worker
LOOKS_SHARE = 0.25
#: A worker divides its remaining tasks into parts: one for each worker that it knows, within the bounds
#: LEVEL_PARTS. After each part it looks for a worker with more than RICHER times as many tasks as it has
#: itself. So workers with few tasks look often. A small group of workers, which soon have about equally
#: many tasks each, looks rarely
RICHER = 2.0
LEVEL_PARTS_MIN, LEVEL_PARTS_MAX = 4, 32
#: time without a settlement after which a borrower is probed
PROBE_S = 2.0
#: greatest number of probes without an answer before the loan is taken back
PROBES_MAX = 15
#: delay before MOVED is sent again to a silent borrower of a loan taken over; must be less than the time
#: after which a borrower drops an account whose lender is gone
MOVED_AGAIN_S = 1.5
#: time for which an account without lender waits for a new lender
ORPHANED_S = 2.0
#: greatest number of lifelines kept; a worker whose lifeline is not kept asks other workers
ASKERS_MAX = 64


def _tells_of_work(message: messages.AnyBagMessage) -> bool:
    """Tell whether a message shows that its sender has tasks. Most senders have none."""
    return isinstance(message, messages.Lend) or (
        isinstance(message, messages.WorkWanted) and message.above > 0.0
    )


class Neighbours:
    """Placeholder for the addresses of the present parent and children."""


NEIGHBOURS = Neighbours()


class Bounds(NamedTuple):
    """Bounds on the bytes that workers send each other, because these pass through the ranks."""

    #: greatest size of a loan; a larger bag is split again if possible
    loan_bytes: int = 4 << 20
    #: greatest average rate at which an account's states are sent to its lender; large states are sent rarely
    told_bytes_per_s: int = 16 << 20
    #: size of the largest state that is sent without delay
    small_state_bytes: int = 64 << 10

    def pause_s(self, state: messages.State) -> float:
        """Return the additional delay between this state and the account's next state."""
        size_bytes = sum(map(len, (state.result, state.best, *state.bags)))
        return max(0, size_bytes - self.small_state_bytes) / self.told_bytes_per_s


BOUNDS = Bounds()


def _bytes_to_lend(account: Account, bag: Bag, bytes_max: int) -> bytes:
    """Return the bytes of a part of `bag` to lend, and put the remainder back into the account."""
    assert account.bag is not None
    halvings = 0
    while True:
        # The last bag lent was small enough after `account.halvings` splits, so a bag that was split less
        # often is probably too large.
        data = bag.to_bytes() if halvings >= account.halvings - 1 else None
        if data is not None and len(data) <= bytes_max:
            break
        less = bag.split()
        if less is None:
            data = bag.to_bytes() if data is None else data
            break
        account.bag.merge(bag)
        bag = less
        halvings += 1
    account.halvings = halvings
    return data


class Ledger:
    """One worker's ledger.

    `seed` must differ from worker to worker, because loan numbers are drawn from it. `settle_s`: time between
    partial settlements of an account; `bounds` may make it longer. `outbox` holds the messages to send, as
    pairs of an address or NEIGHBOURS and the message.
    """

    def __init__(self, work: Work, seed: int, settle_s: float = 1.0, bounds: Bounds = BOUNDS) -> None:
        self.books = Books(work)
        self._random = random.Random(seed)
        self.token = self._random.getrandbits(62)
        self.others = Others(self._random)
        self._settle_s = settle_s
        self._bounds = bounds
        #: address of a waiting worker -> its lifeline (a request that is kept), in the order of arrival
        self._askers: dict[messages.Address, messages.Lifeline] = {}
        self._ask_s = 0.0
        self._ask_delay_s = ASK_AGAIN_S
        #: number of tasks left below which this worker looks for a much richer worker
        self.level_tasks = math.inf
        self._need = 0
        #: whether this worker has done tasks since its last request
        self._has_worked = False
        #: token of an asking worker -> number of the request that this worker served last, and the time of
        #: serving
        self._served: dict[int, tuple[int, float]] = {}
        #: tasks of the last chunk; before the first chunk, the number reported by other workers
        self.chunk_tasks = 1
        #: number of tasks `done_here` up to which this worker need not check the number of tasks left
        self._enough_until = 0.0
        #: whether neighbours may have this worker's lifelines (requests that they keep), and when to send
        #: lifelines again
        self._has_lifelines = False
        self._lifelines_s = 0.0
        self._leaving = False
        #: numbers of the loans that other workers took over when this worker left
        self._handed_over: set[int] = set()
        self.outbox: list[tuple[messages.Address | Neighbours, messages.AnyBagMessage]] = []
        #: number of tasks done by this worker
        self.done_here = 0
        #: whether the last call of `process` emptied a bag, so that a larger chunk would have taken as long
        self.ran_dry = False

    # --- the root ------------------------------------------------------------------------------

    def open_root(self, now: float, checkpoint: bytes | None = None) -> None:
        """Begin the job, or go on from a checkpoint."""
        self.books.now = now
        self.books.open_root(checkpoint)
        self._serve(now)

    def close_root(self) -> None:
        """Drop the job's account, because another worker, with books of its own, is the root now."""
        if (account := self.books.root) is not None:
            self._drop(account)

    # --- work ----------------------------------------------------------------------------------

    def process(self, count: int, now: float) -> int:
        """Do about `count` tasks; return the number of tasks done (0: no tasks are left)."""
        self.books.now = now
        for account in reversed(self.books.accounts):
            if account.has_work():
                assert account.bag is not None
                done = self._process(account.bag, count)
                if done <= 0 and account.has_work():
                    raise BagError(f"process({count}) has done no task of a bag that is not empty")
                account.done += done
                account.own += done
                self.done_here += done
                self._has_worked = True
                self.ran_dry = account.bag.is_empty()
                self.chunk_tasks = count
                self.books.look_for_better(account.bag)
                self._spread(now)
                self._serve(now)
                self._close_if_done(account, now)
                if self.books.has_work and not self._leaving:
                    self._ask_ahead(now)
                return done
        return 0

    @staticmethod
    def _process(bag: Bag, count: int) -> int:
        try:
            return index(bag.process(count))  # converts NumPy's integers, which no message carries
        except Exception as error:
            error.add_note(f"{type(bag).__name__}.process({count}) raised this{_task_at_work(bag)}")
            raise

    def _spread(self, now: float) -> None:
        self.books.incumbent.spread(now, lambda best: self._send(NEIGHBOURS, messages.Better(best)))

    def _ask_ahead(self, now: float) -> None:
        """Ask for more tasks if few tasks are left, or look for a much richer worker."""
        if self.done_here < self._enough_until:
            return
        left = self.books.expected_tasks()
        chunk = self.chunk_tasks
        spare = left - CHUNKS_AHEAD * chunk
        if spare < 0 and now >= self._ask_s:
            self._ask(now, is_first=True)
        elif left < self.level_tasks:
            self._ask_one(0, above=RICHER * left)
            self.level_tasks = self.next_level(left)
        # Expectations may be wrong: look again once half of the spare tasks are done.
        till_level = left - self.level_tasks if left < math.inf else math.inf
        self._enough_until = self.done_here + min(spare / 2, till_level, CHUNKS_UNSEEN_MAX * chunk)

    def next_level(self, left: float) -> float:
        """Return the number of tasks left at which to look for a richer worker."""
        parts = max(LEVEL_PARTS_MIN, min(LEVEL_PARTS_MAX, len(self.others.known)))
        return left - left / parts if left < math.inf else math.inf

    def next_deadline(self) -> float:
        """Return the time at which `tick` must be called again."""
        deadline_s = math.inf if self.books.has_work or self._leaving else self._ask_s
        deadline_s = min(deadline_s, self.books.incumbent.tell_s)
        for account in self.books.accounts:
            deadline_s = min(deadline_s, account.settle_s, account.orphaned_until_s)
            for loan in account.loans.values():
                deadline_s = min(deadline_s, loan.probe_s)
        return deadline_s

    def tick(self, now: float) -> None:
        """Do what is due: partial settlements, requests, probes."""
        self.books.now = now
        self._spread(now)
        for account in tuple(self.books.accounts):
            if now >= account.orphaned_until_s:
                self._drop(account)
                continue
            for number, loan in tuple(account.loans.items()):
                if now >= loan.probe_s:
                    self._probe(account, number, loan, now)
            if now >= account.settle_s:
                self._settle(account, now)
        if not self.books.has_work and not self._leaving and now >= self._ask_s:
            self._ask(now, is_first=self._ask_delay_s == FIRST_REQUEST_S)

    def neighbours_changed(self, now: float) -> None:
        """Ask the new neighbours for tasks if this worker has none."""
        if not self.books.has_work and not self._leaving:
            self._ask_delay_s = ASK_AGAIN_S
            self._lifelines_s = now
            self._ask(now, is_first=False)

    def leave(self, now: float) -> None:
        """Return all accounts except the job's own to their lenders, and open no more accounts."""
        self.books.now = now
        self._leaving = True
        self._askers.clear()
        for account in self.books.accounts:
            if account.number != 0 and account.last_words is None:
                self._return(account, now)

    @property
    def has_left(self) -> bool:
        """Tell whether all returned accounts are confirmed and the job's account has no open loans."""
        return not any(account.number != 0 or account.loans for account in self.books.accounts)

    # --- arriving messages -----------------------------------------------------------------------

    def receive(self, source: messages.Address, message: messages.AnyBagMessage, now: float) -> None:
        self.books.now = now
        match message:
            case messages.WorkWanted(asker):
                if message.token != self.token:
                    self._asked(source, message, now)
                elif asker is not None:
                    self.others.is_us(asker)
            case messages.Lifeline():
                self._hold(source, message, now)
            case messages.Cut():
                self._askers.pop(source, None)
            case messages.Lend(number, bag, others, chunk, best):
                self.others.hear_of(others)
                self.books.hear_of_better(best)
                if self.done_here == 0:
                    self.chunk_tasks = max(1, chunk)
                self._borrow(source, number, bag, now)
            case messages.Settle():
                self._settled(source, message, now)
            case messages.Return():
                self._returned_in_order(source, message, now)
            case messages.Moved(number):
                self._moved(source, number, now)
            case messages.Forget(number):
                if (account := self.books.account(number)) is not None:
                    self._drop(account)
            case messages.Probe(number):
                if (account := self.books.account(number)) is not None:
                    self._settle(account, now)
                else:
                    self._send(source, messages.Unknown(number))
            case messages.Unknown(number):
                self._take_back(number, source, now)
            case messages.Better(best):
                self.books.hear_of_better(best)
        self._spread(now)
        if isinstance(message, messages.Return):
            self._forget(source)  # the source has left, or is about to leave
        else:
            self.others.heard(source, _tells_of_work(message))

    def undelivered(self, dest: messages.Address, message: messages.AnyBagMessage, now: float) -> None:
        """Handle a message that came back because its receiver has left or is not there yet."""
        self.books.now = now
        self._forget(dest)
        match message:
            case messages.Lend(number) | messages.Probe(number):
                self._take_back(number, dest, now)
            case messages.Settle(number) | messages.Return(number):
                account = self.books.account(number)
                if account is not None and account.lender == dest:
                    account.orphaned_until_s = min(account.orphaned_until_s, now + ORPHANED_S)
            case messages.Moved(number):
                self._take_back(number, dest, now)
            case messages.WorkWanted(asker):
                if asker is None and not self.books.has_work:
                    self._ask_s = now
            case _:
                pass

    # --- asking and lending ------------------------------------------------------------------------

    def _ask(self, now: float, is_first: bool) -> None:
        """Ask a known worker for tasks. Send lifelines, too; if `is_first`, only if no worker is known."""
        has_asked = self._ask_one(HOPS)
        if (not is_first or not has_asked) and now >= self._lifelines_s:
            self._send(NEIGHBOURS, messages.Lifeline(self.token, self._need))
            self._has_lifelines = True
            self._lifelines_s = now + LIFELINE_AGAIN_S
        self._ask_s = now + self._ask_delay_s
        self._ask_delay_s = min(ASK_GROWTH * self._ask_delay_s, ASK_AGAIN_MAX_S)

    def _ask_one(self, hops: int, above: float = 0.0) -> bool:
        """Send a request to a random known worker; return whether any worker is known."""
        self._need += self._has_worked
        self._has_worked = False
        others = list(self.others.known)
        if not others:
            return False
        looks = min(LOOKS, int(LOOKS_SHARE * len(others)))
        told = self.others.some()
        wanted = messages.WorkWanted(None, self.token, hops, self._need, told, looks, most=above, above=above)
        self._send(self._random.choice(others), wanted)
        return True

    def _asked(self, source: messages.Address, message: messages.WorkWanted, now: float) -> None:
        if self._leaving or self._is_served(message, now):
            return
        asker = source if message.asker is None else message.asker
        richest = source if message.richest is None else message.richest
        others = [each for each in self.others.known if each != asker]
        left = self.books.expected_tasks()
        is_poorer = message.most > left
        told = self.others.some()
        onward = messages.WorkWanted(
            asker, message.token, message.hops, message.need, told, above=message.above
        )
        if message.looks > 0 and others and left < math.inf:
            richest_known = richest if is_poorer else None
            looking = replace(
                onward, looks=message.looks - 1, richest=richest_known, most=max(left, message.most)
            )
            self._send(self._random.choice(others), looking)
        elif is_poorer:
            if richest != asker:
                self._send(richest, onward)
        elif left > message.above and self._lend(asker, message, now):
            return
        elif others and message.hops > 0:
            self._send(self._random.choice(others), replace(onward, hops=message.hops - 1))
        self.others.hear_of(message.others)

    def _hold(self, asker: messages.Address, message: messages.Lifeline, now: float) -> None:
        """Lend tasks to a neighbour now, or keep its request (lifeline) for later."""
        if self._leaving or self._is_served(message, now) or self._lend(asker, message, now):
            return
        if len(self._askers) < ASKERS_MAX:
            self._askers[asker] = message

    def _is_served(self, wanted: messages.WorkWanted | messages.Lifeline, now: float) -> bool:
        """Tell whether this worker has just served the same request of the asker."""
        need, served_s = self._served.get(wanted.token, (-1, -math.inf))
        return need == wanted.need and now < served_s + SERVE_AGAIN_S

    def _lend(
        self, asker: messages.Address, wanted: messages.WorkWanted | messages.Lifeline, now: float
    ) -> bool:
        for account in self._lenders():
            assert account.bag is not None
            bag = account.bag.split()
            if bag is not None:
                self._give(account, asker, wanted, bag, now)
                return True
        return False

    def _lenders(self) -> list[Account]:
        """Return the accounts that have enough tasks to lend half of them, the richest first."""
        tasks = [
            (expected_of(account.bag), account)
            for account in reversed(self.books.accounts)
            if account.bag is not None and not account.bag.is_empty()
        ]
        tasks.sort(key=itemgetter(0), reverse=True)
        return [account for left, account in tasks if left >= self.chunk_tasks]

    def _give(
        self,
        account: Account,
        borrower: messages.Address,
        wanted: messages.WorkWanted | messages.Lifeline,
        bag: Bag,
        now: float,
    ) -> None:
        number = self._random.getrandbits(62) | 1
        data = _bytes_to_lend(account, bag, self._bounds.loan_bytes)
        copy = messages.State(0, b"", (data,))
        probe_s = now + PROBE_S + 2 * self._bounds.pause_s(copy)
        self.books.add(account, number, Loan(borrower, copy, probe_s=probe_s))
        self._enough_until = 0.0
        self._served.pop(wanted.token, None)
        if len(self._served) >= SERVED_MAX:
            del self._served[next(iter(self._served))]
        self._served[wanted.token] = (wanted.need, now)
        self.books.note(What.LENT, account, number)
        self.books.largest_bag = max(self.books.largest_bag, len(data))
        self._send(
            borrower,
            messages.Lend(number, data, self.others.some(), self.chunk_tasks, self.books.incumbent.data),
        )

    def _serve(self, now: float) -> None:
        """Lend to workers that wait, while there are tasks to lend."""
        if not self._askers:
            return
        account = next(iter(self._lenders()), None)
        if account is None:
            return
        assert account.bag is not None
        bags = account.bag.split_into(len(self._askers))
        if len(bags) > len(self._askers):  # the tasks of a bag without an asker would be lost
            raise BagError(f"split_into({len(self._askers)}) has made {len(bags)} bags")
        for asker, bag in zip(tuple(self._askers), bags, strict=False):
            self._give(account, asker, self._askers.pop(asker), bag, now)

    def _borrow(self, lender: messages.Address, number: int, data: bytes, now: float) -> None:
        if self._leaving:
            self._send(lender, messages.Unknown(number))
            return
        account = self.books.open(number, lender, data)
        account.settle_s = now + self._settle_s
        self._ask_delay_s = FIRST_REQUEST_S
        self._ask_s = now
        self.level_tasks = self.next_level(self.books.expected_tasks())
        self._enough_until = 0.0
        if self._has_lifelines:
            self._send(NEIGHBOURS, messages.Cut())
            self._has_lifelines = False
            self._lifelines_s = now
        self._serve(now)
        self._close_if_done(account, now)

    # --- settling ------------------------------------------------------------------------------------

    def _close_if_done(self, account: Account, now: float) -> None:
        """Repay an account without tasks and loans."""
        if account.number == 0 or account.has_work() or account.loans or account.last_words is not None:
            return
        account.last_words = self._settlement(account, final=True)
        self._settle(account, now)

    def _settle(self, account: Account, now: float) -> None:
        """Send the lender the account's present state, or the unconfirmed last message again."""
        assert account.lender is not None
        if account.last_words is not None:
            self._send(account.lender, account.last_words)
            account.settle_s = now + account.repeat_delay_s
            account.repeat_delay_s = min(2 * account.repeat_delay_s, PROBE_S)
        else:
            settlement = self._settlement(account, final=False)
            self._send(account.lender, settlement)
            account.settle_s = now + self._settle_s + self._bounds.pause_s(settlement.state)

    def _settlement(self, account: Account, final: bool) -> messages.Settle:
        account.seq += 1
        self.books.told_wasted(account)
        state = self.books.state(account)
        self.books.note(What.TOLD, account, 0, account.seq, state.done, account.own, final)
        return messages.Settle(account.number, account.seq, final, state)

    def _settled(self, source: messages.Address, message: messages.Settle, now: float) -> None:
        if message.number in self._handed_over:
            return  # the worker that took the loan over will send MOVED
        account = self.books.given.get(message.number)
        if account is None:
            self._send(source, messages.Forget(message.number))
            return
        loan = account.loans[message.number]
        loan.borrower = source
        if message.seq <= loan.seq:
            return
        self.books.hear_of_better(message.state.best)
        loan.seq, loan.copy = message.seq, message.state
        loan.probe_s = now + PROBE_S + 2 * self._bounds.pause_s(loan.copy)
        loan.probes, loan.is_inherited = 0, False
        if message.final:
            assert not message.state.bags
            self.books.remove(account, message.number)
            self.books.note(What.TAKEN, account, message.number, message.seq, message.state.done)
            self.books.take_in(account, message.state)
            self._send(source, messages.Forget(message.number))
            self._close_if_done(account, now)

    def _take_back(self, number: int, borrower: messages.Address, now: float) -> None:
        """Take the copy of a lost loan back into its account."""
        account = self.books.given.get(number)
        if account is None or account.loans[number].borrower != borrower:
            return
        loan = account.loans[number]
        self.books.remove(account, number)
        self.books.note(What.TAKEN, account, number, loan.seq, loan.copy.done)
        self.books.take_in(account, loan.copy)
        self._serve(now)
        self._close_if_done(account, now)

    def _probe(self, account: Account, number: int, loan: Loan, now: float) -> None:
        loan.probes += 1
        if loan.probes > PROBES_MAX:
            self._take_back(number, loan.borrower, now)
            return
        loan.probe_s = now + PROBE_S + 2 * self._bounds.pause_s(loan.copy)
        self._send(loan.borrower, messages.Moved(number) if loan.is_inherited else messages.Probe(number))

    # --- workers that hand over and leave --------------------------------------------------------------

    def _return(self, account: Account, now: float) -> None:
        self.books.gather(account)
        bags = () if account.bag is None or account.bag.is_empty() else (account.bag.to_bytes(),)
        loans = tuple(
            messages.LoanState(number, loan.borrower, loan.seq, loan.copy)
            for number, loan in account.loans.items()
        )
        self.books.told_wasted(account)
        result = result_bytes(account.result)
        own = messages.State(account.done, result, bags, account.wasted, self.books.incumbent.data)
        account.told = account.done
        self.books.note(What.RETURNED, account, done=account.done, own=account.own)
        account.last_words = messages.Return(account.number, own, loans)
        for number in account.loans:
            del self.books.given[number]
            self._handed_over.add(number)
        account.loans.clear()
        account.bag = None
        self._settle(account, now)

    def _returned_in_order(self, source: messages.Address, message: messages.Return, now: float) -> None:
        if message.number in self._handed_over:
            return
        self._send(source, messages.Forget(message.number))
        account = self.books.given.get(message.number)
        if account is None:
            return
        self.books.remove(account, message.number)
        self.books.note(What.TAKEN, account, message.number, done=message.state.done)
        self.books.take_in(account, message.state)
        for each in message.loans:
            self.books.hear_of_better(each.state.best)
            self.books.note(What.INHERITED, account, each.number)
            loan = Loan(each.borrower, each.state, each.seq, now + MOVED_AGAIN_S, is_inherited=True)
            self.books.add(account, each.number, loan)
            self._send(each.borrower, messages.Moved(each.number))
        self._serve(now)
        self._close_if_done(account, now)

    def _moved(self, source: messages.Address, number: int, now: float) -> None:
        account = self.books.account(number)
        if account is None:
            self._send(source, messages.Unknown(number))
            return
        account.lender = source
        account.orphaned_until_s = math.inf
        if account.last_words is not None:  # the last words may have arrived after the former lender left
            self._settle(account, now)

    def _drop(self, account: Account) -> None:
        """Drop an account that is repaid, or whose loan its lender has taken back."""
        self.books.drop(account)
        for number, loan in account.loans.items():
            self._send(loan.borrower, messages.Forget(number))

    def _forget(self, other: messages.Address) -> None:
        """Forget a worker that has left, and its lifeline."""
        self.others.has_gone(other)
        self._askers.pop(other, None)

    def _send(self, dest: messages.Address | Neighbours, message: messages.AnyBagMessage) -> None:
        self.outbox.append((dest, message))


def _task_at_work(bag: Bag) -> str:
    """Describe the present task for an exception's note, even if the author's `current_task` raises."""
    try:
        task = bag.current_task()
    except Exception as error:
        return f" (and current_task raises {type(error).__name__}: {error})"
    return f" at {task}" if task else ""
