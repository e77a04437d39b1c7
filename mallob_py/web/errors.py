"""What goes wrong with a request, as its sender is told: a status and one error of field and message."""

from __future__ import annotations


class ApiError(Exception):
    """Becomes a response `{"error": {"field": ..., "message": ...}}`."""

    def __init__(self, status: int, message: str, field: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.field = field
        self.message = message
