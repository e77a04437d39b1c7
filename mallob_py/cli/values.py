"""Parsers of option values: convert a text into a typed value, or raise ValueError with a plain reason.

The parsers serve the command line, the configuration file and the environment. Durations and sizes have units
("5m", "2g"); for limits, "0" means "no limit" and gives None.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from mallob_py.runtime import notices
from mallob_py.runtime.memory import Reserve
from mallob_py.service.jobs.durations import parse_duration_s

if TYPE_CHECKING:
    from mallob_py.service.telemetry.status import JobInterim, JobProgress

#: greatest number of PEs of a rank: one event loop is too slow for more, and a larger number is a typo
CAPACITY_MAX = 256
#: greatest number of simulated PEs: no machine has the memory for more
SIMULATED_PES_MAX = 1 << 20
#: shortest time for which files are kept: a user who waits for a reply must be able to read the reply
KEEP_MIN_S = 3600.0
#: shortest limit on a rank's silence: ranks signal life once a second, and a busy machine may delay them
SILENCE_MIN_S = 3.0
#: shortest length of a job's turn
SLICE_MIN_S = 0.02
#: smallest limit on the size of logs: with less, nothing useful is kept
LOG_SIZE_MIN_BYTES = 1 << 20
#: greatest number of digits of a job's id
_ID_DIGITS_MAX = 18
_BYTES_PER_UNIT = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def duration_limit_s(text: str) -> float | None:
    """Parse a time limit to seconds: "300", "300s", "5m", "2h", "1d", "100ms"; "0": no limit."""
    return parse_duration_s(text) or None


def duration_s(text: str) -> float:
    """Parse a time above 0 to seconds: "300", "300s", "5m", "2h", "1d", "100ms"."""
    seconds = parse_duration_s(text)
    if not seconds:
        raise ValueError(f"{text!r} is not a time above 0")
    return seconds


def keep_s(text: str) -> float | None:
    """Parse how long to keep files: "30d", "12h"; "0": for ever."""
    seconds = duration_limit_s(text)
    if seconds is not None and seconds < KEEP_MIN_S:
        raise ValueError(f"{text!r} is less than 1h: users need time to read replies")
    return seconds


def duration_or_none_s(text: str) -> float:
    """Parse a time to seconds; "0" is allowed."""
    return parse_duration_s(text)


def slice_s(text: str) -> float:
    """Parse the length of a turn to seconds; "0": no turns."""
    seconds = duration_or_none_s(text)
    if 0 < seconds < SLICE_MIN_S:
        raise ValueError(f"{text!r} is neither 0 nor at least {SLICE_MIN_S:g} s")
    return seconds


def change(text: str) -> str:
    """Parse a change of the number of ranks: "+2", "-1", "=8"."""
    sign, digits = text[:1], text[1:]
    if sign not in ("+", "-", "=") or not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"{text!r} is not a change such as +2, -1 or =8")
    if int(digits) < 1:
        raise ValueError(f"{text!r} changes nothing" if sign != "=" else "at least one rank has to stay")
    return text


def silence_limit_s(text: str) -> float | None:
    """Parse the longest silence of a rank: "30s"; "0": no limit."""
    seconds = duration_limit_s(text)
    if seconds is not None and seconds < SILENCE_MIN_S:
        raise ValueError(f"{text!r} is less than {SILENCE_MIN_S:g} s")
    return seconds


def size_limit_bytes(text: str) -> int | None:
    """Parse a size to bytes: "1048576", "512m", "2g" (powers of 1024; also "2gb", "2gib"); "0": no limit."""
    lowered = text.strip().lower()
    digits = lowered.rstrip("kmgtib")
    unit = lowered[len(digits) :]
    if unit not in ("", "b"):
        unit = unit.removesuffix("b").removesuffix("i")
    try:
        number = float(digits)
    except ValueError:
        number = math.nan
    if unit not in _BYTES_PER_UNIT or not 0 <= number < 1 << 60:
        raise ValueError(f"{text!r} is not a size such as 512m or 2g")
    return int(number * _BYTES_PER_UNIT[unit]) or None


def size_bytes(text: str) -> int:
    """Parse a size, which must be positive; return it in bytes."""
    size = size_limit_bytes(text)
    if size is None:
        raise ValueError(f"{text!r} is not a size above 0")
    return size


def memory_reserve(text: str) -> Reserve | None:
    """Parse a size, or a share of the memory such as "5%"; "0": none."""
    if not text.strip().endswith("%"):
        try:
            size_bytes = size_limit_bytes(text)
        except ValueError:
            raise ValueError(f"{text!r} is neither a size such as 2g nor a share such as 5%") from None
        return None if size_bytes is None else Reserve(size_bytes=size_bytes)
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = math.nan
    if not 0 <= percent < 100:
        raise ValueError(f"{text!r} is not a share between 0% and 100%")
    return Reserve(share=percent / 100) if percent else None


def log_size_limit_bytes(text: str) -> int | None:
    """Parse the greatest size of a rank's logs to bytes: "100m"; "0": no limit."""
    size_bytes = size_limit_bytes(text)
    if size_bytes is not None and size_bytes < LOG_SIZE_MIN_BYTES:
        raise ValueError(f"{text!r} is less than 1m")
    return size_bytes


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def count(text: str) -> int:
    """Parse a whole number >= 0."""
    number = _integer(text)
    if number < 0:
        raise ValueError(f"{text} is negative")
    return number


def positive_count(text: str) -> int:
    """Parse a whole number >= 1."""
    number = _integer(text)
    if number < 1:
        raise ValueError(f"{text} is less than 1")
    return number


def job_or_task(text: str) -> tuple[int, int]:
    """Parse the number of a job, or of an array and one of its tasks: 12 is (12, -1), 12_3 is (12, 3)."""
    job, has_task, task = text.partition("_")
    return positive_count(job), count(task) if has_task else -1


def simulated_pes(text: str) -> int:
    """Parse the number of PEs of a simulated system: 1 to SIMULATED_PES_MAX."""
    number = positive_count(text)
    if number > SIMULATED_PES_MAX:
        raise ValueError(f"{text} exceeds {SIMULATED_PES_MAX}")
    return number


def capacity(text: str) -> int | None:
    """Parse the number of PEs of a rank: 1 to CAPACITY_MAX; "auto" gives None."""
    if text.strip().lower() == "auto":
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= CAPACITY_MAX:
        raise ValueError(f"{text!r} is neither auto nor a number from 1 to {CAPACITY_MAX}")
    return number


def priority(text: str) -> float:
    """Parse a finite number > 0."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"{text} is not a finite number above 0")
    return number


def path(text: str) -> str:
    """Parse a path that is not empty; it need not exist."""
    if not text or "\0" in text:
        raise ValueError("a path is needed")
    return text


def word(text: str) -> str:
    """Parse a text that is not empty."""
    if not text:
        raise ValueError("a text is needed, not an empty one")
    return text


def host_shares(text: str) -> tuple[tuple[str, int | None], ...]:
    """Parse hosts, separated by commas, each with its greatest number of ranks: "node2", "node2:4,node3"."""
    from mallob_py.runtime.remote_shell import HOST_NAME

    found: dict[str, int | None] = {}
    for each in words(text):
        match = re.fullmatch(rf"({HOST_NAME})(?::([0-9]{{1,6}}))?", each)
        if match is None or (match[2] and not int(match[2])):
            raise ValueError(f"{each!r} is no host such as node2, or node2:4 for four ranks on it")
        if match[1] in found:
            raise ValueError(f"{match[1]} is named twice; for two ranks on it, write {match[1]}:2")
        found[match[1]] = int(match[2]) if match[2] else None
    return tuple(found.items())


def remote_command(text: str) -> tuple[str, ...]:
    """Parse a remote shell to the words of a command."""
    from mallob_py.runtime.remote_shell import command_words

    return command_words(text)


def words(text: str) -> tuple[str, ...]:
    """Parse words separated by commas."""
    found = tuple(each.strip() for each in text.split(","))
    if not all(found):
        raise ValueError(f"{text!r} is not a list of words separated by commas")
    return found


def group_name(text: str) -> str:
    """Parse the name of a group, which follows the rules for names of jobs."""
    from mallob_py.service.jobs.job_file import unfit_for_file_name

    if problem := unfit_for_file_name(word(text)):
        raise ValueError(f"{text[:60]!r} {problem}")
    return text


def identity(text: str) -> str:
    """Parse a job's identity: USER.NAME, or NAME for a job of the present user."""
    from mallob_py.service.client import login_name

    user, dot, name = text.partition(".") if "." in text else (login_name(), ".", text)
    if not user or not name or "/" in text or "\0" in text:
        raise ValueError(f"{text!r} is not of the form USER.NAME")
    return f"{user}{dot}{name}"


def identity_or_id(text: str) -> str:
    """Parse a job as USER.NAME, NAME or number; more than `_ID_DIGITS_MAX` digits are a name."""
    if text.isascii() and text.isdecimal() and len(text) <= _ID_DIGITS_MAX:
        return text
    try:
        return identity(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither of the form USER.NAME nor the id of a job") from None


def is_descriptor(path: str) -> bool:
    """Tell whether a path names an open file of the process that opens it, such as a shell's `<(...)`."""
    return re.fullmatch(r"/(dev|proc/self)/fd/[0-9]+", path) is not None


def port(text: str) -> int:
    """Parse a TCP port; 0 is any free one."""
    number = count(text)
    if number > 65535:
        raise ValueError(f"{text} exceeds 65535")
    return number


def assignment(text: str) -> tuple[tuple[str, Any]]:
    """Parse KEY=VALUE to a tuple of one pair; VALUE is JSON if possible, else text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{text!r} is not of the form KEY=VALUE")
    try:
        return ((key, json.loads(value)),)
    except (ValueError, RecursionError):
        return ((key, value),)


#: greatest number of values of a sweep: more must be a mistake
SWEEP_MAX = 100_000


def sweep(text: str) -> tuple[tuple[str, tuple[Any, ...]]]:
    """Parse KEY=VALUE, KEY=FROM..TO or KEY=VALUE,VALUE... to a tuple of one pair: key and values.

    Each value is JSON if possible, else text; so a list, or a text with a comma, must be written as JSON.
    """
    ((key, value),) = assignment(text)
    if not isinstance(value, str) or value != text.partition("=")[2]:
        return ((key, (value,)),)
    first, dots, last = value.partition("..")
    if dots and _is_integer(first) and _is_integer(last):
        if int(last) < int(first):
            raise ValueError(f"{text!r} is a range that ends before it begins")
        if int(last) - int(first) >= SWEEP_MAX:
            raise ValueError(f"{text!r} is a range of more than {SWEEP_MAX} values")
        return ((key, tuple(range(int(first), int(last) + 1))),)
    return ((key, tuple(assignment(f"{key}={part}")[0][1] for part in value.split(","))),)


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and len(text) < 20


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object such as {"seed": 1}."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text[:60]!r} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f'{text!r} is not a JSON object such as {{"seed": 1}}')
    return found


# --- conversion to text --------------------------------------------------------------------


def age_text(age_s: float) -> str:
    """Return a duration as text, such as 4.2s, 3:07, 2:15:00 or 3d04h."""
    if age_s < 60:
        return f"{age_s:.1f}s"
    minutes, seconds = divmod(int(age_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d{hours % 24:02}h"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def progress_text(progress: JobProgress) -> str:
    """Return progress as text, such as 1.23M tasks, 456k/s, or 12 of 40 sources (30%), 0.5/s."""
    unit = f" {progress.unit}" if progress.unit else ""
    text = f"{short_number(progress.done)}{unit}"
    if progress.total is not None:
        share = min(1.0, progress.done / progress.total)
        text = f"{short_number(progress.done)} of {short_number(progress.total)}{unit} ({share:.0%})"
    return printable(f"{text}, {short_number(progress.rate)}/s" if progress.rate > 0 else text)


def interim_text(interim: JobInterim) -> str:
    """Return an interim answer as text, such as cost 184, at least 179; omit a value without label."""
    parts = []
    if interim.value is not None and interim.label:
        parts.append(f"{interim.label} {_exact(interim.value)}")
    if interim.bound is not None:
        parts.append(f"at {'least' if interim.minimizes else 'most'} {_exact(interim.bound)}")
    return printable(", ".join(parts))


def _exact(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.6g}"


def far_text(progress: JobProgress | None, interim: JobInterim | None) -> str:
    """Return a job's progress and interim answer as text; "" if it has neither."""
    done = "" if progress is None else progress_text(progress)
    best = "" if interim is None else interim_text(interim)
    return ", ".join(filter(None, (done, best)))


def short_number(number: float) -> str:
    """Return a number with about three digits: 0.25, 12, 4.56k, 1.23M."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def printable(text: str) -> str:
    """Escape all characters that move the cursor, change colours, or end or reverse the line."""
    return notices.printable(text)
