"""Rules of job trees: epochs, seats, adoption, reuse, and the ends of jobs."""

from __future__ import annotations

from mutations.mutation import table

TREES = table("""
# epochs
mallob_py/protocol/pe.py
  a query from a coming epoch waits for that epoch
    PE._on_query: never self._waits_for(message.request.epoch, source, message)
    test_race_1_a_query_from_a_newer_epoch_waits_until_its_receiver_has_that_epoch
  an adoption from a coming epoch waits for that epoch
    PE._on_adopt: never self._waits_for(message.request.epoch, source, message)
    test_race_1_an_adoption_at_the_end_of_a_random_walk_waits_for_its_epoch
  a failed request of a coming epoch waits for that epoch
    PE._on_request_failed: never message.epoch > self.balancer.epoch
    test_race_6_a_failure_of_a_newer_epoch_waits_until_its_receiver_has_that_epoch
  parked messages are handled once their epoch has come
    PE._on_epoch: self._parked[0][0] <= self.balancer.epoch => self._parked[0][0] < self.balancer.epoch
    test_race_1_a_query_from_a_newer_epoch_waits_until_its_receiver_has_that_epoch
  carried requests are looked through in each epoch
    PE._on_epoch: without self.matcher.drop_outdated()
    test_a_request_without_a_taker_goes_back_to_its_parent_in_the_next_epoch
  messages that wait for the same epoch are handled in the order in which they came
    PE._park: (epoch, self._parked_count, source, message) => (epoch, -self._parked_count, source, message)
    test_race_1_messages_that_wait_for_an_epoch_are_handled_in_the_order_in_which_they_came
  a message waits for its own epoch, whatever came before
    PE._park: heapq.heappush(self._parked, (epoch, self._parked_count, source, message))
    => self._parked.append((epoch, self._parked_count, source, message))
    test_race_1_a_message_waits_for_its_own_epoch_though_later_ones_came_before
  it is told that a job is over
    PE._on_epoch: without self._out.act(JobOver(job))
    test_it_is_told_that_a_job_is_over_even_where_it_has_no_worker

# who leaves, and who knows (job_tree.py)
mallob_py/protocol/job_tree.py
  a parent keeps a child that came later than the epoch without room for it
    Seats.fit: not wanted and seat.offer_epoch < epoch => not wanted
    test_race_2_a_parent_keeps_a_child_that_came_later_than_an_epoch_without_room_for_it

mallob_py/protocol/local_workers.py
  a leaving parent sends away the children who do not know of it
    LocalWorkers._leave: worker.seats.dismiss(since_epoch=epoch) => worker.seats.close()
    test_a_parent_sends_away_a_child_that_came_later_than_the_epoch_in_which_the_parent_leaves
  a rejected parent sends all its children away
    LocalWorkers.receive_rejected: worker.seats.dismiss(since_epoch=0) => worker.seats.close()
    test_race_4_the_second_adopter_of_a_seat_sends_the_children_away_that_it_has_taken_in
  a child tells a parent that accepted it later than the epoch in which it leaves
    LocalWorkers._leave: never worker.accepted_epoch is not None and worker.accepted_epoch >= epoch
    test_race_2_a_child_tells_the_parent_of_an_epoch_that_the_parent_had_before_it_accepted
  whoever is accepted after it has left says so
    LocalWorkers.receive_accepted: without
      self._out.send(source, ChildLeft(message.job, message.index, message.stay))
    test_race_3_an_acceptance_of_a_former_stay_is_not_taken_for_one_of_this_stay
  a worker leaves once its index is beyond the volume
    LocalWorkers.on_epoch: worker.index >= volume => worker.index > volume
    test_race_2_an_offer_beyond_the_volume_is_rejected_and_its_worker_is_gone_already

mallob_py/protocol/job_tree.py
  an offer from an epoch that the parent has not seen is accepted
    Seats.receive_offer: offer.epoch > epoch or offer.index < volume => offer.index < volume
    test_race_2_a_parent_accepts_a_child_from_an_epoch_with_room_for_it_that_it_has_not_seen
  an offer beyond the volume is rejected
    Seats.receive_offer: always offer.epoch > epoch or offer.index < volume
    test_race_2_an_offer_beyond_the_volume_is_rejected_and_its_worker_is_gone_already
  the first of two adopters gets the seat
    Seats.receive_offer: never seat.state is SeatState.TAKEN
    test_race_4_the_first_of_two_adopters_gets_the_seat_and_the_other_is_idle_again
  news of a child that has left are checked against its rank and stay
    Seats.receive_left: never not self.is_held(message.index, source, message.stay)
    test_race_3_an_acceptance_of_a_former_stay_is_not_taken_for_one_of_this_stay

mallob_py/protocol/job_tree.py
  the request for a taken seat is withdrawn
    Seats.receive_offer: without self._matcher.withdraw(self._job, seat.index)
    test_a_seat_that_somebody_else_takes_needs_its_request_no_more
  an unwanted seat withdraws its request
    Seats.fit: without self._matcher.withdraw(self._job, seat.index)
    test_a_seat_that_is_not_wanted_any_more_takes_its_request_back
  a parent that leaves withdraws its requests
    Seats.close: without self._matcher.withdraw(self._job, seat.index)
    test_a_parent_that_leaves_takes_all_its_requests_back
  an unmatched request is renewed when the volume changes
    Seats.fit: never seat.state is SeatState.ASKED and self._matcher.is_asking(self._job, seat.index)
    test_an_unmatched_request_is_renewed_when_the_volume_changes
  a failed request is asked anew
    Seats.receive_failed: without self.fit(volume, epoch, now)
    test_a_request_that_has_failed_is_asked_anew
  a denied query is followed by another query or a request
    Seats.receive_denied: never seat.state is SeatState.QUERIED and seat.rank == source
    test_past_workers_are_queried_one_after_the_other_and_then_anybody_is_asked_for
  a description that comes late is passed on to the children
    Seats.describe: without self._out.send(seat.rank, Described(self._job, seat.stay, description))
    test_a_description_that_comes_late_is_passed_on_to_the_children

mallob_py/protocol/local_workers.py
  a worker whose description comes late starts with it
    LocalWorkers.receive_described: without self._describe(worker, description)
    test_race_11_a_worker_whose_description_comes_after_its_acceptance_starts_once

# adoption
mallob_py/protocol/local_workers.py
  an adoption that is not deserved any more is declined
    LocalWorkers.receive_adopt: never self._staff.active is None and self.is_obsolete(request)
    test_race_2_whoever_is_asked_to_adopt_a_worker_beyond_the_volume_declines
  whoever declines an adoption tells the parent
    LocalWorkers.receive_adopt:
      self.fail(request)
      self.parenting.reject_early()
    => self.parenting.reject_early()
    test_race_2_whoever_is_asked_to_adopt_a_worker_beyond_the_volume_declines
  answers to a parent to be that declines are answered no
    LocalWorkers.receive_adopt:
      self.fail(request)
      self.parenting.reject_early()
    => self.fail(request)
    test_a_child_whose_parent_to_be_declines_is_sent_away
  a token that comes back sends those away who waited for an adoption
    LocalWorkers.receive_token_back: without self.parenting.reject_early()
    test_a_child_of_somebody_who_has_left_is_sent_away_when_the_token_under_way_there_comes_back
  a token that comes back takes part again
    LocalWorkers.receive_token_back: without self.update_token()
    test_race_6_the_tokens_of_a_cancelled_bulk_request_take_part_again
  a query is denied while the PE's token is granted
    LocalWorkers.receive_query: never self._matcher.token_granted
    test_race_7_a_pe_that_has_denied_a_query_does_not_wait_for_another_one
  a query beyond the volume is denied
    LocalWorkers.receive_query: always (self._balancer.volume(request.job) or 0) > request.index
    test_race_7_a_query_for_a_worker_that_is_not_wanted_any_more_is_denied

# reuse
mallob_py/protocol/local_workers.py
  a PE that waits for a suspended worker's job waits for a bounded time
    LocalWorkers.update_token: without deadline_s = min(deadline_s, *self.cache.holds.values())
    test_race_8_a_pe_whose_suspended_worker_nobody_asks_for_waits_for_a_bounded_time

mallob_py/protocol/job_tree.py
  a PE whose suspended worker is not wanted is released
    Seats.receive_offer: without self._out.send(other, Release(self._job))
    test_race_8_a_pe_that_waits_for_a_seat_which_somebody_else_has_taken_is_released
  a request that has failed is over for the matcher
    Seats.receive_failed: without self._matcher.withdraw(self._job, index)
    test_a_failed_request_in_whose_place_a_past_worker_is_queried_is_over_for_the_matcher

mallob_py/protocol/local_workers.py
  a denied query releases the PE for others
    LocalWorkers.receive_query: without self.cache.holds.pop(request.job, None)
    test_race_7_a_pe_that_has_denied_a_query_does_not_wait_for_another_one
  past workers are remembered under their own index
    LocalWorkers._leave: PastWorker(worker.index, self._out.rank, epoch)
    => PastWorker(worker.index + 1, self._out.rank, epoch)
    test_race_8_a_tree_that_shrinks_in_steps_and_grows_again_has_its_workers_in_their_old_places
  a leaving worker's memory goes to the nearest ancestor that stays
    LocalWorkers._leave: without self._report_past(worker, volume, past)
    test_race_8_a_tree_that_shrinks_in_steps_and_grows_again_has_its_workers_in_their_old_places

mallob_py/protocol/job_tree.py
  a rank is remembered once
    PastWorkers.add: without self.forget(worker.rank)
    test_a_rank_is_remembered_for_its_last_place_only

mallob_py/protocol/local_workers.py

# ends
mallob_py/protocol/local_workers.py
  the end of a job ends its suspended workers
    LocalWorkers._end: never (worker := self.suspended.pop(job, None)) is not None
    test_a_result_of_a_suspended_worker_counts
  a worker put aside after the end of its job is terminated
    LocalWorkers._put_aside: never self._balancer.volume(worker.job) is None
    test_race_9_a_root_adopted_after_its_job_has_ended_is_sent_away

mallob_py/protocol/client.py
  an offer for a root whose job is over is rejected
    ClientJobs.receive_offer: without self._out.send(source, offer.rejection())
    test_race_9_a_root_adopted_after_its_job_has_ended_is_sent_away
  the first result ends the job, later ones find it gone
    ClientJobs.receive_result: self.jobs.get(message.job) => self.jobs[message.job]
    test_a_race_comes_out_as_it_is_written
  when a limit is reached follows from the volume, the first one included
    ClientJobs.on_epoch: without self._schedule(record)
    test_the_cpu_limit_counts_all_workers_though_the_root_ran_before_the_first_volume_was_known
  an epoch concerns a job that it leaves without a volume
    ClientJobs._in_question: self._unseen | self._seated | (with_volume & self.jobs.keys())
    => self._unseen | (with_volume & self.jobs.keys())
    test_a_waiting_job_uses_no_budget
  an epoch concerns a job that has waited for its first volume
    ClientJobs._in_question: self._unseen | self._seated | (with_volume & self.jobs.keys())
    => self._unseen | self._seated
    test_a_job_that_waited_before_its_submission_comes_first
  the time that a job has waited before its submission counts
    ClientJob.__init__: now if parameters.waiting_since_s is None else parameters.waiting_since_s => now
    test_a_job_that_waited_before_its_submission_comes_first
  a job whose limit is not reached yet is looked at again
    ClientJobs.tick: without self._schedule(record)
    test_a_waiting_job_uses_no_budget
  a job demands at least one worker
    ClientJobs._demand: max(1, min(wanted, most)) => max(0, min(wanted, most))
    test_a_demand_is_kept_between_one_and_what_the_user_allows
  a job demands no more than it may
    ClientJobs._demand: max(1, min(wanted, most)) => max(1, min(wanted, self._out.size))
    test_a_demand_is_kept_between_one_and_what_the_user_allows
  another priority alone is news
    ClientJobs.set_terms: self._demand(record, record.wanted, changed) => self._demand(record, record.wanted)
    test_running_jobs_go_on_with_other_priorities_and_bounds
  a lifted bound brings back what the application wants
    ClientJobs._demand:
      record.wanted = wanted
      most = self._demand_max(record)
    =>
      most = self._demand_max(record)
      record.wanted = min(most, most if wanted is None else wanted)
    test_a_lifted_bound_gives_a_job_what_its_application_wants_and_no_more
  a job submitted while no PE is free is published at once
    ClientJobs.submit: without self._publish(record)
    test_a_race_comes_out_as_it_is_written
  a root asked for ahead of its first epoch counts as deserved
    ClientJobs._volume: 1 if volume is None else volume => volume or 0
    test_a_job_that_is_over_in_its_first_moment_is_never_announced
  a root adopted by its client on the spot asks for its children itself
    _RootPort.ask: self._workers.adopt(msgspec.structs.replace(request, count=1), self._now())
    => self._workers.adopt(request, self._now())
    test_a_root_adopted_by_its_client_from_a_refreshed_request_asks_for_its_children_itself

mallob_py/protocol/local_workers.py
  a result frees its PE and ends the worker at once
    LocalWorkers.answered: without self._end(worker.job)
    test_a_job_that_is_over_in_its_first_moment_is_never_announced

mallob_py/protocol/tree_messages.py
  messages between workers that cannot be delivered come back
    TreeMessages._give_back: without self._out.send(source, message.back())
    test_race_10_a_message_to_a_child_that_has_left_comes_back_with_a_flag
  a returned message is not returned once more
    TreeMessages._give_back: always not message.returned
    test_race_10_a_message_whose_sender_has_left_too_is_dropped
  what a worker tells its parent waits until that has accepted it
    TreeMessages._send_to_parent: worker.unsent.append(data) => self._send(worker, worker.parent, 0, 0, data)
    test_a_race_comes_out_as_it_is_written
  what a worker told its parent, which does not accept it any more, comes back
    TreeMessages.give_back_waiting: never worker.state is WorkerState.RUNNING
    test_a_race_comes_out_as_it_is_written
  a message that a process has not taken comes back
    TreeMessages.missed: without self._give_back(pe, message)
    test_a_race_comes_out_as_it_is_written
  a leaver may speak
    TreeMessages._speaker: self._staff.active_as(number) or self._staff.leaving.get(number)
    => self._staff.active_as(number)
    test_a_race_comes_out_as_it_is_written

mallob_py/protocol/client.py
  that a PE is sought for a job is told before anybody is asked
    ClientJobs._fit:
      if volume and not record.is_sought:
          record.is_sought = True
          self._out.act(JobSought(record.job))
      record.seats.fit(volume, self._balancer.epoch, now)
    =>
      record.seats.fit(volume, self._balancer.epoch, now)
      if volume and not record.is_sought:
          record.is_sought = True
          self._out.act(JobSought(record.job))
    test_that_a_pe_is_sought_is_told_before_any_worker_can_be_started

# memory and CPU time
mallob_py/protocol/client.py
  the CPU time of a job is that of all its workers
    ClientJob.used: self.cpu_s += cpu_s => self.cpu_s = cpu_s
    test_the_cpu_time_of_a_job_is_that_of_all_its_workers_and_late_news_of_it_do_no_harm
  time is charged with the volume held then
    ClientJobs.on_epoch: without record.count(now, self._config.threads)
    test_a_change_of_volume_is_charged_from_its_epoch_on

mallob_py/protocol/worker.py
  what the process of a paused worker said last is not heard
    _go_without: without worker.number = next(worker._numbers)
    test_each_process_is_asked_for_under_a_number_of_its_own

# states of a worker
mallob_py/protocol/worker.py
  a worker that leaves is stopped, not ended
    module: (WorkerState.SUSPENDED, _suspend) => (WorkerState.GONE, _terminate)
    test_race_8_a_tree_that_shrinks_in_steps_and_grows_again_has_its_workers_in_their_old_places
  a process that was stopped before it ran has yet to say so
    module: (WorkerState.STARTING, _resume) => (WorkerState.RUNNING, _resume)
    test_a_worker_that_was_stopped_before_it_ran_runs_when_it_says_so
  a worker without a process is sent no messages
    module: (WorkerState.PAUSED, WorkerState.DEAD, WorkerState.LOST) => (WorkerState.LOST,)
    test_a_message_to_a_paused_worker_comes_back

# workers that are lost
mallob_py/protocol/local_workers.py
  a worker without a description is lost
    LocalWorkers.description_missing: without self._lose(worker, Happens.UNFETCHED, reason, fault, now)
    test_a_worker_whose_description_cannot_be_stored_gives_its_place_to_another
  a worker that is lost before it is accepted leaves when it is
    LocalWorkers.receive_accepted: never worker.state is WorkerState.LOST
    test_a_worker_that_is_lost_before_its_parent_has_accepted_it_leaves_when_it_has
  a lost worker tells of those below it
    LocalWorkers._give_up_seat: (*worker.seats.past.take_all(), *children) => ()
    test_workers_below_a_lost_one_are_found_again_by_the_next
  a lost worker sends its children away
    LocalWorkers._give_up_seat: worker.seats.dismiss(since_epoch=0) => worker.seats.close()
    test_workers_below_a_lost_one_are_found_again_by_the_next
  a place that loses every worker is left without a process
    LocalWorkers._vacate: never worker.losses >= self._config.losses_max
    test_workers_that_always_die_before_they_run_are_not_tried_for_ever
  a resting PE carries on what it is matched with
    LocalWorkers.receive_adopt: self._staff.active is None and not self.is_resting
    => self._staff.active is None
    test_a_request_that_has_met_a_resting_pe_goes_on_to_another_and_its_children_are_sent_away
  a resting PE sends early children away
    LocalWorkers.receive_adopt: without
      if self.is_resting:
          self.parenting.reject_early()
    test_a_request_that_has_met_a_resting_pe_goes_on_to_another_and_its_children_are_sent_away
  a resting PE offers no token
    LocalWorkers.update_token: never self.is_resting
    test_a_root_is_not_started_on_its_clients_own_pe_while_that_rests
  a resting PE starts no root of its own client
    LocalWorkers.is_free: never self.is_resting
    test_a_root_is_not_started_on_its_clients_own_pe_while_that_rests
  who has lost a worker rests at once
    LocalWorkers._lose: without self.rest(now + self._config.doubt_rest_s)
    test_a_job_survives_a_host_that_never_gives_it_a_process

mallob_py/protocol/client.py
  a job whose root is lost again and again ends
    ClientJobs.receive_left: never len(record.lost_at) > self._config.losses_max
    test_a_root_that_is_lost_again_and_again_ends_its_job_with_the_reason
  a host that lost a root which runs elsewhere is blamed
    ClientJobs._blame: set(record.lost_at) - {source} => ()
    test_a_host_on_which_a_root_dies_is_blamed_when_the_job_runs_elsewhere

mallob_py/protocol/host_health.py
  a host that fails in a row rests for longer each time
    HostHealth.blame: backoff_s(config.rest_s, config.rest_max_s, self.failures) => config.rest_s
    test_each_failure_after_a_rest_doubles_the_rest_up_to_a_bound

# workers that leave in order (leaving.py)
mallob_py/protocol/local_workers.py
  a PE that is to be empty does not take a suspended worker back
    LocalWorkers.receive_query: always not self.giving_back.is_draining or self.cache.goes_on(request.job)
    test_a_pe_that_is_to_be_empty_does_not_take_its_suspended_worker_back

mallob_py/protocol/leaving.py
  the client hears that a root has left
    Leaving._remove: without if leaver.index == 0: ...
    test_the_client_hears_that_the_root_that_was_to_save_its_job_has_left

mallob_py/protocol/client.py
  a root that has left saves nothing more
    ClientJobs.receive_root_left: record.is_saved_by_root = False => pass
    test_the_client_hears_that_the_root_that_was_to_save_its_job_has_left

mallob_py/protocol/tree_messages.py
  who leaves in order gets what comes for it
    TreeMessages.receive: never leaver is not None and leaver.job == message.job
    test_a_race_comes_out_as_it_is_written

mallob_py/protocol/local_workers.py
  who leaves in order is not suspended
    LocalWorkers._put_aside: never self._hands_over(worker)
    test_a_race_comes_out_as_it_is_written
  who has left in order is not remembered
    LocalWorkers._leave: worker.state.has_process and not self._hands_over(worker) => worker.state.has_process
    test_a_race_comes_out_as_it_is_written

mallob_py/protocol/job_tree.py
  a child that has left in order is not queried
    Seats._remembers: always not self.leaves
    test_a_race_comes_out_as_it_is_written

mallob_py/protocol/leaving.py
  a grace ends
    Leaving.tick: never one.until_s <= now
    test_a_race_comes_out_as_it_is_written
  leavers end with their job
    Leaving.end_job: never one.job == job
    test_a_race_comes_out_as_it_is_written
  a PE bears so many leavers
    Leaving.add: never len(self._leavers) >= self._config.leavers_max
    test_a_race_comes_out_as_it_is_written

mallob_py/protocol/local_workers.py
  a leaver's result counts
    LocalWorkers.answered: self._staff.by_any_number(it.worker) => self._staff.by_number(it.worker)
    test_a_race_comes_out_as_it_is_written
  a leaver that dies is gone
    LocalWorkers.crashed: without self.leaving.left(worker.number)
    test_a_race_comes_out_as_it_is_written

# checkpoints (client.py)
mallob_py/protocol/client.py
  a root that has been replaced does not replace the checkpoint
    LastCheckpoint.replace: never self._root is not None and self._root != (pe, stay)
    test_a_race_comes_out_as_it_is_written
  who begins is the root from then on
    LastCheckpoint.begin: without self._root = (pe, stay)
    test_a_race_comes_out_as_it_is_written

mallob_py/protocol/client.py
  a root that was suspended may replace the checkpoint when it goes on
    ClientJobs.receive_checkpoint: never record.seats.is_held(0, source, message.stay)
    test_a_race_comes_out_as_it_is_written

mallob_py/protocol/staff.py
  a message for a former stay does not concern the present one
    Staff.active_in: worker if worker is not None and worker.stay == stay else None => worker
    test_race_3_a_rejection_of_a_former_stay_does_not_end_this_stay

mallob_py/protocol/local_workers.py
  an offer that is quicker than our own adoption waits for it
    Parenting.receive_offer: never self._may_yet_adopt()
    test_an_offer_that_overtakes_the_adoption_of_the_parent_to_be_waits_for_it
  a failure that is quicker than our own adoption waits for it
    Parenting.receive_failed: never self._may_yet_adopt()
    test_a_failure_that_overtakes_the_adoption_of_the_parent_to_be_is_not_lost

mallob_py/protocol/worker_cache.py
  the cache of suspended workers is bounded
    WorkerCache.put: without self.make_room()
    test_race_7_a_query_for_a_worker_that_the_cache_had_no_room_for_is_denied
  a PE keeps itself free for a suspended worker once per growth
    WorkerCache.renew_holds: worker.volume <= worker.index < volume => worker.index < volume
    test_a_pe_keeps_itself_free_when_its_suspended_worker_is_deserved_again_and_not_in_each_epoch
  a suspended worker knows the volume of the last epoch
    WorkerCache.renew_holds: without worker.volume = volume
    test_a_pe_keeps_itself_free_when_its_suspended_worker_is_deserved_again_and_not_in_each_epoch
  the least recently used past worker goes first
    WorkerCache.least_worth_first: sorted(self.workers.values(), key=worth)
    => list(self.workers.values())[::-1]
    test_the_least_recently_used_past_worker_is_dropped_first_and_never_more_than_there_are
  a PE does not wait for a worker that it has dropped
    WorkerCache.drop: without self.holds.pop(worker.job, None)
    test_a_pe_that_drops_the_worker_it_keeps_itself_free_for_is_free_for_all

mallob_py/protocol/giving_back.py
  a root is never paused
    GivingBack._pausable: never worker.index == 0
    test_the_root_of_a_job_is_never_paused
  a worker that has handed over what it had since the system ends gets no further process
    GivingBack.has_paused: never self._is_ending
    test_a_race_comes_out_as_it_is_written
  a worker that is started again looks for its description first
    GivingBack.unpause: worker.proceed(self._out) => worker.happens(Happens.DESCRIBED, self._out)
    test_a_paused_worker_gets_another_process_and_knows_its_children_when_there_is_memory
  who is paused leaves in order, too
    GivingBack._pause: never worker.leaves_in_order
    test_a_race_comes_out_as_it_is_written

mallob_py/protocol/local_workers.py
  a root that has done more since, and saved it, may die again
    Reports.saves: never isinstance(worker, Worker) and worker.done > worker.saved_done
    test_a_race_comes_out_as_it_is_written
  a root that keeps dying and saves no more than before ends its job
    Reports.saves: worker.done > worker.saved_done => True
    test_a_race_comes_out_as_it_is_written
  a root that leaves may save its job
    Reports.saves: self._staff.by_any_number(number) => self._staff.by_number(number)
    test_a_race_comes_out_as_it_is_written
  only a root saves its job
    Reports.saves: never worker.index > 0
    test_a_race_comes_out_as_it_is_written
  only a root is given the checkpoint
    Reports.wants_checkpoint: always worker.index == 0
    test_a_race_comes_out_as_it_is_written
""")
