"""What the clients of Mallob write into job files, and this service reads in another way than other fields.

Mallob's IPASIR bridge links programs with a SAT solver that is a service. It looks a variable up in the
model by its number, so something stands at index 0 of models that Mallob gives as lists; here only
those for the bridge begin so. Its later releases say `piped-response` (`reply_pipes.py`), all call their
user `ipasir`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BRIDGE_USER = "ipasir"

#: fields that change nothing here, and why
_UNUSED = {
    "group-id": "clauses are shared among the workers of a job, not among jobs",
    "description-id": "descriptions are shared by all workers of a host as it is, and not beyond a job",
    "checksum": "inputs are not compared with it",
}


def is_from_ipasir_bridge(fields: Mapping[str, Any]) -> bool:
    return "piped-response" in fields or fields.get("user") == _BRIDGE_USER


def unused_fields(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """A line for each field that asks in vain."""
    return tuple(f"{field}: not used; {why}" for field, why in _UNUSED.items() if fields.get(field))


def unused_keys(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """The same for the configuration of a SAT job, which takes no notice of such keys."""
    keys = [key for key in configuration if key == "options" or key.startswith("__")]
    return tuple(f"configuration: {key} is not used; it is for Mallob's own solvers" for key in keys)
