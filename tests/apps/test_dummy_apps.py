"""The applications NOOP and SLEEP, which compute nothing."""

import subprocess
import sys

import pytest
from fake_context import FakeContext, Parked

from mallob_dummy import NoopApplication, SleepApplication
from mallob_py.kit import InputError, JobInput


def test_the_root_of_a_noop_job_answers_at_once_and_the_others_park() -> None:
    application = NoopApplication()
    result = application.run(FakeContext(application.read(JobInput()), 0, {}))
    assert (result.code, result.solution) == (10, [])
    with pytest.raises(Parked):
        application.run(FakeContext({}, 1, {}))


def test_workers_of_a_sleep_job_park() -> None:
    for index in (0, 1):
        with pytest.raises(Parked):
            SleepApplication().run(FakeContext({}, index, {}))


@pytest.mark.parametrize("application", [NoopApplication(), SleepApplication()])
def test_input_is_refused_rather_than_ignored(application: NoopApplication | SleepApplication) -> None:
    assert application.takes_input is False
    assert application.read(JobInput()) == {}
    with pytest.raises(InputError):
        application.read(JobInput(files=["f"]))
    with pytest.raises(InputError):
        application.read(JobInput(literals=[1, 0]))


def test_importing_them_loads_neither_numpy_nor_solvers() -> None:
    program = "import mallob_dummy, sys; print({'numpy', 'pysat', 'pysolvers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
