"""Which matcher the settings ask for."""

from __future__ import annotations

from collections.abc import Callable

from mallob_py.protocol.config import Config, Matching
from mallob_py.protocol.matcher import Matcher
from mallob_py.protocol.matching import PrefixSumMatcher
from mallob_py.protocol.messages import Request
from mallob_py.protocol.outbox import Outbox


def matcher_of(
    out: Outbox,
    config: Config,
    is_outdated: Callable[[Request], bool],
    on_outdated: Callable[[Request], None],
) -> Matcher:
    """One PE's part of the configured matcher. One PE alone has nowhere to walk to."""
    # Whoever needs the others may take the time to import them.
    matcher: Matcher
    if config.matcher is Matching.PREFIX_SUM:
        matcher = PrefixSumMatcher(out, config.matching_delay_s, is_outdated, on_outdated)
    else:
        from mallob_py.protocol.routing_tree import RoutingTreeMatcher

        matcher = RoutingTreeMatcher(out, config.matching_delay_s, is_outdated, on_outdated)
    if config.random_hops == 0 or out.size == 1:
        return matcher
    from mallob_py.protocol.random_walk import RandomWalk

    return RandomWalk(out, config.random_hops, matcher, is_outdated, on_outdated)
