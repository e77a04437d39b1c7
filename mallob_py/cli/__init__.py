"""The command line: one file per command, options in one table (`options`)."""

from __future__ import annotations


class CommandError(Exception):
    """A command cannot be carried out. One line for the user, exit code 2."""
