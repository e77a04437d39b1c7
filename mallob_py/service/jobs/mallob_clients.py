"""What programs written for Mallob wish for, beyond the schema of job files: nothing else here knows them.

What they write and this service does without is taken, and told in the reply. Mallob's IPASIR bridge links
programs with a SAT solver that is a service. It looks a variable up in the model by its number, so something
stands at index 0 of models that Mallob gives as lists; here only those for the bridge begin so. Its later
releases say `piped-response` (`store.reply_pipes`), all call their user `ipasir`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from mallob_py.applications import DEFAULT_APPLICATION

#: the code of a result that is a model
SATISFIABLE = 10
_BRIDGE_USER = "ipasir"
#: fields that change nothing here, and why
_UNUSED = {
    "group-id": "clauses are shared among the workers of a job, not among jobs",
    "description-id": "descriptions are shared by all workers of a host as it is, and not beyond a job",
    "checksum": "inputs are not compared with it",
}
#: what cannot be done, and what to do instead
REFUSED = {"internalliterals": "names a formula in the memory of Mallob itself; give literals or files"}


def indexes_model(user: str, fields: Container[str]) -> bool:
    """Whether who wrote these looks variables up by index, so that something must stand at index 0."""
    return "piped-response" in fields or user == _BRIDGE_USER


def unused(fields: Mapping[str, Any], application: str, configuration: Mapping[str, Any]) -> Iterator[str]:
    """A line for each field, or key of the configuration, that asks in vain."""
    for field, why in _UNUSED.items():
        if fields.get(field):
            yield f"{field}: not used; {why}"
    if application == DEFAULT_APPLICATION:
        for key in configuration:
            if key == "options" or key.startswith("__"):
                yield f"configuration: {key} is not used; it is for Mallob's own solvers"
