"""A reply at a limit contains the result that the last checkpoint contains."""

from mallob_bags.queens import QueensApplication
from mallob_py.kit.bags.application import _Work
from mallob_py.kit.bags.books import Books
from mallob_py.kit.bags.ledger import Ledger


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
