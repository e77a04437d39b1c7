"""A race as a text: a few ranks, whose messages move one by one as the text says, and the ranks' effects.

A line that is not indented is a command; the indented lines below are the command's outcome: effects of ranks
(`1: StartWorker job 1 index 0`) and messages that left (`1->0: Offer job 1 index 1`). Nothing moves unless a
command moves it, and time stands still but for `settle` and `wait`. Each rank has one PE, and its address
never changes. A rank is the `Node` that runs in production.

    pes 4 reuse=none       four ranks with these settings; delays are 0
    submit 0 job 1 ...     rank 0 is brought job 1, with parameters such as max_demand=3 (odd jobs are
                           inline); with leaves=true its workers leave in order
    deliver 2->0 Offer     the next message from rank 2 to rank 0, which must be an Offer
    drop 2->0 Offer        ... is thrown away
    epoch                  all changes of jobs and all epochs are delivered
    settle [but Offer ...] all messages but these kinds (and what is queued behind them), all processes and
                           descriptions, and the time that ranks wait for; writes nothing
    wait 1.0               time passes for all waiting ranks
    started 1              the process asked for last at rank 1 runs
    crash 1, answer 1, raise 1, lost 1
                           the process of rank 1's active worker does this; with a job (`answer 1 job 2`),
                           the process of the job's suspended worker does
    demand 0 3             the worker at rank 0 could use 3 workers
    say 0 down|up          the worker at rank 0 sends a message to its children, or its parent; `say 0 up
                           leaving`: the first leaving worker does
    miss 0                 the process at rank 0 does not take the message delivered last
    progress 0 100         the worker at rank 0 reports that 100 units are done
    save 0 text            the worker at rank 0 saves this checkpoint (`save 0 text leaving`: the first
                           leaving worker does)
    restore 0              the worker at rank 0 begins and asks for the last checkpoint
    left 1                 the first leaving worker of rank 1 has left (`crash 1 leaving`: has died)
    fetched 1 job 2        the description of job 2 has come to rank 1
    unfetched 1 job 2      ... cannot be stored
    pause 1, unpause 1, end 1, evacuate 1, drop_past 1, rest 1 0.5, interrupt 0 job 1
    show                   which worker is where
    queued                 what is on its way

What happens to ranks:

    lose 2                 rank 2 has ended, and messages on their way there are lost
    miss_rank 0 2          rank 0 finds rank 2 lost (it may hang, or be healthy)
    hang 2, wake 2         rank 2 takes no messages; it goes on where it was
    beat 2->0              rank 0 hears that rank 2 is there
    drain 1 0.5            rank 1 is ordered to be drained within 0.5 s
    leave 1 at 0           rank 0 gets the order that rank 1 leaves
    grow 4 at 0            ... that rank 4, which is up and connected, joins; again: the order is repeated
    start 4 at 0           rank 0 has started rank 4, which names itself; all ranks can listen for it
    begin                  all messages about generations are delivered
    stop 1                 rank 1 gets the order that all ranks end
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from types import UnionType

import msgspec

from mallob_py.protocol import effects, rank_effects, rank_messages, rank_stimuli, stimuli
from mallob_py.protocol.client import ClientJobs
from mallob_py.protocol.config import Config
from mallob_py.protocol.generation import Ordered
from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.joining import Keep, Newcomer, Refused
from mallob_py.protocol.messages import Description, Epoch, Events
from mallob_py.protocol.node import Node
from mallob_py.protocol.progress import Progress
from mallob_py.protocol.rank_book import Origin

_SETTLED_S = 0.05
_PATIENCE_S = 1.0
#: value of an `EndReason` -> its words in a text
_END = {"fenced": "was thought dead", "left": "was to leave"}
_MOVES_MAX = 100_000
#: fields of effects and messages that are written, in this order
_FIELDS = ("worker", "job", "index", "target_index", "returned", "lost", "outcome", "reason", "fault")

Command = Callable[["Stage", list[str]], Iterator[str]]


def play(script: str) -> str:
    """Return the text with the present outcome below each command."""
    stage = Stage()
    lines: list[str] = []
    for line in script.splitlines():
        if line.startswith("  "):
            continue  # a line of the recorded outcome
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"  {told}" for told in stage.do(line.split())]
    return "\n".join(lines) + "\n"


class Stage:
    """The ranks of one text."""

    def __init__(self) -> None:
        self.now = 0.0
        self._origin = Origin((1,))
        self._config = Config()
        #: address -> rank; a joining rank is a newcomer until it begins
        self._ranks: dict[int, Node | Newcomer] = {}
        #: address -> messages that a newcomer keeps until it begins
        self._kept: dict[int, list[rank_stimuli.Said]] = {}
        self._hung: set[int] = set()
        self._ways: dict[tuple[int, int], deque[rank_stimuli.Said]] = {}
        self._orderly: set[int] = set()
        #: requested processes that do not run yet: (rank, job, number of the worker)
        self._starting: list[tuple[int, int, int]] = []
        self._fetching: list[tuple[int, int]] = []
        #: rank -> the message delivered last to a process of the rank
        self._delivered: dict[int, effects.DeliverMessage] = {}

    def do(self, words: list[str]) -> list[str]:
        """Carry out one command; return its outcome."""
        name, *arguments = words
        return list(getattr(self, f"_do_{name}")(*arguments))

    # --- commands -------------------------------------------------------------------------

    def _do_pes(self, size: str, *settings: str) -> Iterator[str]:
        delays = {"balancing_delay_s": 0.0, "matching_delay_s": 0.0}
        config = msgspec.convert(delays | _values(settings), Config)
        self._config, self._origin = config, _origin(range(int(size)), int(size))
        for address in range(int(size)):
            self._ranks[address] = node = Node(address, self._origin, config, patience_s=_PATIENCE_S)
            node.effects.clear()
        return iter(())

    def _do_submit(self, pe: str, _job: str, job: str, *parameters: str) -> Iterator[str]:
        description = Description(1, b"x" if int(job) % 2 else None)
        values = _values(parameters)
        if values.pop("leaves", False):
            self._orderly.add(int(job))
        asked = msgspec.convert(values, stimuli.JobParameters)
        return self._tell(int(pe), stimuli.JobSubmitted(int(job), asked, description))

    def _do_deliver(self, way: str, kind: str) -> Iterator[str]:
        source, dest = map(int, way.split("->"))
        return self._tell_rank(dest, self._next(source, dest, kind))

    def _do_drop(self, way: str, kind: str) -> Iterator[str]:
        source, dest = map(int, way.split("->"))
        self._next(source, dest, kind)
        return iter(())

    def client(self, address: int) -> ClientJobs:
        """Return the jobs that were submitted at a rank."""
        node = self._ranks[address]
        assert isinstance(node, Node), f"rank {address} is no member yet"
        return node.pes[0].client

    def _do_epoch(self) -> Iterator[str]:
        while True:
            self._tick_all()
            if not (yield from self._deliver_one(Events | Epoch)):
                return

    def _do_settle(self, *but: str) -> Iterator[str]:
        kinds, until_s = set(but[1:]), self.now + _SETTLED_S
        for _ in range(_MOVES_MAX):
            if not self._move(kinds):
                wanted_s = self._deadline_s()
                if wanted_s > until_s:
                    return iter(())
                self.now = max(self.now, wanted_s)
                self._tick_all()
        raise AssertionError("it never comes to rest")

    def _do_wait(self, seconds: str) -> Iterator[str]:
        until_s = self.now + float(seconds)
        while (wanted_s := self._deadline_s()) <= until_s:
            self.now = max(self.now, wanted_s)
            yield from self._ticks()
        self.now = until_s

    def _do_started(self, pe: str) -> Iterator[str]:
        starting = next(each for each in reversed(self._starting) if each[0] == int(pe))
        self._starting.remove(starting)
        return self._run(*starting)

    def _do_crash(self, pe: str, *job: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.WorkerCrashed(self._number(pe, job), "killed"))

    def _do_answer(self, pe: str, *job: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.WorkerAnswered(self._number(pe, job), f"of PE {pe}".encode()))

    def _do_raise(self, pe: str, *job: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.WorkerRaised(self._number(pe, job), "an error"))

    def _do_lost(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.WorkerLost(self._number(pe, ()), "no fork"))

    def _do_demand(self, pe: str, workers: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.WorkerDemands(self._number(pe, ()), int(workers)))

    def _do_say(self, pe: str, way: str, *whose: str) -> Iterator[str]:
        kind = {"up": stimuli.WorkerToParent, "down": stimuli.WorkerToChildren}[way]
        return self._tell(int(pe), kind(self._number(pe, whose), b"news"))

    def _do_miss(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.WorkerMissed(*msgspec.structs.astuple(self._delivered[int(pe)])))

    def _do_save(self, pe: str, text: str, *whose: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.WorkerSaves(self._number(pe, whose), text.encode()))

    def _do_progress(self, pe: str, done: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.WorkerProgresses(self._number(pe, ()), Progress(float(done))))

    def _do_restore(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.WorkerWantsCheckpoint(self._number(pe, ())))

    def _do_left(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.WorkerLeft(self._number(pe, ("leaving",))))

    def _do_fetched(self, pe: str, _job: str, job: str) -> Iterator[str]:
        return self._tell_rank(int(pe), rank_stimuli.DescriptionCame(int(job)))

    def _do_unfetched(self, pe: str, _job: str, job: str) -> Iterator[str]:
        return self._tell_rank(int(pe), rank_stimuli.DescriptionFailed(int(job), "no room", Fault.HOST))

    def _do_pause(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.PauseWorker())

    def _do_unpause(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.UnpauseWorker())

    def _do_end(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.SystemEnds())

    def _do_evacuate(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.Drain())

    def _do_drop_past(self, pe: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.DropPast(1))

    def _do_rest(self, pe: str, seconds: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.HostRests(self.now + float(seconds)))

    def _do_interrupt(self, pe: str, _job: str, job: str) -> Iterator[str]:
        return self._tell(int(pe), stimuli.JobInterrupted(int(job)))

    # --- commands that lose, stop, add or remove ranks ------------------------------------

    def _do_lose(self, address: str) -> Iterator[str]:
        rank = int(address)
        del self._ranks[rank]
        self._ways = {way: queue for way, queue in self._ways.items() if way[1] != rank}
        self._starting = [each for each in self._starting if each[0] != rank]
        self._fetching = [each for each in self._fetching if each[0] != rank]
        return iter(())

    def _do_miss_rank(self, by: str, address: str) -> Iterator[str]:
        return self._tell_rank(int(by), rank_stimuli.RankLost(int(address), "is silent"))

    def _do_hang(self, address: str) -> Iterator[str]:
        self._hung.add(int(address))
        return iter(())

    def _do_wake(self, address: str) -> Iterator[str]:
        self._hung.remove(int(address))
        return iter(())

    def _do_beat(self, way: str) -> Iterator[str]:
        source, dest = map(int, way.split("->"))
        node = self._ranks[source]
        assert isinstance(node, Node), f"rank {source} is no member yet"
        return self._tell_rank(dest, rank_stimuli.Said(source, node.present.g, 0, 0, rank_messages.Beat()))

    def _do_drain(self, address: str, seconds: str) -> Iterator[str]:
        return self._tell_rank(
            int(address), rank_stimuli.DrainWanted(int(address), self.now + float(seconds))
        )

    def _do_leave(self, address: str, _at: str, asked: str) -> Iterator[str]:
        return self._tell_rank(int(asked), Ordered(leaves=(int(address),)))

    def _do_grow(self, address: str, _at: str, asked: str) -> Iterator[str]:
        rank = int(address)
        if rank not in self._ranks:
            peers = tuple(_peer(member) for member in self._ranks)
            newcomer = self._newcomer(rank, int(asked))
            newcomer.handle(
                rank_stimuli.Said(
                    int(asked), 0, 0, 0, rank_messages.Welcome(peers, 0.0, self._origin.founders)
                ),
                self.now,
            )
            for peer in peers:
                newcomer.handle(rank_stimuli.Said(peer.address, 0, 0, 0, rank_messages.Noted()), self.now)
            newcomer.effects.clear()
        return self._tell_rank(int(asked), Ordered(joins=((rank, 1),)))

    def _do_start(self, address: str, _at: str, host: str) -> Iterator[str]:
        rank, asked = int(address), int(host)
        newcomer = self._newcomer(rank, asked)
        call = rank_messages.Listen(rank + 1, b"secret", wide=False)
        yield from self._tell_rank(
            asked, rank_stimuli.RanksStarted(call, _peer(asked), ((rank, _peer(rank).process),))
        )
        yield from self._passed_on_of_newcomer(rank, newcomer)

    def _do_stop(self, address: str) -> Iterator[str]:
        return self._tell_rank(int(address), rank_stimuli.EndWanted())

    def _newcomer(self, rank: int, host: int) -> Newcomer:
        here = _peer(rank)
        assert here.place is not None
        me = rank_messages.Joining(here.process, here.host, here.place, 1)
        self._ranks[rank] = newcomer = Newcomer(rank, me, _peer(host), _PATIENCE_S, self.now)
        self._kept[rank] = []
        return newcomer

    def _do_begin(self) -> Iterator[str]:
        while (yield from self._deliver_one(rank_messages.GenerationMessage)):
            pass

    # --- commands that print the state ----------------------------------------------------

    def _do_show(self) -> Iterator[str]:
        for address, node in self._nodes():
            pe, parts = node.pes[0], []
            if (worker := pe.workers.active) is not None:
                children = " ".join(map(str, worker.seats.children()))
                with_children = f" with children {children}" if children else ""
                parts.append(f"job {worker.job} worker {worker.index} {worker.state.value}{with_children}")
            parts += [
                f"job {worker.job} worker {worker.index} {worker.state.value}"
                for worker in pe.workers.suspended.values()
            ]
            parts += [f"job {one.job} worker {one.index} leaving" for one in pe.workers.leaving]
            yield f"{address}: {', '.join(parts) or 'idle'}"

    def _do_queued(self) -> Iterator[str]:
        for (source, dest), queue in self._queued():
            for said in queue:
                yield f"{source}->{dest}: {_told(said.message)}"

    # --- stimuli and their effects --------------------------------------------------------

    def _nodes(self) -> list[tuple[int, Node]]:
        return [(address, rank) for address, rank in self._ranks.items() if isinstance(rank, Node)]

    def _tell(self, dest: int, stimulus: stimuli.AnyStimulus) -> Iterator[str]:
        """Give the PE of a rank a stimulus; yield the outcome."""
        return self._tell_rank(dest, rank_stimuli.ToPE(0, stimulus))

    def _tell_rank(self, address: int, stimulus: rank_stimuli.AnyRankStimulus) -> Iterator[str]:
        assert address not in self._hung, f"rank {address} hangs"
        rank = self._ranks[address]
        if isinstance(rank, Node):
            rank.handle(stimulus, self.now)
            yield from self._passed_on(address, rank)
        else:
            assert isinstance(stimulus, rank_stimuli.Said | rank_stimuli.RankLost | rank_stimuli.TimeCame), (
                f"rank {address} is no member yet"
            )
            rank.handle(stimulus, self.now)
            yield from self._passed_on_of_newcomer(address, rank)

    def _passed_on_of_newcomer(self, address: int, newcomer: Newcomer) -> Iterator[str]:
        while newcomer.effects:
            match newcomer.effects.popleft():
                case rank_effects.Tell(to, g, source, dest, message):
                    yield self._sent(rank_stimuli.Said(address, g, source, dest, message), to)
                case Keep(said):
                    self._kept[address].append(said)
                case Refused(why):
                    yield f"{address}: ends: {why}"
                    self._do_lose(str(address))
                    return
        if newcomer.generation is not None:
            origin = _origin((*newcomer.peers, address), len(self._origin.founders))
            node = self._ranks[address] = Node(address, origin, self._config, newcomer.membership)
            yield f"{address}: begins with {_ranks(node.placement.members)}"
            yield from self._passed_on(address, node)
            for said in self._kept.pop(address):
                yield from self._tell_rank(address, said)

    def _passed_on(self, address: int, node: Node) -> Iterator[str]:
        for effect in node.take_effects():
            match effect:
                case rank_effects.Tell(to, g, source, dest, message):
                    yield self._sent(rank_stimuli.Said(address, g, source, dest, message), to)
                case rank_effects.TellLost(to, g, message):
                    yield self._sent(rank_stimuli.Said(address, g, 0, 0, message), to)
                case rank_effects.Fetch(job):
                    self._fetching.append((address, job))
                    yield f"{address}: {effects.FetchDescription.__name__} job {job}"
                case rank_effects.OfPE(_, inner):
                    yield from self._of_pe(address, inner)
                case rank_effects.ListenFor(host):
                    yield self._sent(
                        rank_stimuli.Said(address, 0, 0, 0, rank_messages.Listening(_peer(address).place)),
                        host,
                    )
                case rank_effects.KillRank(rank):
                    yield f"{address}: kills rank {rank}"
                    self._do_lose(str(rank))
                case _:
                    yield from (f"{address}: {told}" for told in _of_rank(effect))
        if node.end_reason is not None:
            yield f"{address}: ends, as it {_END[node.end_reason.value]}"
            self._do_lose(str(address))

    def _of_pe(self, address: int, effect: effects.AnyEffect) -> Iterator[str]:
        if isinstance(effect, effects.Log):
            return
        if isinstance(effect, effects.StartWorker):
            self._starting.append((address, effect.job, effect.worker))
        elif isinstance(effect, effects.DeliverMessage):
            self._delivered[address] = effect
        yield f"{address}: {_told(effect)}"

    def _sent(self, said: rank_stimuli.Said, dest: int) -> str:
        if dest in self._ranks:
            self._ways.setdefault((said.rank, dest), deque()).append(said)
        return f"{said.rank}->{dest}: {_told(said.message)}"

    def _next(self, source: int, dest: int, kind: str) -> rank_stimuli.Said:
        queue = self._ways.get((source, dest))
        assert queue, f"nothing is on its way from {source} to {dest}"
        said = queue.popleft()
        assert type(said.message).__name__ == kind, f"the next one is {_told(said.message)}"
        return said

    def _queued(self) -> list[tuple[tuple[int, int], deque[rank_stimuli.Said]]]:
        return sorted((way, queue) for way, queue in self._ways.items() if queue)

    def _deliver_one(self, kinds: type | UnionType) -> Generator[str, None, bool]:
        """Deliver the next message of these kinds that is first in its queue; return False if there is
        none.
        """
        for (_, dest), queue in self._queued():
            if dest not in self._hung and isinstance(queue[0].message, kinds):
                yield from self._tell_rank(dest, queue.popleft())
                return True
        return False

    def _deadline_s(self) -> float:
        return min(rank.deadline_s for address, rank in self._ranks.items() if address not in self._hung)

    def _ticks(self) -> Iterator[str]:
        for address, rank in list(self._ranks.items()):
            if rank.deadline_s <= self.now and address not in self._hung:
                yield from self._tell_rank(address, rank_stimuli.TimeCame())

    def _tick_all(self) -> None:
        deque(self._ticks(), maxlen=0)

    def _move(self, but: set[str]) -> bool:
        """Deliver a message or a description, or start a process, but no kind in `but`; return False if there
        is none.
        """
        for (_, dest), queue in self._queued():
            if type(queue[0].message).__name__ not in but and dest not in self._hung:
                deque(self._tell_rank(dest, queue.popleft()), maxlen=0)
                return True
        if self._fetching and "FetchDescription" not in but:
            rank, job = self._fetching.pop(0)
            deque(self._tell_rank(rank, rank_stimuli.DescriptionCame(job)), maxlen=0)
            return True
        if self._starting and "StartWorker" not in but:
            deque(self._run(*self._starting.pop(0)), maxlen=0)
            return True
        return False

    def _run(self, pe: int, job: int, number: int) -> Iterator[str]:
        return self._tell(pe, stimuli.WorkerStarted(number, job in self._orderly))

    def _number(self, pe: str, job: tuple[str, ...]) -> int:
        node = self._ranks[int(pe)]
        assert isinstance(node, Node), f"rank {pe} is no member yet"
        workers = node.pes[0].workers
        if job == ("leaving",):
            return next(iter(workers.leaving)).number
        worker = workers.suspended.get(int(job[1])) if job else workers.active
        assert worker is not None, f"there is no such worker at rank {pe}"
        return worker.number


def _values(words: tuple[str, ...]) -> dict[str, object]:
    def value(text: str) -> object:
        return text if text[0].isalpha() and text not in ("true", "false") else msgspec.json.decode(text)

    return {name: value(text) for name, text in (word.split("=") for word in words)}


def _peer(rank: int) -> rank_messages.Peer:
    return rank_messages.Peer(
        rank, rank, rank_messages.RankProcess(0, f"host{rank}", rank, 0), rank_messages.Place(f"rank{rank}")
    )


def _origin(known: Iterable[int], founders: int) -> Origin:
    peers = {rank: _peer(rank) for rank in known}
    processes = {rank: peer.process for rank, peer in peers.items()}
    return Origin((1,) * founders, processes=processes, hosts={rank: rank for rank in peers})


def _ranks(members: tuple[int, ...]) -> str:
    return "ranks " + " ".join(map(str, members))


def _of_rank(effect: rank_effects.AnyRankEffect) -> Iterator[str]:
    """Yield the words for an effect of a whole rank."""
    match effect:
        case rank_effects.Forget(job):
            yield _told(effects.JobOver(job))
        case rank_effects.LetGo(job):
            yield _told(effects.JobUnheard(job))
        case rank_effects.Halted():
            yield "halts"
        case rank_effects.WorldChanged(generation):
            yield f"begins with {_ranks(generation.members)}"
        case rank_effects.WindUp():
            yield "winds up"
        case rank_effects.Drained(rank):
            yield f"hears that rank {rank} is drained"
        case rank_effects.Note("host rests", fields):
            yield f"host rests: {fields['reason']}"
        case rank_effects.Grown(problems):
            yield " ".join(
                ("has grown", *(f"but for rank {rank}, which {why}" for rank, why in problems.items()))
            )
        case rank_effects.Note("lost rank", fields):
            yield f"takes rank {fields['lost']} for lost"


def _told(thing: effects.AnyEffect | rank_messages.AnyWireMessage) -> str:
    """Return the words for an effect or a message: its kind, and its fields in `_FIELDS`."""
    about = getattr(thing, "request", thing)
    words = [type(thing).__name__]
    for name in _FIELDS:
        value = getattr(about, name, None)
        if value is None or value is False or value == "" or value is math.inf:
            continue
        words.append(name if value is True else f"{name} {getattr(value, 'value', value)}")
    if isinstance(thing, Epoch):
        words += [f"{thing.epoch}:", *(f"job {event.job} demand {event.demand}" for event in thing.events)]
    if isinstance(thing, rank_messages.Propose):
        words.append(_ranks(thing.generation.members))
    if isinstance(thing, effects.JobEnded) and thing.body is not None:
        words.append(f"result {thing.body.decode()}")
    if isinstance(thing, effects.JobSaved):
        words.append(thing.checkpoint.decode())
    if isinstance(thing, effects.GiveCheckpoint):
        words.append("nothing" if thing.data is None else thing.data.decode())
    return " ".join(words)
