"""Packed models: the same values in fewer bytes."""

import numpy as np
import pytest
from fake_context import FakeContext

from mallob_py.kit import InputError, JobInput, Result
from mallob_sat import SatApplication, generate
from mallob_sat.modes import packed


def run(literals: list[int], **configuration: object) -> Result:
    application = SatApplication()
    application.check(configuration)
    payload = application.read(JobInput(literals=literals, configuration=configuration))
    return application.run(FakeContext(payload, 0, configuration))


@pytest.mark.parametrize("n_vars", [0, 1, 7, 8, 9, 64, 1000])
def test_bit_v_minus_1_is_the_value_of_variable_v(n_vars: int) -> None:
    signs = np.random.default_rng(n_vars).choice([-1, 1], n_vars)
    result = packed(Result(10, np.arange(1, n_vars + 1) * signs))
    assert isinstance(result.solution, bytes)
    assert len(result.solution) == -(-n_vars // 8)
    for variable in range(1, n_vars + 1):
        byte, bit = divmod(variable - 1, 8)
        assert result.solution[byte] >> bit & 1 == (signs[variable - 1] > 0)
    assert result.fields["variables"] == n_vars


def test_a_job_may_ask_for_a_packed_model() -> None:
    formula = generate.planted(50, 200, 1)
    literals = [x for clause in formula.clauses for x in (*clause, 0)]
    plain, short = run(literals), run(literals, model="packed")
    assert isinstance(short.solution, bytes)
    bits = np.unpackbits(np.frombuffer(short.solution, np.uint8), bitorder="little")[:50]
    assert (np.where(bits, 1, -1) * np.arange(1, 51)).tolist() == np.asarray(plain.solution).tolist()
    assert short.fields["solver"] == plain.fields["solver"]


def test_other_answers_are_as_ever() -> None:
    assert run([1, 0, -1, 0], model="packed") == run([1, 0, -1, 0], model="literals")


@pytest.mark.parametrize("form", ["hex", None, 1, ["packed"]])
def test_an_unknown_form_is_refused(form: object) -> None:
    with pytest.raises(InputError, match=r"^model is .*; known are literals, packed$"):
        run([1, 0], model=form)
