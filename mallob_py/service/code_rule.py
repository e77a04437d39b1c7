"""The rule that says whose jobs may bring code of their own, which workers run with all rights of the
service.

Applications declare that their jobs do (`Declaration.runs_code`). Such a job is taken if its file belongs to
the service's own user, who may run what he likes anyway, and did not come over HTTP, where a token may be all
that anybody needs. `serve --allow-code` takes them from whoever can write to the folder or has the token.
"""

from __future__ import annotations

import os
from collections.abc import Set

from mallob_py.service import JobFileError


class CodeRule:
    """One service's rule: `applications` bring code, `is_allowed` says that all users may have it run."""

    def __init__(self, applications: Set[str], is_allowed: bool) -> None:
        self._applications = applications
        self._is_allowed = is_allowed

    def check(self, application: str, is_over_http: bool, owner: int | None) -> None:
        """Raise JobFileError if a job may not run code. `owner`: user id of the job file's owner, or None."""
        if self._is_allowed or application not in self._applications:
            return
        if is_over_http:
            whose = "this one came over HTTP"
        elif owner != os.geteuid():
            whose = "this job's file belongs to another user"
        else:
            return
        raise JobFileError(
            "application",
            f"{application} runs code that its jobs bring, so only jobs of the service's own user are taken,"
            f" and {whose}; `mallob-py serve --allow-code` takes them from everybody",
        )
