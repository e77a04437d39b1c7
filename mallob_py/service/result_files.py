"""The files for large results that a client's jobs name: where they may be, and what becomes of them.

Which keys of a configuration name files, its application declares (`Application.result_files`). Where they
may be, the operator says. How a job is kept to that is up to `mallob_py.kit.result_file`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mallob_py.kit.result_file import ResultFileError, ResultsFolder, discard_unfinished, is_delivered
from mallob_py.service.errors import JobFileError
from mallob_py.service.job_file import JobFile

#: beside a client's `out`, unless the operator names another
RESULTS_FOLDER = "results"


class ResultFiles:
    """Of one client. Jobs are known by their internal ids, which are never given twice."""

    def __init__(self, folder: Path, client_dir: Path, keys: Mapping[str, Sequence[str]]) -> None:
        """`keys`: by application. Several clients and services may share `folder`."""
        self._path = os.path.abspath(folder)
        self._keys = keys
        self._client = hashlib.blake2b(os.fsencode(client_dir), digest_size=6).hexdigest()

    def folder_for(self, job: int) -> ResultsFolder:
        return ResultsFolder(self._path, f"{self._client}-{job}")

    def named_by(self, file: JobFile) -> dict[str, str]:
        """The absolute paths that a job file names, by their keys. Raises JobFileError."""
        return self._resolved(file.application, file.configuration, file.identity)

    def configured(self, application: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """A configuration that was accepted, with absolute paths. Their folder is made if need be."""
        named = self._resolved(application, configuration, None)
        if named:
            with suppress(OSError):  # told when the file is prepared
                os.makedirs(self._path, exist_ok=True)
        return {**configuration, **named}

    def _resolved(
        self, application: str, configuration: Mapping[str, Any], identity: str | None
    ) -> dict[str, str]:
        resolved = {}
        folder = self.folder_for(0)
        for key in self._keys.get(application, ()):
            if isinstance(path := configuration.get(key), str):
                try:
                    resolved[key] = folder.resolve(path)
                except ResultFileError as error:
                    raise JobFileError("configuration", f"{key} {error}", identity) from None
        return resolved

    def delivered(self, job: int, file: JobFile) -> dict[str, str]:
        """Those that the job has written, by their keys."""
        folder = self.folder_for(job)
        return {key: path for key, path in self.named_by(file).items() if is_delivered(path, folder)}

    def discard_unfinished(self, job: int, file: JobFile) -> None:
        """The job has its reply, and is never run again: nothing is delivered any more."""
        for path in self.named_by(file).values():
            discard_unfinished(path, self.folder_for(job))
