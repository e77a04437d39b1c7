"""The service's status in words: what `submit --wait` and `wait` show while they wait, and parts of `top`."""

from __future__ import annotations

from mallob_py.service.telemetry.status import ServiceStatus


def age_text(age_s: float) -> str:
    """Such as 4.2s, 3:07, 2:15:00 or 3d04h."""
    if age_s < 60:
        return f"{age_s:.1f}s"
    minutes, seconds = divmod(int(age_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d{hours % 24:02}h"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def printable(text: str) -> str:
    """The text with whatever would move the cursor, change colours or end the line replaced."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "�" for char in text)


def progress_text(identity: str, status: ServiceStatus | None, client: int, waited_s: float) -> str:
    """One line on a job that is being waited for."""
    if status is None:
        return f"{identity}: no service is running; waiting since {age_text(waited_s)}"
    job = status.job(identity, client)
    if job is None:
        return f"{identity}: handed in, {age_text(waited_s)}"
    workers = f"{job.volume} of {job.demand} workers, " if job.demand else ""
    return f"{identity}: {job.state}, {workers}{age_text(job.elapsed_s)}"
