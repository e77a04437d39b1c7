"""Programs written for Mallob wish for things beyond the schema of job files; only this module knows them.

What they write and this service does without is taken, and told in the reply. Mallob's IPASIR bridge links
programs with a SAT solver that is a service. It looks a variable up in the model by its number, so something
stands at index 0 of models that Mallob gives as lists; here only those for the bridge begin so. Its later
releases say `piped-response` (`store.reply_pipes`), all call their user `ipasir` and name jobs after their
process, solver and revision.

Of the `solution` in a reply, the last release expects lines of DIMACS, and ends its program if it finds
integers; those before expect integers, and nothing in a job file tells these releases apart. All but the
first look for a `solution-file` before, the first ones only for a model. So the bridge is given both, the
file and the integers.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

from mallob_py.applications import DEFAULT_APPLICATION

#: the code of a result that is a model
SATISFIABLE = 10
_BRIDGE_USER, _BRIDGE_NAME = "ipasir", re.compile(r"job-[0-9]+_[0-9]+-[0-9]+")
#: fields that change nothing here, and why
_UNUSED = {
    "group-id": "clauses are shared among the workers of a job, not among jobs",
    "description-id": "descriptions are shared by all workers of a host as it is, and not beyond a job",
    "checksum": "inputs are not compared with it",
}
#: what cannot be done, and what to do instead
REFUSED = {"internalliterals": "names a formula in the memory of Mallob itself; give literals or files"}


def is_bridge(user: str, name: str, fields: Container[str]) -> bool:
    """Whether the IPASIR bridge wrote these. Others may call their user so, too: of them, the name tells."""
    return "piped-response" in fields or (user == _BRIDGE_USER and _BRIDGE_NAME.fullmatch(name) is not None)


def has_read(identity: str) -> bool:
    """Whether who hands in the revision after this one, or ends its chain, has done with its solution."""
    user, _, name = identity.partition(".")
    return is_bridge(user, name, ())


def unused(fields: Mapping[str, Any], application: str, configuration: Mapping[str, Any]) -> Iterator[str]:
    """A line for each field, or key of the configuration, that asks in vain."""
    for field, why in _UNUSED.items():
        if fields.get(field):
            yield f"{field}: not used; {why}"
    if application == DEFAULT_APPLICATION:
        for key in configuration:
            if key == "options" or key.startswith("__"):
                yield f"configuration: {key} is not used; it is for Mallob's own solvers"
