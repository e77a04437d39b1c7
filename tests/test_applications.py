"""Declarations of applications are found without importing the applications, and are true; no other code
states what they declare.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mallob_py import applications
from mallob_py.applications import OURS, UnknownApplication, declaration_of, imported
from mallob_py.kit import UNKNOWN, Declaration

ROOT = Path(__file__).parents[1]
#: files that may mention SAT
KNOWS_SAT = {"applications.py", "cli/solve_rank.py", "cli/report.py", "cli/mixed.py"}


class Oracle(Declaration):
    """The declaration of an application that is not installed."""

    name = "ORACLE"
    result_strings = {1: "PERHAPS"}  # noqa: RUF012 (as authors write it)


def test_the_package_says_where_its_applications_and_declarations_are() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points["mallob_py.apps"] == OURS
    assert points["mallob_py.declarations"] == applications.DECLARED


@pytest.mark.parametrize("name", OURS)
def test_an_application_is_what_its_declaration_says(name: str) -> None:
    declared, application = declaration_of(name), imported(OURS[name])
    assert declared.name == application.name == name
    assert issubclass(application, declared)


def test_a_declaration_of_ours_is_read_without_what_takes_its_time() -> None:
    code = "import sys, mallob_py.applications as known; known.our_declarations(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    slow = {"numpy", "pysolvers", "msgspec", "mallob_sat.app", "mallob_py.kit.app", "importlib.metadata"}
    assert not slow & set(done.stdout.split())


def test_a_service_learns_what_ours_declare_without_importing_what_takes_its_time() -> None:
    code = (
        "import sys\n"
        "from mallob_py.applications import OURS\n"
        "from mallob_py.runtime.workers.process import AppRegistry\n"
        "registry = AppRegistry.discover()\n"
        "assert [registry.declared(name).name for name in OURS] == list(OURS)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    slow = {"numpy", "numba", "pysolvers", "mallob_sat.app", "mallob_bags.uts", "importlib.metadata"}
    assert not slow & set(done.stdout.split())


def test_sat_is_imported_without_what_few_jobs_need() -> None:
    code = "import sys, mallob_sat.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"hashlib", "numpy.random", "pysat"} & set(done.stdout.split())


def test_an_application_that_is_not_installed_can_be_named_with_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MALLOB_PY_APPS", f"ORACLE={__name__}:Oracle")
    assert declaration_of("ORACLE") is Oracle
    monkeypatch.setenv("MALLOB_PY_APPS", f"SAT={__name__}:Oracle")
    assert declaration_of("SAT") is Oracle


def test_an_unknown_application_is_named_beside_those_that_are_known() -> None:
    with pytest.raises(UnknownApplication, match=r"'SATT'.*BC, CALLS, .*NOOP, PI, QUEENS, SAT, SLEEP"):
        declaration_of("SATT")


def test_results_are_called_as_declared_or_by_their_number() -> None:
    assert [Oracle.result_string(code) for code in (UNKNOWN, 1, 2)] == ["UNKNOWN", "PERHAPS", "2"]
    with pytest.raises(ValueError, match="ORACLE"):
        Oracle.answer_lines({"resultcode": 1}, [])


def test_only_who_may_know_an_application_imports_it() -> None:
    house = ROOT / "mallob_py"
    importing = {
        str(file.relative_to(house))
        for file in house.rglob("*.py")
        if re.search(r"\b(?:from|import) mallob_(?:sat|dummy)\b", file.read_text())
    }
    assert importing <= KNOWS_SAT
