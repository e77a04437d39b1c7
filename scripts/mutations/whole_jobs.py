"""Rules of batch scheduling: policies for whole jobs, traces, and the scheduler of jobs that really run."""

from __future__ import annotations

from mutations.mutation import table

WHOLE_JOBS = table(r"""
# policies and traces
mallob_py/batch/policies/agreement.py
  nodes that the first job does not need are used up by who overtakes it
    Agreement._overtaking: without extra -= size
    test_who_overtakes_for_long_uses_up_the_nodes_that_the_first_does_not_need

mallob_py/batch/workload/machine.py
  a job larger than a machine of unknown units is warned of
    overload: always demand.largest <= machine.nodes
    test_more_load_than_a_machine_can_have_is_said_with_the_likely_cause

mallob_py/batch/policies/sd.py
  of several mates, the cheapest set is chosen
    _Search._of_many: total + penalty < ways[jobs + more].get(after, (math.inf,))[0]
    => after not in ways[jobs + more]
    test_of_three_mates_the_set_with_the_least_penalties_is_chosen

mallob_py/batch/workload/swf.py
  a job of a trace has the processors that it had, not those that it asked for
    _processors: np.where(rows[:, 4] > 0, rows[:, 4], rows[:, 7]) => rows[:, 7]
    test_processors_are_those_that_a_job_had_and_else_those_that_it_asked_for
  a number that is too large is no job's
    _rows_at_once: always (abs(values) <= _VALUE_MAX).all()
    test_damaged_lines_are_named_and_left_out

# jobs that really run
mallob_py/batch/live/server.py
  a job that needs another's success does not start without it
    _Server._hold: never status is None or not status.is_well
    test_jobs_come_after_others_and_after_their_success_and_a_killed_scheduler_knows_that
  no more than so many jobs wait
    _Server._submit: never len(self._scheduler.waiting) >= WAITING_MAX
    test_so_many_jobs_may_wait_and_no_more
  a script has a bound
    _Server._submit: never len(request.script) > SCRIPT_MAX_BYTES
    test_a_script_may_be_so_long_and_no_longer
  only a request may be longer than a reader keeps
    _request_or_notice: always parts[0].startswith(b'{')
    test_only_a_request_may_be_long
  a request has a bound
    _request_or_notice: always size <= REQUEST_MAX_BYTES
    test_a_request_may_be_so_long_and_no_longer
  of connections that say nothing the oldest gives way
    _Server._take: without oldest.close()
    test_of_connections_that_say_nothing_the_oldest_gives_way

mallob_py/batch/live/script.py
  a Slurm script has a slot for each core of its tasks
    slurm_lines: (*sizes, "cpus_per_task") => sizes
    test_a_slurm_script_has_a_slot_for_each_core_of_its_tasks
  files of a job are seen from the folder where it runs
    Wishes.as_of: os.path.join(folder, _filled(path, number, self.name)) => _filled(path, number, self.name)
    test_files_and_folder_are_seen_from_where_the_job_was_submitted

mallob_py/batch/live/requests.py
  a request that is too long is not sent
    ask: never len(line) > REQUEST_MAX_BYTES
    test_a_request_that_is_too_long_is_not_sent
  an answer that is cut off is none
    ask: not answer.endswith(b'\n') => not answer
    test_an_answer_that_is_cut_off_or_endless_is_none

mallob_py/batch/live/folder.py
  a folder of somebody else is not taken
    Folder.open: without
      if not own_folder.is_ours(folder): raise FolderError(f'{self.path} belongs to somebody else')
    test_a_folder_of_somebody_else_is_not_taken

mallob_py/batch/live/server.py
  what has given up its environment ends with a keeper that is killed
    _Server._bury: without kill_adopted(self._keepers)
    test_what_hides_from_a_keeper_that_is_killed_ends_with_it_and_other_jobs_go_on
  the keepers of other jobs are none of what has been adopted
    _Server._launch: without self._keepers.add(process.pid)
    test_what_hides_from_a_keeper_that_is_killed_ends_with_it_and_other_jobs_go_on
  a job that is resized while the disk is full is not rigid afterwards
    _Server._write_run_in_the_end: always not is_passing(error)
    test_a_job_that_grows_while_the_disk_is_full_takes_orders_afterwards

mallob_py/batch/live/guard.py
  a guard on another node does not outlive its parent
    main: without die_with(outer, signal.SIGTERM)
    test_what_hides_from_a_guard_that_is_killed_ends_with_it

mallob_py/batch/live/keeper.py
  a keeper that waits for room hears that its job is to end
    _announce: never signal.sigtimedwait(STOP_SIGNALS, AGAIN_S) is not None
    test_a_keeper_that_waits_for_room_on_the_disk_can_be_told_to_end
  there is room for how a job has ended on the disk that it has filled
    _announce: without reserve(folder / "status.json")
    test_how_a_job_has_ended_has_room_on_the_disk_that_it_has_filled

mallob_py/batch/live/server.py
  a job never releases the slot where its script runs
    _Server._release: running.nodes[1:] => running.nodes
    test_a_job_never_releases_the_slot_where_its_script_runs
  a notice names the socket of its own job
    _Server._notice: never str(entry.folder.orders) != notice.address
    test_a_notice_names_the_socket_of_its_own_job
  a job that could not be started for a reason that passes waits again
    _Server._not_launched: always not is_passing(error)
    test_jobs_that_were_to_start_while_the_disk_was_full_start_when_it_is_not
  what could not be started is tried again though nothing else happens
    _Server._not_launched: without self._want_decision_later()
    test_jobs_that_were_to_start_while_the_disk_was_full_start_when_it_is_not
  a job that cannot be started keeps no other from its start
    _Server._not_launched: without self._want_decision()
    test_a_job_that_cannot_be_started_keeps_no_other_from_its_start
  that a waiting job is cancelled is on disk before it is said
    _Server._cancel: entry.folder.cancel() => pass
    test_a_job_that_is_cancelled_while_the_disk_is_full_does_not_run_after_a_restart

mallob_py/batch/live/folder.py
  want of descriptors does not say that no process of a job is left
    _has: (FileNotFoundError, ProcessLookupError, PermissionError) => OSError
    test_want_of_descriptors_does_not_say_that_no_process_of_a_job_is_left
  a submission that had no room leaves no folder behind
    Folder.add: without shutil.rmtree(part, ignore_errors=True)
    test_a_submission_that_had_no_room_on_the_disk_is_no_hindrance_to_the_next

mallob_py/batch/live/launch.py
  a keeper waits for room to write how its job has ended
    write_in_the_end: always not is_passing(error)
    test_a_keeper_writes_how_its_job_has_ended_once_the_disk_has_room_again

# whatever is printed
mallob_py/cli/main.py
  a name that the output cannot encode is printed all the same
    _open_standard_streams: without stream.reconfigure(errors="backslashreplace")
    test_names_that_the_output_cannot_encode_are_printed_all_the_same

# the last answer
mallob_py/cli/solve_rank.py
  the last answer is told to those who could take over
    SolveDesk._next: without self._tell_answered(told)
    test_who_takes_over_after_the_last_answer_does_not_give_it_again
mallob_py/cli/run_rank.py
  that the only job has its answer is told to those who could take over
    RunDesk._end: without self._tell_answered(Answered(1, code=self._code))
    test_who_takes_over_after_the_last_answer_does_not_give_it_again
""")
