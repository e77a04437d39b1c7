"""A file that the configuration names for a large result: from its check to its writing in a worker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mallob_py.app import InputError, Payload, ResultFileError, UnfinishedFile, prepare_result_file

_FIELD = "configuration"


@dataclass(frozen=True, slots=True)
class ResultPath:
    """The file that configuration key `key` names, by an absolute path on the client's host."""

    key: str
    path: str

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any], key: str) -> ResultPath | None:
        """None if no file is named. Raises InputError."""
        path = configuration.get(key)
        if path is None:
            return None
        if not isinstance(path, str) or not os.path.isabs(path) or path.endswith("/"):
            raise InputError(f"{key} is {path!r:.80}; it must be the absolute path of a file", _FIELD)
        return cls(key, path)

    def prepare(self) -> Payload:
        """At the client: what workers need, to be put into the job's payload. Raises InputError."""
        try:
            folder = prepare_result_file(self.path)
        except ResultFileError as error:
            raise self.refusal(error) from None
        return {self._payload_key: np.frombuffer(os.fsencode(folder), dtype=np.uint8)}

    def begin(self, payload: Payload) -> UnfinishedFile:
        """In a worker. Raises ResultFileError."""
        return UnfinishedFile(self.path, os.fsdecode(payload[self._payload_key].tobytes()))

    def refusal(self, error: ResultFileError) -> InputError:
        """What to raise if the file cannot be written."""
        return InputError(f"{self.key} {error}", _FIELD)

    @property
    def _payload_key(self) -> str:
        return f"{self.key}_folder"
