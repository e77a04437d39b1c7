"""The events of the log: their names, when each is written, and which fields it has.

Writers of logs, readers (reports, tables, campaigns of faults) and `docs/log-events.md` share this table, as
a test checks. A member is a string, so that it equals an event's name in a line.
"""

from __future__ import annotations

import enum

#: fields of the first line of a part of a log
_OF_A_BEGINNING = "ranks pes capacity clients version mode unix_s"
#: fields of an event about a host's health
_OF_A_HOST = "failures rest_s reason"


class LogEvent(enum.StrEnum):
    """An event: `when` says in words when it is written, `fields` names the fields that a line may have."""

    when: str
    fields: tuple[str, ...]

    def __new__(cls, name: str, when: str = "", fields: str = "") -> LogEvent:
        event = str.__new__(cls, name)
        event._value_ = name
        event.when = when
        event.fields = tuple(fields.split())
        return event

    START = "start", "a rank begins", _OF_A_BEGINNING
    CONTINUED = "continued", "the next part of a log begins", _OF_A_BEGINNING
    JOINED = "joined", "a rank has joined a running service", "generation pes"
    STOP = "stop", "a rank ends orderly"
    DROPPED = "dropped", "events were lost because the disk was full", "events"
    BUSY = "busy", "a PE has a worker from now on"
    IDLE = "idle", "a PE has no worker any more"
    ACCEPTED = "accepted", "a client has taken a job file in", "job user name application priority"
    REFUSED = "refused", "a client has refused a job file", "file field message"
    SUBMITTED = "submitted", "a client asks its PE to run a job", "job priority demand"
    TERMS = ("terms", "a change of a user's share has changed a job's terms", "job priority max_demand")
    BALANCED = "balanced", "a job has a volume for the first time", "job latency_s"
    VOLUME = "volume", "a job's volume changes", "job volume epoch"
    SCHEDULED = "scheduled", "a job's root has found a PE", "job root latency_s"
    ADOPTED = (
        "adopted",
        "a PE has taken a worker; `created`: a new worker, not one suspended on the PE",
        "job index latency_s created",
    )
    STARTED = "started", "a worker's process runs", "job index latency_s"
    SUSPENDED = "suspended", "a worker is stopped and kept on its PE", "job index"
    RESUMED = "resumed", "a suspended worker goes on", "job index"
    GIVEN = "given", "a resting root's process goes on at another PE of its host", "job to"
    GIVEN_UP = (
        "given up",
        "a job ends after its turn, because others wait, and begins again later; `pe_s`: PE-seconds so far",
        "job pe_s",
    )
    LEAVING = "leaving", "a worker is asked to hand over its work", "job index"
    LEFT = "left", "a worker has handed over its work", "job index"
    TERMINATED = "terminated", "a worker's process is ended", "job index"
    CRASHED = "crashed", "a worker's process has died", "job index reason"
    LOST = "lost", "a worker gets no process on this PE", "job index reason fault"
    PAUSED = "paused", "a running worker loses its process for a while, because memory is short", "job index"
    UNPAUSED = "unpaused", "a paused worker gets a process again", "job index"
    DROPPED_MESSAGE = "dropped message", "a message between workers has not reached its receiver", "job"
    ANSWERED = (
        "answered",
        "the application has a result; `figures`: the result's field of this name, if any",
        "job code result figures",
    )
    ENDED = (
        "ended",
        "a job is over",
        "job outcome response_s wallclock_s turns_s pe_s cpu_s max_volume peak_memory_bytes",
    )
    PROBLEM = "problem", "something that an operator should know", "message"
    SHORT_OF_MEMORY = (
        "short of memory",
        "the host has less memory left than its reserve",
        "left_bytes reserve_bytes",
    )
    ENOUGH_MEMORY = "enough memory", "the host has enough memory left again", "left_bytes"
    GAVE_BACK_MEMORY = "gave back memory", "a rank has freed memory because its host was short", "what bytes"
    HOST_RESTS = "host rests", "the host gives workers no processes for a while", _OF_A_HOST
    HOST_IS_WELL = "host is well", "the host gives workers processes again", _OF_A_HOST
    LOST_RANK = "lost rank", "the other ranks go on without a lost one", "lost message"
    GENERATION = (
        "generation",
        "a set of ranks begins to work together",
        "generation members pes gone come stop_s",
    )
    VIOLATION = "violation", "a rank has received a message that breaks the protocol", "story"


def table() -> str:
    """Return the table of all events in Markdown, as it stands in `docs/log-events.md`."""
    rows = ["| event | when | fields |", "|---|---|---|"]
    for event in LogEvent:
        fields = ", ".join(f"`{field}`" for field in event.fields)
        rows.append(f"| `{event}` | {event.when} | {fields}{' ' if fields else ''}|")
    return "\n".join(rows)
