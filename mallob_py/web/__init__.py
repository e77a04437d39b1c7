"""The service over HTTP: a client of the api folder like any other, in a process of its own.

Needs the extra `web` (starlette and uvicorn). No rank imports this.
"""

from __future__ import annotations


class ApiError(Exception):
    """An error that becomes the response `{"error": {"field": ..., "message": ...}}`."""

    def __init__(self, status: int, message: str, field: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.field = field
        self.message = message
