"""Stimuli of a rank, one struct for each kind: `Node.handle(stimulus, now)` takes any of them.

The runtime, the simulator and logs share this alphabet. A rank's effects follow from its settings, its
beginning and the timed stimuli alone, so a real run can be replayed (`simulation/replay.py`).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from mallob_py.protocol.generation import Ordered
from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.messages import TreeMessage
from mallob_py.protocol.rank_messages import AnyWireMessage, Listen, Peer, RankProcess, RankUse
from mallob_py.protocol.stimuli import AnyStimulus


class RankStimulus(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Base of all stimuli of a rank."""


# --- other ranks ------------------------------------------------------------------------------


class Said(RankStimulus, frozen=True):
    """A message of another rank, in an envelope of generation `g`: from PE `source` to PE `dest`.

    In a message that concerns no PE, both numbers are 0. Messages of one rank come in the order sent.
    """

    rank: int
    g: int
    source: int
    dest: int
    message: AnyWireMessage


class RankLost(RankStimulus, frozen=True):
    """A rank is lost: dead, or silent. `how` completes the sentence: "was lost"."""

    rank: int
    how: str


class RankBack(RankStimulus, frozen=True):
    """A rank taken as lost has sent a message, and must be told that it was excluded."""

    rank: int


class Congested(RankStimulus, frozen=True):
    """A message was not sent, since the rank of PE `dest` is slow to receive; PE `source` must be told."""

    g: int
    source: int
    dest: int
    message: TreeMessage


# --- time -------------------------------------------------------------------------------------


class TimeCame(RankStimulus, frozen=True):
    """The time `Node.deadline_s` has come."""


class Looked(RankStimulus, frozen=True):
    """About a second has passed. `troubles`: texts for people; `turns`: turns of the loop per second."""

    troubles: tuple[str, ...] = ()
    turns: int = 0
    use: RankUse = RankUse()


# --- this rank -----------------------------------------------------------------------------------


class ToPE(RankStimulus, frozen=True):
    """A stimulus for the PE number `slot`, from its processes, its memory or its desk."""

    slot: int
    stimulus: AnyStimulus


class DescriptionCame(RankStimulus, frozen=True):
    """A fetched description of a job is on this host."""

    job: int


class DescriptionFailed(RankStimulus, frozen=True):
    """A job's description cannot be brought to this host."""

    job: int
    reason: str
    fault: Fault


# --- orders of the desk and of users --------------------------------------------------------------


class ChainEnds(RankStimulus, frozen=True):
    """The chain of revisions has ended: it gets no further revision."""

    chain: int


class RollWanted(RankStimulus, frozen=True):
    """Every rank must report its workers; `Node.roll` takes the answers."""


class DeskSays(RankStimulus, frozen=True):
    """A message for the desk of rank `rank`."""

    rank: int
    data: bytes


class NewsGoTo(RankStimulus, frozen=True):
    """This rank must report its state to that rank from now on; all ranks should report to the same rank."""

    rank: int


class DrainWanted(RankStimulus, frozen=True):
    """`rank` must start nothing new, and be ready to leave by `until_s` (`Drained`)."""

    rank: int
    until_s: float


class RanksStarted(RankStimulus, frozen=True):
    """This rank, which listens at the places in `me`, has started further ranks, which will join."""

    call: Listen
    me: Peer
    processes: tuple[tuple[int, RankProcess], ...]


class EndWanted(RankStimulus, frozen=True):
    """All ranks must end."""


AnyRankStimulus: TypeAlias = (
    Said
    | RankLost
    | RankBack
    | Congested
    | TimeCame
    | Looked
    | ToPE
    | DescriptionCame
    | DescriptionFailed
    | ChainEnds
    | RollWanted
    | DeskSays
    | NewsGoTo
    | DrainWanted
    | RanksStarted
    | Ordered
    | EndWanted
)
