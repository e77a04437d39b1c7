"""Simulation of a plan: its events, a check at each rest of the cluster, and a check that rests come in time.

Fairness is promised for a cluster without further news: within a bounded number of rounds of messages it must
come to rest, and at rest the invariants of `check.py` must hold. News are the events of the plan and the ends
of jobs at their limits.

`schedule_of` describes a plan for people: its settings, its events, the messages that a shrunk plan delays
(the race lies in their order), and the last messages before the failure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from functools import partial

import msgspec

from mallob_py.protocol import stimuli
from mallob_py.protocol.config import Config
from mallob_py.protocol.interim import Interim
from mallob_py.protocol.progress import Progress
from mallob_py.protocol.random_walk import NO_LIMIT, WALK_PERIOD_S
from mallob_py.protocol.rank_messages import AnyWireMessage
from mallob_py.protocol.rank_stimuli import Said
from mallob_py.protocol.worker import WorkerState
from mallob_py.simulation import plan as plans
from mallob_py.simulation.check import check_invariants
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import Delayed, HashedDelays, What, mixed
from mallob_py.simulation.desks import DeskFolders
from mallob_py.simulation.processes import GIVEN_WITHIN_S, Failing, Process, Step
from mallob_py.simulation.shrinking import Failure, failure_by

#: the fields of a submission that are passed to its PE
_SUBMITTED = tuple(
    name for name in plans.Submit.__struct_fields__ if name not in (*plans.Deed.__struct_fields__, "rank")
)
_DELIVERIES_SHOWN = 40
_WIDTH_MAX = 150
_PEAK_BYTES = 1 << 20
#: greatest number of message rounds until rest, per bit of the number of PEs; measured over 1675 seeds, each
#: plan also cut off at a random event: at most 5.3, except for walks without limit
ROUNDS_PER_BIT = 15
#: number of walks that a request without limit may make until rest (P 3.2: on average 1/eps hops, and some
#: request always waits much longer): of 597 seeds one took 14.1 rounds per bit on 256 PEs, which is 6 rounds
#: per bit and 0.46 hops per PE. A walk has as many hops as there are PEs, or more
WALKS = 8
#: number of changes of generation that one loss may cause; each takes one round and, at worst, all ranks'
#: patience
_CHANGES_PER_LOSS = 4
#: rounds from the loss of a worker until another worker has its seat
ROUNDS_PER_LOSS = 4


def rest_bound_s(plan: plans.Plan) -> float:
    """Return the longest time after the last news in which a cluster must come to rest."""
    config, delays = plan.config, plan.delays
    round_s = delays.message_s[1] + config.balancing_delay_s + config.matching_delay_s
    once_s = (
        delays.process_start_s[1]
        + delays.fetch_s[1]
        + max(config.reuse_patience_s, config.turn_patience_s)
        + config.growth_delay_s
        + config.unannounced_max_s
    )
    walk_s = plan.size * delays.message_s[1] + WALK_PERIOD_S
    walks_s = WALKS * walk_s if config.random_hops == NO_LIMIT else 0.0
    leaves = any(isinstance(deed, plans.Submit) and deed.leaves for deed in plan.deeds)
    leave_s = config.leave_grace_s if leaves else 0.0
    breakdowns = [deed for deed in plan.deeds if isinstance(deed, plans.Breakdown)]
    losses = sum(deed.count for deed in breakdowns)
    given_s = GIVEN_WITHIN_S * sum(deed.count for deed in breakdowns if deed.what is Failing.WAY)
    loss_s = config.rest_max_s + once_s + ROUNDS_PER_LOSS * round_s * math.log2(plan.size + 1)
    change_s = given_s + sum(
        GIVEN_WITHIN_S
        + _CHANGES_PER_LOSS * (plan.detect_s + plan.patience_s)
        + config.succession_patience_s
        + (deed.for_s if isinstance(deed, plans.RankHangs) else 0.0)
        + (deed.grace_s if isinstance(deed, plans.RankDrains) else 0.0)
        for deed in plan.changes
    )
    files = [deed.file for deed in plan.deeds if isinstance(deed, plans.File)]
    desks_s = max((file.reads_s + file.arrives_s for file in files), default=0.0)
    desks_s += sum(deed.for_s for deed in plan.deeds if isinstance(deed, plans.DiskFills))
    return (change_s + desks_s) + (
        ROUNDS_PER_BIT * (round_s * math.log2(plan.size + 1) + once_s) + walks_s + leave_s + losses * loss_s
    )


class Scenario:
    """The play of one plan on a cluster."""

    def __init__(self, plan: plans.Plan) -> None:
        self.plan = plan
        self._bound_s = rest_bound_s(plan)
        self.delays = HashedDelays(plan.seed, plan.delays, plan.special)
        self.cluster = Cluster(
            plan.size,
            plan.seed,
            plan.config,
            self.delays,
            capacities=plan.capacities(),
            hosts=plan.hosts(),
            detect_s=plan.detect_s,
            patience_s=plan.patience_s,
            is_congested=plan.is_congested,
            desks=plan.desks,
        )
        #: job -> (host, time) of its answer
        self._answered: dict[int, tuple[int, float]] = {}
        #: longest time to rest so far, as a share of the allowed time
        self.slowest = 0.0
        #: breakdown that has begun -> number of workers that it has yet to hit
        self._left: dict[plans.Breakdown, int] = {}
        self.cluster.processes.fails = self._fails
        for deed in plan.deeds:
            self.cluster.at(deed.at_s, partial(self._do, deed))

    def _check(self, cluster: Cluster) -> None:
        if cluster.is_ending:
            return
        check_invariants(cluster)
        cluster.check_generations()
        open_jobs = cluster.folders.open
        for job, (address, at_s) in self._answered.items():
            if job in open_jobs and cluster.is_there(address):
                # A job that is given up loses answers that its client has not heard of.
                is_excused = job in cluster.folders.lost_ends or self._is_given_up(job, at_s)
                assert is_excused, f"job {job} was answered, but is still open"

    def _is_given_up(self, job: int, since_s: float) -> bool:
        return any(
            at_s >= since_s and event == "given up" and fields["job"] == job
            for at_s, _, event, fields in self.cluster.logs
        )

    def run(self) -> None:
        """Carry out all events of the plan, checking at each rest; then end all jobs and check again."""
        cluster, plan = self.cluster, self.plan
        cluster.run(until_s=plan.last_deed_s, on_quiescent=self._check)
        if cluster.is_ending:
            cluster.run(until_s=cluster.now + self._bound_s)
            cluster.check_generations()
            return
        self._rest_if_turns_let_it()
        cluster.run(until_s=3 * plan.span_s, on_quiescent=self._check)
        self._rest_if_turns_let_it()
        for job in cluster.folders.open:  # the same job may have been submitted again at this moment
            cluster.interrupt(job)
        self._rest()
        assert not cluster.processes, "processes outlive all jobs"

    def _rest_if_turns_let_it(self) -> None:
        """Let the cluster come to rest, unless jobs take turns: each turn is news, so it may never rest."""
        config, bound_s, cluster = self.plan.config, self._bound_s, self.cluster
        pes = [pe for _, pe in cluster.present()]
        live = len(cluster.folders.open)
        take_turns = live > len(pes) or any(pe.balancer.rotation.is_on for pe in pes)
        if take_turns and 0.0 < config.first_slice_s < 10 * bound_s:
            turns_s = 50 * config.slice_s
            cluster.run(until_s=cluster.now + min(bound_s, turns_s), on_quiescent=self._check)
        else:
            self._rest()

    def _rest(self) -> None:
        """Go on without events of the plan: the cluster must come to rest in time, and be fair then."""
        cluster, bound_s = self.cluster, self._bound_s
        news_s = cluster.now
        live = len(cluster.folders.open)
        cluster.settle(within_s=bound_s * (1 + live))
        for at_s, _, event, _ in reversed(cluster.logs):
            if at_s < news_s:
                break
            if event == "ended":
                news_s = at_s
                break
        took_s = cluster.now - news_s
        assert took_s <= bound_s, f"no rest within {bound_s:.3f} s (seed {self.plan.seed})"
        if bound_s:  # with a bound of 0, messages take no time
            self.slowest = max(self.slowest, took_s / bound_s)
        self._check(cluster)

    # --- events of the plan ---------------------------------------------------------------

    def _do(self, deed: plans.AnyDeed) -> None:
        """Carry out an event if its job is there and has a worker for it."""
        cluster = self.cluster
        if cluster.is_ending:
            return
        if isinstance(deed, plans.Submit):
            fields = {name: getattr(deed, name) for name in _SUBMITTED}
            if isinstance(deed, plans.File):
                if fields.pop("leaves"):
                    cluster.processes.orderly.add(deed.job)
                self._desks.hand_in(deed.job, deed.rank, deed.file, fields)
            else:
                cluster.submit(deed.job, deed.rank, **fields)
            return
        if isinstance(deed, plans.DiskFills):
            self._desks.fill_disk(deed.rank, deed.for_s)
            return
        if isinstance(deed, plans.SystemEnds):
            if awake := cluster.members_awake():
                cluster.end(self._asked(deed, awake))
            return
        if isinstance(deed, plans.Change):
            self._change(cluster, deed)
            return
        if not cluster.folders.knows(deed.job):
            return
        if isinstance(deed, plans.Breakdown):
            self._left[deed] = deed.count
        elif isinstance(deed, plans.Interrupt):
            cluster.interrupt(deed.job)
        elif isinstance(deed, plans.SetBack):
            cluster.set_back(deed.job)
        elif isinstance(deed, plans.Terms):
            cluster.folders.tell(deed.job, stimuli.TermsChanged(deed.job, deed.priority, deed.max_demand))
        elif (worker := self._worker_for(deed)) is not None:
            rank, number = worker
            process = cluster.processes.get(worker)
            if isinstance(deed, plans.Crash):
                cluster.crash(rank, number)
                return
            if isinstance(deed, plans.Find):
                self._answered[deed.job] = cluster.host_of(rank), cluster.now
            for stimulus in _stimuli_of(deed, number, process):
                cluster.tell(rank, stimulus)

    @property
    def _desks(self) -> DeskFolders:
        assert isinstance(self.cluster.folders, DeskFolders), "the plan has job files, but no desks"
        return self.cluster.folders

    def _change(self, cluster: Cluster, deed: plans.Change) -> None:
        """Carry out an event for ranks; but keep the last awake rank, and the last rank that stays."""
        awake = cluster.members_awake()
        if not awake:  # no rank can carry the order out
            return
        asked = self._asked(deed, awake)
        if isinstance(deed, plans.RanksJoin):
            cluster.join(deed.capacities, asked)
            return
        address = deed.rank % len(cluster.addresses())
        is_newcomer = address in cluster.newcomers_awake() and isinstance(
            deed, plans.RankDies | plans.RankHangs
        )
        if not is_newcomer and (address not in awake or len(awake) < 2):
            return
        match deed:
            case plans.RankDies():
                if is_newcomer or set(cluster.members_staying()) - {address}:
                    cluster.die(address)
            case plans.RankHangs(for_s=for_s):
                cluster.hang(address, for_s)
            case plans.RankLeaves():
                cluster.leave(address, asked)
            case plans.RankDrains(grace_s=grace_s, is_told=is_told):
                cluster.drain(address, grace_s, asked if is_told else address)
            case plans.RankAccused():
                if len(awake) > 2 and asked != address and set(cluster.members_staying()) - {address, asked}:
                    cluster.accuse(address, asked)

    def _asked(self, deed: plans.AnyDeed, awake: list[int]) -> int:
        """Return the awake rank at which a user gives this order."""
        return min(awake, key=lambda address: mixed(self.plan.seed, deed.number, address))

    def _fails(self, rank: int, job: int, step: Step) -> Failing | None:
        host_of = self.cluster.host_of
        for deed, left in self._left.items():
            is_met = deed.job == job if deed.rank is None else host_of(deed.rank) == host_of(rank)
            if left and is_met and deed.what.step is step:
                self._left[deed] -= 1
                return deed.what
        return None

    def _worker_for(self, deed: plans.AnyDeed) -> plans.WorkerKey | None:
        cluster = self.cluster
        match deed:
            case plans.Demand():
                running = cluster.running(deed.job)
                return next((key for key in running if not cluster.processes[key].is_leaving), None)
            case plans.Drop():
                return self.plan.pick(
                    deed, (key for key, one in cluster.processes.of_job(deed.job) if one.is_suspended)
                )
            case plans.Pause():
                return self.plan.pick(
                    deed, (key for key, one in cluster.processes.of_job(deed.job) if not one.is_suspended)
                )
            case plans.Unpause():
                return self.plan.pick(deed, self._paused(deed.job))
            case plans.Crash():
                return self.plan.pick(deed, (key for key, _ in cluster.processes.of_job(deed.job)))
            case _:
                return self.plan.pick(deed, cluster.running(deed.job))

    def _paused(self, job: int) -> list[plans.WorkerKey]:
        active = [(place, pe.workers.active) for place, pe in self.cluster.present()]
        return [
            (rank, one.number)
            for rank, one in active
            if one and one.state is WorkerState.PAUSED and one.job == job
        ]


def _stimuli_of(deed: plans.AnyDeed, worker: int, process: Process | None) -> tuple[stimuli.AnyStimulus, ...]:
    """Return the stimuli that a PE gets for an event of this worker's process."""
    match deed:
        case plans.Demand():
            return (stimuli.WorkerDemands(worker, deed.workers),)
        case plans.Drop():
            return (stimuli.DropPast(deed.count),)
        case plans.Pause():
            return (stimuli.PauseWorker(),)
        case plans.Unpause():
            return (stimuli.UnpauseWorker(),)
        case plans.Chat():
            heard = (
                stimuli.WorkerToWorker(worker, *one.sender, b"back")
                for one in (process.heard[-1:] if process else ())
            )
            used = stimuli.WorkerUsed(worker, 0.5, _PEAK_BYTES)
            progress = stimuli.WorkerProgresses(worker, Progress(done=1.0, unit="tasks"))
            offers = stimuli.WorkerOffers(worker, Interim(value=worker, body=b"answer"))
            wants, saves = stimuli.WorkerWantsCheckpoint(worker), stimuli.WorkerSaves(worker, b"state")
            down, up = stimuli.WorkerToChildren(worker, b"down"), stimuli.WorkerToParent(worker, b"up")
            return (used, progress, offers, wants, saves, down, up, *heard)
        case plans.Find():
            return (stimuli.WorkerAnswered(worker, b"result"),)
        case plans.Fail():
            return (stimuli.WorkerRaised(worker, "an error"),)
        case _:
            raise AssertionError(f"{type(deed).__name__} is no event of a worker")


def failure_of(plan: plans.Plan) -> Failure | None:
    """Simulate a plan to its end, or to its failure; return the failure."""
    return failure_in(Scenario(plan))


def failure_in(scenario: Scenario) -> Failure | None:
    """Simulate a scenario to its end, or to its failure; return the failure."""
    try:
        scenario.run()
    except Exception as error:
        return failure_by(error, scenario.cluster.now)
    return None


class Sent(msgspec.Struct):
    """One message on its way."""

    at_s: float
    source: int
    dest: int
    number: int
    message: AnyWireMessage
    arrives_s: float = math.inf

    @property
    def key(self) -> Delayed:
        return Delayed(What.MESSAGE, self.source, self.dest, self.number)

    def __str__(self) -> str:
        text = f"{self.at_s:.6f} -> {self.arrives_s:.6f}   {self.source} to {self.dest}: {self.message}"
        return text if len(text) <= _WIDTH_MAX else text[: _WIDTH_MAX - 3] + "..."


class _Tap:
    """The record of all messages of a scenario; messages between two PEs arrive in the order sent."""

    def __init__(self, scenario: Scenario) -> None:
        self._cluster = scenario.cluster
        self._counts: Counter[tuple[int, int]] = Counter()
        self._on_their_way: defaultdict[tuple[int, int], deque[Sent]] = defaultdict(deque)
        self.sent: list[Sent] = []
        self.delivered: list[Sent] = []
        self._cluster.hold(self._note_sent)
        self._deliver = self._cluster.deliver
        self._cluster.deliver = self._note_received  # type: ignore[method-assign]

    def _note_sent(self, source: int, dest: int, message: AnyWireMessage) -> bool:
        pair = (source, dest)
        sent = Sent(self._cluster.now, source, dest, self._counts[pair], message)
        self._counts[pair] += 1
        self._on_their_way[pair].append(sent)
        self.sent.append(sent)
        return False

    def _note_received(self, dest: int, source: int, said: Said) -> None:
        if waiting := self._on_their_way[source, dest]:  # empty for a message held for a generation
            sent = waiting.popleft()
            sent.arrives_s = self._cluster.now
            self.delivered.append(sent)
        self._deliver(dest, source, said)


def schedule_of(plan: plans.Plan) -> str:
    """Simulate the plan and describe its events up to its failure."""
    scenario = Scenario(plan)
    tap = _Tap(scenario)
    failure = failure_in(scenario)
    lines = [_settings(plan), "events:", *(f"  {_deed(deed)}" for deed in plan.deeds)]
    if plan.special is not None:
        special = set(plan.special)
        lines.append(f"each delay is the shortest ({_shortest(plan)}), except:")
        lines += [f"  {each}" for each in tap.sent if each.key in special]
        lines += [f"  {_elsewhere(scenario, each)}" for each in special if each.what is not What.MESSAGE]
    lines.append(f"the last of {len(tap.delivered)} deliveries:")
    lines += [f"  {each}" for each in tap.delivered[-_DELIVERIES_SHOWN:]]
    lines.append(_end(failure))
    return "\n".join(lines)


def _end(failure: Failure | None) -> str:
    if failure is None:
        return "all invariants hold"
    return f"failure at {failure.at_s:.6f}: {failure.kind}"


def _settings(plan: plans.Plan) -> str:
    default = Config()
    names = [
        name for name in Config.__struct_fields__ if getattr(plan.config, name) != getattr(default, name)
    ]
    changed = ", ".join(f"{name} {getattr(plan.config, name)}" for name in names)
    pes = f"{plan.size} PEs"
    if capacities := plan.capacities():
        pes += f" on ranks of {', '.join(map(str, capacities))}"
    return f"seed {plan.seed}, {pes}, settings: {changed or 'all default'}"


def _shortest(plan: plans.Plan) -> str:
    delays = plan.delays
    return (
        f"messages {delays.message_s[0]:g} s, starts {delays.process_start_s[0]:g} s, "
        f"fetches {delays.fetch_s[0]:g} s"
    )


def _deed(deed: plans.AnyDeed) -> str:
    fields = (field for field in msgspec.structs.fields(deed) if field.name not in ("number", "at_s", "job"))
    values = ((field.name, getattr(deed, field.name), field.default) for field in fields)
    about = ", ".join(f"{name} {value}" for name, value, default in values if value != default)
    return f"{deed.at_s:.6f}   job {deed.job}: {type(deed).__name__.lower()} {about}".rstrip()


def _elsewhere(scenario: Scenario, each: Delayed) -> str:
    delay_s = scenario.delays.delay_s(*each)
    return f"{each.what.value} number {each.number} on rank {each.source} takes {delay_s:.6f} s"
