"""A rank of `mallob-py solve`: answers as text, in the format that is usual for each kind of file.

All ranks work on one file at a time. Standard output gets the answers, as the application of each file
declares them (for a formula the answer `s` and a model, `v` lines), and where that format has comments
(`c`), these tell what happens meanwhile. Exit code: the application's for the answer to the one file given
(10, 20; 0 for unknown), 0 for several files, 2 if an input could not be read. What is not answered when a
signal comes is unknown.

A proof or core is written by the worker that finds the answer; unless that is UNSATISFIABLE, none is
left. Of several solutions each gets its own `v` lines, closed by 0.
"""

from __future__ import annotations

import array
import math
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, TextIO

from mallob_py.applications import declaration_of
from mallob_py.cli import one_shot_desk
from mallob_py.cli.one_shot_desk import Answered, OneShotDesk, write_to
from mallob_py.cli.rank_options import STANDARD_INPUT, SolveOptions
from mallob_py.cli.values import far_text
from mallob_py.kit import result_file
from mallob_py.kit.declaration import UNKNOWN, Declaration, exit_code_of
from mallob_py.log_events import LogEvent
from mallob_py.protocol.effects import JobEnded, Outcome
from mallob_py.protocol.messages import Description
from mallob_py.protocol.stimuli import JobParameters
from mallob_py.runtime import boot
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.rank import Rank, portable
from mallob_py.runtime.workers.tasks import ReadDone, ReadFailed, WorkerEvent

#: for solutions to arrive that were found within the time limit
_GRACE_S = 3.0


def be_rank(options: SolveOptions, fork_server: socket.socket | None = None) -> NoReturn:
    def desk_of(rank: Rank, answered: Answered, tell_answered: Callable[[Answered], None]) -> SolveDesk:
        output = _open_output(options.output, "a" if answered.count else "w")
        return SolveDesk(rank, options, output, answered, tell_answered)

    one_shot_desk.be_rank(options, options.application_of(options.files[0]), desk_of, fork_server)


def _open_output(path: str | None, mode: Literal["a", "w"]) -> TextIO:
    if path is None:
        return sys.stdout
    try:
        return open(path, mode, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise boot.DeskError(f"cannot write {path}: {error.strerror}") from error


class SolveDesk(OneShotDesk):
    """The desk of `solve` on rank 0: one job after the other, then the end of all ranks."""

    progress_s = 5.0

    def __init__(
        self,
        rank: Rank,
        options: SolveOptions,
        output: TextIO,
        answered: Answered,
        tell_answered: Callable[[Answered], None],
    ) -> None:
        """Begin where a lost rank has ended, if files are `answered`; tell of each further one."""
        super().__init__(rank, options.time_limit_s)
        self._files = list(options.files)[answered.count :]
        self._tell_answered = tell_answered
        self._is_single = len(options.files) == 1
        self._quiet = options.quiet
        self._application_of = options.application_of
        results = {key: os.path.abspath(target) for key, target in options.results.items()}
        self._configuration = options.configuration_with(results)
        self._answers_by_s = math.inf
        applications = {declaration_of(options.application_of(file)) for file in options.files}
        self._result_keys = {key for declared in applications for key in declared.result_files}
        self._output = output
        if "solutions" in self._configuration and options.time_limit_s is not None:
            # What is found by then is to be the answer; only who does not give it in time is interrupted.
            self._answers_by_s = self._limit_s
            self._limit_s += _GRACE_S
        self._input = f"/proc/{os.getpid()}/fd/0"
        self._job = self._answered = answered.count
        self._submitted_s = 0.0
        #: nothing further is begun
        self._is_over = False
        self._failed = answered.has_failed
        self._was_stopped = False
        self._code = answered.code
        #: the result of the last file
        self._result = answered.result

    @property
    def exit_code(self) -> int:
        """2 as soon as an input failed; the answer's code for a single formula; else 0.

        After a signal that kept a formula from any answer, 128 + its number.
        """
        if self._failed:
            return 2
        if self._is_single and (offered := self._offered()) is not None:  # `close` tells it
            return exit_code_of(self._application.exit_codes, wire.decode_result(offered).code)
        if self._was_stopped and self._is_single and self._code:
            return self._code
        if self._was_stopped and self._rank.stopped_by is not None:
            return 128 + self._rank.stopped_by
        return self._code if self._is_single else 0

    @property
    def _application(self) -> type[Declaration]:
        """The application of the file that is worked on."""
        return declaration_of(self._application_of(self._files[0]))

    def close(self) -> None:
        self._was_stopped = bool(self._files)
        if (offered := self._offered()) is not None:
            self._answer_with(offered)
            self._next()
        self._leave_unanswered()
        self._tidy_up()
        if self._output is not sys.stdout:
            self._output.close()

    def _offered(self) -> bytes | None:
        """The best that there is for the file that is worked on, before it has its answer."""
        record = self._rank.node.pe.client.jobs.get(self._job)
        return None if not self._files or record is None or record.interim is None else record.interim.body

    # --- one formula ------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        if not self._files:
            self._rank.stop()
            self._is_busy = True
            return
        self._is_busy = True
        self._job += 1
        self._submitted_s = now
        file = self._files[0]
        self._tell(f"mallob-py: {file} on {self._rank.node.placement.describe()}")
        source = self._input if file in STANDARD_INPUT else file
        configuration = self._configuration
        if self._answers_by_s < math.inf:
            configuration = configuration | {"solutions-within": max(0.0, self._answers_by_s - now)}
        self._read(self._job, self._application.name, (source,), configuration)

    def _tell_progress(self, now: float) -> None:
        # imports much, which short jobs do without
        from mallob_py.service.telemetry.status import interim_of, progress_of

        record = self._rank.node.pe.client.jobs.get(self._job)
        far = ""
        if record is not None:
            far = far_text(progress_of(record.progression, now), interim_of(record.interim))
        parts = (f"{now - self._submitted_s:.1f} s", self._workers(self._job), far)
        self._tell(", ".join(filter(None, parts)))

    def worker_event(self, event: WorkerEvent, now: float) -> None:
        match event:
            case ReadDone(_, description):
                self._submit(portable(description), now)
            case ReadFailed(_, message, _):
                self._complain(message.replace(self._input, "standard input"))
                self._next()

    def _submit(self, description: Description, now: float) -> None:
        self._tell(f"read in {now - self._submitted_s:.2f} s, description of {description.size} bytes")
        self._next_progress_s = now + 1.0
        self._rank.submit(self._job, JobParameters(), description)

    def _time_is_up(self, now: float) -> None:
        """Answer UNKNOWN for this formula and those that were not begun."""
        self._tell("the time limit is reached")
        self._is_over = True
        if not self._interrupt(self._job):
            self._leave_unanswered()

    def _leave_unanswered(self) -> None:
        while self._files:
            self._answer(UNKNOWN, ())
            self._next()

    def _job_ended(self, ended: JobEnded, now: float) -> None:
        if ended.outcome is Outcome.FAILED:
            self._fail(ended.reason or "the job has failed")
            return
        answer = ended.body
        if answer is None:
            answer = None if ended.interim is None else ended.interim.body
        else:
            body = wire.decode_result(answer)
            code = body.code
            self._rank.log.write(
                now, LogEvent.ANSWERED, {"job": ended.job, "code": code, "result": body.name}
            )
            fields = wire.decode_fields(body.fields)
            by = f" by {fields['solver']}" if "solver" in fields else ""
            seconds = now - self._submitted_s
            stats = ended.stats
            most = stats.max_volume
            workers = "one worker" if most == 1 else f"at most {most} workers"
            self._tell(
                f"answered in {seconds:.2f} s{by}, {workers} of {stats.peak_memory_bytes / 1e6:.0f} MB"
            )
            if "core-size" in fields:
                self._tell(f"a core of {fields['core-size']} clauses")
        self._answer_with(answer)
        self._go_on()

    def _fail(self, reason: str) -> None:
        """Nothing is known of the file that is worked on, not even that its answer is unknown."""
        file = self._files[0]
        self._complain(reason if self._is_single or file in reason else f"{file}: {reason}")
        self._result = UNKNOWN
        self._tidy_up()
        self._go_on()

    def _go_on(self) -> None:
        self._next()
        if self._is_over:
            self._leave_unanswered()

    def _answer_with(self, answer: bytes | None) -> None:
        """Answer the file that is worked on with this result, or UNKNOWN."""
        if answer is None:
            self._answer(UNKNOWN, ())
            return
        body = wire.decode_result(answer)
        is_bytes = body.form is wire.SolutionForm.BYTES
        solution = body.solution if is_bytes else array.array("i", body.solution)
        fields = wire.decode_fields(body.fields)
        if "solutions" in fields:
            is_late = self._rank.now() >= self._limit_s - _GRACE_S
            late = "there may be more" + is_late * "; these were found within the time limit"
            further = "no others" if fields["complete"] else late
            self._tell(f"{fields['solutions']} solutions; {further}")
        self._answer(body.code, solution, fields)

    def _next(self) -> None:
        del self._files[0]
        self._answered += 1
        told = Answered(self._answered, self._result, self._code, self._failed)
        self._tell_answered(told)
        self._is_busy = False
        self._next_progress_s = math.inf

    def _tidy_up(self) -> None:
        """Before the answer, so that a file is there exactly with the answer that it is for."""
        for key in self._result_keys:
            if not isinstance(path := self._configuration.get(key), str):
                continue
            if self._result == 20 or key == "solutions-file":
                result_file.discard_unfinished(path)
                continue
            try:
                result_file.discard(path)
            except OSError as error:
                if self._failed:  # by the same, and that has been said
                    continue
                print(f"mallob-py solve: {path}: cannot be removed: {error.strerror}", file=sys.stderr)

    # --- output ---------------------------------------------------------------------------

    def _tell(self, text: str) -> None:
        if self._files and not self._quiet and (comment := self._application.comment):
            self._write(sys.stdout, [f"{comment}{text}\n"])

    def _answer(
        self, code: int, solution: Sequence[int] | bytes, fields: Mapping[str, Any] | None = None
    ) -> None:
        self._result = code
        self._code = exit_code_of(self._application.exit_codes, code)
        self._tidy_up()
        self._write(self._output, self._answer_lines(code, solution, fields or {}))

    def _answer_lines(
        self, code: int, solution: Sequence[int] | bytes, fields: Mapping[str, Any]
    ) -> Iterator[str]:
        if not self._is_single:
            yield f"{self._application.comment or '; '}{self._files[0]}\n"  # whose answer it is
        several = {"solutions": True} if "solutions" in self._configuration else {}
        result = {**fields, "resultcode": code, **several}
        for line in self._application.answer_lines(result, solution):
            yield f"{line}\n"

    def _write(self, stream: TextIO, lines: Iterable[str]) -> None:
        """Write lines; if that is not possible any more, further answers are not needed."""
        if (problem := write_to(stream, lines)) is not None:
            if problem:
                self._complain(f"the answer cannot be written: {problem}")
            self._rank.stop()

    def _complain(self, message: str) -> None:
        self._failed = True
        print(f"mallob-py solve: {message}", file=sys.stderr, flush=True)
