"""Rules by which all PEs agree on the volumes: news, epochs, and the search for alpha_0 by all of them."""

from __future__ import annotations

from mutations.mutation import table

SHARING = table("""
# balancing
mallob_py/protocol/balancing.py
  the newer version of a job's event supersedes the older one on the way up
    PendingNews.take: known is None or known.version < event.version => known is None
    test_events_within_the_delay_are_gathered_and_the_newest_version_stands
  the newer version of a job's event supersedes the one in the image
    local_rule.rule: known is None or known.version < event.version => known is None
    test_events_within_the_delay_are_gathered_and_the_newest_version_stands
  events that wait for the least delay are sent when it is over
    PendingNews.due_s: self._may_send_from if self._events else math.inf => math.inf
    test_events_within_the_delay_are_gathered_and_the_newest_version_stands
  an ended job leaves the image
    local_rule.rule: without jobs.pop(event.job, None)
    test_volumes_follow_the_news_and_ended_jobs_are_told_of
  with more jobs than PEs, standing decides who gets one
    volumes_of: event.standing => -event.standing
    test_volumes_are_fair_whatever_way_leads_to_them
  those of best standing are told without numpy
    _one_each: sorted((event.standing for event in events), reverse=True)
    => sorted(event.standing for event in events)
    test_with_more_jobs_than_pes_those_of_best_standing_run
  of jobs of equal standing more than that decides
    _one_each: never least in standings[size : size + 1]
    test_volumes_are_fair_whatever_way_leads_to_them
  standing falls with the time of arrival
    standing: math.log2(priority) - arrival_s / ageing_s => math.log2(priority)
    test_twice_the_priority_outweighs_the_ageing_time
  an older version does not supersede a newer one on the way up
    PendingNews.take: always known is None or known.version < event.version
    test_an_older_version_does_not_supersede_a_newer_one_on_the_way
  an older version does not supersede the one in the image
    local_rule.rule: always known is None or known.version < event.version
    test_an_older_version_that_comes_late_changes_nothing
  a job that waits has volume 0, and is not taken for one that is over
    Balancer.volume: 0 if volume is None and job in image.jobs else volume => volume
    test_a_job_that_waits_has_volume_0_and_one_that_has_ended_has_none

mallob_py/protocol/equal_volumes.py
  jobs of equal priority are capped from the smallest demand on
    equal_volumes: sorted(event.demand for event in events) => [event.demand for event in events]
    test_volumes_of_equal_priorities_are_the_same_without_numpy

# balancing by all PEs together
mallob_py/protocol/distributed_balancing.py
  the deputies know the news of the coming epoch before they answer
    DistributedBalancer._receive_question: without self._note(message.events)
    test_everybody_derives_the_same_fair_volumes_in_the_same_epochs
  news that need no question come with the outcome
    DistributedBalancer._receive_settled: without self._note(message.events)
    test_as_many_jobs_as_pes_need_no_question
  one PE answers for a job, by a hash of its id
    DistributedBalancer._note: never deputy_of(event.job, self._out.size) != self._out.rank
    test_everybody_derives_the_same_fair_volumes_in_the_same_epochs
  nobody answers for an ended job any more
    DistributedBalancer._note: without self._deputy.drop(event.job)
    test_everybody_derives_the_same_fair_volumes_in_the_same_epochs
  a deputy does not go back to an older version
    DistributedBalancer._note: always known is None or known.version < event.version
    test_an_older_version_that_comes_late_changes_nothing_for_the_deputies
  an image that is computed together does not go back to an older version
    DistributedBalancer._receive_settled: always known is None or known.version < event.version
    test_an_older_version_that_comes_late_changes_nothing_for_the_deputies
  an ended job leaves the image that is computed together
    DistributedBalancer._receive_settled: without self.jobs.pop(event.job, None)
    test_everybody_derives_the_same_fair_volumes_in_the_same_epochs
  answers of a subtree are added up
    DistributedBalancer._receive_answer: merged(self._answer, message.answer) => message.answer
    test_everybody_derives_the_same_fair_volumes_in_the_same_epochs
  a subtree answers once all of it has answered
    DistributedBalancer._report: never self._answers_missing
    test_everybody_derives_the_same_fair_volumes_in_the_same_epochs
  the epoch begins with the outcome, not with the news
    DistributedBalancer._note: self._news.append(event)
    =>
      self.jobs[event.job] = event
      self._news.append(event)
    test_the_image_stays_that_of_the_epoch_until_the_next_one_is_settled
  volumes of the last epoch are forgotten
    DistributedBalancer._receive_settled: without self._known_volumes.clear()
    test_the_image_stays_that_of_the_epoch_until_the_next_one_is_settled
  one computation runs at a time
    DistributedBalancer.flush: always self._search is None
    test_news_that_arrive_during_a_computation_wait_for_the_next_epoch
  no tick is wanted for news that wait for a computation
    DistributedBalancer.next_deadline: never self._search is not None
    test_news_that_arrive_during_a_computation_wait_for_the_next_epoch
  the first question of an epoch is asked where its news move alpha_0
    DistributedBalancer._begin: without self._hint.replace(known, new)
    test_the_first_question_is_asked_where_the_news_move_alpha_0

# the search for the volumes
mallob_py/protocol/volume_search.py
  the last of those who get a unit left over gets it
    Volumes.of: unit_key(facts.priority, facts.demand, facts.job) >= epoch_volumes.units_from
    => unit_key(facts.priority, facts.demand, facts.job) > epoch_volumes.units_from
    test_volumes_are_those_of_the_local_rule
  the last of those who get a PE at all gets it
    Volumes.of: key >= epoch_volumes.places_from => key > epoch_volumes.places_from
    test_volumes_are_those_of_the_local_rule
  no job gets a unit beyond its demand
    Volumes.of: never volume == cap
    test_volumes_are_those_of_the_local_rule
  units left over are for those who could use one
    Deputy._uncapped: always volume < most
    test_volumes_are_those_of_the_local_rule
  a share next to a whole number is rounded down exactly
    Share.floor: never not rounded + doubt < product < rounded + 1 - doubt
    test_floors_are_exact_next_to_whole_numbers
  a new question begins with all events of the deputy's jobs
    Deputy.answer: low[0] == 0 and high is None => not self._events
    test_what_is_left_from_the_last_epoch_saves_rounds_and_never_changes_the_outcome

mallob_py/protocol/section_search.py
  events whose floats are equal are compared as fractions
    _is_below: x < y if x != y else first != second and exact(first) < exact(second) => x < y
    test_events_are_told_from_pivots_that_round_to_the_same_float
  an event on a cut is inside no section
    alpha_answer: without is_on_cut = not _is_below(at, pivots[section])
    test_a_question_is_only_about_jobs_still_in_doubt
  equal events are one sample
    alpha_answer: inside[section].get(at, 0) + 1 => 1
    test_answers_do_not_depend_on_who_merges_what_first
  equal samples of two subtrees are added up
    _merged_section: events.get((numerator, p), 0) + count => count
    test_answers_do_not_depend_on_who_merges_what_first
  everybody chooses the same samples
    _sampled_events: sorted(events, key=hash) => list(events)
    test_answers_do_not_depend_on_who_merges_what_first
  events outside the bracket are not looked at again
    alpha_answer: without
      if not low_x < x < high_x and not _lies_between(question.low, at, question.high):
          continue
    test_a_question_is_only_about_jobs_still_in_doubt
  keys outside the range are not looked at again
    keys_within: [key for key in keys if (low is None or low < key) and (high is None or key <= high)]
    => list(keys)
    test_a_question_is_only_about_keys_above_its_low_end_and_up_to_its_high_end
  the keys below the section of the threshold are counted off
    KeySelection.take: without below -= section.count
    test_the_selected_key_has_the_wanted_rank

# PEs that share a memory
mallob_py/protocol/balancing.py
  an epoch is evaluated once for all PEs of a rank
    shared_rule.shared: always known is None
    test_each_epoch_is_evaluated_once_for_all_pes
  an image is forgotten when all PEs of a rank have taken it
    shared_rule.shared: without del evaluations[epoch.epoch]
    test_an_epoch_is_forgotten_when_all_have_applied_it
  PEs of a rank that have heard of different epochs are found out
    shared_rule.shared: always message is epoch or message == epoch
    test_pes_that_disagree_are_found_out
  PEs of a rank that have different images are found out
    shared_rule.shared: always image is before or image == before
    test_pes_with_different_images_are_found_out
""")
