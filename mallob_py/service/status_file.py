"""The status file: what the service says about itself once a second, for `mallob-py status`.

`<api-dir>/status.json`, replaced atomically by the service. A reader takes one that is older
than `STALE_AFTER_S` (or missing) as "no service is running": a service that was killed leaves
its last one behind.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

STATUS_FILE_NAME = "status.json"
STALE_AFTER_S = 5.0


class JobStatus(msgspec.Struct, frozen=True):
    """One live job."""

    id: int
    user: str
    name: str
    state: str
    priority: float = 1.0
    volume: int = 0
    demand: int = 0
    elapsed_s: float = 0.0


class ServiceStatus(msgspec.Struct, frozen=True):
    """The service at `time` (seconds since 1970): `busy` of its `pes` run a worker."""

    time: float
    ranks: int
    pes: int
    busy: int
    jobs: tuple[JobStatus, ...] = ()

    def age_s(self, now: float | None = None) -> float:
        return max(0.0, (time.time() if now is None else now) - self.time)

    def is_stale(self, now: float | None = None) -> bool:
        return self.age_s(now) > STALE_AFTER_S


def write_status(api_dir: str | os.PathLike[str], status: ServiceStatus) -> None:
    """Replace the status file. Raises OSError."""
    target = Path(api_dir) / STATUS_FILE_NAME
    temporary = target.with_name(f"~{STATUS_FILE_NAME}")
    temporary.write_bytes(msgspec.json.encode(status))
    temporary.replace(target)


def remove_status(api_dir: str | os.PathLike[str]) -> None:
    """Say that the service has ended."""
    (Path(api_dir) / STATUS_FILE_NAME).unlink(missing_ok=True)


def read_status(api_dir: str | os.PathLike[str]) -> ServiceStatus | None:
    """The last status written, however old; None if there is none that can be read."""
    try:
        return msgspec.json.decode((Path(api_dir) / STATUS_FILE_NAME).read_bytes(), type=ServiceStatus)
    except (OSError, msgspec.MsgspecError):
        return None
