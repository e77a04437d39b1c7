"""Jobs that are bags of tasks: a search tree, a sum over sources, a sample; exact, whoever comes and goes.

application  a job of a bag: what its author writes, and the worker that is written once
bag          what tasks are
laws         what a bag must obey, tried on pieces of it
ledger       who works on what for whom: accounts and loans, a pure state machine
values       results as bytes
"""

from mallob_py.kit.bags.application import BagApplication
from mallob_py.kit.bags.bag import Bag, BagError
from mallob_py.kit.bags.laws import BrokenLaw, NothingToCheck, check_bag
from mallob_py.kit.declaration import DONE

__all__ = ["DONE", "Bag", "BagApplication", "BagError", "BrokenLaw", "NothingToCheck", "check_bag"]
