"""The terms that a job may ask for, declared once: type, bounds, default and meaning of each.

In a job file a term has `-` for `_`, and no unit: `wallclock_limit_s` is `wallclock-limit` there, a duration.
From here come the fields of job files and their checks, options of `submit`, parameters of the web interface,
the table in `docs/job-files.md`, and the terms in the status.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

PRIORITY_MIN, PRIORITY_MAX = 1e-9, 1e9  # within these bounds, neither 1/p nor sums of terms overflow
DEMAND_MAX = 2**31 - 1


def says(meaning: str, be: str | None = None, **bounds: Any) -> Meta:
    """Describe a value; `be`: a requirement in words, if type and bounds do not say everything."""
    return Meta(description=meaning, extra=None if be is None else {"be": be}, **bounds)


def _count(meaning: str) -> Meta:
    return says(meaning, ge=0, le=DEMAND_MAX)


class JobTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of one job. Except for the priority, 0 means that the job file does not name the term."""

    priority: Annotated[float, says("weight beside other jobs", ge=PRIORITY_MIN, le=PRIORITY_MAX)] = 1.0
    time_limit_s: Annotated[float, says("longest time with a PE, without rests and waits; 0: no limit")] = 0.0
    wallclock_limit_s: Annotated[float, says("longest time since the first execution; 0: no limit")] = 0.0
    cpu_limit_s: Annotated[float, says("longest time of all workers, added up; 0: no limit")] = 0.0
    max_demand: Annotated[int, _count("greatest number of workers at a time; 0: no bound")] = 0


class DeclaredTerm(msgspec.Struct, frozen=True):
    """A term with its names here and in a job file, and its meaning."""

    name: str
    file_name: str
    #: whether the term is a duration: in a job file a text such as "5m", or a number of seconds
    is_duration: bool
    type: type
    meaning: str
    meta: Meta
    default: float


def _declared(field: msgspec.structs.FieldInfo) -> DeclaredTerm:
    kind, meta = field.type.__origin__, field.type.__metadata__[0]
    file_name = field.name.removesuffix("_s").replace("_", "-")
    return DeclaredTerm(
        field.name, file_name, field.name.endswith("_s"), kind, meta.description, meta, field.default
    )


TERMS = tuple(map(_declared, msgspec.structs.fields(JobTerms)))
