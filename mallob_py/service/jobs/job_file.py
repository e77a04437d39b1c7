"""The schema of job files: a user's bytes in, a checked job or interruption out.

`JobFields` declares each field's type, bounds, default and meaning once; fields of the terms are declared in
`protocol/job_terms.py`. These declarations give the first checks with their messages, the table of
`docs/job-files.md`, and the web interface's description of jobs. Then follow checks beyond types (a path is
absolute, two fields agree).

Compatible with Mallob's JSON interface, but stricter: an unknown field is refused with a message that names
the field and says what to do, since a misspelt limit that is ignored costs hours. `parse_job` raises
`JobFileError` only.
"""

from __future__ import annotations

import array
import enum
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from mallob_py.applications import DEFAULT_APPLICATION
from mallob_py.protocol.job_terms import TERMS, DeclaredTerm, JobTerms, says
from mallob_py.service import JobFileError
from mallob_py.service.jobs import mallob_clients
from mallob_py.service.jobs.durations import parse_duration_s, shortened

#: default bound on the size of a job file
JOB_FILE_BYTES_MAX = 8 << 20
IDENTITY_SIZE_MAX = 200  # "user.name" plus suffixes must stay below the 255 bytes of a file name
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")
DEPENDENCIES_MAX = 10_000
_INTEGER_MIN, _INTEGER_MAX = -(2**31), 2**31 - 1

if TYPE_CHECKING:
    _Integers = array.array[int]
else:
    _Integers = array.array  # array.array cannot be subscripted at run time


_DURATION = 'a duration such as "5m", or a number of seconds'
_PATHS = "absolute paths of the input: plain or compressed files, named pipes"
_LITERALS = "the input itself, as integers: for SAT, clauses, each ended by 0; after 2147483647, assumptions"


class _Work(Struct, frozen=True, kw_only=True, rename="kebab"):
    user: Annotated[str, says("the job's user; fit for a file name")]
    name: Annotated[str, says("unique among the user's live jobs; fit for a file name")]
    application: Annotated[str, says("the application that works on the job")] = DEFAULT_APPLICATION
    files: Annotated[tuple[str, ...], says(_PATHS)] = ()
    literals: Annotated[_Integers | UnsetType, says(_LITERALS, "a list of integers")] = UNSET
    configuration: Annotated[dict[str, Any], says("settings for the application")] = {}


def _type_in_file(term: DeclaredTerm) -> Any:
    if term.is_duration:
        return Annotated[str | float, says(term.meaning, _DURATION)]
    return Annotated[term.type, term.meta]


if TYPE_CHECKING:
    _WorkOnTerms = _Work
else:
    _WorkOnTerms = msgspec.defstruct(
        "_WorkOnTerms",
        [
            (each.file_name.replace("-", "_"), _type_in_file(each), 0 if each.is_duration else each.default)
            for each in TERMS
        ],
        bases=(_Work,),
        frozen=True,
        kw_only=True,
        rename="kebab",
    )


class JobFields(_WorkOnTerms, frozen=True, kw_only=True, rename="kebab"):
    """A job for the service: its user and name, its input, and its terms."""

    arrival: Annotated[float, says("earliest start, in seconds since the service's start", ge=0)] = 0.0
    dependencies: Annotated[
        tuple[str, ...],
        says('jobs ("user.name") that must end before this job starts', max_length=DEPENDENCIES_MAX),
    ] = ()
    after_ok: Annotated[
        tuple[str, ...],
        says(
            "jobs that must end with a result before this job starts; otherwise this job fails",
            max_length=DEPENDENCIES_MAX,
        ),
    ] = ()
    interrupt: Annotated[bool, says("end the live job of this user and name; ignore other fields")] = False
    quiet: Annotated[bool, says("with `interrupt`: no reply if no such job is live")] = False
    incremental: Annotated[bool, says("the job is a revision of a chain; others may follow")] = False
    precursor: Annotated[str, says('the previous revision ("user.name"); the first revision has none')] = ""
    done: Annotated[bool, says("end the chain of `precursor`; this file gets no reply")] = False
    assumptions: Annotated[
        tuple[Annotated[int, Meta(ge=_INTEGER_MIN, le=_INTEGER_MAX)], ...],
        says("literals that hold for this revision only"),
    ] = ()
    content_mode: Annotated[str, says("the same as `content-mode` in the configuration")] = ""
    group: Annotated[str, says("name that joins jobs of this user to a group; fit for a file name")] = ""
    file: Annotated[str | UnsetType, says("a path instead of `files`, as in Mallob's first version")] = UNSET
    group_id: Annotated[str, says("no effect")] = ""
    description_id: Annotated[str, says("no effect")] = ""
    checksum: Annotated[tuple[int, int] | UnsetType, says("no effect", "a list of two integers")] = UNSET
    piped_response: Annotated[bool, says("Mallob's IPASIR bridge reads the reply from a pipe")] = False


FIELD_NAMES = JobFields.__struct_encode_fields__
_WHERE = re.compile(r" - at `\$\.([a-z-]+)(?:\[(\d+)\])?")


def read_fields(fields: Mapping[str, Any]) -> JobFields:
    """Check types and bounds of fields whose names are known. Raises JobFileError."""
    try:
        return msgspec.convert(fields, JobFields, dec_hook=_integers)
    except msgspec.ValidationError as error:
        raise _refusal(fields, str(error)) from None
    except UnicodeEncodeError:  # the field holds an unpaired surrogate
        field = next(field for field, value in fields.items() if _breaks(field, value))
        problem = f"must be {_expected()[field]}, holds text that is not valid Unicode"
        raise JobFileError(field, problem) from None


def _breaks(field: str, value: Any) -> bool:
    try:
        msgspec.convert({"user": "", "name": "", field: value}, JobFields, dec_hook=_integers)
    except UnicodeEncodeError:
        return True
    except (msgspec.ValidationError, JobFileError):
        pass
    return False


def _refusal(fields: Mapping[str, Any], problem: str) -> JobFileError:
    where = _WHERE.search(problem)
    assert where is not None, problem
    field, item = where.groups()
    value, given = fields[field], "is"
    if item is not None:
        value, given = value[int(item)], f"item {int(item) + 1} is"
    return JobFileError(field, f"must be {_expected()[field]}, {given} {_told(value)}")


def _integers(kind: type, value: Any) -> array.array[int]:
    """Convert a list to an array of integers. Raises JobFileError."""
    if not isinstance(value, list):
        raise JobFileError("literals", f"must be a list of integers, is {_told(value)}")
    if strangers := set(map(type, value)) - {int}:
        names = ", ".join(sorted(_TYPE_NAMES[stranger] for stranger in strangers))
        raise JobFileError("literals", f"must be integers only, holds: {names}")
    try:
        return array.array("i", value)
    except OverflowError:
        raise JobFileError("literals", "holds an integer beyond 32 bits") from None


# --- descriptions of fields ---------------------------------------------------------------------

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
    """Return JSON's name of a value's type."""
    return _TYPE_NAMES[type(value)]


def _told(value: object) -> str:
    """Return a phrase that describes a wrong value in a message."""
    if value is None:
        return "null"
    if isinstance(value, bool | str | dict):
        return f"a {json_type(value)}"
    return f"a list of {len(value)}" if isinstance(value, list) else shortened(value)


def json_schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a type that JSON lacks (see `msgspec.json.schema`)."""
    assert kind is array.array
    return {"type": "array", "items": {"type": "integer", "minimum": _INTEGER_MIN, "maximum": _INTEGER_MAX}}


def field_table() -> list[tuple[str, str, str, str]]:
    """Return each field's name, type, default in JSON ("": none) and meaning."""
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
    from msgspec import inspect  # imported late: only errors need it

    described = inspect.type_info(JobFields)
    assert isinstance(described, inspect.StructType)
    return described.fields


@cache
def _expected() -> dict[str, str]:
    """Return each field's expected type, by name."""
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
    return f" of {least:g} or more" if most is None else f" between {_number(least)} and {_number(most)}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


# --- checks beyond types --------------------------------------------------------------------


class InputUse(enum.Enum):
    """An application's use of `files` and `literals`."""

    REQUIRED = "required"
    REVISIONS = "revisions"  # input is required, except for revisions
    NONE = "none"
    UNKNOWN = "unknown"  # only the application checks its input


class JobFile(msgspec.Struct, frozen=True):
    """A valid job. A limit of 0 means no limit, and a demand of 0 no bound on the demand."""

    user: str
    name: str
    application: str
    files: tuple[str, ...]
    literals: _Integers | None
    terms: JobTerms
    arrival_s: float
    dependencies: tuple[str, ...]
    #: dependencies whose result is needed
    after_ok: tuple[str, ...]
    #: whether the job is a revision; `precursor`: the revision before it ("": it begins a chain); `done`:
    #: whether the file only ends the chain
    incremental: bool
    precursor: str
    done: bool
    assumptions: tuple[int, ...]
    configuration: Mapping[str, Any]
    #: lines about fields without effect
    warnings: tuple[str, ...]
    #: the submitted fields in JSON, for the reply; without `literals`, which have an attribute of their own
    submitted: Mapping[str, bytes]
    #: the name of the job's group, shared with jobs of the same user; "": no group
    group: str = ""

    @property
    def identity(self) -> str:
        return identity_of(self.user, self.name)


class Interruption(msgspec.Struct, frozen=True):
    """A request to end a live job. `is_quiet`: the request gets no reply if there is no such job."""

    user: str
    name: str
    is_quiet: bool = False

    @property
    def identity(self) -> str:
        return identity_of(self.user, self.name)


def identity_of(user: str, name: str) -> str:
    """Return the unique name of a job, after which its reply is named."""
    return f"{user}.{name}"


def parse_job(data: bytes, applications: Mapping[str, InputUse]) -> JobFile | Interruption:
    """Check a job file against the schema and the known applications."""
    fields = decode_fields(data)
    user = _name_part(fields, "user")
    name = _name_part(fields, "name")
    identity = identity_of(user, name)
    if len(identity.encode()) > IDENTITY_SIZE_MAX:
        raise JobFileError("name", f"user and name together exceed {IDENTITY_SIZE_MAX} bytes; shorten them")
    if fields.get("interrupt") is True:
        return Interruption(user, name, is_quiet=fields.get("quiet") is True)
    try:
        return _job(user, name, fields, applications)
    except JobFileError as error:
        raise JobFileError(error.field, error.message, identity, user, group_in(fields)) from None


def group_in(fields: Mapping[str, Any]) -> str:
    """Return the group that a job file names; "": no valid group."""
    group = fields.get("group", "")
    return group if isinstance(group, str) and not unfit_for_file_name(group) else ""


def _job(user: str, name: str, fields: dict[str, Any], applications: Mapping[str, InputUse]) -> JobFile:
    for key in fields:
        if key not in FIELD_NAMES:
            raise JobFileError(_clipped(key), mallob_clients.REFUSED.get(key) or _stranger(key))
    job = read_fields(fields)
    application = job.application
    if application not in applications:
        known = ", ".join(sorted(applications)) or "none"
        hint = _suggestion(application, list(applications))
        raise JobFileError(
            "application", f"no application {_clipped(application)!r} here (known: {known}){hint}"
        )
    files = _files(job)
    literals = None if isinstance(job.literals, UnsetType) else job.literals
    if job.precursor:
        _check_identity("precursor", job.precursor)
    for identity in job.dependencies:
        _check_identity("dependencies", identity)
    for identity in job.after_ok:
        _check_identity("after-ok", identity)
    if job.group and (problem := unfit_for_file_name(job.group)):
        raise JobFileError("group", f"{problem}; a group is named like a job")
    if job.after_ok and job.incremental:
        raise JobFileError("after-ok", "is not for revisions, which follow each other; leave it out")
    use = applications[application]
    if job.done:
        _check_end(job)
    else:
        _check_revision(identity_of(user, name), use, job)
        if not job.incremental:
            _check_input(application, use, files, literals)
    terms = _terms(job)
    configuration = _configuration(job)
    fields.pop("literals", None)
    return JobFile(
        user=user,
        name=name,
        application=application,
        files=files,
        literals=literals,
        terms=terms,
        arrival_s=job.arrival,
        dependencies=tuple(dict.fromkeys((*job.dependencies, *job.after_ok))),
        after_ok=job.after_ok,
        incremental=job.incremental,
        precursor=job.precursor,
        done=job.done,
        assumptions=job.assumptions,
        configuration=configuration,
        warnings=tuple(mallob_clients.unused(fields, application, configuration)),
        # The fields are encoded by the standard library, since users may submit what msgspec refuses:
        # integers beyond 64 bits and unpaired surrogates.
        submitted={key: json.dumps(value).encode() for key, value in fields.items()},
        group=job.group,
    )


def _stranger(key: str) -> str:
    return "unknown field" + (_suggestion(key, FIELD_NAMES) or "; leave it out")


def _files(job: JobFields) -> tuple[str, ...]:
    for path in job.files:
        _check_path("files", path)
    if isinstance(job.file, UnsetType):
        return job.files
    if job.files:
        raise JobFileError("file", "give either file or files, not both")
    _check_path("file", job.file)
    return (job.file,)


def _check_path(key: str, path: str) -> None:
    if not path or "\0" in path:
        raise JobFileError(key, "holds an empty path or one with a NUL character")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise JobFileError(key, "holds a path that is not valid Unicode") from None
    if not os.path.isabs(path):
        # In the service's working folder, a relative path might name another file than in the author's
        # working folder.
        raise JobFileError(key, f"{_clipped(path)!r} is a relative path; give an absolute one")


def _check_identity(key: str, identity: str) -> None:
    if "." not in identity.strip(".") or unfit_for_file_name(identity):
        raise JobFileError(key, f'{_clipped(identity)!r} is not of the form "user.name"')


def _terms(job: JobFields) -> JobTerms:
    """Return a job's terms. Raises JobFileError for a bad duration."""
    found = {}
    for each in TERMS:
        value = getattr(job, each.file_name.replace("-", "_"))
        if each.is_duration:
            try:
                value = parse_duration_s(value) if value != 0 else 0.0
            except ValueError as error:
                raise JobFileError(each.file_name, str(error)) from None
        found[each.name] = value
    return JobTerms(**found)


def _configuration(job: JobFields) -> dict[str, Any]:
    """Return the configuration, with the content mode, which may stand in a field of its own."""
    configuration = job.configuration
    if job.content_mode:
        other = configuration.setdefault("content-mode", job.content_mode)
        if other != job.content_mode:
            text = f"is {job.content_mode!r} here, {other!r} in the configuration; keep one"
            raise JobFileError("content-mode", text)
    if configuration:
        try:
            msgspec.msgpack.encode(configuration)  # a trial: workers get the configuration in msgpack
        except (OverflowError, UnicodeEncodeError, RecursionError, ValueError):
            text = "holds integers beyond 64 bits, invalid Unicode or too deep nesting"
            raise JobFileError("configuration", text) from None
    return configuration


def _check_end(job: JobFields) -> None:
    if not job.incremental or not job.precursor:
        raise JobFileError("done", 'ends a chain of revisions; give "incremental": true and its "precursor"')
    for key, added in (("files", job.files), ("literals", job.literals), ("assumptions", job.assumptions)):
        if added:
            raise JobFileError(key, 'a file with "done": true adds nothing to the chain; leave this out')


def _check_revision(identity: str, use: InputUse, job: JobFields) -> None:
    if job.precursor and not job.incremental:
        raise JobFileError("precursor", 'only incremental jobs have one; add "incremental": true')
    if job.precursor == identity:
        raise JobFileError("precursor", "names the job itself; name the revision before it")
    if use not in (InputUse.REVISIONS, InputUse.UNKNOWN):
        for key, wish in (("incremental", job.incremental), ("assumptions", job.assumptions)):
            if wish:
                raise JobFileError(key, f"{job.application} has no use for this; leave it out")


def _check_input(
    application: str, use: InputUse, files: Sequence[str], literals: Sequence[int] | None
) -> None:
    if use in (InputUse.REQUIRED, InputUse.REVISIONS) and not files and literals is None:
        raise JobFileError("files", f"{application} needs input: give files (paths) or literals (integers)")
    if use is InputUse.NONE and (files or literals):
        field = "files" if files else "literals"
        raise JobFileError(field, f"{application} takes no input, only a configuration; leave this out")


def decode_fields(data: bytes) -> dict[str, Any]:
    """Return the fields of a job file, whose values may be of any type. Raises JobFileError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise JobFileError(
            "", f"not UTF-8 text (byte {error.start}); a job file is one JSON object"
        ) from None
    try:
        fields = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise JobFileError("", f"not JSON: {error.msg} at {where}; a job file is one JSON object") from None
    except RecursionError:
        raise JobFileError("", "not usable JSON: nested too deeply") from None
    except ValueError:  # the text holds an integer of thousands of digits
        raise JobFileError("", "not usable JSON: a number has too many digits") from None
    if not isinstance(fields, dict):
        raise JobFileError("", f"a job file must be one JSON object, this is a {json_type(fields)}")
    return fields


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JobFileError(_clipped(key), "given twice; keep one")
            seen.add(key)
    return unique


def _no_constant(constant: str) -> NoReturn:
    raise JobFileError("", f"not JSON: {constant} is no JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise JobFileError("", f"the number {_clipped(text)} is too large")
    return value


#: decoder that is made only once: `json.loads` would make one for each text, because of the hooks
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite_float)


def _name_part(fields: Mapping[str, Any], key: str) -> str:
    if key not in fields:
        raise JobFileError(key, f'missing; give "{key}": a string that is fit for a file name')
    value = fields[key]
    if not isinstance(value, str):
        raise JobFileError(key, f"must be a string, is a {json_type(value)}")
    if not value:
        raise JobFileError(key, "empty; give a string that is fit for a file name")
    if problem := unfit_for_file_name(value):
        raise JobFileError(key, f"{problem}; it becomes part of the reply's file name")
    return value


def unfit_for_file_name(text: str) -> str:
    """Return why a text cannot be part of a file name, or ""."""
    if text[:1] in (".", "~"):
        return f"must not start with {text[0]!r}"
    if "/" in text:
        return "must not contain '/'"
    if ".." in text:
        return "must not contain '..'"
    if _CONTROL.search(text):
        return "must not contain control characters"
    if not is_valid_text(text):
        return "is not valid Unicode"
    return f"is longer than {IDENTITY_SIZE_MAX} bytes" if len(text.encode()) > IDENTITY_SIZE_MAX else ""


def is_valid_text(text: str) -> bool:
    """Tell whether a text has no unpaired surrogates, which JSON can hold and files cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


#: names of fields in other programs -> our names
_ELSEWHERE = dict.fromkeys(("timeout", "time"), "time-limit")


def _suggestion(word: str, known: Sequence[str]) -> str:
    import difflib  # late: only wrong names need the module

    by_folded = {name.lower(): name for name in known}
    folded = word[:100].lower().replace("_", "-")
    folded = _ELSEWHERE.get(folded, folded)
    near = difflib.get_close_matches(folded, list(by_folded), n=1, cutoff=0.6)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""


def _clipped(text: str) -> str:
    """Make a text fit for a message: short and valid Unicode."""
    return text[:60].encode("utf-8", "backslashreplace").decode()
