"""The command line: one file per command, options in one table (`options`)."""

from __future__ import annotations


class CommandError(Exception):
    """An error that prevents a command. One line for the user, exit code 2."""
