"""The command line: one file per command, options in one table (`options`)."""

from __future__ import annotations


class CommandError(Exception):
    """A command cannot do what it is asked to. One line for the user, exit code 2."""
