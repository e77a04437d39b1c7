"""What each user may have: the file of `serve --users`.

    [default]            # whoever is not named below
    weight = 1.0         # PEs are shared among users in proportion to it
    active-jobs = 20     # so many at work at a time; further ones wait
    share = 0.5          # of all PEs at most so much, also while others are idle

    [users.alice]        # what is not said here is as in [default]
    weight = 2.0

Without a key there is no such limit; without the file users are not told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from mallob_py.service.errors import ServiceError
from mallob_py.toml_file import TomlError, in_words, read_toml

_WEIGHT_MAX = 1e6


class UserRule(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """What one user may have. `active_jobs` None: any number."""

    weight: Annotated[float, msgspec.Meta(ge=1 / _WEIGHT_MAX, le=_WEIGHT_MAX)] = 1.0
    active_jobs: Annotated[int, msgspec.Meta(ge=1)] | None = None
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


class UserRules(msgspec.Struct, frozen=True):
    """The rules of all users."""

    default: UserRule = UserRule()
    users: Mapping[str, UserRule] = {}

    def of(self, user: str) -> UserRule:
        return self.users.get(user, self.default)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    default: dict[str, Any] = {}
    users: dict[str, dict[str, Any]] = {}


def read_user_rules(path: Path) -> UserRules:
    """Raises ServiceError that names the file and the key at fault."""
    try:
        file = read_toml(path, _File)
        default = _rule("default", file.default)
        users = {name: _rule(f"users.{name}", file.default | own) for name, own in file.users.items()}
    except TomlError as error:
        raise ServiceError(str(error)) from None
    except msgspec.ValidationError as error:
        raise ServiceError(f"{path}: {error}") from None
    return UserRules(default, users)


def _rule(table: str, keys: dict[str, Any]) -> UserRule:
    try:
        return msgspec.convert(keys, UserRule)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"[{table}] {in_words(error)}") from None
