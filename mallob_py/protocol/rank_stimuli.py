"""All that a rank can be told, one struct for each kind: `Node.handle(stimulus, now)` takes any of them.

The runtime, the simulator and logs share this alphabet. What a rank does follows from its settings, how it
began and the stimuli with their times alone, so those of a real run can be played again
(`simulation/replay.py`).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from mallob_py.protocol.generation import Ordered
from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.messages import TreeMessage
from mallob_py.protocol.rank_messages import AnyWireMessage, Listen, Peer, RankProcess
from mallob_py.protocol.stimuli import AnyStimulus


class RankStimulus(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Base of all stimuli of a rank."""


# --- other ranks ------------------------------------------------------------------------------


class Said(RankStimulus, frozen=True):
    """A message of another rank, in an envelope of generation `g`: from PE `source` to PE `dest`.

    A message of no PE names PE 0 twice. Those of one rank come in the order in which they were sent.
    """

    rank: int
    g: int
    source: int
    dest: int
    message: AnyWireMessage


class RankLost(RankStimulus, frozen=True):
    """A rank is dead, or does not answer any more. `how` goes on after its name: "has died"."""

    rank: int
    how: str


class RankBack(RankStimulus, frozen=True):
    """A rank that is given up on speaks again, and is to hear what has become of it."""

    rank: int


class Congested(RankStimulus, frozen=True):
    """A message to PE `dest` was not sent, since its rank is behind: its sender PE `source` shall know."""

    g: int
    source: int
    dest: int
    message: TreeMessage


# --- time -------------------------------------------------------------------------------------


class TimeCame(RankStimulus, frozen=True):
    """Time has passed: it is `Node.deadline_s`, or later."""


class Looked(RankStimulus, frozen=True):
    """About a second has passed since the last look. `troubles`, for people; `turns` of the loop a second."""

    troubles: tuple[str, ...] = ()
    turns: int = 0


# --- what belongs to this rank ------------------------------------------------------------------


class ToPE(RankStimulus, frozen=True):
    """The PE number `slot` of this rank is told something, of its processes, its memory or its desk."""

    slot: int
    stimulus: AnyStimulus


class DescriptionCame(RankStimulus, frozen=True):
    """The description of that job, which was to be fetched, is on this host."""

    job: int


class DescriptionFailed(RankStimulus, frozen=True):
    """The description of that job cannot be had on this host."""

    job: int
    reason: str
    fault: Fault


# --- what the desk and a user's orders want -------------------------------------------------------


class ChainEnds(RankStimulus, frozen=True):
    """No further revision of this chain comes."""

    chain: int


class RollWanted(RankStimulus, frozen=True):
    """Every rank is to say who works there for what; `Node.roll` takes the answers."""


class DeskSays(RankStimulus, frozen=True):
    """The desk of rank `rank` is to hear this."""

    rank: int
    data: bytes


class NewsGoTo(RankStimulus, frozen=True):
    """From now on this rank tells that one how it is; all ranks should tell the same one."""

    rank: int


class DrainWanted(RankStimulus, frozen=True):
    """Nothing new is to start at `rank`, which is ready to leave at `until_s` at the latest (`Drained`)."""

    rank: int
    until_s: float


class RanksStarted(RankStimulus, frozen=True):
    """This rank, which listens as `me` says, has started further ranks: they join when they are up."""

    call: Listen
    me: Peer
    processes: tuple[tuple[int, RankProcess], ...]


class EndWanted(RankStimulus, frozen=True):
    """All ranks are to end."""


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
