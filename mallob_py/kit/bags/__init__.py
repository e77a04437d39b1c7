"""Jobs that are bags of tasks: a search tree, a sum over sources, a sample; exact while workers come and go.

application  a job of a bag: the author's part, and the worker
bag          the tasks
laws         the laws of a bag, tested on pieces
ledger       accounts and loans, a pure state machine
values       results as bytes
"""

from mallob_py.kit.bags.application import BagApplication
from mallob_py.kit.bags.bag import Bag, BagError
from mallob_py.kit.bags.laws import BrokenLaw, NothingToCheck, check_bag
from mallob_py.kit.declaration import DONE

__all__ = ["DONE", "Bag", "BagApplication", "BagError", "BrokenLaw", "NothingToCheck", "check_bag"]
