"""What a job's configuration says about a proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mallob_py.kit import InputError, Payload
from mallob_py.kit.result_file import ResultPath
from mallob_sat.formula import Formula
from mallob_sat.portfolio import Portfolio
from mallob_sat.proofs.writing import PROVERS, ProofFormat

_FIELD = "configuration"


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """A proof is wanted in this file."""

    file: ResultPath
    format: ProofFormat

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> ProofRequest | None:
        """None if none is wanted. Raises InputError."""
        name = configuration.get("proof-format", ProofFormat.LRAT.value)
        formats = [format_.value for format_ in ProofFormat]
        if name not in formats:
            raise InputError(f"proof-format is {name!r:.40}; known are {', '.join(formats)}", _FIELD)
        file = ResultPath.from_configuration(configuration, "proof")
        return None if file is None else cls(file, ProofFormat(name))

    def portfolio(self, portfolio: Portfolio) -> Portfolio:
        """Of solvers that can write it, each on its own. Raises InputError."""
        able = portfolio.restricted_to(PROVERS[self.format], "write such a proof")
        return replace(able, shares=False, renames=False)

    def prepare(self, formula: Formula) -> Payload:
        """At the client: what workers need, to be put into the job's payload. Raises InputError."""
        if formula.assumptions.size:
            raise InputError("a formula with assumptions has no proof", _FIELD)
        return self.file.prepare()
