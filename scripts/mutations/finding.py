"""Rules by which requests and idle PEs find each other: prefix sums, the routing tree, random walks."""

from __future__ import annotations

from mutations.mutation import Mutation, always, instead_of, never, without

_MATCHING = "mallob_py/protocol/matching.py"
_WORKERS = "mallob_py/protocol/local_workers.py"
_ROUTING = "mallob_py/protocol/routing_tree.py"
_WALK = "mallob_py/protocol/random_walk.py"
_CLIENT = "mallob_py/protocol/client.py"
_PE = "mallob_py/protocol/pe.py"

FINDING = (
    # --- matching -----------------------------------------------------------------------------
    Mutation(
        "a PE whose token is granted does not offer it again",
        _MATCHING,
        "PrefixSumMatcher.offer_token",
        never("self.token_granted"),
        "test_a_granted_token_is_not_offered_twice",
    ),
    Mutation(
        "a request number that nobody claims is declared void",
        _MATCHING,
        "PrefixSumMatcher._split",
        without("self._out.send(number % self._out.size, VoidRequest(number))"),
        "test_a_request_withdrawn_while_its_grant_is_under_way_is_declared_void_and_the_tokens_come_back",
    ),
    Mutation(
        "a token number that nobody claims is declared void",
        _MATCHING,
        "PrefixSumMatcher._split",
        without("self._out.send(number % self._out.size, VoidToken(number))"),
        "test_a_pe_that_has_found_work_declares_its_token_void_and_the_request_goes_on_to_the_next",
    ),
    Mutation(
        "a token without a request is returned",
        _MATCHING,
        "PrefixSumMatcher._meet",
        without("self._out.send(token_rank, TokenReturned())"),
        "test_a_request_withdrawn_while_its_grant_is_under_way_is_declared_void_and_the_tokens_come_back",
    ),
    Mutation(
        "the numbers below a request without a token are declared void",
        _MATCHING,
        "PrefixSumMatcher._meet",
        without("self._void_from(request, position)"),
        "test_race_14_a_demand_that_changes_all_the_time_ends_in_a_tree_of_the_last_demand",
    ),
    Mutation(
        "a request without a token takes part again or goes back to its parent",
        _MATCHING,
        "PrefixSumMatcher._meet",
        without("self.carry(request)"),
        "test_a_pe_that_has_found_work_declares_its_token_void_and_the_request_goes_on_to_the_next",
    ),
    Mutation(
        "a carried request of a past epoch goes back to its parent",
        _WORKERS,
        "LocalWorkers.is_outdated",
        never("request.epoch < self._balancer.epoch"),
        "test_a_request_without_a_taker_goes_back_to_its_parent_in_the_next_epoch",
    ),
    Mutation(
        "a request that met too many PEs that could not take it goes back to its parent",
        _WORKERS,
        "LocalWorkers.receive_adopt",
        never("request.hops >= self._config.hops_max"),
        "test_race_5_a_request_that_has_met_busy_pes_too_often_goes_back_to_its_parent",
    ),
    Mutation(
        "the PEs that could not take a request are counted",
        _MATCHING,
        "PrefixSumMatcher.carry",
        instead_of("request.hops + 1", "request.hops"),
        "test_race_5_a_request_goes_on_from_a_pe_that_cannot_take_it_and_its_hops_are_counted",
    ),
    # --- the routing tree ---------------------------------------------------------------------
    Mutation(
        "a request that goes down takes one from the count of that subtree",
        _ROUTING,
        "RoutingTreeMatcher._route",
        without("self._left -= 1"),
        "test_two_requests_from_one_place_go_down_to_two_idle_pes",
    ),
    Mutation(
        "whoever gets a request from above has been counted as one idle PE less",
        _ROUTING,
        "RoutingTreeMatcher.receive",
        without("self._advertised -= 1"),
        "test_a_request_turns_at_the_first_subtree_with_an_idle_pe",
    ),
    Mutation(
        "a request that climbs takes the news of idle PEs with it",
        _ROUTING,
        "RoutingTreeMatcher._route",
        instead_of("self._news()", "0"),
        "test_a_request_asked_where_pes_have_become_busy_tells_the_root_of_them",
    ),
    Mutation(
        "a request goes down to an idle PE before it climbs",
        _ROUTING,
        "RoutingTreeMatcher._route",
        instead_of("self._right > 0", "self._right > 0 and self._place.parent is None"),
        "test_a_request_turns_at_the_first_subtree_with_an_idle_pe",
    ),
    Mutation(
        "a PE that is promised to a request is not idle for another one",
        _ROUTING,
        "RoutingTreeMatcher.offer_token",
        never("self.token_granted"),
        "test_a_pe_that_is_promised_to_a_request_is_not_idle_for_another_one",
    ),
    Mutation(
        "a withdrawn request leaves the queue at the root",
        _ROUTING,
        "RoutingTreeMatcher.withdraw",
        without("self._out.send(self._root, Withdrawn(number))"),
        "test_a_waiting_request_that_is_withdrawn_leaves_the_root",
    ),
    Mutation(
        "an asker forgets the number of a request that has been answered",
        _ROUTING,
        "RoutingTreeMatcher.withdraw",
        without("del self._wanted[number]"),
        "test_a_request_withdrawn_on_its_way_up_is_dropped_as_soon_as_it_waits",
    ),
    Mutation(
        "an asker forgets that a request waited which has been answered",
        _ROUTING,
        "RoutingTreeMatcher.withdraw",
        without("self._at_root.remove(number)"),
        "test_a_waiting_request_that_is_withdrawn_leaves_the_root",
    ),
    Mutation(
        "a request withdrawn on its way leaves the queue as soon as it waits",
        _ROUTING,
        "RoutingTreeMatcher.receive",
        without("self._out.send(source, Withdrawn(message.number))"),
        "test_a_request_withdrawn_on_its_way_up_is_dropped_as_soon_as_it_waits",
    ),
    Mutation(
        "asking anew withdraws the former request",
        _ROUTING,
        "RoutingTreeMatcher.ask",
        without("self.withdraw(request.job, request.index)"),
        "test_a_late_withdrawal_does_not_hit_the_request_that_came_after",
    ),
    Mutation(
        "a waiting request goes back to its parent in the next epoch",
        _ROUTING,
        "RoutingTreeMatcher.drop_outdated",
        never("self._is_outdated(request)"),
        "test_a_waiting_request_goes_back_to_its_parent_when_it_is_outdated",
    ),
    Mutation(
        "an outdated request does not begin to wait",
        _ROUTING,
        "RoutingTreeMatcher._route",
        never("self._is_outdated(request)"),
        "test_a_request_that_is_outdated_when_it_comes_to_the_root_does_not_begin_to_wait",
    ),
    Mutation(
        "a correction that waits for the least delay is sent when it is over",
        _ROUTING,
        "RoutingTreeMatcher.next_deadline",
        instead_of("self._may_send_from", "math.inf"),
        "test_changes_of_idle_counts_within_the_delay_are_gathered_into_one_message",
    ),
    # --- random walks ---------------------------------------------------------------------------
    Mutation(
        "a walk does not end at a PE whose token is granted",
        _WALK,
        "RandomWalk._visit",
        never("self.token_granted"),
        "test_a_pe_that_was_granted_a_match_behind_is_no_end_of_a_walk",
    ),
    Mutation(
        "a PE at which a walk has ended is not idle for the matcher behind",
        _WALK,
        "RandomWalk._visit",
        without("self._behind.offer_token(False)"),
        "test_a_pe_at_which_a_walk_has_ended_is_not_idle_for_the_matcher_behind",
    ),
    Mutation(
        "a walk of an outdated request ends",
        _WALK,
        "RandomWalk._visit",
        never("self._is_outdated(request)"),
        "test_a_walk_without_limit_goes_on_while_nobody_is_idle_and_ends_when_its_request_is_outdated",
    ),
    Mutation(
        "a withdrawn request that comes home is dropped",
        _WALK,
        "RandomWalk.withdraw",
        without("self._away.pop((job, subtree), None)"),
        "test_a_withdrawn_request_ends_its_walk_at_home",
    ),
    Mutation(
        "a request that was asked anew while it was away is dropped when it comes home",
        _WALK,
        "RandomWalk._come_home",
        never("(known.epoch, known.asked_s) != (request.epoch, request.asked_s)"),
        "test_of_two_walks_for_the_same_worker_only_the_wanted_one_goes_on",
    ),
    Mutation(
        "a walk without limit is followed by another one",
        _WALK,
        "RandomWalk._come_home",
        never("self._is_endless"),
        "test_a_walk_without_limit_goes_on_while_nobody_is_idle_and_ends_when_its_request_is_outdated",
    ),
    Mutation(
        "a request rests before its next walk if the one before took no time",
        _WALK,
        "RandomWalk.flush",
        always("walked.again_s <= now"),
        "test_walks_within_one_rank_let_time_go_by",
    ),
    Mutation(
        "a request that rests after its walk will go on",
        _WALK,
        "RandomWalk.next_deadline",
        instead_of("min(deadline_s, self._behind.next_deadline())", "self._behind.next_deadline()"),
        "test_a_walk_that_took_no_time_is_followed_by_another_one_after_a_while",
    ),
    Mutation(
        "a request that rests after its walk can be withdrawn",
        _WALK,
        "RandomWalk.withdraw",
        without("self._resting.pop((job, subtree), None)"),
        "test_a_request_withdrawn_between_two_walks_stays_at_home",
    ),
    Mutation(
        "a request whose walk has ended is handed to the matcher behind",
        _WALK,
        "RandomWalk._come_home",
        instead_of(
            "self._behind.ask(msgspec.structs.replace(request, hops=request.hops + 1))",
            "self._on_outdated(request)",
        ),
        "test_a_walk_of_h_hops_visits_h_pes_and_goes_home",
    ),
    # --- preferred roots -----------------------------------------------------------------------
    Mutation(
        "a root is asked for where it had better be once only",
        _CLIENT,
        "_RootPort.ask",
        instead_of("near, self._near = self._near, None", "near = self._near"),
        "test_a_preference_from_a_past_epoch_goes_back_and_is_asked_anew_without_it",
    ),
    Mutation(
        "a root goes first where it had better be",
        _CLIENT,
        "_RootPort.ask",
        never("near is not None"),
        "test_a_root_goes_where_it_had_better_be_if_that_pe_is_idle",
    ),
    Mutation(
        "a preferred PE that is busy passes the root on",
        _WORKERS,
        "LocalWorkers.receive_preference",
        without("self._matcher.carry(request)"),
        "test_a_busy_pe_passes_the_root_on",
    ),
    Mutation(
        "a preferred PE that is promised to somebody else passes the root on",
        _WORKERS,
        "LocalWorkers.receive_preference",
        instead_of(
            """
            if is_free and self.is_obsolete(request):
                self.fail(request)
            elif is_free:
                self.adopt(request, now)
            else:
                self._matcher.carry(request)
            """,
            """
            if is_free and self.is_obsolete(request):
                self.fail(request)
            elif self.active is None:
                self.adopt(request, now)
            else:
                self._matcher.carry(request)
            """,
        ),
        "test_a_pe_that_is_promised_to_somebody_else_passes_the_root_on",
    ),
    Mutation(
        "a preferred PE does not take a root that is not deserved any more",
        _WORKERS,
        "LocalWorkers.receive_preference",
        never("is_free and self.is_obsolete(request)"),
        "test_a_preference_for_a_root_that_is_no_longer_deserved_goes_back",
    ),
    Mutation(
        "a preference from an epoch still to come waits for it",
        _PE,
        "PE._on_preference",
        never("self._wait_for_epoch_of(message.request, source, message)"),
        "test_a_preference_from_a_coming_epoch_waits_for_it",
    ),
)
