"""Balancing: a sparse, asynchronous all-reduction keeps every PE's image of all jobs (P 4.1).

Events climb the tree of ranks. A PE that has sent nothing for a short delay forwards events at once;
otherwise it gathers events until the delay is over. The tree's root numbers the events that have arrived (an
*epoch*) and sends them down. Every PE applies the same epochs in the same order to its image and derives all
volumes from the image, so all PEs agree on the volumes of each epoch without further messages.

A job's events have one author, the client that took in the job. All versions of a job's event take the same
way to a PE, so they arrive in order; on the way a newer version supersedes older ones. An event with demand 0
is the job's last one. It also goes to PEs that got no earlier event of the job, since they may run a worker
of the job.

PEs that share memory (PEs of one rank or of a simulated cluster) need not each derive the same image: with
`shared_rule` they share the image that the first of them derived. An image never changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence

import msgspec

from mallob_py.protocol import PeerViolation
from mallob_py.protocol.effects import Outbox
from mallob_py.protocol.equal_volumes import equal_volumes
from mallob_py.protocol.messages import AnyBalancerMessage, Epoch, Events, JobEvent
from mallob_py.protocol.rank_tree import place_of
from mallob_py.protocol.rotation import OFF, Rotation, Since, Slices, halted, rotated


class Image(msgspec.Struct, frozen=True):
    """All live jobs and the volumes above 0 as of one epoch. Immutable: a new epoch makes a new image."""

    jobs: Mapping[int, JobEvent]
    volumes: Mapping[int, int]
    #: sum of all volumes
    total_volume: int
    rotation: Rotation = OFF


#: number of jobs below which volumes are found faster in plain integers than by numpy
_FEW = 64
#: function that makes the next image from an image and the next epoch
ImageRule = Callable[[Image, Epoch], Image]


def standing(priority: float, arrival_s: float, ageing_s: float) -> float:
    """Return a job's standing: with more jobs than PEs, the jobs of greatest standing get one worker each.

    A doubled priority counts as much as an arrival `ageing_s` earlier. A job's standing never changes, so
    later jobs can overtake a waiting job for a bounded time only.
    """
    return math.log2(priority) - arrival_s / ageing_s


def local_rule(size: int, slices: Slices | None = None) -> ImageRule:
    """Return the rule by which each of `size` PEs makes its next image, with all volumes.

    `slices`: lengths of turns that jobs take (`rotation.py`) if there are more jobs than PEs; None: jobs take
    no turns, and the jobs of greatest standing get one worker each.
    """

    def rule(image: Image, epoch: Epoch) -> Image:
        jobs = dict(image.jobs)
        for event in epoch.events:
            known = jobs.get(event.job)
            if event.demand == 0:
                jobs.pop(event.job, None)
            elif known is None or known.version < event.version:
                jobs[event.job] = event
        if slices is None:
            volumes = volumes_of(jobs, size)
            return Image(jobs, volumes, sum(volumes.values()))
        last = image.rotation, image.volumes, image.jobs
        since = Since(*last, epoch.events, epoch.elapsed_s, epoch.is_one_host)
        if len(jobs) > size:
            rotation, volumes = rotated(since, jobs, size, slices)
        else:
            rotation, volumes = halted(since, jobs, slices), volumes_of(jobs, size)
        return Image(jobs, volumes, sum(volumes.values()), rotation)

    return rule


def volumes_of(jobs: Mapping[int, JobEvent], size: int) -> dict[int, int]:
    """Return the fair volumes above 0 of `jobs` on `size` PEs."""
    if len(jobs) <= 1:
        return {event.job: min(event.demand, size) for event in jobs.values()}
    events = list(jobs.values())
    if len(events) >= size and (volumes := _one_each(events, size)) is not None:
        return volumes
    priority = events[0].priority
    if len(events) < min(size, _FEW) and all(event.priority == priority for event in events):
        return equal_volumes(events, size)
    # Imported late: the module imports numpy, which many ranks can do without.
    from mallob_py.protocol.volumes import fair_volumes

    fair = fair_volumes(
        [event.priority for event in events],
        [event.demand for event in events],
        size,
        job_ids=[event.job for event in events],
        standing=[event.standing for event in events] if len(events) > size else None,
    )
    return {event.job: volume for event, volume in zip(events, fair.tolist(), strict=True) if volume}


def _one_each(events: Sequence[JobEvent], size: int) -> dict[int, int] | None:
    """Return fair volumes, 1 for the jobs of greatest standing; None if jobs of equal standing compete.

    There must be at least as many jobs as PEs. This case is frequent in a burst of small jobs, when a few
    calls of numpy would take longer than the rest of an epoch.
    """
    standings = sorted((event.standing for event in events), reverse=True)
    least = standings[size - 1]
    if least in standings[size : size + 1]:
        return None
    return {event.job: 1 for event in events if event.standing >= least}


class PendingNews:
    """News of jobs that a PE must send up the tree: at once, but not within a delay after its last send."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._events: dict[int, JobEvent] = {}
        self._may_send_from = -math.inf

    def take(self, *events: JobEvent) -> None:
        """Add events of jobs; a newer version of a job's event supersedes an older one."""
        for event in events:
            known = self._events.get(event.job)
            if known is None or known.version < event.version:
                self._events[event.job] = event

    @property
    def due_s(self) -> float:
        """Return the time from which the events may be sent; `math.inf`: there are no events."""
        return self._may_send_from if self._events else math.inf

    def is_due(self, now: float) -> bool:
        return bool(self._events) and now >= self._may_send_from

    def take_all(self, now: float) -> tuple[JobEvent, ...]:
        """Remove and return all events, for the caller to send now."""
        events = tuple(self._events.values())
        self._events.clear()
        self._may_send_from = now + self._delay_s
        return events


class Balancer:
    """One PE's part of the all-reduction, and its image of all jobs.

    After each applied epoch `on_epoch(now, ended)` is called; `ended`: the jobs that the epoch ended.
    """

    def __init__(
        self, out: Outbox, delay_s: float, rule: ImageRule, on_epoch: Callable[[float, list[int]], None]
    ) -> None:
        self._out = out
        place = place_of(out.rank, out.size)
        self._parent = place.parent
        self._children = place.children
        self._news = PendingNews(delay_s)
        self._rule = rule
        self._on_epoch = on_epoch
        self.epoch = 0
        self.image = Image({}, {}, 0)
        #: at the root of the tree: time when the present epoch began
        self._began_s = 0.0
        #: at the root of the tree: latest time at which the next epoch must begin
        self._due_s = math.inf
        #: whether `flush` has work now or later
        self.has_news = False
        #: whether all PEs are on one host
        self.is_one_host: Callable[[], bool] = lambda: False

    def volume(self, job: int) -> int | None:
        """Return the job's volume in the present epoch; None: the job is not live."""
        image = self.image
        volume = image.volumes.get(job)
        return 0 if volume is None and job in image.jobs else volume

    def each_volume(self, jobs: Iterable[int]) -> list[int | None]:
        """Return the volume of each of `jobs`, as `volume` does."""
        volumes, live = self.image.volumes, self.image.jobs
        return [volumes.get(job, 0 if job in live else None) for job in jobs]

    def with_volume(self) -> KeysView[int] | None:
        """Return the jobs with a volume above 0; None if all jobs would have to be examined."""
        return self.image.volumes.keys()

    @property
    def jobs(self) -> Mapping[int, JobEvent]:
        """All live jobs in the present epoch."""
        return self.image.jobs

    @property
    def rotation(self) -> Rotation:
        """The turns in the present epoch: which jobs have a turn, and on which PEs."""
        return self.image.rotation

    @property
    def total_volume(self) -> int:
        """The sum of all volumes in the present epoch."""
        return self.image.total_volume

    def author(self, event: JobEvent) -> None:
        """Publish news of a job whose client is here."""
        self._news.take(event)
        self.has_news = True

    def receive(self, message: AnyBalancerMessage, now: float) -> None:
        """Take a message from another PE's balancer."""
        match message:
            case Epoch():
                self._apply(message, now)
            case Events():
                self._news.take(*message.events)
                self.has_news = True
            case _:
                raise PeerViolation("another PE has another kind of balancing")

    def _apply(self, message: Epoch, now: float) -> None:
        """Pass an epoch on to the children and apply it."""
        if message.epoch != self.epoch + 1:
            raise PeerViolation(f"epoch {message.epoch} after epoch {self.epoch}")
        for child in self._children:
            self._out.send(child, message)
        self.epoch = message.epoch
        self.image = self._rule(self.image, message)
        if self._parent is None:
            self._began_s = now
            self._due_s = now + self.image.rotation.next_s
            self.has_news = self.has_news or self._due_s < math.inf
        self._on_epoch(now, [event.job for event in message.events if event.demand == 0])

    def flush(self, now: float) -> float:
        """Send pending events, unless the last send is too recent; return when to call `flush` again."""
        if self._news.is_due(now) or self._due_s <= now:
            events = self._news.take_all(now)
            self.has_news = False
            if self._parent is not None:
                self._out.send(self._parent, Events(events))
            else:
                is_one_host = self.rotation.is_on and self.is_one_host()
                self._apply(Epoch(self.epoch + 1, events, now - self._began_s, is_one_host), now)
        return min(self._news.due_s, self._due_s)

    def next_deadline(self) -> float:
        """Return the time when pending events may be sent; the time of the jobs' next turn does not count."""
        return self._news.due_s


class _Evaluation:
    """The images before and after an epoch, the epoch, and the number of PEs that still need `after`."""

    __slots__ = ("after", "before", "left", "message")

    def __init__(self, before: Image, message: Epoch, after: Image, left: int) -> None:
        self.before = before
        self.message = message
        self.after = after
        self.left = left


def shared_rule(rule: ImageRule, count: int) -> ImageRule:
    """Return a rule that `count` PEs share: the first PE to ask applies `rule`, the last drops the image."""
    if count == 1:
        return rule
    evaluations: dict[int, _Evaluation] = {}

    def shared(image: Image, epoch: Epoch) -> Image:
        known = evaluations.get(epoch.epoch)
        if known is None:
            known = evaluations[epoch.epoch] = _Evaluation(image, epoch, rule(image, epoch), count)
        before, message = known.before, known.message
        assert image is before or image == before, f"two PEs have different images before epoch {epoch.epoch}"
        assert message is epoch or message == epoch, f"two PEs have heard of different epochs {epoch.epoch}"
        known.left -= 1
        if known.left == 0:
            del evaluations[epoch.epoch]
        return known.after

    return shared
