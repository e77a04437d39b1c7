"""The job-file service: jobs come as files in `in/`, replies go to `out/`.

`store` keeps files, `jobs` knows what is to become of them, `telemetry` tells of it; `service.py` is the
client of a rank that holds all this together, with a job's way through it in `intake.py`,
`desk_machine.py`, which decides, `inputs.py` and `endings.py`; `client.py` is what others see of it.

Here are the two kinds of errors of this floor: the user's job file is wrong, or our surroundings are.
"""

from __future__ import annotations


class ServiceError(Exception):
    """The service cannot start or go on here. The message says what to do about it."""


class JobFileError(Exception):
    """A job file is refused. Becomes the error reply of that file.

    `field` is the job-file field at fault ("" for the file as a whole). `identity` is the
    "user.name" whose reply this error may take; None says that the reply must go to a file
    named after the job file, since the identity is invalid or belongs to somebody else. `user` is that of the
    identity and `group` the job's, where these are known.
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
