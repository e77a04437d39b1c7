"""Rules by which all PEs agree on the volumes: news, epochs, and the search for alpha_0 by all of them."""

from __future__ import annotations

from mutations.mutation import Mutation, always, instead_of, never, without

_BALANCING = "mallob_py/protocol/balancing.py"
_DISTRIBUTED = "mallob_py/protocol/distributed_balancing.py"
_SEARCH = "mallob_py/protocol/volume_search.py"
_SECTIONS = "mallob_py/protocol/section_search.py"

SHARING = (
    # --- balancing --------------------------------------------------------------------------
    Mutation(
        "the newer version of a job's event supersedes the older one on the way up",
        _BALANCING,
        "PendingNews.take",
        instead_of("known is None or known.version < event.version", "known is None"),
        "test_events_within_the_delay_are_gathered_and_the_newest_version_stands",
    ),
    Mutation(
        "the newer version of a job's event supersedes the one in the image",
        _BALANCING,
        "local_rule.rule",
        instead_of("known is None or known.version < event.version", "known is None"),
        "test_events_within_the_delay_are_gathered_and_the_newest_version_stands",
    ),
    Mutation(
        "events that wait for the least delay are sent when it is over",
        _BALANCING,
        "PendingNews.due_s",
        instead_of("self._may_send_from if self._events else math.inf", "math.inf"),
        "test_events_within_the_delay_are_gathered_and_the_newest_version_stands",
    ),
    Mutation(
        "an ended job leaves the image",
        _BALANCING,
        "local_rule.rule",
        without("jobs.pop(event.job, None)"),
        "test_volumes_follow_the_news_and_ended_jobs_are_told_of",
    ),
    Mutation(
        "with more jobs than PEs, standing decides who gets one",
        _BALANCING,
        "volumes_of",
        instead_of("event.standing", "-event.standing"),
        "test_volumes_are_fair_whatever_way_leads_to_them",
    ),
    Mutation(
        "those of best standing are told without numpy",
        _BALANCING,
        "_one_each",
        instead_of(
            "sorted((event.standing for event in events), reverse=True)",
            "sorted(event.standing for event in events)",
        ),
        "test_with_more_jobs_than_pes_those_of_best_standing_run",
    ),
    Mutation(
        "of jobs of equal standing more than that decides",
        _BALANCING,
        "_one_each",
        never("least in standings[size : size + 1]"),
        "test_volumes_are_fair_whatever_way_leads_to_them",
    ),
    Mutation(
        "standing falls with the time of arrival",
        _BALANCING,
        "standing",
        instead_of("math.log2(priority) - arrival_s / ageing_s", "math.log2(priority)"),
        "test_twice_the_priority_outweighs_the_ageing_time",
    ),
    Mutation(
        "an older version does not supersede a newer one on the way up",
        _BALANCING,
        "PendingNews.take",
        always("known is None or known.version < event.version"),
        "test_an_older_version_does_not_supersede_a_newer_one_on_the_way",
    ),
    Mutation(
        "an older version does not supersede the one in the image",
        _BALANCING,
        "local_rule.rule",
        always("known is None or known.version < event.version"),
        "test_an_older_version_that_comes_late_changes_nothing",
    ),
    Mutation(
        "a job that waits has volume 0, and is not taken for one that is over",
        _BALANCING,
        "Balancer.volume",
        instead_of("0 if volume is None and job in image.jobs else volume", "volume"),
        "test_a_job_that_waits_has_volume_0_and_one_that_has_ended_has_none",
    ),
    # --- balancing by all PEs together --------------------------------------------------------
    Mutation(
        "the deputies know the news of the coming epoch before they answer",
        _DISTRIBUTED,
        "DistributedBalancer._receive_question",
        without("self._note(message.events)"),
        "test_everybody_derives_the_same_fair_volumes_in_the_same_epochs",
    ),
    Mutation(
        "news that need no question come with the outcome",
        _DISTRIBUTED,
        "DistributedBalancer._receive_settled",
        without("self._note(message.events)"),
        "test_as_many_jobs_as_pes_need_no_question",
    ),
    Mutation(
        "one PE answers for a job, by a hash of its id",
        _DISTRIBUTED,
        "DistributedBalancer._note",
        never("deputy_of(event.job, self._out.size) != self._out.rank"),
        "test_everybody_derives_the_same_fair_volumes_in_the_same_epochs",
    ),
    Mutation(
        "nobody answers for an ended job any more",
        _DISTRIBUTED,
        "DistributedBalancer._note",
        without("self._deputy.drop(event.job)"),
        "test_everybody_derives_the_same_fair_volumes_in_the_same_epochs",
    ),
    Mutation(
        "a deputy does not go back to an older version",
        _DISTRIBUTED,
        "DistributedBalancer._note",
        always("known is None or known.version < event.version"),
        "test_an_older_version_that_comes_late_changes_nothing_for_the_deputies",
    ),
    Mutation(
        "an image that is computed together does not go back to an older version",
        _DISTRIBUTED,
        "DistributedBalancer._receive_settled",
        always("known is None or known.version < event.version"),
        "test_an_older_version_that_comes_late_changes_nothing_for_the_deputies",
    ),
    Mutation(
        "an ended job leaves the image that is computed together",
        _DISTRIBUTED,
        "DistributedBalancer._receive_settled",
        without("self.jobs.pop(event.job, None)"),
        "test_everybody_derives_the_same_fair_volumes_in_the_same_epochs",
    ),
    Mutation(
        "answers of a subtree are added up",
        _DISTRIBUTED,
        "DistributedBalancer._receive_answer",
        instead_of("merged(self._answer, message.answer)", "message.answer"),
        "test_everybody_derives_the_same_fair_volumes_in_the_same_epochs",
    ),
    Mutation(
        "a subtree answers once all of it has answered",
        _DISTRIBUTED,
        "DistributedBalancer._report",
        never("self._answers_missing"),
        "test_everybody_derives_the_same_fair_volumes_in_the_same_epochs",
    ),
    Mutation(
        "the epoch begins with the outcome, not with the news",
        _DISTRIBUTED,
        "DistributedBalancer._note",
        instead_of(
            "self._news.append(event)",
            """
            self.jobs[event.job] = event
            self._news.append(event)
            """,
        ),
        "test_the_image_stays_that_of_the_epoch_until_the_next_one_is_settled",
    ),
    Mutation(
        "volumes of the last epoch are forgotten",
        _DISTRIBUTED,
        "DistributedBalancer._receive_settled",
        without("self._known_volumes.clear()"),
        "test_the_image_stays_that_of_the_epoch_until_the_next_one_is_settled",
    ),
    Mutation(
        "one computation runs at a time",
        _DISTRIBUTED,
        "DistributedBalancer.flush",
        always("self._search is None"),
        "test_news_that_arrive_during_a_computation_wait_for_the_next_epoch",
    ),
    Mutation(
        "no tick is wanted for news that wait for a computation",
        _DISTRIBUTED,
        "DistributedBalancer.next_deadline",
        never("self._search is not None"),
        "test_news_that_arrive_during_a_computation_wait_for_the_next_epoch",
    ),
    Mutation(
        "the first question of an epoch is asked where its news move alpha_0",
        _DISTRIBUTED,
        "DistributedBalancer._begin",
        without("self._hint.replace(known, new)"),
        "test_the_first_question_is_asked_where_the_news_move_alpha_0",
    ),
    # --- the search for the volumes -----------------------------------------------------------
    Mutation(
        "the last of those who get a unit left over gets it",
        _SEARCH,
        "Volumes.of",
        instead_of(
            "unit_key(facts.priority, facts.demand, facts.job) >= epoch_volumes.units_from",
            "unit_key(facts.priority, facts.demand, facts.job) > epoch_volumes.units_from",
        ),
        "test_volumes_are_those_of_the_local_rule",
    ),
    Mutation(
        "the last of those who get a PE at all gets it",
        _SEARCH,
        "Volumes.of",
        instead_of("key >= epoch_volumes.places_from", "key > epoch_volumes.places_from"),
        "test_volumes_are_those_of_the_local_rule",
    ),
    Mutation(
        "no job gets a unit beyond its demand",
        _SEARCH,
        "Volumes.of",
        never("volume == cap"),
        "test_volumes_are_those_of_the_local_rule",
    ),
    Mutation(
        "units left over are for those who could use one",
        _SEARCH,
        "Deputy._uncapped",
        always("volume < most"),
        "test_volumes_are_those_of_the_local_rule",
    ),
    Mutation(
        "a share next to a whole number is rounded down exactly",
        _SEARCH,
        "Share.floor",
        never("not rounded + doubt < product < rounded + 1 - doubt"),
        "test_floors_are_exact_next_to_whole_numbers",
    ),
    Mutation(
        "a new question begins with all events of the deputy's jobs",
        _SEARCH,
        "Deputy.answer",
        instead_of("low[0] == 0 and high is None", "not self._events"),
        "test_what_is_left_from_the_last_epoch_saves_rounds_and_never_changes_the_outcome",
    ),
    Mutation(
        "events whose floats are equal are compared as fractions",
        _SECTIONS,
        "_is_below",
        instead_of("x < y if x != y else first != second and exact(first) < exact(second)", "x < y"),
        "test_events_are_told_from_pivots_that_round_to_the_same_float",
    ),
    Mutation(
        "an event on a cut is inside no section",
        _SECTIONS,
        "alpha_answer",
        without("is_on_cut = not _is_below(at, pivots[section])"),
        "test_a_question_is_only_about_jobs_still_in_doubt",
    ),
    Mutation(
        "equal events are one sample",
        _SECTIONS,
        "alpha_answer",
        instead_of("inside[section].get(at, 0) + 1", "1"),
        "test_answers_do_not_depend_on_who_merges_what_first",
    ),
    Mutation(
        "equal samples of two subtrees are added up",
        _SECTIONS,
        "_merged_section",
        instead_of("events.get((numerator, p), 0) + count", "count"),
        "test_answers_do_not_depend_on_who_merges_what_first",
    ),
    Mutation(
        "everybody chooses the same samples",
        _SECTIONS,
        "_sampled_events",
        instead_of("sorted(events, key=hash)", "list(events)"),
        "test_answers_do_not_depend_on_who_merges_what_first",
    ),
    Mutation(
        "events outside the bracket are not looked at again",
        _SECTIONS,
        "alpha_answer",
        without("""
            if not low_x < x < high_x and not _lies_between(question.low, at, question.high):
                continue
            """),
        "test_a_question_is_only_about_jobs_still_in_doubt",
    ),
    Mutation(
        "keys outside the range are not looked at again",
        _SECTIONS,
        "keys_within",
        instead_of(
            "[key for key in keys if (low is None or low < key) and (high is None or key <= high)]",
            "list(keys)",
        ),
        "test_a_question_is_only_about_keys_above_its_low_end_and_up_to_its_high_end",
    ),
    Mutation(
        "the keys below the section of the threshold are counted off",
        _SECTIONS,
        "KeySelection.take",
        without("below -= section.count"),
        "test_the_selected_key_has_the_wanted_rank",
    ),
    # --- PEs that share a memory --------------------------------------------------------------
    Mutation(
        "an epoch is evaluated once for all PEs of a rank",
        _BALANCING,
        "shared_rule.shared",
        always("known is None"),
        "test_each_epoch_is_evaluated_once_for_all_pes",
    ),
    Mutation(
        "an image is forgotten when all PEs of a rank have taken it",
        _BALANCING,
        "shared_rule.shared",
        without("del evaluations[epoch.epoch]"),
        "test_an_epoch_is_forgotten_when_all_have_applied_it",
    ),
    Mutation(
        "PEs of a rank that have heard of different epochs are found out",
        _BALANCING,
        "shared_rule.shared",
        always("message is epoch or message == epoch"),
        "test_pes_that_disagree_are_found_out",
    ),
    Mutation(
        "PEs of a rank that have different images are found out",
        _BALANCING,
        "shared_rule.shared",
        always("image is before or image == before"),
        "test_pes_with_different_images_are_found_out",
    ),
)
