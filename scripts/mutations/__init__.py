"""Rules of the protocol and some others, each with a small change that breaks it; `mutate.py` applies them.

A mutation names the rule in words, where it is, a change of the syntax tree there, and the test that
notices it. The lists are kept by hand: one entry for each rule that somebody could take for superfluous.
"""

from __future__ import annotations

from mutations.answering import ANSWERING
from mutations.calling import CALLING
from mutations.clients import CLIENTS
from mutations.finding import FINDING
from mutations.folders import FOLDERS
from mutations.generations import GENERATIONS
from mutations.lending import LENDING
from mutations.mutation import Mutation, apply, describe
from mutations.running import RUNNING
from mutations.sharing import SHARING
from mutations.trees import TREES
from mutations.turns import TURNS
from mutations.whole_jobs import WHOLE_JOBS

MUTATIONS = (
    *SHARING,
    *TURNS,
    *FINDING,
    *TREES,
    *GENERATIONS,
    *RUNNING,
    *LENDING,
    *ANSWERING,
    *CALLING,
    *CLIENTS,
    *FOLDERS,
    *WHOLE_JOBS,
)

__all__ = ["MUTATIONS", "Mutation", "apply", "describe"]
