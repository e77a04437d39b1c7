"""Rules by which bags of tasks are lent, settled, taken back and handed over (kit/bags/ledger.py)."""

from __future__ import annotations

from mutations.mutation import table

LENDING = table("""
apps/mallob_bags/betweenness.py
  tasks of a bag are the same whether expected, asked for or done
    BetweennessBag.expected_tasks: 2.0 * (len(self._graph.targets) + len(self._graph.offsets) - 1) => 1.0
    test_tasks_of_betweenness_are_the_same_whether_expected_asked_for_or_done

mallob_py/kit/bags/application.py
  a root that has rested saves more often, as its next turn may begin elsewhere
    BagWorker._save: now < self._rested_s + _TURNS_S => False
    test_a_root_saves_more_often_when_it_has_rested
  for as long as turns follow each other
    BagWorker._save: self._rested_s + _TURNS_S => self._rested_s + _CHECKPOINT_S
    test_a_root_that_goes_on_from_another_saves_as_after_a_rest
  so does one that goes on from what another root has saved
    BagWorker._settle_in: never last is not None
    test_a_root_that_goes_on_from_another_saves_as_after_a_rest
  a rest while a root saves is none of what that costs
    BagWorker._save: (time.thread_time() - before_s) / _CHECKPOINT_SHARE
    => (time.monotonic() - now) / _CHECKPOINT_SHARE
    test_a_rest_while_a_root_saves_is_none_of_what_that_costs

mallob_py/kit/bags/laws.py
  what a bag expects is counted in what its process counts
    _Checker.check_expected: factor > _EXPECTED_FACTOR => False
    test_a_bag_that_expects_sources_and_counts_edges_is_told_so

mallob_py/kit/bags/ledger.py
  tasks that a bag counts as a number of NumPy's can be told
    Ledger._process: index(bag.process(count)) => bag.process(count)
    test_numbers_of_numpy_that_a_bag_tells_can_be_sent
  a bag that is too large is lent in parts
    _bytes_to_lend: always len(data) <= bytes_max
    test_a_bag_is_lent_in_parts_of_so_many_bytes_and_the_rest_stays
  what is too much for a loan stays with its lender
    _bytes_to_lend: without account.bag.merge(bag)
    test_a_bag_is_lent_in_parts_of_so_many_bytes_and_the_rest_stays
  a large state is told more rarely
    Ledger._settle: now + self._settle_s + self._bounds.pause_s(settlement.state) => now + self._settle_s
    test_a_large_state_is_told_and_asked_after_more_rarely
  who has a large loan is asked after more rarely
    Ledger._give: now + PROBE_S + 2 * self._bounds.pause_s(copy) => now + PROBE_S
    test_a_large_state_is_told_and_asked_after_more_rarely

mallob_py/kit/bags/ledger.py
  who asks once more for the same need is not served twice
    Ledger._is_served: need == wanted.need and now < served_s + SERVE_AGAIN_S => False
    test_who_asks_again_before_the_loan_has_come_is_served_once
  a loan that has not come is given once more
    Ledger._is_served: now < served_s + SERVE_AGAIN_S => True
    test_who_still_asks_when_a_loan_should_have_come_is_served_again
  an older settlement does not replace a newer one
    Ledger._settled: never message.seq <= loan.seq
    test_a_settlement_that_was_overtaken_is_passed_over
  a settlement that comes back from a former lender is no news of the present one
    Ledger.undelivered: account is not None and account.lender == dest => account is not None
    test_a_settlement_that_comes_back_from_a_former_lender_makes_nobody_give_up
  what is taken back is told on if nothing is left of its account
    Ledger._take_back: without self._close_if_done(account, now)
    test_a_bag_that_was_lent_empty_and_comes_back_holds_nobody_up
  who returns tasks returns the best solution, too
    Ledger._return: State(account.done, result, bags, account.wasted, self.books.incumbent.data)
    => State(account.done, result, bags, account.wasted)
    test_who_leaves_brings_what_its_tasks_were_pruned_by
  a settlement in part tells its lender of a better solution
    Ledger._settled: without self.books.hear_of_better(message.state.best)
    test_a_settlement_in_part_brings_what_its_tasks_were_pruned_by
  a silent borrower is done without at last
    Ledger._probe: never loan.probes > PROBES_MAX
    test_a_silent_borrower_is_asked_after_and_then_done_without
  an account with loans is not settled for good
    Ledger._close_if_done:
      account.number == 0 or account.has_work() or account.loans or account.last_words is not None
    => account.number == 0 or account.has_work() or account.last_words is not None
    test_the_result_is_exact_whatever_becomes_of_workers
  who leaves answers for its borrowers no more
    Ledger._settled: never message.number in self._handed_over
    test_one_that_leaves_hands_over_its_work_and_what_it_has_lent
  borrowers of who has left are told their new lender
    Ledger._returned_in_order: without self._send(each.borrower, Moved(each.number))
    test_one_that_leaves_hands_over_its_work_and_what_it_has_lent
  a borrower that may not know its new lender is told again
    Ledger._probe: never loan.is_inherited
    test_a_borrower_that_was_not_told_of_its_new_lender_is_told_again_before_it_gives_up
  last words are said again to a new lender
    Ledger._moved: never account.last_words is not None
    test_one_that_leaves_hands_over_its_work_and_what_it_has_lent
  who leaves takes no loan
    Ledger._borrow: never self._leaving
    test_who_leaves_takes_no_loan
  an account whose lender is gone is thrown away after a while
    Ledger.tick: never now >= account.orphaned_until_s
    test_who_hears_nothing_of_a_lender_that_is_gone_throws_its_work_away
  nobody lends to itself
    Ledger.receive: always message.token != self.token
    test_nobody_lends_to_itself
  a loan is taken back from who has it, and from nobody else
    Ledger._take_back: account is None or account.loans[number].borrower != borrower => account is None
    test_a_loan_that_another_has_by_now_is_not_taken_back
  a bag whose process does nothing ends its job
    Ledger.process: never done <= 0 and account.has_work()
    test_a_bag_that_does_nothing_ends_its_job
  a lifeline is cut by who has found work elsewhere
    Ledger._borrow: without self._send(NEIGHBOURS, Cut())
    test_who_has_nothing_waits_as_a_lifeline_until_there_is_work
  nothing is kept for a lifeline that was cut
    Ledger.receive: without self._askers.pop(source, None)
    test_a_lifeline_that_was_cut_gets_nothing
  a request that finds nothing ends after some hops
    Ledger._asked: others and message.hops > 0 => others
    test_a_request_that_finds_nothing_goes_on_to_others_a_few_times
  the richest of those looked at gives
    Ledger._asked: never message.most > left
    test_a_request_looks_at_a_few_and_the_richest_of_them_gives
  who has no end of tasks gives at once
    Ledger._asked: message.looks > 0 and others and left < math.inf => message.looks > 0 and others
    test_a_request_does_not_look_around_where_nobody_knows_how_much_is_left
  workers come to know those that requests tell of
    Ledger._asked: without self.others.hear_of(message.others)
    test_workers_come_to_know_others_by_requests_and_bags
  who hands over has gone
    Ledger.receive: never isinstance(message, Return)
    test_who_has_gone_is_not_asked_again_though_others_still_tell_of_it
  lifelines are not sent with each request
    Ledger._ask: always now >= self._lifelines_s
    test_lifelines_are_not_sent_with_each_request_but_to_new_neighbours_and_after_a_while
  new neighbours are told at once who waits
    Ledger.neighbours_changed: without self._lifelines_s = now
    test_lifelines_are_not_sent_with_each_request_but_to_new_neighbours_and_after_a_while
  who is nearly done asks already
    Ledger._ask_ahead: never spare < 0 and now >= self._ask_s
    test_who_is_nearly_done_asks_already_and_gives_nothing_away
  who has given away half counts anew what is left
    Ledger._give: without self._enough_until = 0.0
    test_what_is_left_is_not_counted_after_each_chunk_but_anew_when_some_of_it_was_given_away
  what is done sooner than sent is not lent
    Ledger._lenders: [account for left, account in tasks if left >= self.chunk_tasks]
    => [account for left, account in tasks]
    test_who_is_nearly_done_asks_already_and_gives_nothing_away
  who has work is known from then on, not who has none
    _tells_of_work: message.above > 0.0 => message.above >= 0.0
    test_who_has_work_is_known_even_to_those_who_know_many_and_who_has_none_is_not
  only who has much more gives to who has work
    Ledger._asked: left > message.above and self._lend(asker, message, now) => self._lend(asker, message, now)
    test_who_has_work_is_given_half_by_somebody_who_has_much_more
  nobody is told that nobody has much more
    Ledger._asked: richest != asker => True
    test_of_those_looked_at_nobody_gives_who_has_not_much_more
  who has had a share of its work done looks for more
    Ledger._ask_ahead: never left < self.level_tasks
    test_who_has_work_looks_for_more_each_time_a_share_of_what_is_left_is_done
  who has found nobody with more does not look again at once
    Ledger._ask_ahead: without self.level_tasks = self.next_level(left)
    test_who_has_work_looks_for_more_each_time_a_share_of_what_is_left_is_done
  among few, who has work seldom looks for more
    Ledger.next_level: max(LEVEL_PARTS_MIN, min(LEVEL_PARTS_MAX, len(self.others.known))) => LEVEL_PARTS_MAX
    test_who_has_work_looks_for_more_each_time_a_share_of_what_is_left_is_done
  who borrows first does as many tasks at a time as its lender
    Ledger.receive: without self.chunk_tasks = max(1, chunk)
    test_who_borrows_first_does_as_many_at_a_time_as_the_lender
  who works on several accounts gives of the one with most left
    Ledger._lenders: without tasks.sort(key=itemgetter(0), reverse=True)
    test_who_works_on_several_accounts_gives_of_the_one_with_most_left

mallob_py/protocol/giving_back.py
  as the system ends, workers that leave in order do
    GivingBack.leave_for_good: never (worker := self._staff.active) is not None and worker.leaves_in_order
    test_a_race_comes_out_as_it_is_written

mallob_py/kit/bags/books.py
  a repayment of a loan that is not in the books goes to nobody
    Books.remove: without del self.given[number]
    test_a_repayment_that_comes_twice_counts_once
  what a settlement tells holds the best solution, too
    Books.state: State(done, result_bytes(result), tuple(bags), wasted, self.incumbent.data)
    => State(done, result_bytes(result), tuple(bags), wasted)
    test_a_search_finds_the_best_whatever_becomes_of_who_has_found_it
  who has heard of a better solution tells its bags
    Books.hear_of_better: never self.incumbent.heard(data, self.now)
    test_who_hears_of_a_better_solution_learns_it_and_tells_others
  the job is not done while loans are open
    Books.is_finished: account is not None and not account.has_work() and not account.loans
    => account is not None and not account.has_work()
    test_what_is_lent_comes_back_as_a_result
  what a settlement tells contains what was lent on
    Books.state: without bags.extend(loan.copy.bags)
    test_a_checkpoint_is_the_whole_job
  results of borrowers are in what is told
    Books.state: without result = self._fold(result, decode_value(loan.copy.result))
    test_a_checkpoint_is_the_whole_job

mallob_py/kit/bags/others.py
  who has gone is not known again because others tell of it
    Others.hear_of: always other not in self.gone
    test_who_has_gone_is_not_asked_again_though_others_still_tell_of_it
  no more are remembered than there is room for
    Others.hear_of: never len(self.known) >= KNOWN_MAX
    test_workers_come_to_know_others_by_requests_and_bags
  nobody asks itself
    Others.hear_of: always other != self._address
    test_who_hears_its_own_request_knows_itself_and_does_not_ask_itself
""")
