"""The command line: one file per command, options in one table (`options`)."""

from __future__ import annotations


class CommandError(Exception):
    """An error that prevents a command: it is shown in one line, and the exit code is 2."""
