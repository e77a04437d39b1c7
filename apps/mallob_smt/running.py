"""The engines of one worker: processes that are started, stopped, continued and killed.

A worker runs as many engines at a time as it has cores, and lends some of the time to further engines (see
`schedule`); it stops all other engines by SIGSTOP. The runtime continues a suspended worker with all its
processes, so the worker must stop these engines again at each turn. No engine can be interrupted (cvc5 and
Bitwuzla even hold the interpreter's lock while they search). Hence each engine has a process, which is killed
when the job ends or moves.

An engine's messages are sent to all workers (`Gossip`), and each worker judges the messages of all engines
(`judging`); the first worker with enough messages ends the job. If a worker is lost, only its own search is.

Guarantees: no process is left when `run_engines` returns or raises, and none outlives the worker process.
"""

from __future__ import annotations

import os
import selectors
import signal
import struct
import time
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

import msgspec

from mallob_py.kit import Gossip, InputError, ProcessKilled, Result, WorkerContext
from mallob_py.kit.declaration import DONE, UNKNOWN
from mallob_py.kit.process_race import die_with
from mallob_smt import schedule
from mallob_smt.answering import Checked, Completed, Failed, Printed, SayingReader, be_engine
from mallob_smt.declaration import CODES
from mallob_smt.engines import Portfolio, Strategy, Wishes
from mallob_smt.judging import Answer, Contradiction, Refusal, Statement, gone, judge
from mallob_smt.script import Script

#: longest time between two turns of a worker
_TURN_S = 0.25
#: time after which further workers are requested: most scripts take less, and several engines would slow each
#: other down
_ALONE_S = 0.1
#: greatest size [bytes] of an answer that is sent to the client, or, until enough engines agree, to other
#: workers
_SHARED_BYTES_MAX = 1 << 20
#: greatest number of stopped processes of a worker, because they occupy memory
_PROCESSES_MAX = 3
#: niceness of engines for which this host has no core, so that they do not delay the most suitable engines
_NICENESS = 10
_Z3_OUT_OF_MEMORY = 101
_SERIAL = struct.Struct(">Q")


def run_engines(context: WorkerContext, script: Script, wishes: Wishes) -> Result:
    """Run engines as a worker of the job. Raises InputError if no engine can answer or two disagree."""
    with _Engines(context, script, wishes) as engines:
        return engines.first_result()


class _Engine:
    """The process of a strategy."""

    def __init__(self, script: Script, number: int, strategy: Strategy, *, yields: bool) -> None:
        self.number = number
        self.strategy = strategy
        self.words: list[str] = []
        #: pieces of the output before the current check
        self.printed: list[str] = []
        #: number of checks whose output `printed` contains
        self.printed_checks = 0
        self.reader = SayingReader()
        self._is_stopped = False
        self.fd, theirs = os.pipe()
        worker_pid = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self.fd)
            os.close(theirs)
            raise
        if self.pid == 0:
            os.nice(_NICENESS if yields else 0)
            _be_child(script, strategy, theirs, worker_pid)
        os.close(theirs)

    @property
    def used_s(self) -> float:
        """Return the processor time that the process has used."""
        return time.clock_gettime((~self.pid << 3) | 2)  # the process's clock, as in clock_getcpuclockid

    def let_run(self, runs: bool) -> None:
        """Continue or stop the process. It is stopped again even if the runtime has continued it."""
        if not runs:
            os.kill(self.pid, signal.SIGSTOP)
        elif self._is_stopped:
            os.kill(self.pid, signal.SIGCONT)
        self._is_stopped = not runs

    def end(self) -> str:
        """Kill the process; return how it ended, if it ended before."""
        os.kill(self.pid, signal.SIGKILL)  # a child not waited for keeps its pid, so no other process has it
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        code = os.waitstatus_to_exitcode(status)
        if code == _Z3_OUT_OF_MEMORY:
            return "out of memory"
        if code == -signal.SIGABRT:
            return "its process has aborted; engines do so when memory is short"
        if code >= 0:
            return f"its process has ended with status {code}"
        with suppress(ValueError):
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process was killed by signal {-code}"


class _Engines:
    def __init__(self, context: WorkerContext, script: Script, wishes: Wishes) -> None:
        self._context = context
        self._script = script
        self._wishes = wishes
        self._portfolio: Portfolio = wishes.portfolio(script.facts)
        self._gossip = Gossip(context)
        self._selector = selectors.DefaultSelector()
        self._selector.register(context.fileno(), selectors.EVENT_READ)
        self._engines: dict[int, _Engine] = {}
        self._statements: dict[int, Statement] = {}
        #: whether an engine of this worker was killed by signal 9 that the worker did not send
        self._was_killed = False
        self._is_lending = False
        self._demand = 0
        self._alone_until_s = time.monotonic() + _ALONE_S
        #: greatest number of checks that one engine of this worker has answered
        self._answered = 0
        #: number of checks whose answers have been offered
        self._offered = 0

    def __enter__(self) -> _Engines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.note_memory()
        for engine in list(self._engines.values()):
            self._end(engine)
        self._selector.close()

    def first_result(self) -> Result:
        while True:
            if self._gossip.turn(self._context.poll()):
                self._hear_others()
            if (result := self._judge()) is not None:
                return result
            pause_s = self._schedule()
            for key, _ in self._selector.select(pause_s):
                if key.data is not None:
                    self._hear(key.data)

    # --- the schedule of engines ------------------------------------------------------------

    def _schedule(self) -> float:
        """Start, stop and continue engines; return the time until the next call is due."""
        context, portfolio = self._context, self._portfolio
        useless = gone(portfolio, self._statements)
        for number in useless.intersection(self._engines):
            self._end(self._engines[number])
        self._ask_for_workers(len(portfolio.strategies) - len(useless))
        place = schedule.Place(context.index, context.volume, context.threads)
        chosen = schedule.own(place, len(portfolio.strategies), useless)
        lent = schedule.lent(place, len(portfolio.base), useless, chosen)
        running = schedule.running(chosen, lent, self._used_s, self._is_lending)
        self._is_lending = running != chosen
        for number in running:
            if number not in self._engines:
                self._start(number)
        for number, engine in list(self._engines.items()):
            if number in running:
                engine.let_run(True)
            elif number in chosen or number in lent or len(self._engines) <= _PROCESSES_MAX + context.threads:
                engine.let_run(False)
            else:
                self._end(engine)
        if time.monotonic() < self._alone_until_s:
            return _ALONE_S / 2
        return schedule.SLICE_S if lent else _TURN_S

    def _used_s(self, number: int) -> float:
        return self._engines[number].used_s if number in self._engines else 0.0

    def _ask_for_workers(self, useful: int) -> None:
        demand = max(1, -(-useful // self._context.threads))
        if time.monotonic() < self._alone_until_s:
            demand = 1
        if self._context.index == 0 and demand != self._demand:
            self._demand = demand
            self._context.set_demand(demand)

    def _start(self, number: int) -> None:
        strategy = self._portfolio.strategies[number]
        cores = len(os.sched_getaffinity(0))
        yields = number >= cores and self._context.volume * self._context.threads > cores
        try:
            engine = _Engine(self._script, number, strategy, yields=yields)
        except OSError as error:  # too many processes
            self._state(number, Statement(1, ended=True, failure=f"cannot be started: {error.strerror}"))
            return
        self._engines[number] = engine
        self._selector.register(engine.fd, selectors.EVENT_READ, engine)

    def _end(self, engine: _Engine) -> str:
        self._selector.unregister(engine.fd)
        del self._engines[engine.number]
        return engine.end()

    # --- messages of engines ----------------------------------------------------------------

    def _hear(self, engine: _Engine) -> None:
        sayings = engine.reader.read(engine.fd)
        if sayings is None:
            reason = self._end(engine)
            self._was_killed |= reason.endswith(signal.SIGKILL.name)
            self._fail(engine, reason)
            return
        for saying in sayings:
            match saying:
                case Checked(word):
                    engine.words.append(word)
                case Printed(text):
                    engine.printed.append(text)
                    engine.printed_checks = len(engine.words)
                case Completed(transcript, flaws, reason):
                    words = tuple(engine.words)
                    statement = Statement(2 * len(words) + 1, words, True, "", transcript, flaws, reason)
                    self._statements[engine.number] = statement
                    if judge(self._portfolio, self._statements, self._wishes.agreement) is not None:
                        return
                    if len(transcript) > _SHARED_BYTES_MAX:
                        self._fail(engine, f"its output of {len(transcript)} bytes is too large to be kept")
                    else:
                        self._state(engine.number, statement)
                case Failed(reason):
                    self._fail(engine, reason)
        self._tell_checks(engine)

    def _tell_checks(self, engine: _Engine) -> None:
        """Tell the answers so far, once per read, because each message holds all of them."""
        serial = 2 * len(engine.words)
        known = self._statements.get(engine.number)
        if serial and (known is None or known.serial < serial):
            self._tell_progress(len(engine.words))
            self._state(engine.number, Statement(serial, tuple(engine.words)))
        self._offer(engine)

    def _tell_progress(self, answered: int) -> None:
        if answered > self._answered and self._script.facts.checks > 1:
            self._answered = answered
            self._context.report_progress(answered, self._script.facts.checks, "checks")

    def _offer(self, engine: _Engine) -> None:
        """Offer the answer in case the job ends: the transcript so far, with `unknown` at the end."""
        answered = engine.printed_checks
        if self._wishes.agreement > 1 or answered <= self._offered:
            return
        transcript = "".join([*engine.printed, "unknown\n"]).encode()
        if len(transcript) > _SHARED_BYTES_MAX:
            return
        self._offered = answered
        words = [*engine.words[:answered], "unknown"]
        fields = {"solver": engine.strategy.title, "answers": words}
        self._context.offer(Result(UNKNOWN, transcript, fields), value=answered)

    def _fail(self, engine: _Engine, reason: str) -> None:
        words = tuple(engine.words)
        self._state(engine.number, Statement(2 * len(words) + 1, words, True, reason))

    def _state(self, number: int, statement: Statement) -> None:
        self._statements[number] = statement
        self._gossip.put(str(number), _SERIAL.pack(statement.serial) + msgspec.msgpack.encode(statement))

    def _hear_others(self) -> None:
        for number, data in self._gossip.table.items():
            known = self._statements.get(int(number))
            if known is None or known.serial < _SERIAL.unpack_from(data)[0]:
                statement = msgspec.msgpack.decode(data[_SERIAL.size :], type=Statement)
                self._statements[int(number)] = statement

    # --- results ----------------------------------------------------------------------------

    def _judge(self) -> Result | None:
        match judge(self._portfolio, self._statements, self._wishes.agreement):
            case Answer() as answer:
                return _result(answer, self._wishes)
            case Refusal(message) if self._was_killed:
                raise ProcessKilled(message)
            case Contradiction(message) | Refusal(message):
                raise InputError(message)
        return None


def _result(answer: Answer, wishes: Wishes) -> Result:
    statement = answer.statement
    fields: dict[str, object] = {"solver": answer.strategy.title, "answers": list(statement.words)}
    if statement.reason_unknown:
        fields["reason-unknown"] = statement.reason_unknown
    if wishes.agreement > 1:
        fields["agreement"] = {"wanted": wishes.agreement, "engines": list(answer.engines)}
    if not answer.is_agreed and wishes.agreement > 1:
        # Too few engines have answered, so the job has no answer.
        return Result(UNKNOWN, b"", fields)
    code = CODES[statement.words[-1]] if statement.words else DONE
    return Result(code, statement.transcript.encode(), fields)


def _be_child(script: Script, strategy: Strategy, descriptor: int, worker_pid: int) -> NoReturn:
    """Run an engine in the child process, and never return into the worker's code."""
    try:
        die_with(worker_pid)
        os.closerange(3, descriptor)
        os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        be_engine(script, strategy, descriptor)
        while True:  # the worker measures this process's memory, then kills it
            signal.pause()
    finally:
        os._exit(1)
