"""Messages between ranks that concern no PE, one typed struct each, in the order of their tags.

These messages are encoded like the messages between PEs (`messages.py`, tags 1 to 59), and travel beside
them. The table at the end of `node.py` says what a rank does with each message.

    60..66  descriptions, as files        `runtime/world/transfer.py`
    70..79  one rank to another           `node.py`, and its parts
    80..86  membership                    `generation.py`
    90..95  newcomers                     `growth.py`, and `joining.py` at the newcomer
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.messages import AnyMessage
from mallob_py.protocol.placement import Generation


class RankMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all messages between ranks."""


# --- descriptions, as files -------------------------------------------------------------------------


class FileMessage(RankMessage, frozen=True):
    """Base of the messages about descriptions."""


class FileNeeded(FileMessage, frozen=True, tag=60):
    """To the rank that fetches files for the sender's host: bring the job's description of `size` bytes."""

    job: int
    size: int
    sources: tuple[int, ...]


class FileHere(FileMessage, frozen=True, tag=61):
    """From the rank that fetches files for the host: the file is complete."""

    job: int


class FileWanted(FileMessage, frozen=True, tag=62):
    """To a rank of a host that should have the description: send its `size` bytes as my transfer `number`."""

    job: int
    size: int
    number: int


class FileMissing(FileMessage, frozen=True, tag=63):
    """Answer to `FileWanted`: the description is not here, for this reason."""

    job: int
    number: int
    reason: str


class ChunkTaken(FileMessage, frozen=True, tag=64):
    """Acknowledgement of one chunk of a file."""

    job: int
    number: int


class FileFailed(FileMessage, frozen=True, tag=65):
    """From the rank that fetches files for the host: the description cannot be brought here."""

    job: int
    reason: str
    fault: Fault


class ChunkRefused(FileMessage, frozen=True, tag=66):
    """No rank waits for this transfer: stop sending."""

    job: int
    number: int


AnyFileMessage: TypeAlias = (
    FileNeeded | FileHere | FileWanted | FileMissing | FileFailed | ChunkTaken | ChunkRefused
)

# --- one rank to another ----------------------------------------------------------------------------


class Stop(RankMessage, frozen=True, tag=70):
    """To all ranks: end now."""


class Beat(RankMessage, frozen=True, tag=71):
    """I am alive; `answer`: send me a beat, too. Each rank sends beats to the next rank, unasked."""

    answer: bool = False


class ChainOver(RankMessage, frozen=True, tag=72):
    """From rank `origin`, spread along a tree of ranks: this chain gets no further revision."""

    chain: int
    origin: int


class DeskNews(RankMessage, frozen=True, tag=73):
    """A message from the desk of one rank to the desk of another rank."""

    data: bytes


class RollCall(RankMessage, frozen=True, tag=74):
    """Question of rank `origin`: which workers are where? Spread along a tree of ranks."""

    origin: int


class WorkerPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The PE where worker `index` of `job` is active. Index of its parent: `trees.parent_of(index)`."""

    pe: int
    job: int
    index: int


class RollAnswer(RankMessage, frozen=True, tag=75):
    """The active workers of one rank."""

    workers: tuple[WorkerPlace, ...]


class RankUse(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Memory and cores that a rank uses with its processes, and the memory left on its host; 0: unknown."""

    memory_bytes: int = 0
    cores: float = 0.0
    left_bytes: int = 0
    total_bytes: int = 0


class RankNews(RankMessage, frozen=True, tag=76):
    """The state of a rank: `busy` of its `pes` run a worker. `troubles` are short texts for people.

    `turns`: recent turns of the rank's event loop per second (`loop_rate.shown`).
    """

    host: str
    pid: int
    pes: int
    busy: int
    troubles: tuple[str, ...] = ()
    turns: int = 0
    use: RankUse = RankUse()


class RankDrains(RankMessage, frozen=True, tag=77):
    """To a rank that must leave: start nothing new, and report when you are ready to leave."""

    until_s: float


class RankDrained(RankMessage, frozen=True, tag=78):
    """The answer to `RankDrains`: the rank is ready to leave."""


# --- membership ---------------------------------------------------------------------------------------


class GenerationMessage(RankMessage, frozen=True):
    """Base of the messages between `Membership`s, which belong to no generation."""


class Suspect(GenerationMessage, frozen=True, tag=80):
    """To the coordinator: these ranks are lost; I have promised or begun generation `seen`."""

    lost: tuple[int, ...]
    seen: int


class Wanted(GenerationMessage, frozen=True, tag=81):
    """To the coordinator: ranks that must join, with their capacities, and ranks that must leave."""

    joins: tuple[tuple[int, int], ...]
    leaves: tuple[int, ...]


class Propose(GenerationMessage, frozen=True, tag=82):
    """From the coordinator: stop, and be ready for `generation`; `leavers` leave by order."""

    generation: Generation
    leavers: tuple[int, ...] = ()


class Ready(GenerationMessage, frozen=True, tag=83):
    """To the coordinator: I have stopped, and wait for g."""

    g: int


class Outdated(GenerationMessage, frozen=True, tag=84):
    """To a coordinator: I have promised `seen`, which is not less than your proposal."""

    seen: int


class Commit(GenerationMessage, frozen=True, tag=85):
    """From the coordinator: all are ready, begin."""

    g: int


class Fenced(GenerationMessage, frozen=True, tag=86):
    """To a rank taken as lost: generation g, or a part of it, goes on without you."""

    g: int


AnyGenerationMessage: TypeAlias = Suspect | Wanted | Propose | Ready | Outdated | Commit | Fenced

# --- ranks that join --------------------------------------------------------------------------------


class RankProcess(msgspec.Struct, frozen=True, array_like=True):
    """A rank's process, as other ranks hear of it at the start."""

    pid: int
    host: str
    #: the pid's namespace, and the process's start in ticks since the host's start
    namespace: int
    began: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a rank listens: at `path` on its host; for other hosts at `address`, `port` (0: not at all)."""

    path: str
    address: str = ""
    port: int = 0


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """A rank, as described to newcomers. `place` None: the rank is already connected."""

    address: int
    host: int
    process: RankProcess
    place: Place | None


class JoiningMessage(RankMessage, frozen=True):
    """Base of the messages by which ranks join."""


class Listen(JoiningMessage, frozen=True, tag=90):
    """To all members: ranks with addresses below `bound` that know the secret may connect."""

    bound: int
    secret: bytes
    wide: bool


class Listening(JoiningMessage, frozen=True, tag=91):
    """The answer to `Listen`; None: the rank cannot listen."""

    place: Place | None


class Joining(JoiningMessage, frozen=True, tag=92):
    """A newcomer's first message to any rank: its place and its description."""

    process: RankProcess
    host: int
    place: Place
    capacity: int


class Welcome(JoiningMessage, frozen=True, tag=93):
    """To a newcomer: all ranks to connect to, and the facts of the system's start."""

    peers: tuple[Peer, ...]
    start_s: float
    #: capacities of the ranks with which the system started
    founders: tuple[int, ...]


class Noted(JoiningMessage, frozen=True, tag=94):
    """To a newcomer: I know you. Before this message, the sender cannot send to the newcomer."""


class Connected(JoiningMessage, frozen=True, tag=95):
    """From a newcomer to its host: all ranks that the host named have noted the newcomer."""


AnyJoiningMessage: TypeAlias = Listen | Listening | Joining | Welcome | Noted | Connected

AnyRankMessage: TypeAlias = (
    AnyFileMessage
    | Stop
    | Beat
    | ChainOver
    | DeskNews
    | RollCall
    | RollAnswer
    | RankNews
    | RankDrains
    | RankDrained
    | AnyGenerationMessage
    | AnyJoiningMessage
)

#: all messages between ranks, except parts of files
AnyWireMessage: TypeAlias = AnyMessage | AnyRankMessage
decode_wire: Callable[[bytes | memoryview], AnyWireMessage] = msgspec.msgpack.Decoder(AnyWireMessage).decode
