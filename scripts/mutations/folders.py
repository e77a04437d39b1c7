"""Rules of folders that a user names: what lies there is left alone, and no other user gets what is ours."""

from __future__ import annotations

from mutations.mutation import table

FOLDERS = table("""
mallob_py/runtime/workers/output.py
  what was printed is waited for also where standard error leads elsewhere
    _unread_bytes: fcntl.ioctl(pipe, termios.FIONREAD, unread) => fcntl.ioctl(2, termios.FIONREAD, unread)
    test_what_was_printed_is_waited_for_also_where_standard_error_leads_elsewhere
  what workers print fills no disk
    OutputFiles._append: never size_bytes + written > self._size_max_bytes
    test_the_last_of_what_was_printed_is_kept
  what workers print goes into no file that has another name
    _opened: always _is_ours(os.fstat(file))
    test_a_file_with_another_name_and_a_socket_are_let_be

mallob_py/service/store/journal.py
  a try to write for which there was no room leaves nothing
    Journal._write: without os.unlink(temporary)
    test_a_try_to_write_a_reply_for_which_there_was_no_room_leaves_nothing

mallob_py/service/store/own_folder.py
  a folder is opened through no link
    opened: os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    => os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    test_checkpoints_of_another_folder_are_left_alone
  only files of our names are removed
    remove_files: names.fullmatch(name) and is_file(name, folder) => is_file(name, folder)
    test_orders_of_a_former_service_go_and_all_else_stays
  what is no file is not removed
    remove_files: names.fullmatch(name) and is_file(name, folder) => names.fullmatch(name)
    test_what_is_no_file_stays_under_names_of_orders_as_well
  a file is written through no link
    open_file: os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC => os.O_NONBLOCK | os.O_CLOEXEC
    test_files_are_written_through_no_link

mallob_py/service/store/lock.py
  a lock that others may open is replaced
    DirectoryLock.__init__: never self._others_may_open_it()
    test_who_has_that_of_an_earlier_release_open_does_not_get_it
  who gets a lock that was replaced meanwhile takes the new one
    DirectoryLock.__init__: never self.is_lost()
    test_one_who_opened_the_old_file_takes_the_new_one

mallob_py/batch/live/folder.py
  no number of a job is given out that anything there has for a name
    Folder.next_number: _TAKEN.fullmatch(name) => _NUMBER.fullmatch(name)
    test_what_is_no_job_stays_and_prevents_no_start
  a job that was cut off while it was submitted has no other files
    Folder.open: _PART.fullmatch(name) and _is_part(name, folder) => _PART.fullmatch(name)
    test_what_is_no_job_stays_and_prevents_no_start

mallob_py/web/store.py
  of uploads only those of ours that were cut off are removed
    _tidy: always _is_upload(name, folder)
    test_what_others_have_among_the_submissions_stays_and_uploads_that_were_cut_off_go
  what users hand in goes into no folder of another user
    Store.__init__: always own_folder.is_ours(opened)
    test_a_folder_that_another_user_has_made_is_refused

mallob_py/web/tokens.py
  tokens are changed by one at a time
    _changing: without _lock(folder, path.parent)
    test_of_tokens_that_are_given_at_the_same_time_none_is_lost

mallob_py/service/telemetry/event_log.py
  of logs only files make room
    LogFiles._of_earlier_runs: always own_folder.is_file(path.name, folder)
    test_only_logs_of_ones_own_make_room

mallob_py/service/resizing.py
  an order is answered although the ranks cannot be noted
    Resizing._note_ranks: always error.errno in NO_ROOM
    test_who_gave_an_order_hears_of_its_end_although_something_else_has_the_name_of_a_file_of_ours

mallob_py/service/intake.py
  so many jobs wait in memory, and further files where they are
    Intake._room_now: always waiting < WAITING_MAX
    test_as_many_files_become_jobs_as_may_wait_and_the_others_when_these_begin
  those that must not wait for room are bounded as well
    Intake._room_now: always waiting < _WAITING_WITH_FEW_MAX
    test_one_file_of_another_user_is_taken_at_once_and_hundreds_of_such_only_as_many_as_twice
  an interruption of a job that is a file still has that sought
    Intake._take_in_interruption: never not incoming.is_sought
    test_a_job_that_is_a_file_still_is_interrupted_though_none_before_it_ends

mallob_py/service/store/in_folder.py
  a file of a user who has few overtakes
    InFolder._may_overtake: _FEW * self._kinds[glance.kind] < self._kinds.total() => False
    test_the_file_of_another_user_is_taken_before_hundreds_that_came_first
  what speaks of other jobs is looked at again when there is less room
    InFolder.next_names: without self._fresh.extend(self._speaking)
    test_a_threaded_client_seeks_files_as_well

mallob_py/service/store/file_search.py
  an interruption means no file that came after it
    FileSearch._look_into: always not candidate.is_new or changed_ns / 1e9 <= self._until_s[identity]
    test_a_file_that_came_after_its_interruption_is_not_meant_by_it

mallob_py/service/store/journal.py
  what is no file is not read before its turn
    contents_of_file: always stat.S_ISREG(os.stat(path).st_mode)
    test_what_is_no_file_or_none_of_a_job_is_sought_in_vain

mallob_py/service/store/directory.py
  a sought file that cannot be moved is sought again
    JobDirectory._found: never are_stuck
    test_a_sought_file_that_cannot_be_moved_is_sought_until_it_can
  files that a former service has claimed are sought as well
    JobDirectory._candidates: self._recovered => ()
    test_files_that_are_sought_are_taken_oldest_first_and_all_others_wait

mallob_py/service/store/own_folder.py
  what another user says of ends and crashes is not believed
    remove_if_foreign: never os.lstat(path).st_uid != os.geteuid()
    test_what_another_user_says_of_jobs_at_work_and_of_ends_is_not_believed

mallob_py/runtime/world/session_folder.py
  what MPICH shares loses its name
    open_session_folder: without forget_shared()
    test_nothing_outlives_the_launching_process
  a name that another user has taken for a session does not keep ranks from its host
    _free_name: never os.lstat(path).st_uid != os.geteuid()
    test_what_others_have_put_under_the_name_of_a_session_is_not_looked_into
  what MPICH shares goes with the folder of a session that was killed while it started
    _sweep_one: without _unlink_if_same(shared, os.lstat(shared).st_ino)
    test_what_is_left_when_all_are_killed_within_mpi_is_gone_with_the_next_start
  a name that another file has taken stays
    _unlink_if_same: (status.st_ino, status.st_uid) == (inode, os.geteuid()) => status.st_uid == os.geteuid()
    test_names_of_shared_files_go_but_not_what_has_come_in_their_place

mallob_py/runtime/world/forked_world.py
  ranks that were killed leave nothing in shared memory
    ForkedWorld.wait: without remove_left_by_forks(self._folder)
    test_ranks_that_are_killed_within_mpi_leave_nothing_in_shared_memory
""")
