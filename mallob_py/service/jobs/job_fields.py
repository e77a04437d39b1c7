"""What can stand in a job file: each field's type, bounds, default and meaning, declared once.

From here come what `job_file.py` checks first, with its messages, the table of `docs/job-files.md` and what
the web interface's description of itself says of jobs. What is more than a type (a path is absolute, two
fields agree) is checked in `job_file.py`.
"""

from __future__ import annotations

import array
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from mallob_py.applications import DEFAULT_APPLICATION
from mallob_py.service import JobFileError
from mallob_py.service.jobs.durations import shortened

PRIORITY_MIN, PRIORITY_MAX = 1e-9, 1e9  # so that neither 1/p nor sums of them overflow or vanish
DEMAND_MAX = 2**31 - 1
DEPENDENCIES_MAX = 10_000
_INTEGER_MIN, _INTEGER_MAX = -(2**31), 2**31 - 1

if TYPE_CHECKING:
    _Integers = array.array[int]
else:
    _Integers = array.array  # which Python cannot subscript


def _says(meaning: str, be: str | None = None, **bounds: Any) -> Meta:
    """`be`: what a value must be, where type and bounds do not say it."""
    return Meta(description=meaning, extra=None if be is None else {"be": be}, **bounds)


_DURATION = 'a duration such as "5m", or a number of seconds'
_PATHS = "absolute paths of its input: plain or compressed files, named pipes"
_LITERALS = "its input itself, in integers: for SAT clauses, each ended by 0; after 2147483647, assumptions"


class JobFields(Struct, frozen=True, kw_only=True, rename="kebab"):
    """A job for the service: its user and name, what it works on, and what it may use."""

    user: Annotated[str, _says("whose job it is; fit for a file name")]
    name: Annotated[str, _says("no other live job of this user has it; fit for a file name")]
    application: Annotated[str, _says("what works on it")] = DEFAULT_APPLICATION
    files: Annotated[tuple[str, ...], _says(_PATHS)] = ()
    literals: Annotated[_Integers | UnsetType, _says(_LITERALS, "a list of integers")] = UNSET
    configuration: Annotated[dict[str, Any], _says("for the application")] = {}
    priority: Annotated[float, _says("its weight beside other jobs", ge=PRIORITY_MIN, le=PRIORITY_MAX)] = 1.0
    wallclock_limit: Annotated[str | float, _says("from its first execution on; 0: none", _DURATION)] = 0
    cpu_limit: Annotated[str | float, _says("its workers added up over time; 0: none", _DURATION)] = 0
    max_demand: Annotated[int, _says("most workers at a time; 0: no bound", ge=0, le=DEMAND_MAX)] = 0
    workers: Annotated[
        int,
        _says("for --policy: workers it begins with best; 0: max-demand, or the fewest", ge=0, le=DEMAND_MAX),
    ] = 0
    min_workers: Annotated[int, _says("for --policy: fewest workers; 0: one", ge=0, le=DEMAND_MAX)] = 0
    required_time: Annotated[
        str | float, _says("for --policy: how long it takes; 0: its `wallclock-limit`", _DURATION)
    ] = 0
    arrival: Annotated[float, _says("seconds since the service's start; it waits until then", ge=0)] = 0.0
    dependencies: Annotated[
        tuple[str, ...],
        _says('the jobs ("user.name") that have to end before', max_length=DEPENDENCIES_MAX),
    ] = ()
    interrupt: Annotated[bool, _says("to end the live job of this user and name; nothing else counts")] = (
        False
    )
    incremental: Annotated[bool, _says("a revision of a chain, to which others are added")] = False
    precursor: Annotated[str, _says('the revision ("user.name") before it; the first one has none')] = ""
    done: Annotated[bool, _says("ends the chain of `precursor`; without a reply")] = False
    assumptions: Annotated[
        tuple[Annotated[int, Meta(ge=_INTEGER_MIN, le=_INTEGER_MAX)], ...],
        _says("literals that hold for this revision only"),
    ] = ()
    content_mode: Annotated[str, _says("the same as in the configuration")] = ""
    file: Annotated[str | UnsetType, _says("as Mallob had it at first: the one path in `files`")] = UNSET
    group_id: Annotated[str, _says("no effect")] = ""
    description_id: Annotated[str, _says("no effect")] = ""
    checksum: Annotated[tuple[int, int] | UnsetType, _says("no effect", "a list of two integers")] = UNSET
    piped_response: Annotated[bool, _says("of Mallob's IPASIR bridge: where it reads its reply")] = False


FIELD_NAMES = JobFields.__struct_encode_fields__
_WHERE = re.compile(r" - at `\$\.([a-z-]+)(?:\[(\d+)\])?")


def read_fields(fields: Mapping[str, Any]) -> JobFields:
    """Check types and bounds; all names are known. Raises JobFileError."""
    try:
        return msgspec.convert(fields, JobFields, dec_hook=_integers)
    except msgspec.ValidationError as error:
        raise _refusal(fields, str(error)) from None


def _refusal(fields: Mapping[str, Any], problem: str) -> JobFileError:
    where = _WHERE.search(problem)
    assert where is not None, problem
    field, item = where.groups()
    value, given = fields[field], "is"
    if item is not None:
        value, given = value[int(item)], f"item {int(item) + 1} is"
    return JobFileError(field, f"must be {_expected()[field]}, {given} {_told(value)}")


def _integers(kind: type, value: Any) -> array.array[int]:
    """Raises JobFileError."""
    if not isinstance(value, list):
        raise JobFileError("literals", f"must be a list of integers, is {_told(value)}")
    if strangers := set(map(type, value)) - {int}:
        names = ", ".join(sorted(_TYPE_NAMES[stranger] for stranger in strangers))
        raise JobFileError("literals", f"must be integers only, holds: {names}")
    try:
        return array.array("i", value)
    except OverflowError:
        raise JobFileError("literals", "holds an integer beyond 32 bits") from None


# --- what is told of them -----------------------------------------------------------------------

_TYPE_NAMES: dict[type, str] = {
    dict: "JSON object",
    list: "list",
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number with a fraction",
    type(None): "null",
}


def json_type(value: object) -> str:
    """What JSON calls it."""
    return _TYPE_NAMES[type(value)]


def _told(value: object) -> str:
    """A wrong value, in a message."""
    if value is None:
        return "null"
    if isinstance(value, bool | str | dict):
        return f"a {json_type(value)}"
    return f"a list of {len(value)}" if isinstance(value, list) else shortened(value)


def json_schema(kind: type) -> dict[str, Any]:
    """Of what is no type of JSON here (see `msgspec.json.schema`)."""
    assert kind is array.array
    return {"type": "array", "items": {"type": "integer", "minimum": _INTEGER_MIN, "maximum": _INTEGER_MAX}}


def field_table() -> list[tuple[str, str, str, str]]:
    """Of each field: its name, what it must be, its default in JSON ("" for none) and what it means."""
    from msgspec import inspect

    rows = []
    for one in _described():
        assert isinstance(one.type, inspect.Metadata)
        has_default = one.default not in (msgspec.NODEFAULT, UNSET)
        default = msgspec.json.encode(one.default).decode() if has_default else ""
        meaning = (one.type.extra_json_schema or {})["description"]
        rows.append((one.encode_name, _expected()[one.encode_name], default, meaning))
    return rows


def _described() -> tuple[Any, ...]:
    from msgspec import inspect  # of use only where something is wrong

    described = inspect.type_info(JobFields)
    assert isinstance(described, inspect.StructType)
    return described.fields


@cache
def _expected() -> dict[str, str]:
    """What each field must be."""
    return {one.encode_name: _phrase(one.type) for one in _described()}


def _phrase(kind: Any) -> str:
    from msgspec import inspect

    match kind:
        case inspect.Metadata(extra=extra) if extra is not None:
            return str(extra["be"])
        case inspect.Metadata(type=inner):
            return _phrase(inner)
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return "a string"
        case inspect.DictType():
            return "a JSON object"
        case inspect.FloatType(ge=least, le=most):
            return "a number" + _bounds(least, most)
        case inspect.IntType(ge=least, le=most):
            return "an integer" + _bounds(least, most)
        case inspect.VarTupleType(item_type=item, max_length=most):
            items = re.sub(r"^an? (\w+)", r"\1s", _phrase(item))
            return f"a list of {items}" if most is None else f"a list of at most {most} {items}"
    raise AssertionError(kind)


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f" of {least:g} or more" if most is None else f" within {_number(least)} and {_number(most)}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
