"""A reply at a limit contains the result that the last checkpoint contains."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from mallob_bags.queens import QueensApplication
from mallob_py.kit import Payload
from mallob_py.kit.bags import Bag, BagApplication, BagError
from mallob_py.kit.bags.application import _Work
from mallob_py.kit.bags.books import Books
from mallob_py.kit.bags.incumbent import number_of
from mallob_py.kit.bags.ledger import Ledger
from mallob_py.kit.bags.values import decode_value, encode_value


def test_a_checkpoint_counts_what_is_done_and_no_more() -> None:
    ledger = Ledger(_Work(QueensApplication(), {}, {"n": 8}), 1)
    ledger.open_root(0.0)
    assert Books.counted(ledger.books.checkpoint()).tasks == 0
    done = ledger.process(20, 0.0)
    so_far = Books.counted(ledger.books.checkpoint())
    assert so_far.tasks == done > 0
    while ledger.process(1000, 0.0):
        pass
    at_the_end = Books.counted(ledger.books.checkpoint())
    assert at_the_end.tasks == ledger.books.done() > so_far.tasks
    assert at_the_end.result == ledger.books.result()


@pytest.mark.parametrize("digits", [1, 20, 5000])
def test_integers_of_a_result_may_have_any_size(digits: int) -> None:
    for value in (10**digits, -(10**digits), (0, 10**digits - 1)):
        assert decode_value(encode_value(value)) == value


@pytest.mark.parametrize(
    "value", [np.float64(0.5), np.str_("a"), np.bytes_(b"a"), np.int8(3), np.bool_(True)]
)
def test_numbers_and_texts_of_numpy_are_sent_as_those_of_python(value: Any) -> None:
    sent = decode_value(encode_value(value))
    assert sent == value
    assert not isinstance(sent, np.generic)


def test_the_quality_of_a_solution_is_a_number_of_python() -> None:
    assert type(number_of((np.float64(0.5), "first"))) is float


def test_a_number_without_an_equal_in_python_is_refused() -> None:
    with pytest.raises(BagError, match="the result of a bag must be a number"):
        encode_value(np.longdouble(0.1))


@pytest.mark.parametrize(
    ("result", "value"), [((1, np.array([2, 3])), [1, [2, 3]]), ((np.float64(0.5), (4,)), [0.5, [4]])]
)
def test_a_tuple_of_numbers_and_arrays_is_a_field_of_the_reply(result: Any, value: Any) -> None:
    fields = BagApplication.fields(QueensApplication(), result, {})
    assert msgspec.json.decode(msgspec.json.encode(fields)) == {"value": value}


def test_integers_of_earlier_checkpoints_have_decimal_digits() -> None:
    assert decode_value(b"\x92\xa1i\xa3-42") == -42


class Forgets(QueensApplication):
    """Forgets to return the bag."""

    def bag_from_bytes(self, data: bytes, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return None  # type: ignore[return-value]


def test_what_is_no_bag_is_refused_rather_than_lost() -> None:
    """None counts as a bag without tasks."""
    lender, borrower = (Ledger(_Work(Forgets(), {}, {"n": 8}), seed) for seed in range(2))
    lender.open_root(0.0)
    data = lender.books.checkpoint()
    with pytest.raises(BagError, match="bag_from_bytes must return a Bag, not None"):
        borrower.open_root(0.0, data)
