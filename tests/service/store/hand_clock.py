"""A clock that tests set."""


class Clock:
    """Time that passes only by command."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
