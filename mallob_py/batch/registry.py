"""The policies, and their construction from a text such as `easy:depth=10,extra=no`.

Policies are found through the entry-point group `mallob_py.policies`. The settings behind the colon are
keyword arguments of the policy's constructor, converted to the types that it declares. Any policy also
accepts `learn=queue` (or `yes`) and `learn=user`: ended jobs of the same queue or user then predict run
times.
"""

from __future__ import annotations

import inspect
import math
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from mallob_py.batch.policies.learnt import By, Learnt
from mallob_py.batch.policy import Policy

ENTRY_POINT_GROUP = "mallob_py.policies"
_SWITCH = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


class PolicyTextError(ValueError):
    """A text names no policy, or has a wrong setting. The error's text is the reason in one line."""


def policy_names() -> tuple[str, ...]:
    return tuple(sorted(point.name for point in entry_points(group=ENTRY_POINT_GROUP)))


def policy_of(text: str) -> Policy:
    """Return the policy that a text describes; its name is the text. Raises PolicyTextError."""
    name, _, settings = text.partition(":")
    found = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == name]
    if not found:
        raise PolicyTextError(f"no policy {name!r} (there are {', '.join(policy_names())})")
    make: Any = found[0].load()
    try:
        by, others = _learns(make, settings)
        policy: Policy = make(**_arguments(name, make, others))
        if by is not None:
            policy = Learnt(policy, by)
    except (TypeError, ValueError) as error:
        raise PolicyTextError(f"policy {text!r}: {error}") from None
    policy.name = text
    return policy


def shares_cores(policy: Policy) -> bool:
    """Return whether a policy lets jobs share the cores of their nodes."""
    return getattr(policy, "shares_cores", False)


def policy_for(text: str, binds: bool = False) -> Policy:
    """Return the policy that a text describes, for real jobs. Raises PolicyTextError.

    Real jobs do not share nodes, unless `binds` says that they are bound to cores.
    """
    policy = policy_of(text)
    if getattr(policy, "shares_nodes", False) and not (binds and shares_cores(policy)):
        fit = ", ".join(one for one in policy_names() if not getattr(policy_of(one), "shares_nodes", False))
        hint = "; it divides cores: see batch serve --affinity" if shares_cores(policy) else ""
        raise PolicyTextError(
            f"policy {text} needs nodes that jobs share; real jobs have their own (suitable: {fit}){hint}"
        )
    return policy


def _learns(make: Any, settings: str) -> tuple[By | None, str]:
    """Return by what ended jobs are grouped to predict run times (None: no prediction), and other settings.
    Raises ValueError.
    """
    items = list(filter(None, settings.split(",")))
    said = [item.partition("=")[2].strip().lower() for item in items if _is_learn(item)]
    if not said or "learn" in inspect.signature(make).parameters:
        return None, settings
    others = ",".join(item for item in items if not _is_learn(item))
    if said[-1] in ("queue", "user"):
        return ("user" if said[-1] == "user" else "queue"), others
    if said[-1] not in _SWITCH:
        raise ValueError(f"learn is {said[-1]!r}, not yes, no, queue or user")
    return ("queue" if _SWITCH[said[-1]] else None), others


def _is_learn(item: str) -> bool:
    return item.partition("=")[0].strip() == "learn"


def _arguments(name: str, make: Any, settings: str) -> dict[str, Any]:
    parameters = inspect.signature(make).parameters
    types = get_type_hints(make.__init__) if inspect.isclass(make) else get_type_hints(make)
    arguments: dict[str, Any] = {}
    for item in filter(None, settings.split(",")):
        key, _, value = item.partition("=")
        key = key.strip().replace("-", "_")
        if key not in parameters:
            known = ", ".join(parameters) or "none"
            raise ValueError(f"{name} has no setting {key!r} (it has {known})")
        arguments[key] = _value(key, types.get(key, str), value.strip())
    return arguments


def _value(key: str, kind: Any, text: str) -> Any:
    if kind is bool:
        if text.lower() not in _SWITCH:
            raise ValueError(f"{key} is {text!r}, not yes or no")
        return _SWITCH[text.lower()]
    if kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            raise ValueError(f"{key} is {text!r}, not a number")
        return number
    return text
