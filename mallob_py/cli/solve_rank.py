"""A rank of `mallob-py solve`: prints answers as text, in the usual format of each kind of file.

Several files become jobs that share the ranks, up to a bound at once; each job has a time limit of its own,
which does not count while the job rests. Standard output gets the answers in the order of the files, each as
soon as this answer and all earlier ones are known, in the form that the file's application declares (for a
formula an `s` line and a model in `v` lines). If the form has comments (`c`), they report progress; on
a terminal a table follows. A file that was tried without success is answered by UNKNOWN; a comment names
a file that was not begun. Exit code: for one file the application's (10, 20; 0 for unknown), 0 for several
files, 2 if an input could not be read. After a signal, open answers are unknown.

The worker that finds the answer writes the proof or core; no such file is left unless the answer is
UNSATISFIABLE. Each of several solutions has its own `v` lines, closed by 0.
"""

from __future__ import annotations

import array
import csv
import io
import math
import os
import socket
import sys
from collections import deque
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
from mallob_py.runtime.notices import printable, say
from mallob_py.runtime.processes import bytes_read
from mallob_py.runtime.rank import Rank
from mallob_py.runtime.workers.tasks import ReadDone, ReadFailed, WorkerEvent

#: time after the time limit within which solutions found before the limit may arrive
_GRACE_S = 3.0
#: greatest number of files whose jobs share the ranks
_AT_ONCE_MAX = 1024
#: shortest time between two checks of the time that reading has used
_LOOK_MIN_S = 0.05


class _File:
    """An input file, the state of its job, and its answer."""

    def __init__(self, job: int, path: str, application: type[Declaration]) -> None:
        self.job = job
        self.path = path
        self.application = application
        #: time when reading began; None: the file waits
        self.begun_s: float | None = None
        self.is_submitted = False
        #: comments held back until all earlier answers are written
        self.comments: list[str] = []
        #: lines of the answer; None: no answer yet
        self.answer: list[str] | None = None
        #: for the table: the answer in a word
        self.word = "failed"
        #: for the table: time [s], time with a PE [s], number of workers; None: unknown
        self.row: tuple[float | None, float | None, int | None] = None, None, None

    @property
    def is_read_now(self) -> bool:
        """Whether the input is being read, or waits for a reader."""
        return self.begun_s is not None and not self.is_submitted and self.answer is None


def be_rank(options: SolveOptions, fork_server: socket.socket | None = None) -> NoReturn:
    def desk_of(rank: Rank, answered: Answered, tell_answered: Callable[[Answered], None]) -> SolveDesk:
        mode: Literal["a", "w"] = "a" if answered.count else "w"
        output = _open_output(options.output, mode)
        table = None if options.table is None else _open_output(options.table, mode)
        return SolveDesk(rank, options, output, answered, tell_answered, table)

    one_shot_desk.be_rank(options, options.application_of(options.files[0]), desk_of, fork_server)


def _open_output(path: str | None, mode: Literal["a", "w"]) -> TextIO:
    if path is None:
        return sys.stdout
    try:
        return open(path, mode, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise boot.DeskError(f"cannot write {path}: {error.strerror}") from error


class SolveDesk(OneShotDesk):
    """The desk of `solve`: runs the jobs of all files, then ends all ranks."""

    progress_s = 5.0

    def __init__(
        self,
        rank: Rank,
        options: SolveOptions,
        output: TextIO,
        answered: Answered,
        tell_answered: Callable[[Answered], None],
        table: TextIO | None = None,
    ) -> None:
        """Create the desk for the files that no lost rank has `answered`; it reports by `tell_answered`."""
        self._is_single = len(options.files) == 1
        super().__init__(rank, options.time_limit_s if self._is_single else None)
        #: time limit of each of several files
        self._each_limit_s = None if self._is_single else options.time_limit_s
        #: time of the next check of the files that are being read
        self._look_at_s = math.inf
        self._tell_answered = tell_answered
        self._quiet = options.quiet
        results = {key: os.path.abspath(target) for key, target in options.results.items()}
        self._configuration = options.configuration_with(results)
        self._answers_by_s = math.inf
        jobs = enumerate(options.files, start=1)
        files = [_File(job, path, declaration_of(options.application_of(path))) for job, path in jobs]
        self._result_keys = {key for file in files for key in file.application.result_files}
        #: files without a written answer, in order
        self._files = deque(files[answered.count :])
        #: job -> its file, if the file has no written answer
        self._by_job = {file.job: file for file in self._files}
        self._waiting = deque(self._files)
        self._rows = list[_File]()
        self._under_way = 0
        self._output = output
        self._table = table
        self._is_for_terminal = output is sys.stdout and sys.stdout.isatty() and not options.quiet
        if "solutions" in self._configuration and self._is_single and options.time_limit_s is not None:
            # An answer offered within _GRACE_S after the limit counts; after that, a job without an answer is
            # interrupted.
            self._answers_by_s = self._limit_s
            self._limit_s += _GRACE_S
        self._input = f"/proc/{os.getpid()}/fd/0"
        self._answered = answered.count
        self._failed = answered.has_failed
        self._was_stopped = False
        self._code = answered.code
        #: result of the last file
        self._result = answered.result
        if table is not None and not answered.count:
            self._write(table, [_csv_line("file", "answer", "time_s", "pe_time_s", "workers")])

    @property
    def exit_code(self) -> int:
        """The exit code: 2 once an input failed; the answer's code for a single formula; else 0.

        After a signal that left a formula without an answer: 128 + the signal's number.
        """
        if self._failed:
            return 2
        # `close` writes this answer only after the exit code was read.
        if self._is_single and self._files and (offered := self._offered(self._files[0])) is not None:
            return exit_code_of(self._files[0].application.exit_codes, wire.decode_result(offered).code)
        if self._was_stopped and self._is_single and self._code:
            return self._code
        if self._was_stopped and self._rank.stopped_by is not None:
            return 128 + self._rank.stopped_by
        return self._code if self._is_single else 0

    def close(self) -> None:
        self._was_stopped = bool(self._files)
        self._leave_unanswered()
        self._tidy_up()
        self._tell_table()
        if self._output is not sys.stdout:
            self._output.close()
        if self._table is not None:
            self._table.close()

    def _offered(self, file: _File) -> bytes | None:
        """Return the best interim answer for a file without an answer; None if there is none."""
        record = self._rank.node.pe.client.jobs.get(file.job)
        return None if record is None or record.interim is None else record.interim.body

    def _is_tried(self, file: _File) -> bool:
        """Tell whether workers have worked on a file."""
        record = self._rank.node.pe.client.jobs.get(file.job)
        return record is not None and record.started_s is not None

    # --- the files --------------------------------------------------------------------------

    @property
    def deadline_s(self) -> float:
        return min(super().deadline_s, self._look_at_s)

    def turn(self, now: float) -> None:
        if self._is_busy and now >= self._look_at_s:
            self._end_reads(now)
        super().turn(now)

    def _begin(self, now: float) -> None:
        """Have the next files read, up to the bound on files at once; end if no file is left."""
        self._is_busy = True
        if not self._files:
            self._rank.stop()
            return
        placement, config = self._rank.node.placement, self._rank.node.config
        most = min(_AT_ONCE_MAX, config.residents_per_pe(placement.size) * placement.size) or 1
        while self._waiting and self._under_way < most:
            file = self._waiting.popleft()
            file.begun_s = now
            self._under_way += 1
            self._tell(file, f"mallob-py: {file.path} on {placement.describe()}")
            source = self._input if file.path in STANDARD_INPUT else file.path
            self._read(file.job, file.application.name, (source,), self._configuration_of_job(now))
            if self._each_limit_s is not None:
                self._look_at_s = min(self._look_at_s, now + self._each_limit_s)
        if self._next_progress_s == math.inf:
            self._next_progress_s = now + (1.0 if self._is_single else self.progress_s)

    def _configuration_of_job(self, now: float) -> Mapping[str, Any]:
        within_s = self._answers_by_s - now
        if "solutions" in self._configuration and self._each_limit_s is not None:
            within_s = self._each_limit_s
        if within_s == math.inf:
            return self._configuration
        return {**self._configuration, "solutions-within": max(0.0, within_s)}

    def _tell_progress(self, now: float) -> None:
        # Imported late, because these modules import much that short jobs do not need.
        from mallob_py.service.telemetry.status import interim_of, progress_of

        file = self._files[0]
        if file.is_read_now and self._is_single:
            self._next_progress_s = now + 1.0
            self._tell_read(file)
            return
        record = self._rank.node.pe.client.jobs.get(file.job)
        far = ""
        if record is not None:
            far = far_text(progress_of(record.progression, now), interim_of(record.interim))
        parts = [f"{now - (file.begun_s or 0.0):.1f} s", self._workers(file.job), far]
        if not self._is_single:
            parts.append(f"{len(self._files)} files without an answer, {self._under_way} under way")
        self._tell(file, ", ".join(filter(None, parts)))

    def _tell_read(self, file: _File) -> None:
        pid = self._rank.pool.pid_of(file.job)
        source = self._input if file.path in STANDARD_INPUT else file.path
        if pid is not None and (far := bytes_read(pid, source)) is not None:
            self._tell(file, f"read {far[0] / 1e6:.0f} MB of {far[1] / 1e6:.0f} MB")

    def worker_event(self, event: WorkerEvent, now: float) -> None:
        match event:
            case ReadDone(job, description) if job in self._by_job:
                self._submit(self._by_job[job], self._brought(job, description), now)
            case ReadFailed(job, message, _) if job in self._by_job:
                self._fail(self._by_job[job], message.replace(self._input, "standard input"))

    def _submit(self, file: _File, description: Description, now: float) -> None:
        read_s = now - (file.begun_s or 0.0)
        self._tell(file, f"read in {read_s:.2f} s, description of {description.size} bytes")
        if self._is_single:
            self._next_progress_s = now + 1.0
        file.is_submitted = True
        limit_s = self._each_limit_s or 0.0
        if limit_s and "solutions" in self._configuration:
            limit_s += _GRACE_S
        self._rank.submit(file.job, JobParameters(time_limit_s=limit_s), description)

    # --- limits -----------------------------------------------------------------------------

    def _end_reads(self, now: float) -> None:
        """Answer UNKNOWN for files whose reading has used up their time limit."""
        assert self._each_limit_s is not None
        left_s = math.inf
        for file in [one for one in self._by_job.values() if one.is_read_now]:
            file_left_s = self._each_limit_s - self._rank.pool.read_used_s(file.job)[0]
            if file_left_s > 0:
                left_s = min(left_s, file_left_s)
                continue
            self._rank.pool.cancel_read(file.job)
            self._tell(file, "the time limit is reached, while the file was read")
            self._answer(file, UNKNOWN, ())
            self._go_on()
        self._look_at_s = now + max(_LOOK_MIN_S, left_s)

    def _time_is_up(self, now: float) -> None:
        """Answer UNKNOWN for a single formula."""
        file = self._files[0]
        self._tell(file, "the time limit is reached")
        if not self._interrupt(file.job):
            self._leave_unanswered()

    def _leave_unanswered(self) -> None:
        """Answer all open files: with the best answer so far, UNKNOWN if tried, or nothing if not begun."""
        for file in list(self._files):
            if file.answer is not None:
                continue
            if (offered := self._offered(file)) is not None:
                self._answer_with(file, offered)
            elif self._is_single or self._is_tried(file):
                self._answer(file, UNKNOWN, ())
            else:
                file.word = "not begun"
                self._tell(file, f"work on {file.path} was not begun")
                file.answer = []
            self._under_way -= file.begun_s is not None
        self._write_answers()
        self._next_progress_s, self._is_busy = math.inf, bool(self._files)

    def _job_ended(self, ended: JobEnded, now: float) -> None:
        if (file := self._by_job.get(ended.job)) is None or file.answer is not None:
            return
        stats = ended.stats
        file.row = now - (file.begun_s or 0.0), stats.turns_s, stats.max_volume
        if ended.outcome is Outcome.FAILED:
            self._fail(file, ended.reason or "the job has failed")
            return
        answer = ended.body
        if answer is None:
            answer = None if ended.interim is None else ended.interim.body
            if ended.outcome is Outcome.TIME_LIMIT:
                self._tell(file, f"the time limit is reached, after {stats.turns_s:.2f} s with a PE")
        else:
            body = wire.decode_result(answer)
            event = wire.answered(ended.job, body.code, body.name, body.fields)
            self._rank.log.write(now, LogEvent.ANSWERED, event)
            fields = wire.decode_fields(body.fields)
            by = f" by {fields['solver']}" if "solver" in fields else ""
            seconds = now - (file.begun_s or 0.0)
            most = stats.max_volume
            workers = "one worker" if most == 1 else f"at most {most} workers"
            megabytes = stats.peak_memory_bytes / 1e6
            self._tell(file, f"answered in {seconds:.2f} s{by}, {workers} of {megabytes:.0f} MB")
            if "core-size" in fields:
                self._tell(file, f"a core of {fields['core-size']} clauses")
        self._answer_with(file, answer)
        self._go_on()

    def _fail(self, file: _File, reason: str) -> None:
        """Fail a file: report why, and give no answer, not even UNKNOWN."""
        self._complain(reason if self._is_single or file.path in reason else f"{file.path}: {reason}")
        self._result = UNKNOWN
        self._tidy_up()
        file.answer = []
        self._go_on()

    def _go_on(self) -> None:
        self._under_way -= 1
        self._write_answers()
        if self._waiting or not self._files:
            self._is_busy = False
        if self._is_single:
            self._next_progress_s = math.inf

    def _answer_with(self, file: _File, answer: bytes | None) -> None:
        """Answer a file with a result; None: with UNKNOWN."""
        if answer is None:
            self._answer(file, UNKNOWN, ())
            return
        body = wire.decode_result(answer)
        is_bytes = body.form is wire.SolutionForm.BYTES
        solution = body.solution if is_bytes else array.array("i", body.solution)
        fields = wire.decode_fields(body.fields)
        if "solutions" in fields:
            is_late = self._rank.now() >= self._limit_s - _GRACE_S
            late = "there may be more" + is_late * "; these were found within the time limit"
            further = "no others" if fields["complete"] else late
            self._tell(file, f"{fields['solutions']} solutions; {further}")
        file.word = body.name
        self._answer(file, body.code, solution, fields)

    def _tidy_up(self) -> None:
        """Remove result files that do not belong to the answer, before the answer is printed."""
        for key in self._result_keys:
            if not isinstance(path := self._configuration.get(key), str):
                continue
            if self._result == 20 or key == "solutions-file":
                result_file.discard_unfinished(path)
                continue
            try:
                result_file.discard(path)
            except OSError as error:
                if self._failed:  # the same error was already reported
                    continue
                say(f"mallob-py solve: {path}: cannot be removed: {error.strerror}")

    # --- output ---------------------------------------------------------------------------

    def _tell(self, file: _File, text: str) -> None:
        """Write a comment on a file: now, or when all earlier files are answered."""
        if self._quiet or not (comment := file.application.comment):
            return
        text = printable(text)
        if self._files and file is self._files[0]:
            self._write(sys.stdout, [f"{comment}{text}\n"])
        else:
            file.comments.append(f"{comment}{text}\n")

    def _answer(
        self, file: _File, code: int, solution: Sequence[int] | bytes, fields: Mapping[str, Any] | None = None
    ) -> None:
        if code == UNKNOWN:
            file.word = "UNKNOWN"
        self._result = code
        self._code = exit_code_of(file.application.exit_codes, code)
        self._tidy_up()
        file.answer = list(self._answer_lines(file, code, solution, fields or {}))

    def _write_answers(self) -> None:
        """Write the known answers up to the first file without one."""
        while self._files and self._files[0].answer is not None:
            file = self._files[0]
            self._write(self._output, file.answer or [])
            self._files.popleft()
            del self._by_job[file.job]
            file.answer = None
            self._rows.append(file)
            if self._table is not None:
                self._write(self._table, [_csv_line(file.path, file.word, *file.row)])
            self._answered += 1
            told = Answered(self._answered, self._result, self._code, self._failed)
            self._tell_answered(told)
            if self._files:
                self._write(sys.stdout, self._files[0].comments)
                self._files[0].comments = []

    def _tell_table(self) -> None:
        """Print a table of several files."""
        if self._is_single or not self._is_for_terminal:
            return
        from mallob_py.text_table import format_table

        header = ("FILE", "ANSWER", "TIME [s]", "WITH A PE [s]", "WORKERS")
        rows = ((printable(file.path), file.word, *file.row) for file in self._rows)
        comment = next((file.application.comment for file in self._rows if file.application.comment), "c ")
        lines = format_table(header, rows).splitlines()
        self._write(sys.stdout, [f"{comment}{line}\n" for line in lines])

    def _answer_lines(
        self, file: _File, code: int, solution: Sequence[int] | bytes, fields: Mapping[str, Any]
    ) -> Iterator[str]:
        if not self._is_single:
            yield f"{file.application.comment or '; '}{printable(file.path)}\n"  # the answer's file
        several = {"solutions": True} if "solutions" in self._configuration else {}
        result = {**fields, "resultcode": code, **several}
        for line in file.application.answer_lines(result, solution):
            yield f"{line}\n"

    def _write(self, stream: TextIO, lines: Iterable[str]) -> None:
        """Write lines; if this fails, end all ranks, since no further answer can be written."""
        if (problem := write_to(stream, lines)) is not None:
            if problem:
                what = "table" if stream is self._table else "answer"
                self._complain(f"the {what} cannot be written: {problem}")
            self._rank.stop()

    def _complain(self, message: str) -> None:
        self._failed = True
        say(f"mallob-py solve: {message}")


def _csv_line(*cells: object) -> str:
    with io.StringIO() as line:
        csv.writer(line, lineterminator="\n").writerow(cells)
        return line.getvalue()
