"""The explanation of a job in words: why it waits or has its volume, or how it ended.

Pure: makes sentences with the deciding numbers from a status (`status.py`) or a reply. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mallob_py.service.jobs.users import part_of
from mallob_py.service.telemetry.status import JobStatus, ServiceStatus

_NAMED_MAX = 5
#: age up to which a job may have asked for nothing but its root
_JUST_BEGUN_S = 0.1
#: shortest rest worth mentioning: in seconds, and as a part of the time since the job's start
_REST_MIN_S, _REST_MIN_PART = 0.1, 0.01
#: each limit of a job, and whether it counts the job's rests, in words
_COUNTS_REST = (
    ("time-limit", "its time-limit does not count this time"),
    ("wallclock-limit", "its wallclock-limit counts this time"),
)
_STATES_AT_WORK = ("reading", "submitted", "waiting", "resting", "running")


def explain(status: ServiceStatus, job: JobStatus) -> list[str]:
    """Return the explanation of a live job: its state, the reasons, and further influences."""
    told = [_headline(job), *reasons(status, job)]
    told += _priority(status, job)
    told += _crashes(job)
    told += _limits(status, job)
    return told


def reasons(status: ServiceStatus, job: JobStatus) -> list[str]:
    """Return the reasons for a live job's state."""
    by_state = {
        "held": _why_held,
        "queued": _why_queued,
        "reading": _why_reading,
        "submitted": _why_submitted,
        "waiting": _why_waiting,
        "resting": _why_resting,
        "running": _why_this_volume,
    }
    reason = by_state.get(job.state)
    return [] if reason is None else list(reason(status, job))


def seen_by(user: str, status: ServiceStatus) -> ServiceStatus:
    """Return the status without the names of other users' jobs."""
    jobs = (
        job if job.user == user else msgspec.structs.replace(job, user="", name="") for job in status.jobs
    )
    return msgspec.structs.replace(status, jobs=tuple(jobs))


def explain_unlisted(identity: str, status: ServiceStatus | None) -> list[str]:
    """Return the explanation of a job that is handed in, but not in `status` (None: no service runs)."""
    if status is None:
        why = "No service is running; the next service on this folder runs the job."
    elif status.job_count > len(status.jobs):
        why = f"It waits among {status.job_count} live jobs, of which the status lists only "
        why += f"{len(status.jobs)}."
    else:
        why = "The service has not listed it yet; the list is renewed once a second."
    return [f"{identity} is handed in and has no reply yet.", why]


def explain_ended(identity: str, reply: Mapping[str, Any], ended_ago_s: float | None = None) -> list[str]:
    """Return the explanation of how a job ended, from its reply."""
    when = "" if ended_ago_s is None else f" {_duration(ended_ago_s)} ago"
    result = _part(reply, "result")
    told = [f"{identity} has ended{when}: {_ending(reply, result)}."]
    stats = _part(reply, "stats")
    times = _part(stats, "time")
    if "total" in times:
        parts = [
            f"{_duration(seconds)} {what}"
            for key, what in (("parsing", "reading"), ("scheduling", "until its root was placed"))
            if (seconds := times.get(key, 0.0))
        ]
        parts.append(f"{_duration(times.get('processing', 0.0))} running")
        told.append(f"It took {_duration(times['total'])} from its acceptance on: {', '.join(parts)}.")
    if rested := _rested(stats.get("used_wallclock_seconds"), stats.get("used_turns_seconds")):
        told.append(f"{rested} since its start{_counted(reply)}.")
    if stats.get("max_volume"):
        used = f"It had up to {_count(stats['max_volume'], 'worker')} at a time"
        used += f" and used {stats.get('used_pe_seconds', 0.0):.4g} PE-seconds"
        told.append(f"{used}, {stats.get('used_cpu_seconds', 0.0):.4g} s of CPU time.")
    return told


def _part(whole: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object within an object, or {} if it is missing, as in replies of other versions."""
    part = whole.get(key)
    return part if isinstance(part, Mapping) else {}


def _ending(reply: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    outcome = result.get("outcome", "")
    if "error" in reply:
        error = _part(reply, "error")
        how = "refused" if outcome == "refused" else "failed"
        return f"{how}, {error.get('field', '')}: {error.get('message', '')}".rstrip(".")
    match outcome:
        case "time-limit":
            return f"it reached its time-limit ({reply.get('time-limit', '?')} with a PE){_so_far(result)}"
        case "wallclock-limit":
            return f"it reached its wallclock-limit ({reply.get('wallclock-limit', '?')}){_so_far(result)}"
        case "cpu-limit":
            return f"it reached its cpu-limit ({reply.get('cpu-limit', '?')} of PE time){_so_far(result)}"
        case "interrupted":
            return f"it was interrupted{_so_far(result, '')}"
    solver = f", found by {result['solver']}" if "solver" in result else ""
    return f"its result is {result.get('resultstring', result.get('resultcode', '?'))}{solver}"


def _so_far(result: Mapping[str, Any], otherwise: str = " without an answer") -> str:
    """Return the words for the best answer of a job that ended early; `otherwise` if there is none."""
    if result.get("complete") is not False:
        return otherwise
    value = f", of value {result['value']}" if "value" in result else ""
    return f" with its best answer so far{value}"


def _rested(running_s: object, turns_s: object) -> str:
    """Return the words for a job's time at rest; "" if this is negligible or unknown."""
    if isinstance(running_s, int | float) and isinstance(turns_s, int | float):
        rested_s = running_s - turns_s
        if rested_s >= max(_REST_MIN_S, _REST_MIN_PART * running_s):
            return f"It rested, or waited for a PE, for {_duration(rested_s)} of the {_duration(running_s)}"
    return ""


def _counted(limits: Mapping[str, Any]) -> str:
    """Return the limits that count a job's rests; `limits` by their names in a job file."""
    told = [text for name, text in _COUNTS_REST if limits.get(name)]
    return f"; {' and '.join(told)}" if told else ""


# --- live jobs ----------------------------------------------------------------------------------


def _headline(job: JobStatus) -> str:
    workers = f" with {job.volume} of {_count(job.demand, 'worker')}" if job.state == "running" else ""
    age = _duration(job.elapsed_s)
    return f"{job.identity} (id {job.id}) is {job.state}{workers}, {age} after its acceptance."


def _why_held(status: ServiceStatus, job: JobStatus) -> Iterator[str]:
    if job.waits_for_count:
        named = [_dependency(status, job, identity) for identity in job.waits_for[:_NAMED_MAX]]
        if job.waits_for_count > len(named):
            named.append(f"{job.waits_for_count - len(named)} more")
        yield f"It waits for the end of {_count(job.waits_for_count, 'job')}: {', '.join(named)}."
    if job.arrives_in_s > 0:
        yield f"Its arrival time comes in {_duration(job.arrives_in_s)}."
    if not job.waits_for_count and not job.arrives_in_s:
        if job.is_suspect:
            yield (
                "It waits until another suspect has ended: jobs that may have crashed the service run one at "
                "a time, so that a further crash shows which of them caused it."
            )
        else:
            yield "Nothing holds it back any more: it begins within moments."


def _dependency(status: ServiceStatus, job: JobStatus, identity: str) -> str:
    if (other := status.job(identity, job.client)) is not None:
        return f"{identity} ({other.state})"
    # The dependency may be a job that is not listed, or whose name must not be told.
    if status.job_count > len(status.jobs) or not all(other.user for other in status.jobs):
        return identity
    return f"{identity} (nobody has handed it in here yet)"


def _at_work_beside(status: ServiceStatus, job: JobStatus) -> int:
    """Return how many listed jobs of the job's user are at work at the job's client."""
    return sum(
        other.user == job.user and other.client == job.client and other.state in _STATES_AT_WORK
        for other in status.jobs
    )


def _why_queued(status: ServiceStatus, job: JobStatus) -> Iterator[str]:
    user = status.users.get(job.user)
    if user is not None and user.at_work_max is not None:
        here_max = part_of(user.at_work_max, status.clients)
        here = user.at_work if status.clients == 1 else _at_work_beside(status, job)
        if here >= here_max:
            of_all = "" if status.clients == 1 else f" at its client, of {user.at_work_max} at all clients,"
            share = "" if user.pes_max is None else f" (on at most {_count(user.pes_max, 'PE')})"
            yield (
                f"Its user {job.user} may have {_count(here_max, 'job')} at work at a time{of_all}{share} "
                f"and has {here}. Of the {_count(user.jobs, 'live job')} of {job.user}, the waiting one "
                "of highest priority begins next."
            )
            return
    at_work = sum(status.states.get(state, 0) for state in _STATES_AT_WORK)
    if job.lasting_before:
        yield (
            "It is a revision, or its input comes through a pipe, so it cannot be given up for other jobs "
            f"and begun again. It waits until one of {_count(job.lasting_before, 'such job')} at work ends; "
            "no more of them may be at work (`--residents`). Jobs of other kinds do not wait for them."
        )
        return
    if job.next_turn_s:
        yield (
            f"It has had {job.pe_s:.4g} PE-seconds without ending. Since there are more long jobs than can "
            f"be kept suspended ({at_work} jobs are at work), it was given up for jobs that waited. It "
            "begins again later, from its last checkpoint if it has one, for at least "
            f"{job.next_turn_s:.2g} s."
        )
        return
    yield (
        f"No further job begins now: {_count(at_work, 'job')} at work for {_count(status.pes, 'PE')}, "
        f"{status.states.get('queued', 1)} in the queue."
    )
    yield _place_in_line(status, job)


def _place_in_line(status: ServiceStatus, job: JobStatus) -> str:
    """Return the job's place among the jobs that wait for the same thing."""
    before = sum(other.state == job.state and other.standing > job.standing for other in status.jobs)
    least = "at least " if status.job_count > len(status.jobs) else ""
    return (
        f"Of the jobs that wait, {least}{before} {'stands' if before == 1 else 'stand'} before it. The order "
        f"depends on priority and waiting time: {_duration(status.ageing_s)} of waiting count as much as a "
        "doubled priority."
    )


def _why_reading(status: ServiceStatus, job: JobStatus) -> Iterator[str]:
    others = status.states.get("reading", 1) - 1
    beside = f", along with {_count(others, 'other input')}" if others > 0 else ""
    if job.input_bytes:
        far = f": {job.read_bytes / 1e6:.1f} of {job.input_bytes / 1e6:.1f} MB"
        yield f"Its input has been read for {_duration(job.reading_s)}{beside}{far}."
    else:
        yield f"Its input has been read, or waits for a reader, for {_duration(job.reading_s)}{beside}."


def _why_submitted(status: ServiceStatus, job: JobStatus) -> Iterator[str]:
    yield "It has just come to the PEs: the next balancing, within milliseconds, decides its volume."


def _why_waiting(status: ServiceStatus, job: JobStatus) -> Iterator[str]:
    rivals = _rivals(status)
    if rivals <= status.pes:
        yield "The next balancing, within milliseconds, gives it a volume."
        return
    jobs, pes = _count(rivals, "job"), _count(status.pes, "PE")
    yield (
        f"No PE is free for it: {jobs} want workers and there are {pes}, so the {status.pes} that come "
        "first have one worker each."
    )
    yield _place_in_line(status, job)


def _rivals(status: ServiceStatus) -> int:
    """Return the number of jobs that want PEs."""
    return sum(status.states.get(state, 0) for state in ("running", "resting", "waiting"))


def _turns(status: ServiceStatus, job: JobStatus) -> str:
    jobs, pes = _count(_rivals(status), "job"), _count(status.pes, "PE")
    return (
        f"{jobs} want workers and there are {pes}, so jobs take turns: over time it gets "
        f"{job.share:.2f} PEs, and has had {job.pe_s:.4g} PE-seconds so far."
    )


def _why_resting(status: ServiceStatus, job: JobStatus) -> Iterator[str]:
    yield _turns(status, job)
    if job.rests_at < 0:
        return
    here = [other for other in status.jobs if other.volume and other.root == job.rests_at]
    named = [other.identity if other.user else "another user's job" for other in here]
    holder = f", where {named[0]} is at work now" if named else ""
    yield f"It rests on PE {job.rests_at}{holder}, and goes on in about {job.back_in_s:.1f} s."


def _why_this_volume(status: ServiceStatus, job: JobStatus) -> Iterator[str]:
    if not job.root_is_placed:
        yield "Its first worker is being placed on a PE."
    elif not job.running_s:
        yield "Its first worker has not started yet: its input or its process is on the way."
    if job.volume >= job.demand:
        yield f"It has all that it can use: {_why_this_demand(status, job)}."
        return
    rivals = _rivals(status)
    if job.share:
        yield _turns(status, job)
        return
    if rivals >= status.pes:
        yield (
            f"{_count(rivals, 'job')} want workers and there are {_count(status.pes, 'PE')}, so no job can "
            "have more than one."
        )
        return
    yield f"It could use {_count(job.demand, 'worker')}, but other jobs have a right to their part:"
    yield from _fair_share(status, job)


def _why_this_demand(status: ServiceStatus, job: JobStatus) -> str:
    if job.demand_bound and job.demand >= job.demand_bound:
        if job.max_demand and job.demand_bound >= job.max_demand:
            return f"its max-demand is {job.max_demand}"
        user = status.users.get(job.user)
        of_all = "" if user is None or user.pes_max is None else f", {_count(user.pes_max, 'PE')} in all"
        return f"its part of what its user {job.user} may have{of_all}"
    if job.demand >= status.pes:
        return f"all {_count(status.pes, 'PE')} of the service"
    if job.wanted == 1 and job.running_s < _JUST_BEGUN_S:
        return "one worker, since it has just begun and asks for more when it has run for a moment"
    return f"its application wants no more than {_count(job.demand, 'worker')}"


def _fair_share(status: ServiceStatus, job: JobStatus) -> Iterator[str]:
    running = [other for other in status.jobs if other.state == "running"]
    content = [other for other in running if other.volume >= other.demand]
    if content:
        held = sum(other.volume for other in content)
        holds = "job of smaller demand holds" if len(content) == 1 else "jobs of smaller demand hold"
        yield f"{len(content)} {holds} {held} of {_count(status.pes, 'PE')}."
    sharing, least = _divided([other for other in running if other.volume < other.demand])
    if job in least:
        yield (
            f"By its priority of {_weight(job):.4g} its part would be less than one PE; it has the one "
            "worker that every job gets."
        )
        return
    if least:
        have = "job of low priority has" if len(least) == 1 else "jobs of low priority have"
        yield f"{len(least)} {have} the one worker that every job gets."
    if sharing == [job]:
        yield f"It has all PEs that are left: {job.volume}."
        return
    pes, priorities = sum(other.volume for other in sharing), sum(map(_weight, sharing))
    yield (
        f"{_count(len(sharing), 'job')}, this one included, share {_count(pes, 'PE')} by priority: its "
        f"priority of {_weight(job):.4g}, out of {priorities:.4g} in all, is a part of "
        f"{_weight(job) / priorities * pes:.2f} PEs. Single PEs left over go to jobs of higher priority."
    )


def _divided(jobs: Sequence[JobStatus]) -> tuple[list[JobStatus], list[JobStatus]]:
    """Divide jobs into jobs that share by priority, and jobs whose part would be below one worker."""
    sharing, least = list(jobs), list[JobStatus]()
    while sharing:
        part = sum(other.volume for other in sharing) / sum(map(_weight, sharing))
        poor = [other for other in sharing if other.volume == 1 and _weight(other) * part < 1]
        if not poor:
            break
        least += poor
        sharing = [other for other in sharing if other not in poor]
    return sharing, least


def _weight(job: JobStatus) -> float:
    return job.balanced_priority or job.priority


def _priority(status: ServiceStatus, job: JobStatus) -> Iterator[str]:
    user = status.users.get(job.user)
    if user is None or not user.priorities or not job.balanced_priority:
        return
    if job.balanced_priority != job.priority:
        jobs = _count(user.at_work, "job")
        yield (
            f"Its priority {job.priority:.4g} counts as {job.balanced_priority:.4g}: its user {job.user} has "
            f"a weight of {user.weight:.4g} for {jobs} at work, with priorities of {user.priorities:.4g} in "
            "all."
        )


def _crashes(job: JobStatus) -> Iterator[str]:
    if job.crashes:
        alone = " It runs while no other suspect does." if job.is_suspect else ""
        yield (
            f"It was running at {_count(job.crashes, 'crash')} of the service in a row; after "
            f"{job.crashes_max} it is not run again.{alone}"
        )


def _limits(status: ServiceStatus, job: JobStatus) -> Iterator[str]:
    rested = _rested(job.running_s, job.turns_s)
    if job.time_limit_s:
        left_s = max(0.0, job.time_limit_s - job.turns_s)
        yield f"Its time-limit of {_duration(job.time_limit_s)} leaves it {_duration(left_s)} with a PE."
    if job.wallclock_limit_s:
        left_s = max(0.0, job.wallclock_limit_s - job.running_s)
        yield f"Its wallclock-limit of {_duration(job.wallclock_limit_s)} leaves it {_duration(left_s)}."
    if rested and (job.time_limit_s or job.wallclock_limit_s):
        limits = {"time-limit": job.time_limit_s, "wallclock-limit": job.wallclock_limit_s}
        yield f"{rested} since its start{_counted(limits)}."
    if job.cpu_limit_s:
        left_s = max(0.0, job.cpu_limit_s - job.pe_s)
        at_this = (
            f", enough for {_duration(left_s / (job.volume * status.threads))} with this volume"
            if job.volume
            else ""
        )
        yield f"Its cpu-limit of {job.cpu_limit_s:.4g} PE-seconds leaves it {left_s:.4g}{at_this}."


def _count(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("sh") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest_s = divmod(int(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest_s} s" if rest_s else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
