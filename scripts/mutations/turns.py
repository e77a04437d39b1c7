"""With more jobs than PEs, jobs have turns: rules of shares over time."""

from __future__ import annotations

from mutations.mutation import table

TURNS = table("""
mallob_py/protocol/rotation.py
  a share is bounded by the demand
    fair_shares: min(float(event.demand), left * event.priority / priorities)
    => left * event.priority / priorities
    test_shares_use_all_pes_and_are_proportional_to_priorities_up_to_demands
  who is farthest behind is next
    _turns: (-urgency, -jobs[job].standing, job) => (urgency, -jobs[job].standing, job)
    test_over_30_seconds_equal_jobs_receive_equal_pe_seconds
  a job that has attained little comes first
    _turns: without urgency += _HEAD_START * (young_s - account.attained_s)
    test_a_new_job_runs_at_once_whoever_runs
  what jobs that are gone had before others is remembered for a while
    _charged: min(1.0, elapsed_s * sum(volumes.values()) / (_MEMORY_S * len(rests))) => 1.0
    test_who_goes_on_and_on_comes_after_those_that_are_new_but_not_for_ever
  what a job is behind is kept while there are no more jobs than PEs
    halted: Rotation(accounts, {}, {}, 0.0, math.inf) if accounts else OFF => OFF
    test_what_a_job_is_behind_is_known_when_it_has_to_share_again
  a job moves if others that run are far less behind
    rotated: never account.lag_s > turns.least_lag_s + _patience_s(since, slices) + _ROUNDING
    test_over_30_seconds_equal_jobs_receive_equal_pe_seconds
  within a host it does not wait until it is a slice behind
    _patience_s: 0.0 if since.is_one_host else slices.slice_s => slices.slice_s
    test_on_one_host_no_job_is_off_by_more_than_a_slice_in_5_s
  one that leaves in order goes nowhere but where it was last without need
    rotated: jobs[job].leaves or since.is_one_host => since.is_one_host
    test_between_hosts_a_job_that_leaves_in_order_goes_on_where_it_was_last_more_often
  nor has one whose process goes with it left anything elsewhere
    rotated: jobs[job].leaves or since.is_one_host => jobs[job].leaves
    test_on_one_host_a_job_goes_on_where_it_was_last_or_anywhere
  a job that has been told to have a root is not new
    _charged: job not in since.known and event.root == NEW_JOB => job not in since.known
    test_a_job_that_had_a_root_before_is_not_new

mallob_py/protocol/balancing.py
  an epoch begins when a turn is over, without any news
    Balancer.flush: self._news.is_due(now) or self._due_s <= now => self._news.is_due(now)
    test_jobs_that_go_on_and_on_get_equal_pe_seconds
  an epoch tells whether all PEs are on one host
    Balancer.flush: is_on and self.is_one_host() => False
    test_on_one_host_no_job_is_off_by_more_than_a_slice_in_5_s
  an epoch tells how long the one before was in force
    Balancer.flush: now - self._began_s if is_on else 0.0 => 0.0
    test_jobs_that_go_on_and_on_get_equal_pe_seconds

mallob_py/protocol/client.py
  all are told where a root is, on which its turns depend
    ClientJobs._tell_of_root: without if record.is_published and not is_young and self._has_moved(record): ...
    test_all_know_where_the_root_is_of_each_job_that_takes_turns

mallob_py/protocol/job_tree.py
  a busy PE that has the worker wanted is remembered
    Seats.receive_offer: without self.past.add(seat.kept)
    test_a_past_worker_that_is_busy_now_is_remembered

mallob_py/protocol/local_workers.py
  a root whose job rests is suspended, also if its workers leave in order
    LocalWorkers._hands_over: worker.leaves_in_order and not rests => worker.leaves_in_order
    test_a_root_whose_workers_leave_in_order_rests_with_its_process_too
  of a job that saves, a root that rests is dropped when another one has begun
    LocalWorkers.receive_release: without self.cache.drop(worker)
    test_of_a_job_that_saves_no_two_roots_are_kept

mallob_py/protocol/client.py
  a root that saves does so before its job is given up
    ClientJobs._withdraw: never record.is_saved_by_root and record.rests_at >= 0
    test_a_root_that_saves_does_so_before_its_job_is_given_up
  a job is given up only while others want its place
    ClientJobs.on_epoch: never record.is_given_up and not self._balancer.rotation.is_on
    test_a_job_that_is_to_be_given_up_goes_on_where_no_others_want_its_place
  a job that has no PE is charged for none, though it has never had one
    ClientJobs.on_epoch: record.volume, record.is_first = volume, False => record.volume = volume
    test_a_job_whose_process_runs_first_when_its_pe_is_anothers_uses_no_budget
  who was asked before a job was given up is no root of it after that
    ClientJobs.receive_offer: record is None or record.is_withdrawn or offer.epoch < record.since_epoch
    => record is None or record.is_withdrawn
    test_who_was_asked_before_a_job_was_given_up_is_no_root_of_it
  that a job is given up is told once
    ClientJobs._retract: never record.is_retracted
    test_a_job_that_is_given_up_while_its_root_leaves_comes_again

mallob_py/service/turns.py
  no more is lost by giving jobs up than a small part
    JobQueue.next_set_back: not self._had_turn or self._loss.left_s(now, self._pes) <= 0.0
    => not self._had_turn
    test_no_more_is_lost_than_a_small_part
  when one is to be given up is told only if there is one
    JobQueue.set_back_due_s: next(self._in_the_way(), None) is None => not self._had_turn
    test_whatever_happens_each_job_is_in_one_place_and_no_place_stays_empty
  a job that cannot begin anew is a resident before it runs
    JobQueue.settle: job not in self._residents and not self._find_room(job, False) => True
    test_whatever_happens_each_job_is_in_one_place_and_no_place_stays_empty
  it waits where all residents are such jobs
    JobQueue._resident_for: other not in self._lasting and self._at_work[other].line.load > least
    => self._at_work[other].line.load > least
    test_where_all_residents_cannot_begin_anew_a_further_such_job_waits_and_new_ones_do_not
  it begins when one of them ends
    JobQueue._leave: self._release() => False
    test_where_all_residents_cannot_begin_anew_a_further_such_job_waits_and_new_ones_do_not

mallob_py/protocol/rotation.py
  who has attained less comes first up to a few slices, and beyond that only lags count
    _turns: always account.attained_s < young_s
    test_a_job_that_comes_later_does_not_get_all_that_the_others_had_before
  jobs with small shares have shorter turns
    _turn_s: _SLICES_PER_SHARE * share => 1.0
    test_over_any_30_seconds_shares_are_off_by_a_twentieth

mallob_py/service/turns.py
  jobs that have been given up do not take the places of new ones
    JobQueue._begin: _AtWork(line, priority, standing, merit, is_again)
    => _AtWork(line, priority, standing, merit)
    test_of_those_given_up_the_one_that_has_had_least_is_next_and_new_ones_wait_for_none

mallob_py/protocol/worker_cache.py
  a PE keeps itself free for the root whose turn it is there only
    WorkerCache._patience_s: self._config.turn_patience_s if is_here else None
    => self._config.turn_patience_s
    test_on_one_host_no_job_is_off_by_more_than_a_slice_in_5_s

mallob_py/protocol/giving_back.py
  a root that rests on a rank that is to leave saves its job
    GivingBack.save_resting_roots: not self.is_draining => True
    test_roots_that_rest_on_a_drained_rank_save_their_jobs_before_it_leaves

mallob_py/service/turns.py
  where PEs join, those begin that were held
    JobQueue.resize: room > 0 and self._release() => False
    test_where_pes_join_jobs_that_were_held_begin_and_those_that_had_a_turn_stay
  where PEs join, there is room for those that have had a turn
    JobQueue.resize: room > 0 and self.has_room and self._had_turn => False
    test_where_pes_join_jobs_that_were_held_begin_and_those_that_had_a_turn_stay

mallob_py/protocol/giving.py
  a job of another host is not asked for
    Giving.giver: always self.is_near(last)
    test_between_hosts_a_job_begins_anew
mallob_py/protocol/job_tree.py
  a request for a root says where it rests
    Seats._request: self._rests_at(seat) => -1
    test_a_request_for_a_root_says_where_it_rests
  it may be at a PE that has just said that it has no time
    Seats._rests_at: [*self.past.of_index(seat.index), *seat.kept] => self.past.of_index(seat.index)
    test_a_root_that_is_busy_elsewhere_keeps_its_process_for_who_asks
  of a job that saves, a root that rests is remembered
    Seats._remembers: index == 0 or not self.leaves => not self.leaves
    test_of_a_job_that_saves_a_root_that_rests_is_remembered
  and others let go only when another one runs
    Seats.receive_offer: seat.index == 0 and self.leaves => False
    test_of_a_job_that_saves_others_let_go_when_a_root_runs_as_its_process_may_be_one_of_theirs
  a root that was queried when its turn was taken back is remembered
    Seats.fit: never seat.state is SeatState.QUERIED and seat.index == 0 and seat.queried is not None
    test_a_root_that_was_queried_when_its_turn_was_taken_back_is_remembered
  a job rests where its process has been
    Seats.fit: seat.has_run => True
    test_a_job_does_not_rest_where_its_root_has_not_run
mallob_py/protocol/local_workers.py
  a root whose turn was over before its client heard of it may have the job's process
    LocalWorkers.receive_rejected: never worker.index == 0 and is_kept and self._balancer.rotation.is_on
    test_a_job_keeps_its_process_also_where_its_turns_are_taken_back_at_once
  a root that is accepted after its turn gives the memory of its job back
    LocalWorkers.receive_accepted: never message.past and message.index == 0
    test_a_root_that_is_accepted_after_its_turn_gives_the_memory_back
mallob_py/runtime/workers/pool.py
  a worker that is stopped before it runs starts first
    WorkerPool.suspend: (task.is_starting and self._starter.admits(task, self._clock() + TAKE_UP_S)) => False
    test_a_worker_that_is_stopped_before_it_runs_starts_first_one_at_a_time
  no two of a rank do so at once
    WorkerPool.suspend: (task.is_starting and self._starter.admits(task, self._clock() + TAKE_UP_S))
    => task.is_starting
    test_a_worker_that_is_stopped_before_it_runs_starts_first_one_at_a_time
  it is stopped when it runs
    WorkerPool._hear: never isinstance(message, wire.Started) and isinstance(task, JobTask) and task.suspended
    test_a_worker_that_is_stopped_before_it_runs_starts_first_one_at_a_time
  it has a second at most
    WorkerPool.poll: never now_s >= self._starter.until_s
    test_a_start_that_takes_long_goes_on_when_its_worker_does
  a process that leaves in order does so where it goes on, too
    WorkerPool._hear_givers: without task.leaves = given.leaves
    test_that_a_process_leaves_in_order_is_known_where_it_goes_on
  a process that is wanted elsewhere before it has come goes on to there
    WorkerPool.give: never task is not None and task.is_awaited
    test_one_that_is_wanted_elsewhere_before_it_has_come_goes_on_to_there
mallob_py/runtime/workers/fork_server.py
  a process ends when no rank has it any more, also one that rests
    _die_without: without fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGKILL)
    test_a_process_ends_with_the_rank_that_has_it_even_one_that_rests
mallob_py/runtime/workers/giving.py
  a process with too much on its way is not given
    GivingSocket.send: never len(given.unread) + len(given.unsent) > _UNDER_WAY_MAX
    test_a_process_with_too_much_on_its_way_is_not_given
mallob_py/runtime/world/failure_detector.py
  one that ends before it is watched rings, though nobody has waited for it
    _began: int(fields[_BEGAN]) if fields else None
    => int(fields[_BEGAN]) if fields and fields[0] not in _ENDED else None
    test_one_that_has_ended_before_it_is_watched_is_heard_of_though_nobody_has_waited_for_it
""")
