"""Rules by which ranks come and go (protocol/generation.py), and what goes over to the next generation."""

from __future__ import annotations

from mutations.mutation import table

GENERATIONS = table("""
# who belongs to the system
mallob_py/protocol/placement.py
  a generation's name tells its coordinator, so that two have not the same
    name_of: number << _COORDINATOR_BITS | (ADDRESSES_MAX - 1 - coordinator) => number << _COORDINATOR_BITS
    test_g_is_unique_for_number_and_coordinator

mallob_py/protocol/generation.py
  nobody promises less than it has promised
    Membership._hear_proposal: never generation.g <= self._latest
    test_nobody_promises_less_than_it_has_promised
  who is suspected by somebody that has promised more makes its coordinator ask for more
    Membership._suspect: not concerned and seen <= self._latest => not concerned
    test_who_has_promised_more_than_its_coordinator_knows_is_asked_again
  who leaves by order has not been thought dead, though others begin first
    Membership._hear: never self.address in self._leavers
    test_who_leaves_and_hears_first_from_those_who_have_begun_has_left
  a generation begins when all are ready
    Membership._commit_if_ready:
      proposal is None or self._missing or coordinator_of(proposal.generation.g) != self.address
    => proposal is None or coordinator_of(proposal.generation.g) != self.address
    test_all_who_live_come_to_one_generation_whatever_happens
  who is thought dead is told to end when it says something
    Membership._hear: self._fence(source) => pass
    test_who_hangs_and_wakes_up_ends
  a late message of one that was left out is answered
    Membership._meet_stray: self._fence(source) => pass
    test_a_late_message_of_one_that_was_left_out_tells_it_to_end
  of two parts that hear each other again the one with the greater generation does not end
    Membership._hear: always self.generation is None or message.g > self.generation.g
    test_an_old_fence_ends_nobody
  who is left waiting takes its coordinator as lost
    Membership._lose_patience: without
      self._suspect({silent if silent not in self.lost else self._coordinator()}, g, now)
    test_who_has_promised_and_hears_no_more_looks_for_the_next_coordinator
  an order outlives the coordinator that was asked
    Membership._begin: without self._pursue(now)
    test_an_order_outlives_the_coordinator_that_was_asked

# what goes over
mallob_py/protocol/local_workers.py
  a parent asks for the children that it had
    LocalWorkers.adopt: without
      worker.seats.past.add(one for one in worker.kept if in_subtree(one.index, index))
    test_in_large_trees_of_several_jobs_workers_find_their_places_by_those_that_were_around_them
  a client that takes a job over hears that its root has run
    LocalWorkers.adopt: never worker.is_carried_over and index == 0 and worker.has_run
    test_the_budget_of_a_job_counts_with_the_heir_of_its_client

mallob_py/protocol/succession.py
  an answer is kept until the job is over
    LastWords.say: always client == out.rank or words.job in self._said
    test_an_answer_that_was_on_its_way_is_said_again
  answers that are kept have a bound in bytes
    LastWords.say: len(self._said) > KEPT_MAX or self._size_bytes > KEPT_BYTES_MAX
    => len(self._said) > KEPT_MAX
    test_the_oldest_words_go_when_they_are_large_and_what_is_too_large_is_not_kept

mallob_py/protocol/client.py
  a root that another one's answer ends hears of it
    ClientJobs._end: is_of_root and self._has_left_no_trace(record) => self._has_left_no_trace(record)
    test_an_answer_of_a_former_worker_ends_the_root_that_its_client_has_just_been_given
  the budget used so far is charged
    ClientJobs.halt: without record.count(now, self._config.threads)
    test_budgets_go_on

mallob_py/protocol/placement.py
  the heir of a lost rank's clients is the next lower member
    Succession.__init__: heir_of(address, after.members) => after.members[0]
    test_an_answer_for_a_client_that_is_lost_is_heard_by_its_heir

# to be drained
mallob_py/protocol/local_workers.py
  who is drained offers itself to nobody
    LocalWorkers.is_resting: self._rests_until_s is not None or self.giving_back.is_draining
    => self._rests_until_s is not None
    test_a_race_comes_out_as_it_is_written
  a drained root gives up its seat when it has saved its job
    LocalWorkers.left: without self._let_go_of_a_drained_root(now)
    test_a_race_comes_out_as_it_is_written

mallob_py/protocol/generation.py
  of members that all are to leave one stays
    Membership._pursue: self._leaves.discard(self.address) => self._leaves.clear()
    test_of_those_who_are_left_and_all_are_to_leave_one_stays

mallob_py/protocol/succession.py
  clients hear of the processes that were kept where nobody else asks for them
    Inheritance._call_attention: never self._config.reuse is not Reuse.NONE
    test_who_has_lost_its_parent_finds_its_place_by_the_client
  what a carried over worker knows of its tree is told in each generation's numbers
    Inheritance._renumber_family: succession.pe(one.rank) => one.rank
    test_what_was_known_of_a_tree_two_generations_ago_is_told_in_present_numbers
  a PE that keeps itself free for its worker goes on with that in a further generation
    Inheritance.take_over: job == former.halted_job or (worker.is_carried_over and job in former._cache.holds)
    => job == former.halted_job
    test_a_change_right_after_another_costs_hardly_more_processes_than_one

mallob_py/protocol/tree_messages.py
  stays of different generations differ
    TreeMessages.to_worker: always stay >> STAY_BITS == self._era
    test_a_message_to_an_address_of_a_former_generation_comes_back

mallob_py/protocol/giving_back.py
  the last rank takes on work again
    GivingBack.take_over: former.is_draining and not is_last => former.is_draining
    test_the_last_rank_takes_work_again_though_it_was_to_be_drained
  who is drained waits for a worker that has yet to hand over what it has
    GivingBack.is_drained: is_at_work or self._staff.leaving or is_waited_for
    => is_at_work or self._staff.leaving
    test_a_rank_that_is_drained_as_a_generation_begins_waits_for_the_worker_that_goes_on_there
  a drained root has what it has lent handed back
    GivingBack.hand_over: without worker.seats.dismiss(since_epoch=0)
    test_a_race_comes_out_as_it_is_written
  the last rank does not begin to drain any more
    GivingBack.drain: never self._is_last
    test_whoever_is_to_be_drained_when_it_is_the_last_rank_takes_work

mallob_py/runtime/world/failure_detector.py
  who has left is seen until the process has ended, though there was no descriptor for it
    LocalPeers._watch: without self._unwatched[peer] = process
    test_a_rank_for_which_there_is_no_descriptor_is_seen_until_its_process_has_ended
  a rank of which nothing can be read for want of descriptors is not taken for dead
    _stat_of: (FileNotFoundError, ProcessLookupError, IndexError) => (OSError, IndexError)
    test_a_rank_of_which_proc_cannot_be_read_now_is_not_taken_for_dead

mallob_py/runtime/rank.py
  a checkpoint is not sent to a rank that is behind
    Rank._send_envelope: isinstance(it.message, Checkpoint) => False
    test_messages_between_workers_come_back_from_a_rank_that_is_behind_and_few_others_are_not_sent

mallob_py/protocol/succession.py
  words that are too large to be kept do not push out others
    LastWords.say: _size_bytes(words) > KEPT_BYTES_MAX => False
    test_the_oldest_words_go_when_they_are_large_and_what_is_too_large_is_not_kept
""")
