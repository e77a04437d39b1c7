"""Rules by which all PEs agree on the volumes: news, epochs, and the search for alpha_0 by all of them."""

from __future__ import annotations

from mutations.mutation import Mutation

_BALANCING = "mallob_py/protocol/balancing.py"
_DISTRIBUTED = "mallob_py/protocol/distributed_balancing.py"
_SEARCH = "mallob_py/protocol/volume_search.py"
_ALPHA = "mallob_py/protocol/alpha_search.py"
_KEYS = "mallob_py/protocol/key_selection.py"

SHARING = (
    # --- balancing --------------------------------------------------------------------------
    Mutation(
        "the newer version of a job's event supersedes the older one on the way up",
        _BALANCING,
        "if known is None or known.version < event.version:\n                self._events",
        "if known is None:\n                self._events",
        "test_events_within_the_delay_are_gathered_and_the_newest_version_stands",
    ),
    Mutation(
        "the newer version of a job's event supersedes the one in the image",
        _BALANCING,
        "elif known is None or known.version < event.version:",
        "elif known is None:",
        "test_events_within_the_delay_are_gathered_and_the_newest_version_stands",
    ),
    Mutation(
        "events that wait for the least delay are sent when it is over",
        _BALANCING,
        "return self._may_send_from if self._events else math.inf",
        "return math.inf",
        "test_events_within_the_delay_are_gathered_and_the_newest_version_stands",
    ),
    Mutation(
        "an ended job leaves the image",
        _BALANCING,
        "                jobs.pop(event.job, None)\n",
        "                pass\n",
        "test_volumes_follow_the_news_and_ended_jobs_are_told_of",
    ),
    Mutation(
        "with more jobs than PEs, standing decides who gets one",
        _BALANCING,
        "[event.standing for event in events] if len(events) > size else None",
        "[-event.standing for event in events] if len(events) > size else None",
        "test_with_more_jobs_than_pes_those_of_best_standing_run",
    ),
    Mutation(
        "standing falls with the time of arrival",
        _BALANCING,
        "return math.log2(priority) - arrival_s / ageing_s",
        "return math.log2(priority)",
        "test_twice_the_priority_outweighs_the_ageing_time",
    ),
    Mutation(
        "an older version does not supersede a newer one on the way up",
        _BALANCING,
        "            if known is None or known.version < event.version:\n                self._events",
        "            if True:\n                self._events",
        "test_an_older_version_does_not_supersede_a_newer_one_on_the_way",
    ),
    Mutation(
        "an older version does not supersede the one in the image",
        _BALANCING,
        "elif known is None or known.version < event.version:",
        "else:",
        "test_an_older_version_that_comes_late_changes_nothing",
    ),
    # --- balancing by all PEs together --------------------------------------------------------
    Mutation(
        "the deputies know the news of the coming epoch before they answer",
        _DISTRIBUTED,
        "        self._note(message.events)\n        self._answer = self._deputy",
        "        self._answer = self._deputy",
        "test_everybody_derives_the_same_fair_volumes_in_the_same_epochs",
    ),
    Mutation(
        "news that need no question come with the outcome",
        _DISTRIBUTED,
        "        self._note(message.events)\n        self.epoch = message.epoch",
        "        self.epoch = message.epoch",
        "test_as_many_jobs_as_pes_need_no_question",
    ),
    Mutation(
        "one PE answers for a job, by a hash of its id",
        _DISTRIBUTED,
        "            if deputy_of(event.job, self._out.size) != self._out.rank:\n                continue\n",
        "",
        "test_everybody_derives_the_same_fair_volumes_in_the_same_epochs",
    ),
    Mutation(
        "nobody answers for an ended job any more",
        _DISTRIBUTED,
        "                self._deputy.drop(event.job)\n",
        "                pass\n",
        "test_everybody_derives_the_same_fair_volumes_in_the_same_epochs",
    ),
    Mutation(
        "a deputy does not go back to an older version",
        _DISTRIBUTED,
        "            elif known is None or known.version < event.version:\n                self._deputy",
        "            else:\n                self._deputy",
        "test_an_older_version_that_comes_late_changes_nothing_for_the_deputies",
    ),
    Mutation(
        "an image that is computed together does not go back to an older version",
        _DISTRIBUTED,
        "            elif known is None or known.version < event.version:\n                self.jobs",
        "            else:\n                self.jobs",
        "test_an_older_version_that_comes_late_changes_nothing_for_the_deputies",
    ),
    Mutation(
        "an ended job leaves the image that is computed together",
        _DISTRIBUTED,
        "                self.jobs.pop(event.job, None)\n",
        "                pass\n",
        "test_everybody_derives_the_same_fair_volumes_in_the_same_epochs",
    ),
    Mutation(
        "answers of a subtree are added up",
        _DISTRIBUTED,
        "self._answer = merged(self._answer, message.answer)",
        "self._answer = message.answer",
        "test_everybody_derives_the_same_fair_volumes_in_the_same_epochs",
    ),
    Mutation(
        "a subtree answers once all of it has answered",
        _DISTRIBUTED,
        "        if self._answers_missing:\n            return\n",
        "",
        "test_everybody_derives_the_same_fair_volumes_in_the_same_epochs",
    ),
    Mutation(
        "the epoch begins with the outcome, not with the news",
        _DISTRIBUTED,
        "            self._news.append(event)\n",
        "            self._news.append(event)\n            self.jobs[event.job] = event\n",
        "test_the_image_stays_that_of_the_epoch_until_the_next_one_is_settled",
    ),
    Mutation(
        "volumes of the last epoch are forgotten",
        _DISTRIBUTED,
        "        self._known_volumes.clear()\n",
        "",
        "test_the_image_stays_that_of_the_epoch_until_the_next_one_is_settled",
    ),
    Mutation(
        "one computation runs at a time",
        _DISTRIBUTED,
        "if self._search is not None or not self._pending.is_due(now):",
        "if not self._pending.is_due(now):",
        "test_news_that_arrive_during_a_computation_wait_for_the_next_epoch",
    ),
    Mutation(
        "no tick is wanted for news that wait for a computation",
        _DISTRIBUTED,
        "return math.inf if self._search is not None else self._pending.due_s",
        "return self._pending.due_s",
        "test_news_that_arrive_during_a_computation_wait_for_the_next_epoch",
    ),
    Mutation(
        "the first question of an epoch is asked where its news move alpha_0",
        _DISTRIBUTED,
        "            self._hint.replace(known, new)\n",
        "",
        "test_the_first_question_is_asked_where_the_news_move_alpha_0",
    ),
    # --- the search for the volumes -----------------------------------------------------------
    Mutation(
        "the last of those who get a unit left over gets it",
        _SEARCH,
        "facts.job) >= outcome.units_from)",
        "facts.job) > outcome.units_from)",
        "test_volumes_are_those_of_the_local_rule",
    ),
    Mutation(
        "the last of those who get a PE at all gets it",
        _SEARCH,
        "return int(key >= outcome.places_from)",
        "return int(key > outcome.places_from)",
        "test_volumes_are_those_of_the_local_rule",
    ),
    Mutation(
        "no job gets a unit beyond its demand",
        _SEARCH,
        "if outcome.units_from is None or volume == cap:",
        "if outcome.units_from is None:",
        "test_volumes_are_those_of_the_local_rule",
    ),
    Mutation(
        "units left over are for those who could use one",
        _SEARCH,
        "            if volume < most:\n                keys",
        "            if True:\n                keys",
        "test_volumes_are_those_of_the_local_rule",
    ),
    Mutation(
        "a share next to a whole number is rounded down exactly",
        _SEARCH,
        "if not rounded + doubt < product < rounded + 1 - doubt:",
        "if False:",
        "test_floors_are_exact_next_to_whole_numbers",
    ),
    Mutation(
        "a new question begins with all events of the deputy's jobs",
        _SEARCH,
        "                if low[0] == 0 and high is None:\n",
        "                if not self._events:\n",
        "test_what_is_left_from_the_last_epoch_saves_rounds_and_never_changes_the_outcome",
    ),
    Mutation(
        "events whose floats are equal are compared as fractions",
        _ALPHA,
        "return x < y if x != y else first != second and exact(first) < exact(second)",
        "return x < y",
        "test_events_are_told_from_pivots_that_round_to_the_same_float",
    ),
    Mutation(
        "an event on a cut is inside no section",
        _ALPHA,
        "                is_on_cut = not _is_below(at, pivots[section])\n",
        "",
        "test_a_question_is_only_about_jobs_still_in_doubt",
    ),
    Mutation(
        "equal events are one sample",
        _ALPHA,
        "inside[section][at] = inside[section].get(at, 0) + 1",
        "inside[section][at] = 1",
        "test_answers_do_not_depend_on_who_merges_what_first",
    ),
    Mutation(
        "equal samples of two subtrees are added up",
        _ALPHA,
        "events[numerator, p] = events.get((numerator, p), 0) + count",
        "events[numerator, p] = count",
        "test_answers_do_not_depend_on_who_merges_what_first",
    ),
    Mutation(
        "everybody chooses the same samples",
        _ALPHA,
        "        chosen = sorted(events, key=hash)[:SAMPLES]\n",
        "        chosen = list(events)[:SAMPLES]\n",
        "test_answers_do_not_depend_on_who_merges_what_first",
    ),
    Mutation(
        "events outside the bracket are not looked at again",
        _ALPHA,
        "        if not low_x < x < high_x and not _lies_between(question.low, at, question.high):\n"
        "            continue\n",
        "",
        "test_a_question_is_only_about_jobs_still_in_doubt",
    ),
    Mutation(
        "keys outside the range are not looked at again",
        _KEYS,
        "return [key for key in keys if (low is None or low < key) and (high is None or key <= high)]",
        "return list(keys)",
        "test_a_question_is_only_about_keys_above_its_low_end_and_up_to_its_high_end",
    ),
    Mutation(
        "the keys below the section of the threshold are counted off",
        _KEYS,
        "            below -= section.count\n",
        "",
        "test_the_selected_key_has_the_wanted_rank",
    ),
    # --- PEs that share a memory --------------------------------------------------------------
    Mutation(
        "an epoch is evaluated once for all PEs of a rank",
        _BALANCING,
        "        if known is None:\n",
        "        if True:\n",
        "test_each_epoch_is_evaluated_once_for_all_pes",
    ),
    Mutation(
        "an image is forgotten when all PEs of a rank have taken it",
        _BALANCING,
        "            del evaluations[epoch.epoch]\n",
        "            pass\n",
        "test_an_epoch_is_forgotten_when_all_have_applied_it",
    ),
    Mutation(
        "PEs of a rank that have heard of different epochs are found out",
        _BALANCING,
        "        assert message is epoch or message == epoch,",
        "        assert True,",
        "test_pes_that_disagree_are_found_out",
    ),
    Mutation(
        "PEs of a rank that have different images are found out",
        _BALANCING,
        "        assert image is before or image == before,",
        "        assert True,",
        "test_pes_with_different_images_are_found_out",
    ),
)
