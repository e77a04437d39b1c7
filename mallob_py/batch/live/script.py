"""Job scripts: what their headers request from the scheduler.

    #!/bin/bash
    #JOB_CLASS malleable
    #JOB_NAME count
    #REQUIRED_TIME 60000
    #MIN_NODES 1
    #MAX_NODES 4

Source: ElasticJobScheduler. `#JOB_CLASS` is rigid (`#NODES` nodes), moldable (the scheduler chooses the
number of nodes), malleable (the scheduler chooses and changes the number) or evolving (the job changes the
number). `#REQUIRED_TIME` is in milliseconds and holds on any number of nodes. `#JOB_TYPE` is accepted and
ignored. Headers end at the first command. Defaults: a rigid job has one node, and the required time is the
scheduler's default.

Scripts for Slurm run as rigid jobs or, with a range of nodes, as moldable jobs. `#SBATCH` lines determine the
cores of all tasks, the time, the name, the folder and the output files; a header precedes an `#SBATCH` line,
and an option of the command line precedes both. Dependencies are only options: scripts know no job numbers.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

import msgspec

from mallob_py.batch.job import Job, Kind
from mallob_py.batch.speedup import Amdahl

SCRIPT_MAX_BYTES = 1 << 20
_NUMBERS = ("REQUIRED_TIME", "MIN_NODES", "MAX_NODES", "NODES")
_PATHS = ("JOB_FOLDER", "JOB_OUTPUT", "JOB_ERRORS")
_HEADERS = ("JOB_TYPE", "JOB_CLASS", "JOB_NAME", *_NUMBERS, *_PATHS)
_HEADER = re.compile(r"#([A-Z]+(?:_[A-Z]+)*)\b[ \t]*(.*)")
_NAME_MAX = 200
#: the smallest likeness (0 to 1) at which a comment is taken for a misspelt header
_LIKE = 0.8
_REQUIRED_MAX_MS = 10**12
_NODES_MAX = 1_000_000
#: the required time of jobs without a limit: a year in milliseconds
_UNLIMITED_MS = 365 * 86_400_000
#: a placeholder in the name of an output file: the width to which a number is padded, and a letter
_FILLED = re.compile(r"%(\d{0,2})(.?)")
_KNOWN = "%j is the job's number, %x its name, %u its user, %A its array, %a its index there, %N its node"
#: the mark in a file's name that stands for the node until the job begins; no name contains this character
_NODE = "\0"
_NUMBER = re.compile("[0-9]{1,15}")
#: the environment variables for a job's array and its task in it; each task is submitted as a job
ARRAY_JOB, ARRAY_TASK = "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"
#: the speedup that policies see: required times hold on any number of nodes
ANY_NUMBER = Amdahl(1.0)


class ScriptError(ValueError):
    """A script cannot become a job. The error's text is one line that names the wrong line of the script."""


class _Said(NamedTuple):
    """A header: its line (0: an option of the command line), its value, and its name as the user wrote it."""

    line: int
    value: str
    word: str

    def error(self, problem: str) -> ScriptError:
        where = f"line {self.line}: " if self.line else ""
        return ScriptError(f"{where}{self.word} {problem}")


class Wishes(msgspec.Struct, frozen=True):
    """The wishes of a script. A rigid job's `nodes_min` and `nodes_max` are its requested number of nodes."""

    name: str
    kind: Kind
    required_s: float
    nodes: int
    nodes_min: int
    nodes_max: int
    #: the job's folder, and the files for its output and error output; "": not specified
    folder: str = ""
    output: str = ""
    errors: str = ""
    #: the number of the job's array, which is the number of the array's first job; 0: no array
    array: int = 0
    #: the job's task number within its array; -1: no array
    task: int = -1

    def as_of(self, number: int, directory: str, environment: Mapping[str, str]) -> Wishes:
        """Return the wishes of job `number`, submitted in `directory`, with its paths and its array."""
        folder = os.path.join(directory, self.folder) if self.folder else directory
        filled = {
            "j": str(number),
            "x": self.name.replace("/", "_"),
            "u": environment.get("USER", str(os.getuid())).replace("/", "_"),
            "A": environment.get(ARRAY_JOB, str(number)),
            "a": environment.get(ARRAY_TASK, "0"),
            "N": _NODE,
        }
        paths = [path and os.path.join(folder, _filled(path, filled)) for path in (self.output, self.errors)]
        array, task = (filled["A"], filled["a"]) if ARRAY_TASK in environment else ("", "")
        return msgspec.structs.replace(
            self,
            folder=folder,
            output=paths[0],
            errors=paths[1],
            array=int(array) if _NUMBER.fullmatch(array) else 0,
            task=int(task) if _NUMBER.fullmatch(task) else -1,
        )

    def job(self, number: int, submit_s: float, user: str = "") -> Job:
        """Return the job as policies see it; `submit_s` is a time of the scheduler's clock."""
        return Job(
            number,
            submit_s,
            self.nodes,
            self.required_s,
            self.kind,
            self.nodes_min,
            self.nodes_max,
            ANY_NUMBER,
            number,
            user=user,
        )


def parse_script(
    text: str, default_name: str, given: Mapping[str, str] | None = None, default_s: float | None = None
) -> Wishes:
    """Return the wishes of a script. `given`: headers that replace those in the script.

    `default_s`: the required time if the script has none; None: the script must have one. Raises ScriptError.
    """
    found = _headers(text)
    sizes = {"JOB_CLASS", "NODES", "MIN_NODES", "MAX_NODES"}
    for header, value in slurm_lines(text).headers.items():
        if header not in sizes or not sizes & {name for name, said in found.items() if said.word[0] == "#"}:
            found.setdefault(header, value)
    for header, text_given in (given or {}).items():
        if header not in _HEADERS:
            raise ScriptError(f"no header #{header[:40]}")
        found[header] = _Said(0, text_given, f"#{header}")
    if (given or {}).keys() & {"MIN_NODES", "MAX_NODES"}:
        found.setdefault("JOB_CLASS", _Said(0, Kind.MALLEABLE.value, "#JOB_CLASS"))
    kind = _kind(found)
    said = found.get("JOB_NAME", _Said(0, default_name, "the name"))
    name = said.value
    if not (0 < len(name) <= _NAME_MAX and name.isprintable()):
        raise said.error(f"is {name[:70]!r}, not 1 to {_NAME_MAX} characters that can be printed")
    default_ms = None if default_s is None else round(1000 * default_s)
    required_ms = _number(found, "REQUIRED_TIME", _REQUIRED_MAX_MS, default_ms)
    if kind is Kind.RIGID:
        for header in ("MIN_NODES", "MAX_NODES"):
            if header in found:
                raise found[header].error("is not for a rigid job, which has #NODES")
        low = high = nodes = _number(found, "NODES", default=1)
    else:
        low, high = _number(found, "MIN_NODES"), _number(found, "MAX_NODES")
        if low > high:
            raise found["MAX_NODES"].error(f"is {high}, below {found['MIN_NODES'].word} {low}")
        nodes = _number(found, "NODES") if "NODES" in found else low
        if not low <= nodes <= high:
            raise found["NODES"].error(f"is {nodes}, not between {low} and {high}")
    folder, output, errors = [_path(found, header) for header in _PATHS]
    return Wishes(name, kind, required_ms / 1000.0, nodes, low, high, folder, output, errors)


# --- Slurm's lines -----------------------------------------------------------------------------


class _SlurmOptions(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ScriptError(message)


_SLURM = _SlurmOptions(add_help=False, allow_abbrev=False)
_SLURM.add_argument("-n", "--ntasks")
_SLURM.add_argument("-N", "--nodes")
_SLURM.add_argument("--ntasks-per-node")
_SLURM.add_argument("-c", "--cpus-per-task")
_SLURM.add_argument("-t", "--time")
_SLURM.add_argument("-J", "--job-name")
_SLURM.add_argument("-D", "--chdir")
_SLURM.add_argument("-o", "--output")
_SLURM.add_argument("-e", "--error")
_SLURM.add_argument("-d", "--dependency")
_SLURM.add_argument("-a", "--array")
_SLURM_HEADERS = {
    "job_name": "JOB_NAME",
    "chdir": "JOB_FOLDER",
    "output": "JOB_OUTPUT",
    "error": "JOB_ERRORS",
}
_TASKS_MAX = 10_000
_UP_TO_COMMENT = re.compile(r"""(?:[^#"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')*(?=#)""")
_SLURM_TIME = re.compile(r"(?:(\d{1,5})-)?(\d{1,7})(?::(\d{1,7}))?(?::(\d{1,7}))?")


class SlurmLines(NamedTuple):
    """The result of `#SBATCH` lines: headers, the task numbers of an array, and the lines without effect.

    `at_once`: how many tasks of the array may run together (0: all).
    """

    headers: dict[str, _Said]
    tasks: tuple[int, ...]
    at_once: int
    ignored: list[str]


def slurm_lines(text: str) -> SlurmLines:
    """Read the `#SBATCH` lines of a script. Raises ScriptError."""
    asked: dict[str, _Said] = {}
    ignored: list[str] = []
    for number, line in enumerate(text.splitlines()[1:], 2):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if not re.match(r"#SBATCH\s", line):
            continue
        try:
            words = shlex.split(_without_comment(line.removeprefix("#SBATCH")))
            options, others = _SLURM.parse_known_args(words)
        except (ScriptError, ValueError) as error:
            raise ScriptError(f"line {number}: {error}") from None
        asked |= {
            key: _Said(number, value, f"--{key.replace('_', '-')}")
            for key, value in vars(options).items()
            if value is not None
        }
        if others:
            ignored.append(f"line {number}: #SBATCH {' '.join(others)}")
    if dependency := asked.get("dependency"):
        option = "--after-ok" if "ok:" in dependency.value else "--after"
        raise ScriptError(
            f"line {dependency.line}: --dependency={dependency.value[:40]} names jobs by numbers of another"
            f" scheduler; leave it out and submit with {option} JOB"
        )
    headers = _sizes(asked) | {header: asked[key] for key, header in _SLURM_HEADERS.items() if key in asked}
    if time := asked.get("time"):
        headers["REQUIRED_TIME"] = time._replace(value=str(_slurm_ms(time)))
    tasks, at_once = _array(asked["array"]) if "array" in asked else ((), 0)
    return SlurmLines(headers, tasks, at_once, ignored)


def _without_comment(line: str) -> str:
    """Return a line up to its first `#` that is neither quoted nor escaped, as Slurm reads the line."""
    match = _UP_TO_COMMENT.match(line)
    return line if match is None else match[0]


def _sizes(asked: Mapping[str, _Said]) -> dict[str, _Said]:
    """Return the headers for the requested number of slots, or for its smallest and greatest value."""
    kinds = ["ntasks"] if "ntasks" in asked else ["nodes", "ntasks_per_node"]
    given = [asked[key] for key in (*kinds, "cpus_per_task") if key in asked]
    if not given:
        return {}
    low, high = 1, 1
    for said in given:
        least, _, most = said.value.partition("-") if said.word == "--nodes" else (said.value, "", "")
        for value in (least, most or least):
            if not re.fullmatch(r"[0-9]{1,7}", value) or int(value) == 0:
                raise ScriptError(
                    f"line {said.line}: {said.word}={said.value[:40]} is not a number from 1 to {_NODES_MAX}"
                )
        low, high = low * int(least), high * int(most or least)
    last = given[-1]._replace(word=" times ".join(said.word for said in given))
    if low > high:
        raise last.error(f"goes from {low} to {high}; the first number must be the smaller one")
    if low == high:
        return {"NODES": last._replace(value=str(low))}
    return {
        "JOB_CLASS": last._replace(value=Kind.MOLDABLE.value),
        "MIN_NODES": last._replace(value=str(low)),
        "MAX_NODES": last._replace(value=str(high)),
    }


def _array(said: _Said) -> tuple[tuple[int, ...], int]:
    """Parse an array such as 1-10%3, 0-8:2 or 1,5,9; return tasks, and how many may run at once (0: all)."""
    text, _, at_once = said.value.partition("%")
    tasks: dict[int, None] = {}
    for piece in text.split(","):
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", piece)
        if match is None or int(match[3] or 1) == 0 or not re.fullmatch(r"\d{0,7}", at_once):
            raise said.error(f"is {said.value[:40]}, not tasks such as 1-10, 0-8:2, 1,5,9 or 1-10%3")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        tasks |= dict.fromkeys(range(first, min(last, first + _TASKS_MAX * step) + 1, step))
    if not 0 < len(tasks) <= _TASKS_MAX:
        raise said.error(f"is {said.value[:40]}: an array has 1 to {_TASKS_MAX} tasks")
    return tuple(tasks), int(at_once or 0)


def _slurm_ms(said: _Said) -> int:
    """Parse a time such as M, M:S, H:M:S, D-H, D-H:M or D-H:M:S into milliseconds.

    0 and Slurm's words for it mean no limit.
    """
    if said.value.lower() in ("unlimited", "infinite", "0"):
        return _UNLIMITED_MS
    match = _SLURM_TIME.fullmatch(said.value)
    if match is None:
        raise ScriptError(
            f"line {said.line}: --time={said.value[:40]} is no time such as 30, 1:30:00, 2-12 or UNLIMITED"
        )
    days, *parts = match.groups()
    units = (3600, 60, 1) if days is not None or parts[2] is not None else (60, 1, 0)
    seconds = 86400 * int(days or 0)
    seconds += sum(int(part or 0) * unit for part, unit in zip(parts, units, strict=True))
    return 1000 * seconds or _UNLIMITED_MS


def _headers(text: str) -> dict[str, _Said]:
    lines = text.splitlines()
    if not lines or not lines[0].startswith("#!"):
        raise ScriptError("line 1: a script begins with what runs it, such as #!/bin/bash")
    found: dict[str, _Said] = {}
    has_begun = False
    for number, line in enumerate(lines[1:], 2):
        has_begun |= bool(line.strip()) and not line.lstrip().startswith("#")
        if not (match := _HEADER.match(line)):
            continue
        header, value = match[1], match[2].strip()
        if header not in _HEADERS:
            # A comment that is no header and resembles none is ignored.
            if "_" in header and (close := difflib.get_close_matches(header, _HEADERS, 1, _LIKE)):
                raise ScriptError(f"line {number}: no header #{header} (did you mean #{close[0]}?)")
            continue
        if has_begun:
            raise ScriptError(f"line {number}: #{header} stands behind the first command")
        if header in found:
            raise ScriptError(f"line {number}: #{header} stands in line {found[header].line} already")
        found[header] = _Said(number, value, f"#{header}")
    return found


def _kind(found: dict[str, _Said]) -> Kind:
    said = found.get("JOB_CLASS", _Said(0, Kind.RIGID.value, "#JOB_CLASS"))
    try:
        return Kind(said.value)
    except ValueError:
        known = ", ".join(kind.value for kind in Kind)
        raise said.error(f"is {said.value!r}, not one of {known}") from None


def _number(found: dict[str, _Said], header: str, most: int = _NODES_MAX, default: int | None = None) -> int:
    if header not in found:
        if default is None:
            unit = "milliseconds" if header == "REQUIRED_TIME" else "nodes"
            raise ScriptError(f"the header #{header} is missing: a number of {unit}")
        return default
    said = found[header]
    value = int(said.value) if re.fullmatch(r"[0-9]{1,13}", said.value) else 0
    if not 1 <= value <= most:
        raise said.error(f"is {said.value[:40]!r}, not a number from 1 to {most}")
    return value


def _path(found: dict[str, _Said], header: str) -> str:
    said = found.get(header, _Said(0, "", ""))
    path = said.value
    if header in found and (not path or "\0" in path):
        raise said.error("names no file")
    known = "jxuAaN%"
    if header != "JOB_FOLDER" and (unknown := {code for _, code in _FILLED.findall(path)} - {*known}):
        raise said.error(f"contains %{min(unknown)}, which means nothing here: {_KNOWN}")
    return path


def on_node(path: str, host: str | None) -> str:
    """Return the path of a job's output if its script runs on `host`; None: the host is not known yet."""
    return path.replace(_NODE, "%N" if host is None else host.partition(".")[0])


def _filled(path: str, values: Mapping[str, str]) -> str:
    def fill(found: re.Match[str]) -> str:
        value = values.get(found[2], "%")
        return value.zfill(min(10, int(found[1] or 0))) if found[2] in "jAa" else value

    return _FILLED.sub(fill, path)
