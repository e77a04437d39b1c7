"""The job-file service: jobs come as files in `in/`, replies go to `out/`.

`store` keeps files, `jobs` decides on jobs, `telemetry` reports. `service.py` is a client's service on its
rank; a job passes through `intake.py`, `desk_machine.py` (which decides), `inputs.py` and `endings.py`.
Other processes hand in jobs by `client.py`.

Two errors are defined here: one for faults of a user's job file, one for faults of the service's environment.
"""

from __future__ import annotations


class ServiceError(Exception):
    """Error: the service cannot start or go on here; the message says what to do."""


class JobFileError(Exception):
    """A job file is refused, with this error as its reply.

    `field` is the field at fault ("": the whole file). `identity` is the "user.name" after which the reply's
    file is named; None: that file is named after the job file, because the identity is invalid or belongs to
    another job. `user` is the identity's user and `group` the job's group, if known.
    """

    def __init__(
        self, field: str, message: str, identity: str | None = None, user: str = "", group: str = ""
    ) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message
        self.identity = identity
        self.user = user
        self.group = group
