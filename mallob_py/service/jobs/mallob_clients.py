"""Mallob's clients: what they need beyond the schema of job files, known to this module only.

Fields that this service does not need are accepted, and reported in the reply. Mallob's IPASIR bridge links
programs with a SAT solver that is a service. The bridge looks up a variable in the model by number, so
Mallob's models have an additional entry at index 0; here, only models for the bridge have this entry. Later
releases of the bridge write `piped-response` (`store.reply_pipes`), call their user `ipasir`, and name jobs
after process, solver and revision.

The last release expects lines of DIMACS in a reply's `solution`, and aborts its program at integers; earlier
releases expect integers, and no field tells releases apart. All releases but the first prefer a
`solution-file`, some of them for models only. So the bridge gets both, the file and the integers.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

from mallob_py.applications import DEFAULT_APPLICATION

#: result code of a model
SATISFIABLE = 10
_BRIDGE_USER, _BRIDGE_NAME = "ipasir", re.compile(r"job-[0-9]+_[0-9]+-[0-9]+")
#: fields without effect here, and why
_UNUSED = {
    "group-id": "clauses are shared among the workers of a job, not among jobs",
    "description-id": "the workers of a job on a host share its description anyway, different jobs never do",
    "checksum": "the job's input is not compared with this checksum",
}
#: refused field -> advice for users
REFUSED = {"internalliterals": "names a formula in the memory of Mallob itself; give literals or files"}


def is_bridge(user: str, name: str, fields: Container[str]) -> bool:
    """Tell whether the IPASIR bridge wrote these fields, judged also by the job's name."""
    return "piped-response" in fields or (user == _BRIDGE_USER and _BRIDGE_NAME.fullmatch(name) is not None)


def has_read(identity: str) -> bool:
    """Tell whether a job is of the IPASIR bridge, which reads each solution before it sends a revision."""
    user, _, name = identity.partition(".")
    return is_bridge(user, name, ())


def unused(fields: Mapping[str, Any], application: str, configuration: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each field, or key of the configuration, that has no effect."""
    for field, why in _UNUSED.items():
        if fields.get(field):
            yield f"{field}: not used; {why}"
    if application == DEFAULT_APPLICATION:
        for key in configuration:
            if key == "options" or key.startswith("__"):
                yield f"configuration: {key} is not used; it is for Mallob's own solvers"
