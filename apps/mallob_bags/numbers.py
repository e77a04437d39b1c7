"""What configurations of bags hold: whole numbers within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mallob_py.kit import InputError


def whole_number(
    configuration: Mapping[str, Any], key: str, least: int, most: int, default: int | None = None
) -> int:
    """The number at `key`. Raises InputError, which names the field."""
    value = configuration.get(key, default)
    if value is None:
        raise InputError(f"'{key}' is missing: a whole number from {least} to {most}", "configuration")
    if isinstance(value, str) and value.lstrip("-").isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(
            f"'{key}' must be a whole number from {least} to {most}, not {value!r:.40}", "configuration"
        )
    return value
