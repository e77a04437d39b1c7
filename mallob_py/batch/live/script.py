"""Job scripts: what their headers ask of the scheduler.

    #!/bin/bash
    #JOB_CLASS malleable
    #JOB_NAME count
    #REQUIRED_TIME 60000
    #MIN_NODES 1
    #MAX_NODES 4

Source: ElasticJobScheduler. `#JOB_CLASS` is rigid (as many nodes as `#NODES` says), moldable (a number that
the scheduler chooses), malleable (which it also changes) or evolving (which the job changes).
`#REQUIRED_TIME` is in milliseconds, on any number of nodes. `#JOB_TYPE` is taken and not used. Headers end
at the first command. A rigid job that says nothing has one node, and the required time that the scheduler
gives to all that say none.

Scripts for Slurm run as rigid jobs: of `#SBATCH` lines, the cores of all tasks, the time, the name, the
folder and the files for what is printed are understood where no header says them. Options of the command line
come before both. Which jobs one comes after is said there only: a script does not know their numbers.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
from collections.abc import Mapping
from typing import NoReturn

import msgspec

from mallob_py.batch.job import Job, Kind
from mallob_py.batch.speedup import Amdahl

SCRIPT_MAX_BYTES = 1 << 20
_NUMBERS = ("REQUIRED_TIME", "MIN_NODES", "MAX_NODES", "NODES")
_PATHS = ("JOB_FOLDER", "JOB_OUTPUT", "JOB_ERRORS")
_HEADERS = ("JOB_TYPE", "JOB_CLASS", "JOB_NAME", *_NUMBERS, *_PATHS)
_HEADER = re.compile(r"#([A-Z]+(?:_[A-Z]+)*)\b[ \t]*(.*)")
_NAME = re.compile(r"[\w.+-]{1,64}")
#: of what is like a header: the least likeness that is a slip of the keyboard
_LIKE = 0.8
_REQUIRED_MAX_MS = 10**12
_NODES_MAX = 1_000_000
#: in names of files: the job's number and name
_FILLED = re.compile("%(.?)")
#: required times hold on any number of nodes, so that is what policies are told
ANY_NUMBER = Amdahl(1.0)


class ScriptError(ValueError):
    """A script that cannot be a job. One line with the number of the line at fault."""


class Wishes(msgspec.Struct, frozen=True):
    """The wishes of a script. A rigid job's least and most nodes are those that it asks for."""

    name: str
    kind: Kind
    required_s: float
    nodes: int
    nodes_min: int
    nodes_max: int
    #: in which it runs, what it prints to, and what its errors go to; "": nothing was said
    folder: str = ""
    output: str = ""
    errors: str = ""

    def as_of(self, number: int, directory: str) -> Wishes:
        """Return them with the paths of the job of a number that was submitted in a folder."""
        folder = os.path.join(directory, self.folder) if self.folder else directory
        paths = [
            path and os.path.join(folder, _filled(path, number, self.name))
            for path in (self.output, self.errors)
        ]
        return msgspec.structs.replace(self, folder=folder, output=paths[0], errors=paths[1])

    def job(self, number: int, submit_s: float, user: str = "") -> Job:
        """Return the job as policies see it; submitted at this time of the scheduler's clock."""
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
    """Return the wishes of a script; `given` are headers that come before its own.

    `default_s`: the required time if none is said; None: one has to be. Raises ScriptError.
    """
    found = _headers(text)
    for header, value in slurm_lines(text)[0].items():
        found.setdefault(header, value)
    for header, text_given in (given or {}).items():
        if header not in _HEADERS:
            raise ScriptError(f"no header #{header[:40]}")
        found[header] = 0, text_given
    if (given or {}).keys() & {"MIN_NODES", "MAX_NODES"}:
        found.setdefault("JOB_CLASS", (0, Kind.MALLEABLE.value))
    kind = _kind(found)
    name = found["JOB_NAME"][1] if "JOB_NAME" in found else default_name
    if not _NAME.fullmatch(name):
        where = f"line {found['JOB_NAME'][0]}: " if "JOB_NAME" in found else ""
        raise ScriptError(f"{where}the name {name[:70]!r} is not one of 1 to 64 letters, digits and _ . + -")
    default_ms = None if default_s is None else round(1000 * default_s)
    required_ms = _number(found, "REQUIRED_TIME", _REQUIRED_MAX_MS, default_ms)
    if kind is Kind.RIGID:
        for header in ("MIN_NODES", "MAX_NODES"):
            if header in found:
                raise ScriptError(f"line {found[header][0]}: a rigid job has #NODES and no #{header}")
        low = high = nodes = _number(found, "NODES", default=1)
    else:
        low, high = _number(found, "MIN_NODES"), _number(found, "MAX_NODES")
        if low > high:
            raise ScriptError(f"line {found['MAX_NODES'][0]}: #MAX_NODES is {high}, below #MIN_NODES {low}")
        nodes = _number(found, "NODES") if "NODES" in found else low
        if not low <= nodes <= high:
            raise ScriptError(f"line {found['NODES'][0]}: #NODES is {nodes}, not within {low} and {high}")
    paths = [_path(found, header) for header in _PATHS]
    return Wishes(name, kind, required_ms / 1000.0, nodes, low, high, *paths)


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
_SLURM_TIME = re.compile(r"(?:(\d{1,5})-)?(\d{1,7})(?::(\d{1,7}))?(?::(\d{1,7}))?")


def slurm_lines(text: str) -> tuple[dict[str, tuple[int, str]], list[str]]:
    """Headers that `#SBATCH` lines stand for, as of `_headers`, and what is ignored. Raises ScriptError."""
    asked: dict[str, tuple[int, str]] = {}
    unused: list[str] = []
    for number, line in enumerate(text.splitlines()[1:], 2):
        if not line.startswith("#"):
            if line.strip():
                break
            continue
        if not re.match(r"#SBATCH\s", line):
            continue
        try:
            options, others = _SLURM.parse_known_args(shlex.split(line, comments=False)[1:])
        except (ScriptError, ValueError) as error:
            raise ScriptError(f"line {number}: {error}") from None
        if options.dependency:
            option = "--after-ok" if "ok:" in options.dependency else "--after"
            raise ScriptError(
                f"line {number}: --dependency={options.dependency[:40]} names jobs by numbers of another"
                f" scheduler; leave it out and submit with {option} JOB"
            )
        if options.array:
            raise ScriptError(
                f"line {number}: --array={options.array[:40]} is many jobs, and a script is one here; leave"
                " it out: for i in 1 2 3; do SLURM_ARRAY_TASK_ID=$i mallob-py batch submit SCRIPT; done"
            )
        asked |= {key: (number, value) for key, value in vars(options).items() if value is not None}
        if others:
            unused.append(f"line {number}: #SBATCH {' '.join(others)}")
    sizes = ["ntasks"] if "ntasks" in asked else ["nodes", "ntasks_per_node"]
    found: dict[str, tuple[int, str]] = {}
    for key in (*sizes, "cpus_per_task"):
        if key in asked:
            found["NODES"] = _times(found.get("NODES", (0, "1")), asked[key], key)
    for key, header in _SLURM_HEADERS.items():
        if key in asked:
            found[header] = asked[key]
    if "time" in asked:
        number, value = asked["time"]
        found["REQUIRED_TIME"] = number, str(_slurm_ms(number, value))
    return found, unused


def _times(before: tuple[int, str], asked: tuple[int, str], key: str) -> tuple[int, str]:
    number, text = asked
    if not re.fullmatch(r"[0-9]{1,7}", text) or int(text) == 0:
        option = key.replace("_", "-")
        raise ScriptError(f"line {number}: --{option}={text[:40]} is not a number from 1 to {_NODES_MAX}")
    return number, str(int(before[1]) * int(text))


def _slurm_ms(number: int, text: str) -> int:
    """Minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    match = _SLURM_TIME.fullmatch(text)
    if match is None:
        raise ScriptError(f"line {number}: --time={text[:40]} is no time such as 30, 1:30:00 or 2-12")
    days, *parts = match.groups()
    units = (3600, 60, 1) if days is not None or parts[2] is not None else (60, 1, 0)
    seconds = 86400 * int(days or 0)
    seconds += sum(int(part or 0) * unit for part, unit in zip(parts, units, strict=True))
    return 1000 * seconds


def _headers(text: str) -> dict[str, tuple[int, str]]:
    """By name: the number of the line and the value."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("#!"):
        raise ScriptError("line 1: a script begins with what runs it, such as #!/bin/bash")
    found: dict[str, tuple[int, str]] = {}
    has_begun = False
    for number, line in enumerate(lines[1:], 2):
        if not line.startswith("#"):
            has_begun |= bool(line.strip())
            continue
        if not (match := _HEADER.match(line)):
            continue
        header, value = match[1], match[2].strip()
        if header not in _HEADERS:
            # Other comments are nobody's business.
            if "_" in header and (close := difflib.get_close_matches(header, _HEADERS, 1, _LIKE)):
                raise ScriptError(f"line {number}: no header #{header} (did you mean #{close[0]}?)")
            continue
        if has_begun:
            raise ScriptError(f"line {number}: #{header} stands behind the first command")
        if header in found:
            raise ScriptError(f"line {number}: #{header} stands in line {found[header][0]} already")
        found[header] = number, value
    return found


def _kind(found: dict[str, tuple[int, str]]) -> Kind:
    number, value = found.get("JOB_CLASS", (0, Kind.RIGID.value))
    try:
        return Kind(value)
    except ValueError:
        known = ", ".join(kind.value for kind in Kind)
        raise ScriptError(f"line {number}: #JOB_CLASS is {value!r}, not one of {known}") from None


def _number(
    found: dict[str, tuple[int, str]], header: str, most: int = _NODES_MAX, default: int | None = None
) -> int:
    if header not in found:
        if default is None:
            unit = "milliseconds" if header == "REQUIRED_TIME" else "nodes"
            raise ScriptError(f"the header #{header} is missing: a number of {unit}")
        return default
    number, text = found[header]
    value = int(text) if re.fullmatch(r"[0-9]{1,13}", text) else 0
    if not 1 <= value <= most:
        where = f"line {number}: " if number else ""
        raise ScriptError(f"{where}#{header} is {text[:40]!r}, not a number from 1 to {most}")
    return value


def _path(found: dict[str, tuple[int, str]], header: str) -> str:
    number, path = found.get(header, (0, ""))
    where = f"line {number}: " if number else ""
    if header in found and (not path or "\0" in path):
        raise ScriptError(f"{where}#{header} names no file")
    if header != "JOB_FOLDER" and (unknown := set(_FILLED.findall(path)) - {"j", "x", "%"}):
        raise ScriptError(
            f"{where}%{min(unknown)} in #{header} means nothing here: %j is the job's number, %x its name"
        )
    return path


def _filled(path: str, number: int, name: str) -> str:
    return _FILLED.sub(lambda found: {"j": str(number), "x": name}.get(found[1], "%"), path)
