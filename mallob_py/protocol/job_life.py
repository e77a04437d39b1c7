"""The life of a job at its client: all states from the job's file to its one reply, and their transitions.

`LIFE` is the whole table. If it has no entry for a state and a happening, `follow` raises an AssertionError
with both names. The service keeps the state of each of its jobs; while a job is at its PE, the client there
keeps a finer state of the job. Status, page, `explain` and metrics read these states.

        at the service   HELD       its start time has not come, jobs before it live, or it is a crash suspect
                     QUEUED     it waits in line for its first turn
                     READING    it is at work, and a helper process reads its input
                     PLACELESS  it has been read, cannot begin anew, and waits for a place of its own
                     AGAIN      it was given up, and waits in line for its next turn
                     AT_PE      the PE has it, in one of the states below
                     ANSWERED   it has its reply
    at the PE        NEW        its root has not run since the submission
                     WORKS      its root has run, and the job has not had its first turn
                     SETTLED    it has had its first turn, and goes on in turns
                     LAST_NEW   as NEW, and to be given up as soon as it has no PE
                     LAST       its root has run, and the job is to be given up as soon as it rests
                     SAVING     it rests for the last time, and its root hands over what it has
                     RETRACTED  all PEs are told that it is over, and an epoch will say so
                     GONE       it is given up, and waits at the service

These hold in every order of happenings:

- each accepted job gets exactly one reply: ANSWERED leads nowhere, and a reply is written in it;
- no job is at its PE twice: only GONE, which an epoch or a new generation brings, leads back to AGAIN;
- a job is answered after the jobs that it waited for: HELD leads to QUEUED when these are answered.
"""

from __future__ import annotations

from enum import Enum


class JobState(Enum):
    """The states of a job. `shown`: the state's name for people, while the job has no PE."""

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
    AT_PE = "at its PE", "submitted"
    ANSWERED = "answered"

    NEW = "new", "waiting"
    WORKS = "works", "waiting"
    SETTLED = "settled", "resting"
    LAST_NEW = "last-new", "waiting"
    LAST = "last", "resting"
    SAVING = "saving", "resting"
    RETRACTED = "retracted", "resting"
    GONE = "gone", "queued"


class Happening(Enum):
    """The happenings in a job's life that change its state."""

    #: nothing holds the job any more: its start time has come, the jobs before it are answered, and a job
    #: that may have crashed the service may begin alone
    FREED = "is free to begin"
    #: the job is next in line, and its input must be read
    READ = "is to be read"
    #: the job was read, and there is no place for another job that keeps its process between turns
    HAS_NO_PLACE = "has no place"
    #: a job that kept its process between turns has ended, and this job waits in line again
    HAS_PLACE = "has a place"
    SUBMITTED = "is submitted"
    #: an epoch or a new generation says that the job is over at its PE
    GIVEN_UP = "is given up"
    ANSWERED = "is answered"

    ROOT_RUNS = "has a root that runs"
    HAD_TURN = "has had its first turn"
    SET_BACK = "is set back"
    #: there are PEs for all jobs again, so the job need not be given up
    KEPT = "is kept"
    #: the job has no PE, and its root will hand over its work
    LEAVES = "leaves its last PE"
    #: the job has no PE, and nothing must be saved
    RETRACTED = "is retracted"


def _life() -> dict[tuple[JobState, Happening], JobState]:
    state, what = JobState, Happening
    service = {
        (state.HELD, what.FREED): state.QUEUED,
        (state.QUEUED, what.READ): state.READING,
        (state.QUEUED, what.SUBMITTED): state.AT_PE,
        (state.QUEUED, what.HAS_NO_PLACE): state.PLACELESS,
        (state.READING, what.SUBMITTED): state.AT_PE,
        (state.READING, what.HAS_NO_PLACE): state.PLACELESS,
        (state.PLACELESS, what.HAS_PLACE): state.QUEUED,
        (state.AGAIN, what.READ): state.READING,
        (state.AGAIN, what.SUBMITTED): state.AT_PE,
        (state.AT_PE, what.GIVEN_UP): state.AGAIN,
    }
    # A job may be interrupted, reach a limit, fail or find its result at any time.
    service |= {
        (one, what.ANSWERED): state.ANSWERED
        for one in (state.HELD, state.QUEUED, state.READING, state.PLACELESS, state.AGAIN, state.AT_PE)
    }
    pe = {
        (state.NEW, what.ROOT_RUNS): state.WORKS,
        (state.WORKS, what.HAD_TURN): state.SETTLED,
        (state.NEW, what.SET_BACK): state.LAST_NEW,
        (state.WORKS, what.SET_BACK): state.LAST,
        (state.SETTLED, what.SET_BACK): state.LAST,
        (state.LAST_NEW, what.ROOT_RUNS): state.LAST,
        (state.LAST_NEW, what.KEPT): state.NEW,
        (state.LAST, what.KEPT): state.WORKS,
        (state.LAST_NEW, what.RETRACTED): state.RETRACTED,
        (state.LAST, what.LEAVES): state.SAVING,
        (state.LAST, what.RETRACTED): state.RETRACTED,
        (state.SAVING, what.RETRACTED): state.RETRACTED,
        # A new generation counts as the epoch that says that the job is over.
        (state.SAVING, what.GIVEN_UP): state.GONE,
        (state.RETRACTED, what.GIVEN_UP): state.GONE,
    }
    # The root of a running job may start once more, and late news of a start may come: both change no state.
    running = (state.WORKS, state.SETTLED, state.LAST, state.SAVING, state.RETRACTED)
    return service | pe | {(one, what.ROOT_RUNS): one for one in running}


LIFE = _life()


def follow(job: int, state: JobState, what: Happening) -> JobState:
    """Return a job's state after a happening. Raises AssertionError if the table has no such entry."""
    after = LIFE.get((state, what))
    assert after is not None, f"job {job} {what.value} while {state.value}"
    return after
