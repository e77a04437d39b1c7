"""The life of a job at its client: every state from the job's file to its one reply, and what leads where.

`LIFE` is the whole table. A happening that the table does not name for a state cannot be, and `follow` raises
an AssertionError with both names. A job is in exactly one state, and status, page, `explain` and metrics read
that state. The service has a job up to its submission and while the job waits for another turn; in between,
the client at the PE has the job.

    at the service   HELD       its time has not come, jobs before it live, or it is a suspect
                     QUEUED     it waits in line for its first turn
                     READING    it is at work, and a helper process reads its input
                     PLACELESS  it has been read, cannot begin anew, and waits for a place of its own
                     AGAIN      it was given up, and waits in line for its next turn
    at the PE        NEW        its root has not run since the submission
                     WORKS      its root has run, and the job has not had its first turn
                     SETTLED    it has had its first turn, and goes on in turns
                     LAST_NEW   as NEW, and to be given up as soon as it has no PE
                     LAST       its root has run, and the job is to be given up as soon as it rests
                     SAVING     it rests for the last time, and its root hands over what it has
                     RETRACTED  all PEs are told that it is over, and an epoch will say so
    at neither       ANSWERED   it has its reply

These hold in every order of happenings:

- each accepted job gets exactly one reply: ANSWERED leads nowhere, and a reply is written in it;
- no job is at its PE twice: only RETRACTED and SAVING, which an epoch ends, lead back to AGAIN;
- a job is answered after the jobs that it waited for: HELD leads to QUEUED when these are answered.
"""

from __future__ import annotations

from enum import Enum


class JobState(Enum):
    """The states of a job. `shown`: the state's name for people, where several look alike to them."""

    def __new__(cls, text: str, shown: str = "") -> JobState:
        state = object.__new__(cls)
        state._value_ = text
        state.shown = shown or text
        return state

    shown: str

    HELD = "held"
    QUEUED = "queued"
    READING = "reading"
    PLACELESS = "placeless", "queued"
    AGAIN = "again", "queued"
    NEW = "new", "submitted"
    WORKS = "works", "waiting"
    SETTLED = "settled", "resting"
    LAST_NEW = "last-new", "waiting"
    LAST = "last", "resting"
    SAVING = "saving", "resting"
    RETRACTED = "retracted", "resting"
    ANSWERED = "answered"

    @property
    def is_at_pe(self) -> bool:
        return self in _AT_PE

    @property
    def is_in_line(self) -> bool:
        """Whether the job waits for a turn."""
        return self in _IN_LINE


class Happening(Enum):
    """The happenings in a job's life, as far as they matter to its state."""

    #: its time has come, jobs before it are answered, and its trial as a suspect begins
    FREED = "is free to begin"
    #: the line names it, and its input has to be read
    READ = "is to be read"
    #: it has been read, and there is no place for another job that cannot begin anew
    HAS_NO_PLACE = "has no place"
    SUBMITTED = "is submitted"
    ROOT_RUNS = "has a root that runs"
    HAD_TURN = "has had its first turn"
    SET_BACK = "is set back"
    #: there are PEs for all jobs again, and it need not be given up
    KEPT = "is kept"
    #: it has no PE, and a root that will hand over what it has
    LEAVES = "leaves its last PE"
    #: it has no PE, and nothing is to be saved, or no more
    OVER_AT_PE = "is over at its PE"
    #: an epoch says so
    GIVEN_UP = "is given up"
    ANSWERED = "is answered"


_AT_PE = frozenset(
    (
        JobState.NEW,
        JobState.WORKS,
        JobState.SETTLED,
        JobState.LAST_NEW,
        JobState.LAST,
        JobState.SAVING,
        JobState.RETRACTED,
    )
)
_IN_LINE = frozenset((JobState.QUEUED, JobState.PLACELESS, JobState.AGAIN))


def _life() -> dict[tuple[JobState, Happening], JobState]:
    state, what = JobState, Happening
    table = {
        (state.HELD, what.FREED): state.QUEUED,
        (state.QUEUED, what.READ): state.READING,
        (state.QUEUED, what.SUBMITTED): state.NEW,
        (state.QUEUED, what.HAS_NO_PLACE): state.PLACELESS,
        (state.READING, what.SUBMITTED): state.NEW,
        (state.READING, what.HAS_NO_PLACE): state.PLACELESS,
        (state.PLACELESS, what.READ): state.READING,
        (state.PLACELESS, what.SUBMITTED): state.NEW,
        (state.PLACELESS, what.HAS_NO_PLACE): state.PLACELESS,
        (state.AGAIN, what.READ): state.READING,
        (state.AGAIN, what.SUBMITTED): state.NEW,
        (state.NEW, what.ROOT_RUNS): state.WORKS,
        (state.WORKS, what.HAD_TURN): state.SETTLED,
        (state.NEW, what.SET_BACK): state.LAST_NEW,
        (state.WORKS, what.SET_BACK): state.LAST,
        (state.SETTLED, what.SET_BACK): state.LAST,
        (state.LAST_NEW, what.ROOT_RUNS): state.LAST,
        (state.LAST_NEW, what.KEPT): state.NEW,
        (state.LAST, what.KEPT): state.WORKS,
        (state.LAST_NEW, what.OVER_AT_PE): state.RETRACTED,
        (state.LAST, what.LEAVES): state.SAVING,
        (state.LAST, what.OVER_AT_PE): state.RETRACTED,
        (state.SAVING, what.OVER_AT_PE): state.RETRACTED,
        # A generation that ends is as good as the epoch.
        (state.SAVING, what.GIVEN_UP): state.AGAIN,
        (state.RETRACTED, what.GIVEN_UP): state.AGAIN,
    }
    # A root may start anew where the job goes on, and a late word of that changes nothing.
    running = (state.WORKS, state.SETTLED, state.LAST, state.SAVING, state.RETRACTED)
    table |= {(one, what.ROOT_RUNS): one for one in running}
    # A job is interrupted, reaches a limit, fails or finds its result at any time.
    return table | {(one, what.ANSWERED): state.ANSWERED for one in state if one is not state.ANSWERED}


LIFE = _life()


def follow(job: int, state: JobState, what: Happening) -> JobState:
    """Return the state of a job after a happening. Raises AssertionError where the table has none."""
    after = LIFE.get((state, what))
    assert after is not None, f"job {job} {what.value} while {state.value}"
    return after
