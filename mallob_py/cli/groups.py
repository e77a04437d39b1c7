"""Finding groups by their names, for all commands with a group; `group_tables.py` prints groups."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from mallob_py.cli import CommandError
from mallob_py.cli.option_sources import suggestion
from mallob_py.cli.values import printable
from mallob_py.service.client import login_name
from mallob_py.service.telemetry.groups import Group, GroupKey, GroupWatch

#: greatest number of groups that a message names
_NAMED_MAX = 5


def look(api_dir: str) -> dict[GroupKey, Group]:
    """Return all groups of a service. Raises CommandError if the folder does not exist."""
    if not Path(api_dir).is_dir():
        raise CommandError(f"{api_dir} is no folder of a service; name it with --api-dir")
    return GroupWatch(Path(api_dir)).look()


def find_group(groups: Mapping[GroupKey, Group], name: str | None, user: str | None = None) -> Group:
    """Return the group of this name (None: the last group) of `user`.

    Without `user`, the present user's group is taken, or else the group of the only user who has a group of
    this name. Raises CommandError if there is no such group, or if several other users have one.
    """
    own = [group for group in groups.values() if group.user == (user or login_name())]
    others = [] if user is not None else list(groups.values())
    for candidates in (own, others):
        found = [group for group in candidates if name in (None, group.name)]
        if name is not None and len(found) > 1:
            users = ", ".join(sorted(printable(group.user) for group in found))
            raise CommandError(f"several users have a group {printable(name)}: {users}; say --user")
        if found:
            return found[-1]
    whose = "" if user is None else f" of {user}"
    if name is None:
        raise CommandError(f"no group{whose} is known here; jobs get one by submit --group NAME")
    known = [group.name for group in (own if user is not None else groups.values())]
    last = ", ".join(printable(one) for one in known[: -_NAMED_MAX - 1 : -1])
    hint = suggestion(name, known) or (f"; the last ones are {last}" if last else "")
    raise CommandError(f"no group {printable(name)}{whose} is known here{hint}")


def command_for(command: str, group: str, user: str, api_dir: str) -> str:
    """Return the command line that runs a command on a user's group."""
    where = "" if api_dir == ".api" else f" --api-dir {shlex.quote(api_dir)}"
    whose = "" if user == login_name() else f" --user {shlex.quote(user)}"
    flag = "" if command == "results" else "--group "
    return f"mallob-py {command}{where}{whose} {flag}{shlex.quote(group)}"
