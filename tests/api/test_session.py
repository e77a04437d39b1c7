"""What an interactive Python session shows: answers in a few words, and the missing package to install."""

import subprocess
import sys

import pytest

from mallob_py.api.optimization import Optimum


@pytest.mark.parametrize(
    ("is_optimal", "value", "shown"),
    [(True, 3, "value=3, optimal"), (False, 5, "value=5, bound=2"), (False, None, "UNKNOWN")],
)
def test_an_optimum_is_shown_in_a_few_words(is_optimal: bool, value: int | None, shown: str) -> None:
    reply = {"result": {"resultstring": "UNKNOWN", "solution": [1] * 1000}}
    assert repr(Optimum(value is not None, is_optimal, value, None, 2, reply)) == f"<Optimum {shown}>"


def test_a_star_import_needs_no_optional_package() -> None:
    hide = "import sys; sys.modules |= dict.fromkeys(('pindakaas', 'cpmpy', 'joblib'))"
    subprocess.run([sys.executable, "-c", f"{hide}; from mallob_py import *; Client"], check=True)


@pytest.mark.parametrize(
    ("name", "missing", "install"),
    [
        ("register_cpmpy_solver", "pindakaas", "pip install 'mallob-py[cpmpy]'"),
        ("register_joblib_backend", "joblib", "pip install joblib"),
    ],
)
def test_what_stands_on_a_package_that_is_missing_says_how_to_get_it(
    name: str, missing: str, install: str
) -> None:
    script = f"import sys; sys.modules['{missing}'] = None; from mallob_py import {name}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: {name} needs ")
    assert last.endswith(install)
