"""The messages between a rank and its worker processes, and how they are framed.

Each worker process has one stream socket to its rank. A frame is a length (4 bytes,
little endian) and the msgpack of one tagged struct of the unions below. The fork server
speaks the same kind of structs with the rank over a packet socket, one per packet, where
it also passes a new worker's socket and pidfd.

Imported by ranks, so it needs little but msgspec. The bodies of results pass through
ranks undecoded; only the client that writes the reply decodes them (`decode_result`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import msgspec

from mallob_py.kit.result_file import ResultsFolder
from mallob_py.protocol.interim import Interim
from mallob_py.protocol.progress import Progress

#: a frame above this is a broken peer, not a message
MAX_FRAME_BYTES = 2**31 - 1
_LENGTH_BYTES = 4
#: of a description, which begins with its header
_HEADER_BYTES_MAX = 1 << 16


class ProcessMessage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all structs on these wires."""


# --- where a description is -------------------------------------------------


class Inline(ProcessMessage, frozen=True, tag=1):
    """A small description travels in the message itself."""

    data: bytes


class Mapped(ProcessMessage, frozen=True, tag=2):
    """A large description is a file in shared memory, mapped read-only by whoever needs it."""

    path: str
    size_bytes: int


LocalDescription = Inline | Mapped


def application_of(description: LocalDescription) -> str:
    """Return the name of its application. Raises OSError and ValueError."""
    from mallob_py.kit.payload import application_named_in  # few ranks need it

    match description:
        case Inline(data):
            return application_named_in(data)
        case Mapped(path):
            with open(path, "rb") as file:
                return application_named_in(file.read(_HEADER_BYTES_MAX))


# --- rank to worker process -------------------------------------------------


class Run(ProcessMessage, frozen=True, tag=1):
    """Be worker `index` of `job`, whatever the process does; `number` is the worker's on its rank."""

    job: int
    number: int
    index: int
    volume: int
    children: tuple[int, ...]
    threads: int
    description: LocalDescription
    #: the chain of revisions that the job belongs to (0: none), and its number there
    chain: int = 0
    revision: int = 0


class Update(ProcessMessage, frozen=True, tag=2):
    """The present place in the job tree. A later one makes an earlier one obsolete."""

    index: int
    volume: int
    children: tuple[int, ...]


class Deliver(ProcessMessage, frozen=True, tag=3):
    """A message of another worker of the job (see `mallob_py.kit.app.TreeMessage`)."""

    source: int
    sender: tuple[int, int]
    data: bytes
    returned: bool


class EarlierInput(ProcessMessage, frozen=True):
    """The input of the earlier revision `identity` ("user.name")."""

    identity: str
    #: names as the kernel has them: they need not be UTF-8
    files: tuple[bytes, ...]
    #: 32 bits each, in the host's order: made and read without looking at single ones
    literals: bytes | None
    configuration: dict[str, Any]


class Before(ProcessMessage, frozen=True):
    """The inputs before revision number `revision`: a description, then inputs that are not in it."""

    revision: int
    former: LocalDescription | None
    inputs: tuple[EarlierInput, ...]


class Read(ProcessMessage, frozen=True, tag=4):
    """Read a job's input into a description, written to `path` if above `inline_limit_bytes`."""

    application: str
    #: both as in `EarlierInput`
    files: tuple[bytes, ...]
    literals: bytes | None
    configuration: dict[str, Any]
    path: str
    inline_limit_bytes: int
    before: Before | None = None
    assumptions: list[int] = []
    #: where the job may have results written (None: where the user of this process may)
    results: ResultsFolder | None = None
    #: the run that is begun at once then, without its description, which is what was read
    then: Run | None = None


class Inspect(ProcessMessage, frozen=True, tag=5):
    """Import these applications and tell what they are like."""

    names: tuple[str, ...]


class Quit(ProcessMessage, frozen=True, tag=6):
    """Exit; nobody needs this process any more."""


class Leave(ProcessMessage, frozen=True, tag=7):
    """Hand over what you have, and end the run: this process's place is somebody else's from now on."""


class CheckpointGiven(ProcessMessage, frozen=True, tag=8):
    """The answer to `CheckpointWanted`; None: there is none."""

    data: bytes | None


ToWorker = Run | Update | Deliver | Read | Inspect | Quit | Leave | CheckpointGiven


# --- worker process to rank -------------------------------------------------


class Started(ProcessMessage, frozen=True, tag=1):
    """The description is decoded and the application runs from now on.

    `newly_imported`: this process had to import the application first, so that the fork
    server should do so for all later ones.
    """

    application: str
    newly_imported: bool
    #: whose worker it is now; all that it said before was about something else
    job: int
    number: int
    #: CPU time that the process had used before
    cpu_before_s: float
    #: it wants to be told by `Leave` when it has to go
    leaves: bool = False


class ResultFound(ProcessMessage, frozen=True, tag=2):
    """The job's answer, encoded by `encode_result`, and the memory and CPU time needed to find it."""

    body: bytes
    peak_memory_bytes: int
    cpu_s: float


class Failed(ProcessMessage, frozen=True, tag=3):
    """The application raised; the text is its traceback."""

    text: str


class Demand(ProcessMessage, frozen=True, tag=4):
    demand: int


class Progressed(ProcessMessage, frozen=True, tag=15):
    """The progress of the job (see `mallob_py.kit.app.WorkerContext.report_progress`)."""

    progress: Progress


class Offered(ProcessMessage, frozen=True, tag=16):
    """An answer or a bound (see `mallob_py.kit.app.WorkerContext.offer`)."""

    interim: Interim


class Checkpoint(ProcessMessage, frozen=True, tag=13):
    """The job's next root shall go on from here."""

    data: bytes


class CheckpointWanted(ProcessMessage, frozen=True, tag=14):
    """This root begins: what was the last checkpoint?"""


class ToParent(ProcessMessage, frozen=True, tag=5):
    data: bytes


class ToChildren(ProcessMessage, frozen=True, tag=6):
    data: bytes


class ToAddress(ProcessMessage, frozen=True, tag=11):
    """For the worker at address (`pe`, `stay`)."""

    pe: int
    stay: int
    data: bytes


class Left(ProcessMessage, frozen=True, tag=12):
    """The run has ended, as `Leave` has asked for; with the CPU time that it took."""

    cpu_s: float
    #: so many messages of other workers were taken since; what came after these was not
    taken: int


class Imports(ProcessMessage, frozen=True, tag=17):
    """Before its first task of an application; `is_own`: it reads an input, and the fork server had not
    imported it.
    """

    application: str
    is_own: bool


class InputRead(ProcessMessage, frozen=True, tag=7):
    description: LocalDescription
    #: with the run that was to be begun
    goes_on: bool = False


class InputRefused(ProcessMessage, frozen=True, tag=8):
    """The input cannot be used; `field` names the job-file field at fault."""

    message: str
    field: str


class ApplicationTraits(ProcessMessage, frozen=True, tag=9):
    """`problem` says why the application cannot be imported; empty if it can."""

    name: str
    takes_input: bool = True
    revises: bool = False
    result_files: tuple[str, ...] = ()
    exit_codes: dict[int, int] = {}
    problem: str = ""
    runs_code: bool = False


class Idle(ProcessMessage, frozen=True, tag=10):
    """The task is over and this process could do another one. `cpu_s`: what it has used in its life."""

    private_bytes: int
    cpu_s: float = 0.0


FromWorker = (
    Started
    | ResultFound
    | Failed
    | Demand
    | Progressed
    | Offered
    | Checkpoint
    | CheckpointWanted
    | ToParent
    | ToChildren
    | ToAddress
    | Left
    | Imports
    | InputRead
    | InputRefused
    | ApplicationTraits
    | Idle
)


# --- rank to fork server, fork server to rank -------------------------------


class Configure(ProcessMessage, frozen=True, tag=1):
    """First packet. `preload`: applications to import before the first fork."""

    preload: tuple[str, ...]
    memory_limit_bytes: int | None
    #: for what workers print ("": the rank's standard error)
    output_dir: str = ""
    #: `kit.input_file.at_most`
    input_max_bytes: int | None = None


class Fork(ProcessMessage, frozen=True, tag=2):
    count: int


class Import(ProcessMessage, frozen=True, tag=3):
    """Import an application (which a worker process has imported without harm)."""

    application: str


class FindApplications(ProcessMessage, frozen=True, tag=4):
    """Which applications are there? Who takes jobs asks as it starts; others are told at leisure."""


ToServer = Configure | Fork | Import | FindApplications


class Applications(ProcessMessage, frozen=True, tag=1):
    """Answer to `FindApplications`, or unasked: the names found; none has been imported for it."""

    names: tuple[str, ...]


class Forked(ProcessMessage, frozen=True, tag=2):
    """A new worker process; its socket, its pidfd and its lifeline come with this packet."""

    serial: int
    pid: int
    generation: int


class ForkFailed(ProcessMessage, frozen=True, tag=3):
    reason: str


class Imported(ProcessMessage, frozen=True, tag=4):
    """Processes of this and later generations have the application imported."""

    application: str
    generation: int


class Exited(ProcessMessage, frozen=True, tag=5):
    """A worker process has ended; `cpu_s` is its life's CPU time, with that of its children."""

    serial: int
    reason: str
    cpu_s: float
    #: whether it was by signal 9
    was_killed: bool = False
    #: the most that was resident at a time
    peak_bytes: int = 0


FromServer = Applications | Forked | ForkFailed | Imported | Exited


# --- results ----------------------------------------------------------------


class SolutionForm(IntEnum):
    """The meaning of the bytes of a solution."""

    #: int32, little endian
    INTEGERS = 0
    BYTES = 1


class ResultBody(ProcessMessage, frozen=True):
    """A `mallob_py.kit.app.Result`: fields as a JSON object, solution as its form says.

    `name`: what the application calls a result of this code.
    """

    code: int
    fields: bytes
    solution: bytes
    form: SolutionForm = SolutionForm.INTEGERS
    name: str = ""


def encode_result(result: ResultBody) -> bytes:
    return encode(result)


def decode_result(body: bytes) -> ResultBody:
    return _RESULT_DECODER.decode(body)


def decode_fields(fields: bytes) -> dict[str, Any]:
    """The further JSON fields of a result."""
    return _FIELDS_DECODER.decode(fields or b"{}")


# --- codec and frames -------------------------------------------------------

encode = msgspec.msgpack.Encoder().encode
decode_to_worker: Callable[[bytes], ToWorker] = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker: Callable[[bytes], FromWorker] = msgspec.msgpack.Decoder(FromWorker).decode
decode_to_server: Callable[[bytes], ToServer] = msgspec.msgpack.Decoder(ToServer).decode
decode_from_server: Callable[[bytes], FromServer] = msgspec.msgpack.Decoder(FromServer).decode
_RESULT_DECODER = msgspec.msgpack.Decoder(ResultBody)
_FIELDS_DECODER = msgspec.json.Decoder(dict[str, Any])


class BrokenStream(Exception):
    """The peer does not keep to the framing or the message types."""


def frame(message: ProcessMessage) -> bytes:
    """The bytes of a message on a stream."""
    body = encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is too large to send")
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class FrameBuffer:
    """Cuts a byte stream into the bodies of its frames."""

    __slots__ = ("_bytes",)

    def __init__(self, begun: bytes = b"") -> None:
        self._bytes = bytearray(begun)

    @property
    def begun(self) -> bytes:
        """The beginning of a frame that is not complete."""
        return bytes(self._bytes)

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def cut(self, data: bytes) -> list[bytes]:
        """The bodies that are complete with these bytes. Raises BrokenStream."""
        self.feed(data)
        return list(iter(self.take, None))

    def take(self) -> bytes | None:
        """The next complete body, or None until more bytes come."""
        if len(self._bytes) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(self._bytes[:_LENGTH_BYTES], "little")
        if length > MAX_FRAME_BYTES:
            raise BrokenStream(f"a frame claims {length} bytes")
        end = _LENGTH_BYTES + length
        if len(self._bytes) < end:
            return None
        body = bytes(memoryview(self._bytes)[_LENGTH_BYTES:end])
        del self._bytes[:end]
        return body
