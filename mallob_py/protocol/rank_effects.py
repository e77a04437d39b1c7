"""Effects: what a rank wants done outside, appended to `Node.effects` and executed in order."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from mallob_py.protocol.effects import AnyEffect
from mallob_py.protocol.messages import Description
from mallob_py.protocol.placement import Generation
from mallob_py.protocol.rank_messages import AnyFileMessage, AnyWireMessage, Listen, RankProcess


class RankEffect(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Base of all effects of a rank."""


# --- other ranks ------------------------------------------------------------------------------


class Tell(RankEffect, frozen=True):
    """Send a message to a rank, in an envelope of generation `g`, from PE `source` to PE `dest`.

    A `TreeMessage` for a rank that is behind may be given back instead (`Congested`).
    """

    rank: int
    g: int
    source: int
    dest: int
    message: AnyWireMessage


class TellLost(RankEffect, frozen=True):
    """Answer a rank that is given up on, as something has come from it."""

    rank: int
    g: int
    message: AnyWireMessage


class Bury(RankEffect, frozen=True):
    """A rank is lost: send nothing more there, and end its processes if it should hang."""

    rank: int


class Accuse(RankEffect, frozen=True):
    """A rank has sent what no rank sends: give up on it, and say `RankLost` with this as `how`."""

    rank: int
    how: str


class Fail(RankEffect, frozen=True):
    """This rank cannot go on, since another one is lost: all ranks are to end."""

    why: str


# --- what belongs to this rank ------------------------------------------------------------------


class OfPE(RankEffect, frozen=True):
    """The PE number `slot` of this rank wants this of its processes, of its desk, or in its log.

    Sending, descriptions and the blame of the host are the rank's: these effects do not come so.
    """

    slot: int
    effect: AnyEffect


class Fetch(RankEffect, frozen=True):
    """Bring a description to this host, from one of these ranks; then say `DescriptionCame` or `-Failed`."""

    job: int
    description: Description
    sources: tuple[int, ...]


class Forget(RankEffect, frozen=True):
    """A job is over: its description is not needed on this host any more."""

    job: int


class LetGo(RankEffect, frozen=True):
    """No message has spoken of a job for long: its description is not needed here, but it may come back."""

    job: int


class DropUnheard(RankEffect, frozen=True):
    """Descriptions of jobs other than these, which are live, are not needed on this host any more."""

    live: frozenset[int]


class ToFiles(RankEffect, frozen=True):
    """A rank has said this about descriptions."""

    rank: int
    message: AnyFileMessage


class DropChain(RankEffect, frozen=True):
    """No further revision of a chain comes: no process is kept for one."""

    chain: int


class DeskHears(RankEffect, frozen=True):
    """The desk of a rank has something to say to the one here, if there is one."""

    rank: int
    data: bytes


class Note(RankEffect, frozen=True):
    """One line of the event log, of the rank as a whole."""

    event: str
    fields: dict[str, Any]


class Say(RankEffect, frozen=True):
    """Tell the people who run the system."""

    text: str


# --- the world changes --------------------------------------------------------------------------


class Halted(RankEffect, frozen=True):
    """The PEs of this rank have stopped; until `WorldChanged`, it is told only of ranks and of time."""


class WorldChanged(RankEffect, frozen=True):
    """This rank goes on in `generation`, without those that have `gone` and with those that have `come`."""

    generation: Generation
    gone: tuple[int, ...]
    come: tuple[int, ...]


class WindUp(RankEffect, frozen=True):
    """The system ends: take no jobs and no orders in any more."""


class Drained(RankEffect, frozen=True):
    """A rank that was to be drained is ready to leave."""

    rank: int


# --- more ranks ---------------------------------------------------------------------------------


class ListenFor(RankEffect, frozen=True):
    """Listen for newcomers, as `rank` wants, and answer it with `Listening`."""

    rank: int
    call: Listen


class Expect(RankEffect, frozen=True):
    """There is a further rank, or will be: that process, on that host."""

    rank: int
    host: int
    process: RankProcess


class KillRank(RankEffect, frozen=True):
    """End a rank that this one has started."""

    rank: int


class Grown(RankEffect, frozen=True):
    """All ranks that this one has started have joined, or failed for these reasons."""

    problems: dict[int, str]


AnyRankEffect: TypeAlias = (
    Tell
    | TellLost
    | Bury
    | Accuse
    | Fail
    | OfPE
    | Fetch
    | Forget
    | LetGo
    | DropUnheard
    | ToFiles
    | DropChain
    | DeskHears
    | Note
    | Say
    | Halted
    | WorldChanged
    | WindUp
    | Drained
    | ListenFor
    | Expect
    | KillRank
    | Grown
)
