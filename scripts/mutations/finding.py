"""Rules by which requests and idle PEs find each other: prefix sums, the routing tree, random walks."""

from __future__ import annotations

from mutations.mutation import table

FINDING = table("""
# matching
mallob_py/protocol/matching.py
  a PE whose token is granted does not offer it again
    PrefixSumMatcher.offer_token: never self.token_granted
    test_a_granted_token_is_not_offered_twice
  a request number that nobody claims is declared void
    PrefixSumMatcher._split: without self._out.send(number % self._out.size, VoidRequest(number))
    test_a_request_withdrawn_while_its_grant_is_under_way_is_declared_void_and_the_tokens_come_back
  a token number that nobody claims is declared void
    PrefixSumMatcher._split: without self._out.send(number % self._out.size, VoidToken(number))
    test_a_pe_that_has_found_work_declares_its_token_void_and_the_request_goes_on_to_the_next
  a token without a request is returned
    PrefixSumMatcher._meet: without self._out.send(token_rank, TokenReturned())
    test_a_request_withdrawn_while_its_grant_is_under_way_is_declared_void_and_the_tokens_come_back
  the numbers below a request without a token are declared void
    PrefixSumMatcher._meet: without self._void_from(request, position)
    test_race_14_a_demand_that_changes_all_the_time_ends_in_a_tree_of_the_last_demand
  a request without a token takes part again or goes back to its parent
    PrefixSumMatcher._meet: without self.carry(request)
    test_a_pe_that_has_found_work_declares_its_token_void_and_the_request_goes_on_to_the_next

mallob_py/protocol/local_workers.py
  a carried request of a past epoch goes back to its parent
    LocalWorkers.is_outdated: never request.epoch < self._balancer.epoch
    test_a_request_without_a_taker_goes_back_to_its_parent_in_the_next_epoch
  a request that met too many PEs that could not take it goes back to its parent
    LocalWorkers.receive_adopt: never request.hops >= self._config.hops_max
    test_race_5_a_request_that_has_met_busy_pes_too_often_goes_back_to_its_parent

mallob_py/protocol/matching.py
  the PEs that could not take a request are counted
    PrefixSumMatcher.carry: request.hops + 1 => request.hops
    test_race_5_a_request_goes_on_from_a_pe_that_cannot_take_it_and_its_hops_are_counted

# the routing tree
mallob_py/protocol/routing_tree.py
  a request that goes down takes one from the count of that subtree
    RoutingTreeMatcher._route: without self._left -= 1
    test_two_requests_from_one_place_go_down_to_two_idle_pes
  whoever gets a request from above has been counted as one idle PE less
    RoutingTreeMatcher.receive: without self._advertised -= 1
    test_a_request_turns_at_the_first_subtree_with_an_idle_pe
  a request that climbs takes the news of idle PEs with it
    RoutingTreeMatcher._route: self._news() => 0
    test_a_request_asked_where_pes_have_become_busy_tells_the_root_of_them
  a request goes down to an idle PE before it climbs
    RoutingTreeMatcher._route: self._right > 0 => self._right > 0 and self._place.parent is None
    test_a_request_turns_at_the_first_subtree_with_an_idle_pe
  a PE that is promised to a request is not idle for another one
    RoutingTreeMatcher.offer_token: never self.token_granted
    test_a_pe_that_is_promised_to_a_request_is_not_idle_for_another_one
  a withdrawn request leaves the queue at the root
    RoutingTreeMatcher.withdraw: without self._out.send(self._root, Withdrawn(number))
    test_a_waiting_request_that_is_withdrawn_leaves_the_root
  an asker forgets the number of a request that has been answered
    RoutingTreeMatcher.withdraw: without del self._wanted[number]
    test_a_request_withdrawn_on_its_way_up_is_dropped_as_soon_as_it_waits
  an asker forgets that a request waited which has been answered
    RoutingTreeMatcher.withdraw: without self._at_root.remove(number)
    test_a_waiting_request_that_is_withdrawn_leaves_the_root
  a request withdrawn on its way leaves the queue as soon as it waits
    RoutingTreeMatcher.receive: without self._out.send(source, Withdrawn(message.number))
    test_a_request_withdrawn_on_its_way_up_is_dropped_as_soon_as_it_waits
  asking anew withdraws the former request
    RoutingTreeMatcher.ask: without self.withdraw(request.job, request.index)
    test_a_late_withdrawal_does_not_hit_the_request_that_came_after
  a waiting request goes back to its parent in the next epoch
    RoutingTreeMatcher.drop_outdated: never self._is_outdated(request)
    test_a_waiting_request_goes_back_to_its_parent_when_it_is_outdated
  an outdated request does not begin to wait
    RoutingTreeMatcher._route: never self._is_outdated(request)
    test_a_request_that_is_outdated_when_it_comes_to_the_root_does_not_begin_to_wait
  a correction that waits for the least delay is sent when it is over
    RoutingTreeMatcher.next_deadline: self._may_send_from => math.inf
    test_changes_of_idle_counts_within_the_delay_are_gathered_into_one_message

# random walks
mallob_py/protocol/random_walk.py
  a walk does not end at a PE whose token is granted
    RandomWalk._visit: never self.token_granted
    test_a_pe_that_was_granted_a_match_behind_is_no_end_of_a_walk
  a PE at which a walk has ended is not idle for the matcher behind
    RandomWalk._visit: without self._behind.offer_token(False)
    test_a_pe_at_which_a_walk_has_ended_is_not_idle_for_the_matcher_behind
  a walk of an outdated request ends
    RandomWalk._visit: never self._is_outdated(request)
    test_a_walk_without_limit_goes_on_while_nobody_is_idle_and_ends_when_its_request_is_outdated
  a withdrawn request that comes home is dropped
    RandomWalk.withdraw: without self._away.pop((job, subtree), None)
    test_a_withdrawn_request_ends_its_walk_at_home
  a request that was asked anew while it was away is dropped when it comes home
    RandomWalk._come_home: never (known.epoch, known.asked_s) != (request.epoch, request.asked_s)
    test_of_two_walks_for_the_same_worker_only_the_wanted_one_goes_on
  a walk without limit is followed by another one
    RandomWalk._come_home: never self._is_endless
    test_a_walk_without_limit_goes_on_while_nobody_is_idle_and_ends_when_its_request_is_outdated
  a request rests before its next walk if the one before took no time
    RandomWalk.flush: always walked.again_s <= now
    test_walks_within_one_rank_let_time_go_by
  a request that rests after its walk will go on
    RandomWalk.next_deadline: min(deadline_s, self._behind.next_deadline()) => self._behind.next_deadline()
    test_a_walk_that_took_no_time_is_followed_by_another_one_after_a_while
  a request that rests after its walk can be withdrawn
    RandomWalk.withdraw: without self._resting.pop((job, subtree), None)
    test_a_request_withdrawn_between_two_walks_stays_at_home
  a request whose walk has ended is handed to the matcher behind
    RandomWalk._come_home: self._behind.ask(msgspec.structs.replace(request, hops=request.hops + 1))
    => self._on_outdated(request)
    test_a_walk_of_h_hops_visits_h_pes_and_goes_home

# preferred roots
mallob_py/protocol/client.py
  a root is asked for where it had better be once only
    _RootPort.ask: near, self._near = self._near, None => near = self._near
    test_a_preference_from_a_past_epoch_goes_back_and_is_asked_anew_without_it
  a root goes first where it had better be
    _RootPort.ask: never near is not None
    test_a_root_goes_where_it_had_better_be_if_that_pe_is_idle

mallob_py/protocol/local_workers.py
  a preferred PE that is busy passes the root on
    LocalWorkers.receive_preference: without self._matcher.carry(request)
    test_a_busy_pe_passes_the_root_on
  a preferred PE that is promised to somebody else passes the root on
    LocalWorkers.receive_preference:
      if is_free and self.is_obsolete(request):
          self.fail(request)
      elif is_free:
          self.adopt(request, now)
      else:
          self._matcher.carry(request)
    =>
      if is_free and self.is_obsolete(request):
          self.fail(request)
      elif self._staff.active is None:
          self.adopt(request, now)
      else:
          self._matcher.carry(request)
    test_a_pe_that_is_promised_to_somebody_else_passes_the_root_on
  a preferred PE does not take a root that is not deserved any more
    LocalWorkers.receive_preference: never is_free and self.is_obsolete(request)
    test_a_preference_for_a_root_that_is_no_longer_deserved_goes_back

mallob_py/protocol/pe.py
  a preference from an epoch still to come waits for it
    PE._on_preference: never self._waits_for(message.request.epoch, source, message)
    test_a_preference_from_a_coming_epoch_waits_for_it
""")
