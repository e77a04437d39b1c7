"""A reply at a limit contains the result that the last checkpoint contains."""

from collections.abc import Mapping
from typing import Any

import pytest

from mallob_bags.queens import QueensApplication
from mallob_py.kit import Payload
from mallob_py.kit.bags import Bag, BagError
from mallob_py.kit.bags.application import _Work
from mallob_py.kit.bags.books import Books
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
