"""Jobs that are bags of tasks, such as a search tree, a sum over sources or a sample.

Results are exact even while workers join and leave.

application  the interface for the author of a bag's application, and the bag's worker
bag          the interface of a bag of tasks
laws         the laws of a bag, tested on pieces
ledger       accounts and loans, a pure state machine
values       results as bytes
"""

from mallob_py.kit.bags.application import BagApplication
from mallob_py.kit.bags.bag import Bag, BagError
from mallob_py.kit.bags.laws import BrokenLaw, NothingToCheck, check_bag
from mallob_py.kit.declaration import DONE

__all__ = ["DONE", "Bag", "BagApplication", "BagError", "BrokenLaw", "NothingToCheck", "check_bag"]
