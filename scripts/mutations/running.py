"""Rules of ranks and of the service: messages of MPI, worker processes, jobs that end their rank."""

from __future__ import annotations

from mutations.mutation import table

RUNNING = table("""
# messages of MPI
mallob_py/runtime/world/transport.py
  a small message does not pass a large one of its sender that is half received
    Transport._take: size_bytes <= _EAGER_SIZE_BYTES and source not in inbox.coming
    => size_bytes <= _EAGER_SIZE_BYTES
    test_what_mpi_completes_late_keeps_its_place_and_is_rung_for_again
  a large message does not pass one of its sender that is half received
    Transport._take: source not in inbox.coming and request.Test() => request.Test()
    test_what_mpi_completes_late_keeps_its_place_and_is_rung_for_again
  whoever was sent what MPI completes late is rung again
    Transport._advance:
      self._owed.add(lane.dest)
      self._park_s = 0.0
    => self._park_s = 0.0
    test_what_mpi_completes_late_keeps_its_place_and_is_rung_for_again
  a rank does not spin while a peer takes nothing
    _Lane.is_stuck: never now - self.stands_since_s >= HUNG_AFTER_S
    test_a_rank_rests_while_a_peer_takes_nothing_of_what_it_was_sent

mallob_py/runtime/world/deadlines.py
  a rank does not wait for ever inside MPI
    at_most: time.monotonic() >= deadline_s => False
    test_who_blocks_longer_is_ended_and_says_for_what
  a rank ends even where MPI lets no thread run
    at_most: without signal.setitimer(signal.ITIMER_REAL, patience_s + _KERNEL_LATER_S)
    test_who_keeps_pythons_lock_meanwhile_is_ended_by_the_kernel

mallob_py/runtime/world/mpi.py
  MPI's start lets a deadline be heard of
    _join_world: without if is_of_wheel(): _initialise_wheel()
    test_a_rank_that_never_comes_is_not_waited_for_for_ever

mallob_py/runtime/world/failure_detector.py
  a rank does not outlive its launcher
    Lookout.beat: never self._launcher is not None and not is_asked_to_end
    test_a_rank_does_not_outlive_a_launcher_that_kills_nobody

mallob_py/runtime/world/forked_world.py
  ranks are not started whose shared file is larger than files may be
    _open_folder: never 0 <= allowed < ranks * _SHARED_BYTES
    test_no_ranks_are_started_whose_shared_file_is_larger_than_files_may_be
  those who are at work go on without a rank that is lost before it says that it is
    ForkedWorld._bury: said or self._others_are_at_work() => said
    test_those_at_work_go_on_without_a_rank_that_is_lost_before_it_says_that_it_is
  what ranks leave behind holds up no end
    ForkedWorld.__init__: without os.set_blocking(reader, False)
    test_what_ranks_leave_behind_holds_up_no_end

mallob_py/runtime/world/carrier.py
  what waits for all peers together is bounded
    Carrier.is_congested: sum(map(self._waiting_bytes, self._others())) > CONGESTED_TOGETHER_BYTES => False
    test_a_little_for_each_of_many_peers_is_much
  who takes what is sent to it is not kept from it by peers that do not
    Carrier.is_congested: waiting_bytes > UNCONGESTED_BYTES => True
    test_a_peer_that_takes_what_it_is_sent_is_not_kept_from_it_by_the_others

# worker processes
mallob_py/runtime/workers/supply.py
  a process forked before an import is not used again
    Processes.take_back: never link.generation < self.generation
    test_a_process_forked_before_an_import_is_not_used_again
  a process that has grown is not used again
    Processes.take_back: never private_bytes > self._options.reuse_limit_bytes
    test_a_process_that_has_grown_is_not_used_again

mallob_py/runtime/workers/tasks.py
  inputs wait for an import of their application that is under way
    Reads.note_import: without self._coming.add(application)
    test_one_input_is_read_until_the_fork_server_has_imported_the_application
  where turns are shorter than an import, workers of the application begin after it
    Reads.ready: never isinstance(task, JobTask) and self._is_being_imported(task, starting)
    test_where_turns_are_shorter_than_an_import_others_begin_after_it

mallob_py/runtime/workers/pool.py
  a process that has begun with a job is of use for that one alone
    WorkerPool.start: never (kept.ahead_of, 0) != (job, index)
    test_a_process_that_is_ahead_of_another_job_is_of_no_use
  what may have to be waited for is not read by the process of a chain
    WorkerPool.read: never read.files or before.inputs
    test_a_revision_is_read_elsewhere_if_that_may_take_long_or_its_process_may_be_busy
  inputs do not wait for an import of which the fork server has died
    WorkerPool._replace_server: without self._reads_under_way.await_no_import()
    test_inputs_do_not_wait_for_an_import_of_which_the_fork_server_has_died
  what came to a worker after its last look is told as missed
    WorkerPool._hear: without self._conclude(task, missed(task.key, late))
    test_what_comes_to_a_worker_that_has_just_left_is_known_to_be_missed

mallob_py/runtime/world/transfer.py
  a description that is locked for a moment as its job ends goes later
    Transfer._remove: without self._lingering.add(job)
    test_a_process_that_is_being_started_as_a_job_ends_leaves_no_description
  what a lost rank was having read goes
    Transfer.go_on: never int(reader) not in members
    test_what_a_lost_rank_was_having_read_goes_and_what_others_read_stays

mallob_py/runtime/workers/process.py
  a process that reads on for nobody leaves no file
    _Worker._read: without os.unlink(read.path)
    test_a_process_that_has_read_for_nobody_leaves_no_file
  what a worker took while it left is not told as missed
    _Context._take_in: without self._taken_leaving += self.leaving
    test_what_a_worker_took_while_it_left_is_not_missed
  who is told to leave does not wait for messages first
    _Context.poll: self.leaving == was_leaving => True
    test_who_is_told_to_leave_does_not_wait_for_messages_first
  what ours declare is read without importing them
    AppRegistry.declared: never declared_apart(name, self._place_of(name))
    test_a_service_learns_what_ours_declare_without_importing_what_takes_its_time
  a process with threads left over is not used again
    _left_clean: never threading.active_count() > 1 or len(os.listdir('/proc/self/task')) > 1
    test_a_process_that_was_left_with_threads_or_children_is_not_used_again
  a process with children left over is not used again
    _left_clean: os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) => return True
    test_a_process_that_was_left_with_threads_or_children_is_not_used_again

mallob_py/runtime/workers/fork_server.py
  what is left in the process group of a dead worker is killed
    Server._reap: without with suppress(ProcessLookupError, PermissionError): ...
    test_what_a_process_has_started_is_killed_when_it_dies

mallob_py/runtime/workers/process.py
  processes of one server draw different random numbers
    _settle: without generator.seed(int.from_bytes(os.urandom(4), 'little'))
    test_processes_of_one_server_draw_different_random_numbers

mallob_py/runtime/workers/links.py
  a wake-up is read when it has been seen
    LinkWatch.ready: without os.eventfd_read(fd)
    test_a_wake_up_is_over_when_it_has_been_seen

mallob_py/protocol/node.py
  what a halted rank is told waits for the next generation
    Node.handle: never self.is_halted and type(stimulus) not in _WHILE_HALTED
    test_what_a_halted_rank_is_told_waits_for_the_next_generation
  a rank that has halted is drained when it goes on
    Node._hear_of_drain: never self.is_halted
    test_a_rank_that_hears_of_its_drain_while_it_has_halted_drains_when_it_goes_on
  a drained rank waits for its workers to be found again in a new generation
    Node._look_whether_drained: now >= self._found_s => True
    test_a_rank_that_is_drained_starts_nothing_and_lets_others_run_on_until_its_grace_is_over
  a rank that is told once more that it is drained waits for its workers still
    Node._begin_drain: always not pe.workers.giving_back.is_draining
    test_a_rank_that_is_drained_starts_nothing_and_lets_others_run_on_until_its_grace_is_over
  a message that comes back too late for its generation reaches nobody
    Node._give_back: never congested.g != self._g or self.is_halted
    test_a_message_that_is_given_back_in_another_generation_is_dropped

mallob_py/runtime/rank.py
  an idle rank wakes up for its beat
    Rank._park: self.lookout.ring.next_beat_s => math.inf
    test_time_wakes_an_idle_rank_once_a_second_and_it_beats_and_looks_each_time

mallob_py/runtime/world/links.py
  the end of a link that is met while sending is told at once
    Links.flush: self._arrived or self.ended or self.back => self._arrived or self.back
    test_an_end_that_is_met_while_sending_is_there_to_be_told_at_once

mallob_py/runtime/world/newcomer_process.py
  a rank that joins does not write the launcher's exit file
    _newcomers_environment: never name.startswith(_OF_MPI)
    test_who_joins_on_this_host_knows_nothing_of_the_launchers_exit_file

mallob_py/runtime/world/words_process.py
  of what a joined rank says only the end is kept
    _keep: never os.fstat(file).st_size + len(more) > 2 * KEPT_BYTES
    test_of_what_a_joined_rank_says_all_is_passed_on_and_only_the_end_is_kept

mallob_py/runtime/world/mpi.py
  ranks that were at work and left no exit code have not done well
    WorldEnd.exit_code: self.returned or int(self.had_come_up) => self.returned
    test_ranks_that_were_at_work_and_left_no_exit_code_have_not_done_well

# who connects to a rank's port, and who joins
mallob_py/runtime/world/links.py
  who connects to a rank's port knows the secret
    Links._meet: never not mending.is_same(secret, self._secret)
    test_who_does_not_know_the_secret_is_not_let_in_by_any_address
  nobody is let in under the address of the rank itself
    Links._meet: never peer == self.rank
    test_nobody_is_let_in_under_the_address_of_this_rank
  a rank has one connection
    Links._meet: never peer in self._links
    test_a_rank_has_one_connection_and_a_second_one_is_sent_away
  a link is taken over by its own peer, which knows the secret
    Links._meet_again: never not mending.is_hello_of(said, link.secret, peer, self.rank)
    test_nobody_else_takes_over_a_link
  who has been lost and is connected again is told so
    Links._resume: never link.is_given_up
    test_a_peer_that_is_not_reached_is_lost_after_some_patience_and_may_be_back

mallob_py/runtime/world/mending.py
  a rank whose port refuses connections has ended
    Mending.is_refused: now >= since_s + REFUSED_S => False
    test_the_end_of_a_rank_is_told_soon_by_its_port

mallob_py/runtime/world/links.py
  what has not come by a connection that broke is written again
    Stream.resume: without self.begun.appendleft(memoryview(again))
    test_no_cut_loses_a_message_or_has_one_come_twice
  a count that was said before a stream was resumed is no count of what is kept since
    Stream._let_go: always count > self._kept_from
    test_a_count_that_was_said_before_a_resumption_does_no_harm

mallob_py/runtime/world/guard.py
  ranks that mpiexec has started have guards on other hosts, too
    is_needed: "HYDI_CONTROL_FD" in env or "PMI_HOSTNAME" in env => "HYDI_CONTROL_FD" in env
    test_ranks_of_mpiexec_have_guards_on_all_hosts_and_those_of_slurm_have_none

mallob_py/runtime/world/links.py
  so many strangers are waited for at most
    Links._accept: never len(self._strangers) >= _STRANGERS_MAX
    test_no_more_than_so_many_strangers_are_waited_for

mallob_py/protocol/joining.py
  a newcomer to whom nobody speaks ends
    Newcomer.handle: never self.generation is None and now >= self._heard_s + self._patience_s
    test_a_newcomer_to_whom_nobody_speaks_ends

mallob_py/protocol/node.py
  ranks that have joined since the order to end hear of it as well
    Node._hear_stop: never said.g < self._g
    test_a_race_comes_out_as_it_is_written
  a growth waits for no member that has left
    Node._begin: without self._host.lost(rank)
    test_a_growth_waits_for_no_member_that_has_left
  a growth is looked at again when its newcomers have had their time
    Node.deadline_s: never (growth := self._host.growth) is not None
    test_a_rank_that_grows_wants_to_look_after_it_in_time
  a rank that has halted hears of the ranks that it has started
    module: (RankLost, RankBack, TimeCame, Congested, Ordered, EndWanted, RanksStarted)
    => (RankLost, RankBack, TimeCame, Congested, Ordered, EndWanted)
    test_a_rank_may_start_others_while_it_waits_for_a_generation

mallob_py/protocol/growth.py
  a newcomer that another member finds lost has failed
    Host.lost: without self.growth.lost(rank, "was lost")
    test_a_race_comes_out_as_it_is_written

mallob_py/protocol/joining.py
  a newcomer ends with its host
    Newcomer._lose: never rank == self._host and not self.membership.is_halted
    test_a_newcomer_ends_when_its_host_is_lost_before_it_joins
  a newcomer begins with no member that it has not connected to
    Newcomer._takes: set(after.members) - self.peers.keys() - {self.rank} => set()
    test_newcomers_of_a_lost_host_and_of_another_do_not_meet_as_strangers
  a newcomer is connected when all peers have noted it
    Newcomer._note: always not self._unaware
    test_a_newcomer_is_connected_when_all_peers_have_noted_it
  a newcomer waits for no peer that is lost
    Newcomer._lose: never rank in self._unaware
    test_a_newcomer_waits_for_no_peer_that_is_lost

# orders
mallob_py/service/resizing.py
  what is written among the orders does not keep a rank busy while one is under way
    Resizing.turn: without self._folder.hear()
    test_a_rank_is_not_kept_busy_while_an_order_is_under_way
  an answer that could not be written is given later, as it was
    Resizing._answer: self._put_off(name, answer, error) => self._put_off(name, None, error)
    test_an_order_that_was_carried_out_while_the_disk_was_full_is_answered_later_and_not_begun_again

mallob_py/service/store/orders.py
  a file among the orders that has not the name of one is somebody's own
    OrderFolder.oldest: _ORDER_NAME.fullmatch(entry.name) => entry.name.endswith(_ORDER)
    test_a_file_of_another_name_is_no_order_and_stays_as_it_is

mallob_py/service/resizing.py
  an order's hosts are checked as on the command line
    Resizing._decided: without check_hosts(order)
    test_an_order_that_the_command_line_would_not_give_is_refused

# jobs that end their rank
mallob_py/service/jobs/crashes.py
  a suspect that has ended is not tried
    Suspects.ended: without self.waiting.pop(job, None)
    test_a_suspect_that_ends_before_its_trial_is_not_tried_and_keeps_nobody_waiting
  the end of a suspect on trial begins the trial of the next
    Suspects.ended: never job == self._tried
    test_suspects_begin_one_after_the_other_after_a_quiet_time

# a rank's heap
mallob_py/runtime/memory_watch.py
  an idle rank gives back what large messages have left
    RankMemory.look: without self._heap.look(now, time.thread_time())
    test_what_large_messages_have_left_goes_back_when_the_rank_is_idle

mallob_py/runtime/heap.py
  the unused part of a heap is compared with the least that it was
    HeapKeeper._give_back: without self._least_bytes = min(self._least_bytes, unused_bytes)
    test_what_python_has_given_back_itself_may_come_once_more
  a busy rank keeps its heap
    HeapKeeper.look: never cpu_s - last[1] > _BUSY_SHARE * (now_s - last[0])
    test_a_busy_rank_keeps_its_heap

# checkpoints
mallob_py/service/store/own_folder.py
  a file larger than any checkpoint is not read
    read_file: never bytes_max is not None and size_bytes > bytes_max
    test_what_can_be_none_of_ours_is_not_read

# results
mallob_py/runtime/workers/process.py
  a result that is no number is an error, not null
    _check_finite: never isinstance(value, float) and not math.isfinite(value)
    test_whatever_an_application_raises_is_reported_as_its_traceback

# what others say
mallob_py/batch/live/remote.py
  a line of a remote shell that does not end is taken in pieces
    Link.hear: self._from_guard.readline(_MESSAGE_BYTES_MAX) => self._from_guard.readline()
    test_noise_of_a_remote_shell_is_taken_in_bounds_and_what_follows_is_heard

mallob_py/batch/live/server.py
  a request that is nested too deeply is refused like any other
    _Server._answer: (msgspec.DecodeError, RecursionError) => msgspec.DecodeError
    test_a_request_that_is_nested_too_deeply_is_refused

mallob_py/runtime/world/mpi.py
  the signal of a closed terminal is left to us when MPI's library is loaded
    prepare_mpi: without os.environ.setdefault(*_UCX_LEAVES_SIGNALS)
    test_a_closed_terminal_is_heard_of_once_mpi_is_loaded

mallob_py/runtime/newcomers.py
  a newcomer's clock does not depend on the time of day at the system's start
    Newcomers.start: time.time() - self._clock() => time.time()
    test_a_newcomers_clock_goes_with_its_hosts_whatever_the_time_of_day_was_set_to

mallob_py/cli/status.py
  a service whose rank hangs is not said to be gone
    _why_silent: never (holder := holder_of(Path(api_dir) / "jobs.0")) is not None
    test_a_service_whose_rank_hangs_is_not_said_to_be_gone
""")
