"""A test that one step of CI skips must run in another step; otherwise the step fails."""

import re
from pathlib import Path

from known_skips import MACHINE, STEP_VARIABLE, listed, unexcused

ROOT = Path(__file__).parents[2]


def test_each_step_that_the_list_names_is_one_of_ci() -> None:
    steps = set(re.findall(rf"{STEP_VARIABLE}=([a-z]+)", (ROOT / ".ci/run").read_text())) | {"slurm"}
    assert {step for step, _ in listed()} <= steps | {MACHINE}
    assert "echo slurm" in (ROOT / ".ci/run").read_text()


def test_a_new_skip_that_no_step_runs_is_none_that_is_excused() -> None:
    dask, new = "Skipped: Dask is not installed", "Skipped: Ray is not installed"
    assert unexcused([dask, new, "Skipped: needs two cores"], "test") == [new]
    assert unexcused([dask, new], "extras") == [dask, new]
