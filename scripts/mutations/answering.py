"""Rules of answers: what an application says of its job, and how the service's replies get to clients."""

from __future__ import annotations

from mutations.mutation import table

ANSWERING = table("""
mallob_py/service/jobs/bookkeeping.py
  a job that needs a result does not begin without it
    JobBook._release: never outcome != RESULT and identity in self._needed.get(waiting_id, ())
    test_a_job_that_needs_a_result_is_named_at_once_when_there_will_be_none

# interim results
mallob_py/protocol/interim.py
  a worse answer replaces no better one
    Interim.is_beaten_by: self._is_better(other.value, self.value) => True
    test_the_best_value_and_the_best_bound_stand_whatever_the_order
  a weaker bound replaces no stronger one
    Interim.joined: self._is_better(self.bound, other.bound) => True
    test_the_best_value_and_the_best_bound_stand_whatever_the_order

mallob_py/protocol/client.py
  the client joins what all workers offer
    ClientJobs.receive_offered: offered if known is None else known.joined(offered) => offered
    test_the_client_keeps_the_best_of_all_workers_and_an_interrupted_job_ends_with_it

mallob_py/runtime/workers/process.py
  the last progress is passed on later if it comes too soon
    _Context.poll: self._progress is not None => False
    test_the_last_progress_is_passed_on_though_it_came_too_soon

mallob_py/runtime/workers/offering.py
  an offer that comes too soon is passed on later
    Offering.offer: without self.due_s = self._may_send_s
    test_the_first_offer_is_passed_on_at_once_and_the_best_of_those_that_come_soon_after_it_later
  an answer without a value is not repeated
    Offering.turn: self._best.value is not None or self._best.body is None => True
    test_an_answer_without_a_value_is_not_repeated_since_the_last_to_come_stands

mallob_py/service/jobs/reply.py
  what is offered is not told as the last word
    result_reply: without result["complete"] = False
    test_an_interrupted_job_is_answered_with_the_best_offer_of_any_worker

# SAT
apps/mallob_maxsat/keeping.py
  what is kept of one formula is not believed of another
    Keeping._take_in: kept.formula != formula => False
    test_of_another_formula_nothing_is_taken

apps/mallob_sat/enumeration.py
  solutions that are found are offered before the end
    _Found.tell_sometimes: count > self._offered => False
    test_what_is_found_before_the_end_is_offered
  time that ends before the first solution is no answer
    Enumerating._enumerate: found.count and time.time() >= self.until => time.time() >= self.until
    test_when_time_has_ended_before_the_first_solution_that_one_is_still_looked_for

apps/mallob_sat/cores.py
  another solver confirms a core
    find_core: without check_core(formula, strategy)
    test_another_solver_confirms_each_core

apps/mallob_sat/kissat_door.py
  kissat takes clauses on level 0 only
    KissatDoor.give: without module.kissat_backtrack_without_updating_phases(kissat, 0)
    test_what_one_learns_another_may_take_and_gives_only_what_follows
  variables of kissat's own are told from the formula's
    KissatDoor.import_variables: without self._module.kissat_import_literal(self._kissat, n_vars)
    test_variables_of_its_own_are_never_taken_for_the_formulas
  a search that broke off is no proof that there is no model
    KissatDoor.raise_failure: never self._failure is not None
    test_what_goes_wrong_at_a_restart_is_no_answer
  a stable phase is let end before there are no more
    KissatDoor.focus: not (is_wanted and _switches[self._kissat] % 2) => True
    test_it_has_stable_phases_unless_others_are_wanted

apps/mallob_sat/pigeons.py
  of a group at most one literal is true
    _groups: all(each in excluded[candidate] for each in group) => True
    test_pigeons_are_never_too_many_where_there_is_a_model
  two clauses have no literal in common
    _first_come: taken.isdisjoint(clauses[number]) => True
    test_pigeons_are_never_too_many_where_there_is_a_model

apps/mallob_sat/symmetries.py
  a symmetry takes the clauses to the clauses
    _Graph.is_symmetry: all(np.array_equal(one, other) for one, other in tables) => True
    test_of_the_models_that_are_symmetric_to_each_other_one_is_kept
  a literal is compared with its image only where all before it are equal
    _clauses: [*so_far, -one, new] => [*so_far, one, new]
    test_of_the_models_that_are_symmetric_to_each_other_one_is_kept

apps/mallob_sat/search.py
  what is learned where symmetries are broken is not told
    Search.run: self._proof is not None and not breaking => self._proof is not None
    test_a_search_that_breaks_symmetries_tells_nothing_and_says_so
  a search that is alone has stable phases again
    Search.skip_learned: without self._focuses[0] = False
    test_the_first_leaves_stable_phases_to_the_second_after_a_while_as_long_as_there_is_one

# MaxSAT
apps/mallob_maxsat/core_guided.py
  a core is made smaller for so many conflicts in all
    CoreGuided.smaller: oracle.ask(rest, end - oracle.conflicts) => oracle.ask(rest, _MINIMIZE_CONFLICTS)
    test_a_core_is_made_smaller_for_so_many_conflicts_in_all
  a counter's next output costs its whole weight
    CoreGuided._want: self.soft[literal] = counter.weight => self.soft[literal] = 1
    test_what_cores_leave_is_what_a_better_solution_costs

apps/mallob_maxsat/neighbourhoods.py
  what bounds a number is kept or left together
    _numbers: return list(numbers) => return [[literal] for literal in number_of]
    test_a_neighbourhood_keeps_all_of_what_bounds_a_number_or_nothing

apps/mallob_maxsat/roles.py
  the root leaves to others what they do beside it
    Running.is_ready: max(self.starts_s, _ASIDE_FROM_S) => self.starts_s
    test_while_there_are_others_the_root_works_from_below_alone_at_first
  who has waited does not catch up
    next_of: one.wait_until(following.turn_s) => None
    test_a_search_that_has_waited_does_not_get_the_time_later

apps/mallob_maxsat/state.py
  a model is not believed
    Bounds.found: self._problem.cost(model) is None => False
    test_a_better_model_that_breaks_a_hard_clause_is_refused

# replies, turns, and who is to blame
mallob_py/service/store/journal.py
  one reply that cannot be written to the journal does not hold up others
    Replies._finish: self._finish([item]) => self._postpone(item, error)
    test_one_reply_that_cannot_be_written_does_not_hold_up_those_gathered_with_it
  one reply that cannot be published does not hold up others
    Replies._finish:
      try:
          self._publish(item)
          del self._unpublished[item.decided.internal_id]
          self._hasten()
      except OSError as error:
          self._postpone(item, error)
    =>
      self._publish(item)
      del self._unpublished[item.decided.internal_id]
    test_one_reply_that_cannot_be_written_does_not_hold_up_those_gathered_with_it

mallob_py/service/jobs/crashes.py
  a job that is handed over is not to blame
    RunningJobs.hand_over: without for job in list(self._slot_of): ...
    test_handing_over_a_folder_blames_no_job

mallob_py/service/service.py
  a service that hands its folder over says that nobody is to blame
    Service.hand_over: self._running.hand_over() => self._running.close()
    test_a_service_that_hands_its_folder_over_blames_no_job

mallob_py/service/endings.py
  a job that has ended is not to blame
    Endings._forget: without self._running.end(live.id)
    test_the_end_of_a_job_clears_it_of_blame

mallob_py/service/turns.py
  a held job does not age
    Turns._enqueue: never now > live.accepted_s
    test_a_held_job_does_not_age
  a job that is not held ages from when it was handed in
    Turns._enqueue: always now > live.accepted_s
    test_a_job_that_is_not_held_has_waited_since_it_was_handed_in
""")
