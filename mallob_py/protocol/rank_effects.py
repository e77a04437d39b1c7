"""Effects: the actions that a rank orders, appended to `Node.effects` and executed in order."""

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

    A `TreeMessage` for a rank that is slow to receive may be given back instead (`Congested`).
    """

    rank: int
    g: int
    source: int
    dest: int
    message: AnyWireMessage


class TellLost(RankEffect, frozen=True):
    """Answer a message from a rank that was taken as lost."""

    rank: int
    g: int
    message: AnyWireMessage


class Bury(RankEffect, frozen=True):
    """Send nothing more to a lost rank, and end its processes if they hang."""

    rank: int


class Accuse(RankEffect, frozen=True):
    """Take a rank that sent an invalid message as lost, and report `RankLost` with `how` to the node."""

    rank: int
    how: str


class Fail(RankEffect, frozen=True):
    """End all ranks: another rank is lost, and this one cannot go on."""

    why: str


# --- this rank -----------------------------------------------------------------------------------


class OfPE(RankEffect, frozen=True):
    """Execute an effect of PE number `slot` of this rank that concerns its processes, its desk or its log.

    For a PE's messages, its fetches of descriptions and its reports of a host's fault, the rank has other
    effects.
    """

    slot: int
    effect: AnyEffect


class Fetch(RankEffect, frozen=True):
    """Bring a description to this host, from one of these ranks; report `DescriptionCame` or `-Failed`."""

    job: int
    description: Description
    sources: tuple[int, ...]


class Forget(RankEffect, frozen=True):
    """Drop the description of a job that is over."""

    job: int


class LetGo(RankEffect, frozen=True):
    """Drop the description of a job that no message has named for long; it may come back."""

    job: int


class DropUnheard(RankEffect, frozen=True):
    """Drop the descriptions of all jobs except these live jobs."""

    live: frozenset[int]


class ToFiles(RankEffect, frozen=True):
    """Take in another rank's message about descriptions."""

    rank: int
    message: AnyFileMessage


class DropChain(RankEffect, frozen=True):
    """End the processes kept for a chain of revisions, which gets no further revision."""

    chain: int


class DeskHears(RankEffect, frozen=True):
    """Pass another rank's message to the desk here, if there is one."""

    rank: int
    data: bytes


class Note(RankEffect, frozen=True):
    """Write a line to the event log about the rank as a whole."""

    event: str
    fields: dict[str, Any]


class Say(RankEffect, frozen=True):
    """Tell the operators something."""

    text: str


# --- changes of membership ----------------------------------------------------------------------


class Halted(RankEffect, frozen=True):
    """Record that the PEs here have stopped; until `WorldChanged`, hand in only news of ranks and time."""


class WorldChanged(RankEffect, frozen=True):
    """Go on in `generation`, without the ranks `gone` and with the ranks `come`."""

    generation: Generation
    gone: tuple[int, ...]
    come: tuple[int, ...]


class WindUp(RankEffect, frozen=True):
    """Take in no more jobs and orders: the system ends."""


class Drained(RankEffect, frozen=True):
    """Record that a draining rank is ready to leave."""

    rank: int


# --- more ranks ---------------------------------------------------------------------------------


class ListenFor(RankEffect, frozen=True):
    """Listen for newcomers on behalf of `rank`, and answer that rank with `Listening`."""

    rank: int
    call: Listen


class Expect(RankEffect, frozen=True):
    """Expect that a process on a host becomes a rank, now or later."""

    rank: int
    host: int
    process: RankProcess


class KillRank(RankEffect, frozen=True):
    """End a rank that this rank has started."""

    rank: int


class Grown(RankEffect, frozen=True):
    """Record that all ranks started by this rank have joined, or failed for these reasons."""

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
