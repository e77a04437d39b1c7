"""Checks of numbers (within bounds) and words in configurations of bags. Each InputError names the key."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mallob_py.kit import InputError


def refuse_unknown(configuration: Mapping[str, Any], known: Sequence[str]) -> None:
    """Reject unknown keys. Otherwise a misspelt key would silently leave its default in force."""
    for key in configuration:
        if key not in known:
            raise InputError(f"unknown key '{key:.40}'; known are {', '.join(known)}", "configuration")


def whole_number(
    configuration: Mapping[str, Any], key: str, least: int, most: int, default: int | None = None
) -> int:
    """Return the integer configured for `key`. The key is required unless there is a default."""
    value = configuration.get(key, default)
    if value is None:
        raise InputError(f"'{key}' is missing; give a whole number from {least} to {most}", "configuration")
    if isinstance(value, str) and value.lstrip("-").isdecimal():
        with contextlib.suppress(ValueError):  # no number, or more digits than Python reads
            value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(
            f"'{key}' must be a whole number from {least} to {most}, not {value!r:.40}", "configuration"
        )
    return value


def real_number(
    configuration: Mapping[str, Any], key: str, least: float, most: float, default: float
) -> float:
    """Return the number configured for `key`."""
    value = configuration.get(key, default)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = math.nan
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        given = configuration[key]
        raise InputError(
            f"'{key}' must be a number from {least:g} to {most:g}, not {given!r:.40}", "configuration"
        )
    return float(value)


def chosen(configuration: Mapping[str, Any], key: str, words: Sequence[str], default: str) -> str:
    """Return the word configured for `key`, which must be one of `words`."""
    value = configuration.get(key, default)
    if value not in words:
        raise InputError(f"'{key}' must be one of {', '.join(words)}, not {value!r:.40}", "configuration")
    return str(value)
