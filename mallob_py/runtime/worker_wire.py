"""The messages between a rank and its worker processes, and how they are framed.

Each worker process has one stream socket to its rank. A frame is a length (4 bytes,
little endian) and the msgpack of one tagged struct of the unions below. The fork server
and the rank exchange such structs over a packet socket, one per packet; the packet about a
new worker also passes the worker's socket, pidfd and lifeline.

Ranks import this module, so it needs little but msgspec. The bodies of results pass
through ranks undecoded; only the client that writes the reply decodes them (`decode_result`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import msgspec

from mallob_py.kit.result_file import ResultsFolder
from mallob_py.protocol.interim import Interim
from mallob_py.protocol.progress import Progress

#: largest size of a frame; a larger frame is an error of the peer
MAX_FRAME_BYTES = 2**31 - 1
_LENGTH_BYTES = 4
#: greatest size of the header at a description's start
_HEADER_BYTES_MAX = 1 << 16


class ProcessMessage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all structs sent between a rank, its fork server and its worker processes."""


# --- where a description is -------------------------------------------------


class Inline(ProcessMessage, frozen=True, tag=1):
    """A job's description that is small enough to be a part of the message."""

    data: bytes


class Mapped(ProcessMessage, frozen=True, tag=2):
    """A job's description that is large: a file in shared memory, mapped read-only by its users."""

    path: str
    size_bytes: int


LocalDescription = Inline | Mapped


def application_of(description: LocalDescription) -> str:
    """Return the name of a description's application. Raises OSError and ValueError."""
    from mallob_py.kit.payload import application_named_in  # imported late: few ranks need it

    match description:
        case Inline(data):
            return application_named_in(data)
        case Mapped(path):
            with open(path, "rb") as file:
                return application_named_in(file.read(_HEADER_BYTES_MAX))


# --- rank to worker process -------------------------------------------------


class Run(ProcessMessage, frozen=True, tag=1):
    """Run as worker `index` of `job`, after any former run; `number`: the worker's number on its rank."""

    job: int
    number: int
    index: int
    volume: int
    children: tuple[int, ...]
    threads: int
    description: LocalDescription
    #: the job's chain of revisions (0: no chain), and its revision number in the chain
    chain: int = 0
    revision: int = 0
    is_alone: bool = False


class Update(ProcessMessage, frozen=True, tag=2):
    """The worker's present place in the job tree, which replaces earlier ones."""

    index: int
    volume: int
    children: tuple[int, ...]


class Deliver(ProcessMessage, frozen=True, tag=3):
    """A message from another worker of the job (see `mallob_py.kit.app.TreeMessage`)."""

    source: int
    sender: tuple[int, int]
    data: bytes
    returned: bool


class EarlierInput(ProcessMessage, frozen=True):
    """The input of the earlier revision `identity` ("user.name")."""

    identity: str
    #: file names as the kernel has them, which need not be UTF-8
    files: tuple[bytes, ...]
    #: literals of 32 bits, in the host's byte order; code must not examine them one by one
    literals: bytes | None
    configuration: dict[str, Any]


class Before(ProcessMessage, frozen=True):
    """All input before revision `revision`: a description, and the inputs that this description lacks."""

    revision: int
    former: LocalDescription | None
    inputs: tuple[EarlierInput, ...]


class Read(ProcessMessage, frozen=True, tag=4):
    """Convert a job's input into a description; write it to `path` if larger than `inline_limit_bytes`."""

    application: str
    #: `files` and `literals` are as in `EarlierInput`
    files: tuple[bytes, ...]
    literals: bytes | None
    configuration: dict[str, Any]
    path: str
    inline_limit_bytes: int
    before: Before | None = None
    assumptions: list[int] = []
    #: folder for the job's results; None: any folder that this process's user may write
    results: ResultsFolder | None = None
    #: a run to begin at once with the description just read; the description in `then` is empty
    then: Run | None = None


class Inspect(ProcessMessage, frozen=True, tag=5):
    """Import these applications and report their traits."""

    names: tuple[str, ...]


class Quit(ProcessMessage, frozen=True, tag=6):
    """Exit: the process is not needed any more."""


class Leave(ProcessMessage, frozen=True, tag=7):
    """Hand over your work and end the run: another worker has your place from now on."""


class CheckpointGiven(ProcessMessage, frozen=True, tag=8):
    """The answer to `CheckpointWanted`; None: there is no checkpoint."""

    data: bytes | None


ToWorker = Run | Update | Deliver | Read | Inspect | Quit | Leave | CheckpointGiven


# --- worker process to rank -------------------------------------------------


class Started(ProcessMessage, frozen=True, tag=1):
    """The description is decoded and the application runs.

    `newly_imported`: this process had to import the application, so the fork server should import it for
    later processes.
    """

    application: str
    newly_imported: bool
    #: the job that runs now; all earlier messages were about other jobs
    job: int
    number: int
    #: the process's CPU time before this task
    cpu_before_s: float
    #: whether the worker wants `Leave` before it must end
    leaves: bool = False


class ResultFound(ProcessMessage, frozen=True, tag=2):
    """The job's answer, encoded by `encode_result`, with the run's memory and CPU time."""

    body: bytes
    peak_memory_bytes: int
    cpu_s: float


class Failed(ProcessMessage, frozen=True, tag=3):
    """The application raised an exception; the text is its traceback."""

    text: str


class Demand(ProcessMessage, frozen=True, tag=4):
    demand: int


class Progressed(ProcessMessage, frozen=True, tag=15):
    """The job's progress (see `mallob_py.kit.app.WorkerContext.report_progress`)."""

    progress: Progress


class Offered(ProcessMessage, frozen=True, tag=16):
    """An answer or a bound (see `mallob_py.kit.app.WorkerContext.offer`)."""

    interim: Interim


class Checkpoint(ProcessMessage, frozen=True, tag=13):
    """The state from which the job's next root must go on."""

    data: bytes


class CheckpointWanted(ProcessMessage, frozen=True, tag=14):
    """A root that begins asks for the last checkpoint."""


class ToParent(ProcessMessage, frozen=True, tag=5):
    data: bytes


class ToChildren(ProcessMessage, frozen=True, tag=6):
    data: bytes


class ToAddress(ProcessMessage, frozen=True, tag=11):
    """A message for the worker at address (`pe`, `stay`)."""

    pe: int
    stay: int
    data: bytes


class Left(ProcessMessage, frozen=True, tag=12):
    """The run has ended as `Leave` demanded. `cpu_s`: the run's CPU time."""

    cpu_s: float
    #: number of other workers' messages taken after `Leave`; later messages were not taken
    taken: int


class Imports(ProcessMessage, frozen=True, tag=17):
    """Sent before the first task of an application. `is_own`: this process must import the application."""

    application: str
    is_own: bool


class InputRead(ProcessMessage, frozen=True, tag=7):
    description: LocalDescription
    #: whether the process continues with the run `then` of the request
    goes_on: bool = False


class InputRefused(ProcessMessage, frozen=True, tag=8):
    """The input cannot be used; `field`: the job file's field that is wrong."""

    message: str
    field: str


class ApplicationTraits(ProcessMessage, frozen=True, tag=9):
    """Answer to `Inspect`. `problem`: why the application cannot be imported; "": it can."""

    name: str
    takes_input: bool = True
    revises: bool = False
    result_files: tuple[str, ...] = ()
    exit_codes: dict[int, int] = {}
    problem: str = ""
    runs_code: bool = False


class Idle(ProcessMessage, frozen=True, tag=10):
    """The task is over, and the process is free. `cpu_s`: the process's CPU time so far."""

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
    """The first packet to a fork server. `preload`: applications to import before the first fork."""

    preload: tuple[str, ...]
    memory_limit_bytes: int | None
    #: folder for workers' output; "": workers write to the rank's standard error
    output_dir: str = ""
    #: largest size of an input file (see `kit.input_file.at_most`)
    input_max_bytes: int | None = None


class Fork(ProcessMessage, frozen=True, tag=2):
    count: int


class Import(ProcessMessage, frozen=True, tag=3):
    """Import an application, which a worker process has imported without harm."""

    application: str


class FindApplications(ProcessMessage, frozen=True, tag=4):
    """Report the installed applications: sent to the fork server by ranks that take in jobs, at the start."""


ToServer = Configure | Fork | Import | FindApplications


class Applications(ProcessMessage, frozen=True, tag=1):
    """Answer to `FindApplications`: the installed applications' names, found without importing them."""

    names: tuple[str, ...]


class Forked(ProcessMessage, frozen=True, tag=2):
    """A new worker process; its socket, pidfd and lifeline come with this packet."""

    serial: int
    pid: int
    generation: int


class ForkFailed(ProcessMessage, frozen=True, tag=3):
    reason: str


class Imported(ProcessMessage, frozen=True, tag=4):
    """The server has imported an application: processes of `generation` and later ones have it."""

    application: str
    generation: int


class Exited(ProcessMessage, frozen=True, tag=5):
    """A worker process has ended. `cpu_s`: its CPU time, including that of its children."""

    serial: int
    reason: str
    cpu_s: float
    #: whether the process ended by signal 9
    was_killed: bool = False
    #: the greatest number of bytes that were resident at a time
    peak_bytes: int = 0


FromServer = Applications | Forked | ForkFailed | Imported | Exited


# --- results ----------------------------------------------------------------


class SolutionForm(IntEnum):
    """The encodings of a solution."""

    #: int32, little endian
    INTEGERS = 0
    BYTES = 1


class ResultBody(ProcessMessage, frozen=True):
    """A `mallob_py.kit.app.Result`: `fields` is a JSON object, `solution` is encoded as `form` says.

    `name`: the application's name for this result code.
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
    """Decode a result's fields, a JSON object."""
    return _FIELDS_DECODER.decode(fields or b"{}")


def answered(job: int, code: int, name: str, fields: bytes) -> dict[str, Any]:
    """Return the fields of the event that logs an application's result."""
    event = {"job": job, "code": code, "result": name}
    figures = decode_fields(fields).get("figures")
    return event if figures is None else event | {"figures": figures}


# --- codec and frames -------------------------------------------------------

encode = msgspec.msgpack.Encoder().encode
decode_to_worker: Callable[[bytes], ToWorker] = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker: Callable[[bytes], FromWorker] = msgspec.msgpack.Decoder(FromWorker).decode
decode_to_server: Callable[[bytes], ToServer] = msgspec.msgpack.Decoder(ToServer).decode
decode_from_server: Callable[[bytes], FromServer] = msgspec.msgpack.Decoder(FromServer).decode
_RESULT_DECODER = msgspec.msgpack.Decoder(ResultBody)
_FIELDS_DECODER = msgspec.json.Decoder(dict[str, Any])


class BrokenStream(Exception):
    """Error: the peer violates the framing or the message types."""


def frame(message: ProcessMessage) -> bytes:
    """Encode a message, with its length, for a stream."""
    body = encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is too large to send")
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class FrameBuffer:
    """A buffer that cuts a byte stream into the bodies of its frames."""

    __slots__ = ("_bytes",)

    def __init__(self, begun: bytes = b"") -> None:
        self._bytes = bytearray(begun)

    @property
    def begun(self) -> bytes:
        """Return the beginning of an incomplete frame."""
        return bytes(self._bytes)

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def cut(self, data: bytes) -> list[bytes]:
        """Return the bodies completed by these bytes. Raises BrokenStream."""
        self.feed(data)
        return list(iter(self.take, None))

    def take(self) -> bytes | None:
        """Return the next complete body; None: more bytes are missing."""
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
