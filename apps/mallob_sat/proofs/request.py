"""What a job's configuration says about a proof, and where its worker finds the folder for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mallob_py.app import InputError, Payload, ResultFileError, UnfinishedFile, prepare_result_file
from mallob_sat.formula import Formula
from mallob_sat.portfolio import Portfolio
from mallob_sat.proofs.writing import PROVERS, ProofFormat

_FIELD = "configuration"
_FOLDER = "proof_folder"


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """A proof is wanted in this file (an absolute path on the client's host)."""

    path: str
    format: ProofFormat

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> ProofRequest | None:
        """None if none is wanted. Raises InputError."""
        name = configuration.get("proof-format", ProofFormat.LRAT.value)
        formats = [format_.value for format_ in ProofFormat]
        if name not in formats:
            raise InputError(f"proof-format is {name!r:.40}; known are {', '.join(formats)}", _FIELD)
        path = configuration.get("proof")
        if path is None:
            return None
        if not isinstance(path, str) or not os.path.isabs(path) or path.endswith("/"):
            raise InputError(f"proof is {path!r:.80}; it must be the absolute path of a file", _FIELD)
        return cls(path, ProofFormat(name))

    def portfolio(self, portfolio: Portfolio) -> Portfolio:
        """Of solvers that can write it, each on its own. Raises InputError."""
        able = portfolio.restricted_to(PROVERS[self.format], "write such a proof")
        return replace(able, shares=False, renames=False)

    def prepare(self, formula: Formula) -> Payload:
        """At the client: what workers need, to be put into the job's payload. Raises InputError."""
        if formula.assumptions.size:
            raise InputError("a formula with assumptions has no proof", _FIELD)
        try:
            folder = prepare_result_file(self.path)
        except ResultFileError as error:
            raise InputError(f"proof {error}", _FIELD) from None
        return {_FOLDER: np.frombuffer(os.fsencode(folder), dtype=np.uint8)}

    def begin(self, payload: Payload) -> UnfinishedFile:
        """In a worker. Raises ResultFileError."""
        return UnfinishedFile(self.path, os.fsdecode(payload[_FOLDER].tobytes()))
