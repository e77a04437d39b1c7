"""Rules of job trees: epochs, seats, adoption, reuse, and the ends of jobs."""

from __future__ import annotations

from mutations.mutation import Mutation

_PE = "mallob_py/protocol/pe.py"
_TREE = "mallob_py/protocol/job_tree.py"
_WORKERS = "mallob_py/protocol/local_workers.py"
_CLIENT = "mallob_py/protocol/client.py"
_SHORTAGE = "mallob_py/protocol/shortage.py"
_REUSE = "mallob_py/protocol/reuse.py"

TREES = (
    # --- epochs ---------------------------------------------------------------------------
    Mutation(
        "a query from a coming epoch waits for that epoch",
        _PE,
        "        if not self._wait_for_epoch_of(message.request, source, message):\n"
        "            self.workers.receive_query(",
        "        if True:\n            self.workers.receive_query(",
        "test_race_1_a_query_from_a_newer_epoch_waits_until_its_receiver_has_that_epoch",
    ),
    Mutation(
        "an adoption from a coming epoch waits for that epoch",
        _PE,
        "        if not self._wait_for_epoch_of(message.request, source, message):\n"
        "            self.workers.receive_adopt(",
        "        if True:\n            self.workers.receive_adopt(",
        "test_race_1_an_adoption_at_the_end_of_a_random_walk_waits_for_its_epoch",
    ),
    Mutation(
        "a failed request of a coming epoch waits for that epoch",
        _PE,
        "        if message.epoch > self.balancer.epoch:\n"
        "            self._park(message.epoch, source, message)\n",
        "        if False:\n            pass\n",
        "test_race_6_a_failure_of_a_newer_epoch_waits_until_its_receiver_has_that_epoch",
    ),
    Mutation(
        "parked messages are handled once their epoch has come",
        _PE,
        "while self._parked and self._parked[0][0] <= self.balancer.epoch:",
        "while self._parked and self._parked[0][0] < self.balancer.epoch:",
        "test_race_1_a_query_from_a_newer_epoch_waits_until_its_receiver_has_that_epoch",
    ),
    Mutation(
        "carried requests are looked through in each epoch",
        _PE,
        "        self.matcher.drop_outdated()\n",
        "",
        "test_a_request_without_a_taker_goes_back_to_its_parent_in_the_next_epoch",
    ),
    # --- who leaves, and who knows (job_tree.py) ----------------------------------------------
    Mutation(
        "a parent keeps a child that came later than the epoch without room for it",
        _TREE,
        "if not wanted and seat.offer_epoch < epoch:",
        "if not wanted:",
        "test_race_2_a_parent_keeps_a_child_that_came_later_than_an_epoch_without_room_for_it",
    ),
    Mutation(
        "a leaving parent sends away the children who do not know of it",
        _WORKERS,
        "worker.seats.dismiss(since_epoch=epoch)",
        "worker.seats.close()",
        "test_a_parent_sends_away_a_child_that_came_later_than_the_epoch_in_which_the_parent_leaves",
    ),
    Mutation(
        "a rejected parent sends all its children away",
        _WORKERS,
        "worker.seats.dismiss(since_epoch=0)",
        "worker.seats.close()",
        "test_race_4_the_second_adopter_of_a_seat_sends_the_children_away_that_it_has_taken_in",
    ),
    Mutation(
        "a child tells a parent that accepted it later than the epoch in which it leaves",
        _WORKERS,
        "if worker.accepted_epoch is not None and worker.accepted_epoch >= epoch:",
        "if False:",
        "test_race_2_a_child_tells_the_parent_of_an_epoch_that_the_parent_had_before_it_accepted",
    ),
    Mutation(
        "whoever is accepted after it has left says so",
        _WORKERS,
        "            self._out.send(source, ChildLeft(message.job, message.index, message.context))\n",
        "",
        "test_race_3_an_acceptance_of_a_former_stay_is_not_taken_for_one_of_this_stay",
    ),
    Mutation(
        "a worker leaves once its index is beyond the volume",
        _WORKERS,
        "if volume is not None and worker.index >= volume:",
        "if volume is not None and worker.index > volume:",
        "test_race_2_an_offer_beyond_the_volume_is_rejected_and_its_worker_is_gone_already",
    ),
    Mutation(
        "an offer from an epoch that the parent has not seen is accepted",
        _TREE,
        "deserved = offer.epoch > epoch or offer.index < volume",
        "deserved = offer.index < volume",
        "test_race_2_a_parent_accepts_a_child_from_an_epoch_with_room_for_it_that_it_has_not_seen",
    ),
    Mutation(
        "an offer beyond the volume is rejected",
        _TREE,
        "deserved = offer.epoch > epoch or offer.index < volume",
        "deserved = True",
        "test_race_2_an_offer_beyond_the_volume_is_rejected_and_its_worker_is_gone_already",
    ),
    Mutation(
        "the first of two adopters gets the seat",
        _TREE,
        "if seat.state is SeatState.TAKEN or not deserved:",
        "if not deserved:",
        "test_race_4_the_first_of_two_adopters_gets_the_seat_and_the_other_is_idle_again",
    ),
    Mutation(
        "news of a child that has left are checked against its rank and context",
        _TREE,
        "if seat.state is not SeatState.TAKEN or (seat.rank, seat.context) != (source, context):",
        "if seat.state is not SeatState.TAKEN:",
        "test_race_3_an_acceptance_of_a_former_stay_is_not_taken_for_one_of_this_stay",
    ),
    Mutation(
        "a message for a former stay does not concern the present one",
        _WORKERS,
        "return worker if worker is not None and worker.context == context else None",
        "return worker",
        "test_race_3_a_rejection_of_a_former_stay_does_not_end_this_stay",
    ),
    Mutation(
        "the request for a taken seat is withdrawn",
        _TREE,
        "        self._matcher.withdraw(self._job, seat.index)\n        seat.state",
        "        seat.state",
        "test_a_seat_that_somebody_else_takes_needs_its_request_no_more",
    ),
    Mutation(
        "an unwanted seat withdraws its request",
        _TREE,
        "                self._matcher.withdraw(self._job, seat.index)\n                seat.clear()\n",
        "                seat.clear()\n",
        "test_a_seat_that_is_not_wanted_any_more_takes_its_request_back",
    ),
    Mutation(
        "a parent that leaves withdraws its requests",
        _TREE,
        "                self._matcher.withdraw(self._job, seat.index)\n            seat.clear()\n",
        "                pass\n            seat.clear()\n",
        "test_a_parent_that_leaves_takes_all_its_requests_back",
    ),
    Mutation(
        "an unmatched request is renewed when the volume changes",
        _TREE,
        "elif seat.state is SeatState.ASKED and self._matcher.is_asking(self._job, seat.index):\n"
        "                self._ask(",
        "elif False:\n                self._ask(",
        "test_an_unmatched_request_is_renewed_when_the_volume_changes",
    ),
    Mutation(
        "a failed request is asked anew",
        _TREE,
        "            seat.clear()\n            self.fit(volume, epoch, now)\n",
        "            seat.clear()\n",
        "test_a_request_that_has_failed_is_asked_anew",
    ),
    Mutation(
        "a denied query is followed by another query or a request",
        _TREE,
        "        if seat.state is SeatState.QUERIED and seat.rank == source:\n",
        "        if False:\n",
        "test_past_workers_are_queried_one_after_the_other_and_then_anybody_is_asked_for",
    ),
    Mutation(
        "a description that comes late is passed on to the children",
        _TREE,
        "            self._out.send(seat.rank, Described(self._job, seat.context, blob))",
        "            pass",
        "test_a_description_that_comes_late_is_passed_on_to_the_children",
    ),
    # --- adoption -----------------------------------------------------------------------------
    Mutation(
        "an adoption that is not deserved any more is declined",
        _WORKERS,
        "if self.active is None and self.is_obsolete(request):",
        "if False:",
        "test_race_2_whoever_is_asked_to_adopt_a_worker_beyond_the_volume_declines",
    ),
    Mutation(
        "whoever declines an adoption tells the parent",
        _WORKERS,
        "            self.fail(request)\n            self._reject_early()\n",
        "            self._reject_early()\n",
        "test_race_2_whoever_is_asked_to_adopt_a_worker_beyond_the_volume_declines",
    ),
    Mutation(
        "answers to a parent to be that declines are answered no",
        _WORKERS,
        "            self.fail(request)\n            self._reject_early()\n",
        "            self.fail(request)\n",
        "test_a_child_whose_parent_to_be_declines_is_sent_away",
    ),
    Mutation(
        "a token that comes back sends those away who waited for an adoption",
        _WORKERS,
        "        self._matcher.token_used()\n        self._reject_early()\n",
        "        self._matcher.token_used()\n",
        "test_a_child_of_somebody_who_has_left_is_sent_away_when_the_token_under_way_there_comes_back",
    ),
    Mutation(
        "a token that comes back takes part again",
        _WORKERS,
        "        self._matcher.token_used()\n        self._reject_early()\n        self.update_token()\n",
        "        self._reject_early()\n",
        "test_race_6_the_tokens_of_a_cancelled_bulk_request_take_part_again",
    ),
    Mutation(
        "an offer that is quicker than our own adoption waits for it",
        _WORKERS,
        "        elif self._may_yet_adopt():\n            self._early.append((source, offer))\n",
        "",
        "test_an_offer_that_overtakes_the_adoption_of_the_parent_to_be_waits_for_it",
    ),
    Mutation(
        "a failure that is quicker than our own adoption waits for it",
        _WORKERS,
        "        if self._may_yet_adopt():\n            self._early.append((source, message))\n"
        "        elif (worker :=",
        "        if (worker :=",
        "test_a_failure_that_overtakes_the_adoption_of_the_parent_to_be_is_not_lost",
    ),
    Mutation(
        "a query is denied while the PE's token is granted",
        _WORKERS,
        "            and not self._matcher.token_granted\n            and (self._volume_of",
        "            and (self._volume_of",
        "test_race_7_a_pe_that_has_denied_a_query_does_not_wait_for_another_one",
    ),
    Mutation(
        "a query beyond the volume is denied",
        _WORKERS,
        "            and (self._volume_of(request.job) or 0) > request.index\n",
        "",
        "test_race_7_a_query_for_a_worker_that_is_not_wanted_any_more_is_denied",
    ),
    # --- reuse --------------------------------------------------------------------------------
    Mutation(
        "a PE that waits for a suspended worker's job waits for a bounded time",
        _WORKERS,
        "return min(self._holds.values()) if self._holds else math.inf",
        "return math.inf",
        "test_race_8_a_pe_whose_suspended_worker_nobody_asks_for_waits_for_a_bounded_time",
    ),
    Mutation(
        "a PE whose suspended worker is not wanted is released",
        _TREE,
        "                self._out.send(past.rank, Release(self._job))\n",
        "                pass\n",
        "test_race_8_a_pe_that_waits_for_a_seat_which_somebody_else_has_taken_is_released",
    ),
    Mutation(
        "a denied query releases the PE for others",
        _WORKERS,
        "            self._holds.pop(request.job, None)\n            self._out.send(request.parent, Denied",
        "            self._out.send(request.parent, Denied",
        "test_race_7_a_pe_that_has_denied_a_query_does_not_wait_for_another_one",
    ),
    Mutation(
        "past workers are remembered under their own index",
        _WORKERS,
        "past += (PastWorker(worker.index, self._out.rank, epoch),)",
        "past += (PastWorker(worker.index + 1, self._out.rank, epoch),)",
        "test_race_8_a_tree_that_shrinks_in_steps_and_grows_again_has_its_workers_in_their_old_places",
    ),
    Mutation(
        "a leaving worker's memory goes to the nearest ancestor that stays",
        _WORKERS,
        "                self._report_past(worker, volume, past)\n",
        "                pass\n",
        "test_race_8_a_tree_that_shrinks_in_steps_and_grows_again_has_its_workers_in_their_old_places",
    ),
    Mutation(
        "a rank is remembered once",
        _REUSE,
        "            self.forget(worker.rank)\n            known = self._by_index.setdefault",
        "            known = self._by_index.setdefault",
        "test_a_rank_is_remembered_for_its_last_place_only",
    ),
    Mutation(
        "the cache of suspended workers is bounded",
        _WORKERS,
        "while len(self.suspended) > self._config.job_cache:",
        "while False:",
        "test_race_7_a_query_for_a_worker_that_the_cache_had_no_room_for_is_denied",
    ),
    # --- ends -----------------------------------------------------------------------------------
    Mutation(
        "the end of a job ends its suspended workers",
        _WORKERS,
        "        if (worker := self.suspended.pop(job, None)) is not None:\n",
        "        if (worker := self.suspended.pop(job, None)) is not None and False:\n",
        "test_a_result_of_a_suspended_worker_counts",
    ),
    Mutation(
        "a worker put aside after the end of its job is terminated",
        _WORKERS,
        "if self._volume_of(worker.job) is None:\n            # Its",
        "if False:\n            # Its",
        "test_race_9_a_root_adopted_after_its_job_has_ended_is_sent_away",
    ),
    Mutation(
        "an offer for a root whose job is over is rejected",
        _CLIENT,
        "            self._out.send(source, offer.rejection())\n            return\n        if not",
        "            return\n        if not",
        "test_race_9_a_root_adopted_after_its_job_has_ended_is_sent_away",
    ),
    Mutation(
        "the first result ends the job, later ones find it gone",
        _CLIENT,
        '        """The first result ends the job; later ones find it gone."""\n        self._now = now\n'
        "        if (record := self.jobs.get(message.job)) is not None:\n",
        '        """The first result ends the job; later ones find it gone."""\n        self._now = now\n'
        "        if (record := self.jobs[message.job]) is not None:\n",
        "test_race_12_the_first_of_two_results_wins",
    ),
    Mutation(
        "a job demands at least one worker",
        _CLIENT,
        "max(1, min(wanted, most))",
        "max(0, min(wanted, most))",
        "test_a_demand_is_kept_between_one_and_what_the_user_allows",
    ),
    Mutation(
        "a job demands no more than it may",
        _CLIENT,
        "max(1, min(wanted, most))",
        "max(1, min(wanted, self._out.size))",
        "test_a_demand_is_kept_between_one_and_what_the_user_allows",
    ),
    Mutation(
        "another priority alone is news",
        _CLIENT,
        "self._demand(record, record.wanted, changed)",
        "self._demand(record, record.wanted)",
        "test_running_jobs_go_on_with_other_priorities_and_bounds",
    ),
    Mutation(
        "a lifted bound brings back what the application wants",
        _CLIENT,
        "        record.wanted = wanted\n        most = self._demand_max(record)\n",
        "        most = self._demand_max(record)\n"
        "        record.wanted = min(most, most if wanted is None else wanted)\n",
        "test_a_lifted_bound_gives_a_job_what_its_application_wants_and_no_more",
    ),
    Mutation(
        "a job submitted while no PE is free is published at once",
        _CLIENT,
        "        else:\n            self._publish(record)\n",
        "",
        "test_race_13_a_new_job_gets_a_pe_although_all_are_busy",
    ),
    Mutation(
        "a root asked for ahead of its first epoch counts as deserved",
        _CLIENT,
        "return 1 if volume is None else volume",
        "return volume or 0",
        "test_a_job_that_is_over_in_its_first_moment_is_never_announced",
    ),
    Mutation(
        "a root adopted by its client on the spot asks for its children itself",
        _CLIENT,
        "self._workers.adopt(msgspec.structs.replace(request, count=1), self._now())",
        "self._workers.adopt(request, self._now())",
        "test_a_root_adopted_by_its_client_from_a_refreshed_request_asks_for_its_children_itself",
    ),
    Mutation(
        "a result frees its PE and ends the worker at once",
        _WORKERS,
        "        self._end(worker.job)\n        self.update_token()\n",
        "        self.update_token()\n",
        "test_a_job_that_is_over_in_its_first_moment_is_never_announced",
    ),
    Mutation(
        "messages between workers that cannot be delivered come back",
        _WORKERS,
        "            self._out.send(source, message.back())\n",
        "            pass\n",
        "test_race_10_a_message_to_a_child_that_has_left_comes_back_with_a_flag",
    ),
    Mutation(
        "a returned message is not returned once more",
        _WORKERS,
        "        if not message.returned:\n",
        "        if True:\n",
        "test_race_10_a_message_whose_sender_has_left_too_is_dropped",
    ),
    # --- memory and CPU time ----------------------------------------------------------------
    Mutation(
        "the CPU time of a job is that of all its workers",
        "mallob_py/protocol/client.py",
        "        self.cpu_s += cpu_s\n",
        "        self.cpu_s = cpu_s\n",
        "test_the_cpu_time_of_a_job_is_that_of_all_its_workers_and_late_news_of_it_do_no_harm",
    ),
    Mutation(
        "the least recently used past worker goes first",
        _WORKERS,
        "        job, oldest = self.suspended.popitem(last=False)\n",
        "        job, oldest = self.suspended.popitem()\n",
        "test_the_least_recently_used_past_worker_is_dropped_first_and_never_more_than_there_are",
    ),
    Mutation(
        "a PE does not wait for a worker that it has dropped",
        _WORKERS,
        "        self._holds.pop(job, None)\n        self._terminate(oldest)\n",
        "        self._terminate(oldest)\n",
        "test_a_pe_that_drops_the_worker_it_keeps_itself_free_for_is_free_for_all",
    ),
    Mutation(
        "a root is never paused",
        _SHORTAGE,
        "if worker is None or worker.index == 0 or",
        "if worker is None or",
        "test_the_root_of_a_job_is_never_paused",
    ),
    Mutation(
        "what the process of a paused worker said last is not heard",
        _WORKERS,
        "        worker.number = self._new_number()  # what the old process may still have said is over\n",
        "",
        "test_the_last_words_of_a_process_that_was_ended_are_not_heard",
    ),
    Mutation(
        "a worker that is started again looks for its description first",
        _WORKERS,
        "        worker.asked_s = now\n        self._proceed(worker)\n",
        "        worker.asked_s = now\n        self._start(worker)\n",
        "test_a_paused_worker_gets_another_process_and_knows_its_children_when_there_is_memory",
    ),
)
