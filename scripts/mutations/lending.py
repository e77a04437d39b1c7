"""Rules by which bags of tasks are lent, settled, taken back and handed over (kit/bags/ledger.py)."""

from __future__ import annotations

from mutations.mutation import Mutation, always, instead_of, never, without

_LEDGER = "mallob_py/kit/bags/ledger.py"
_LIVES = "test_the_result_is_exact_whatever_becomes_of_workers"

LENDING = (
    Mutation(
        "who asks once more for the same need is not served twice",
        _LEDGER,
        "Ledger._is_served",
        instead_of("need == wanted.need and now < served_s + SERVE_AGAIN_S", "False"),
        "test_who_asks_again_before_the_loan_has_come_is_served_once",
    ),
    Mutation(
        "a loan that has not come is given once more",
        _LEDGER,
        "Ledger._is_served",
        instead_of("now < served_s + SERVE_AGAIN_S", "True"),
        "test_who_still_asks_when_a_loan_should_have_come_is_served_again",
    ),
    Mutation(
        "a repayment of a loan that is not in the books goes to nobody",
        _LEDGER,
        "Ledger._remove",
        without("del self._given[number]"),
        "test_a_repayment_that_comes_twice_counts_once",
    ),
    Mutation(
        "an older settlement does not replace a newer one",
        _LEDGER,
        "Ledger._settled",
        never("message.seq <= loan.seq"),
        "test_a_settlement_that_was_overtaken_is_passed_over",
    ),
    Mutation(
        "what is taken back is told on if nothing is left of its account",
        _LEDGER,
        "Ledger._take_back",
        without("self._close_if_done(account, now)"),
        "test_a_bag_that_was_lent_empty_and_comes_back_holds_nobody_up",
    ),
    Mutation(
        "a silent borrower is done without at last",
        _LEDGER,
        "Ledger._probe",
        never("loan.probes > PROBES_MAX"),
        "test_a_silent_borrower_is_asked_after_and_then_done_without",
    ),
    Mutation(
        "an account with loans is not settled for good",
        _LEDGER,
        "Ledger._close_if_done",
        instead_of(
            "account.number == 0 or account.has_work() or account.loans or account.last_words is not None",
            "account.number == 0 or account.has_work() or account.last_words is not None",
        ),
        _LIVES,
    ),
    Mutation(
        "the job is not done while loans are open",
        _LEDGER,
        "Ledger.is_finished",
        instead_of(
            "account is not None and not account.has_work() and not account.loans",
            "account is not None and not account.has_work()",
        ),
        "test_what_is_lent_comes_back_as_a_result",
    ),
    Mutation(
        "what a settlement tells contains what was lent on",
        _LEDGER,
        "Ledger._state",
        without("bags.extend(loan.copy.bags)"),
        "test_a_checkpoint_is_the_whole_job",
    ),
    Mutation(
        "results of borrowers are in what is told",
        _LEDGER,
        "Ledger._state",
        without("result = self._fold(result, decode_value(loan.copy.result))"),
        "test_a_checkpoint_is_the_whole_job",
    ),
    Mutation(
        "who leaves answers for its borrowers no more",
        _LEDGER,
        "Ledger._settled",
        never("message.number in self._handed_over"),
        "test_one_that_leaves_hands_over_its_work_and_what_it_has_lent",
    ),
    Mutation(
        "borrowers of who has left are told their new lender",
        _LEDGER,
        "Ledger._returned_in_order",
        without("self._send(each.borrower, Moved(each.number))"),
        "test_one_that_leaves_hands_over_its_work_and_what_it_has_lent",
    ),
    Mutation(
        "last words are said again to a new lender",
        _LEDGER,
        "Ledger._moved",
        never("account.last_words is not None"),
        "test_one_that_leaves_hands_over_its_work_and_what_it_has_lent",
    ),
    Mutation(
        "who leaves takes no loan",
        _LEDGER,
        "Ledger._borrow",
        never("self._leaving"),
        "test_who_leaves_takes_no_loan",
    ),
    Mutation(
        "an account whose lender is gone is thrown away after a while",
        _LEDGER,
        "Ledger.tick",
        never("now >= account.orphaned_until_s"),
        "test_who_hears_nothing_of_a_lender_that_is_gone_throws_its_work_away",
    ),
    Mutation(
        "nobody lends to itself",
        _LEDGER,
        "Ledger.receive",
        always("message.token != self._token"),
        "test_nobody_lends_to_itself",
    ),
    Mutation(
        "a loan is taken back from who has it, and from nobody else",
        _LEDGER,
        "Ledger._take_back",
        instead_of("account is None or account.loans[number].borrower != borrower", "account is None"),
        "test_a_loan_that_another_has_by_now_is_not_taken_back",
    ),
    Mutation(
        "a bag whose process does nothing ends its job",
        _LEDGER,
        "Ledger.process",
        never("done <= 0 and account.has_work()"),
        "test_a_bag_that_does_nothing_ends_its_job",
    ),
    Mutation(
        "a lifeline is cut by who has found work elsewhere",
        _LEDGER,
        "Ledger._borrow",
        without("self._send(NEIGHBOURS, Cut())"),
        "test_who_has_nothing_waits_as_a_lifeline_until_there_is_work",
    ),
    Mutation(
        "nothing is kept for a lifeline that was cut",
        _LEDGER,
        "Ledger.receive",
        without("self._askers.pop(source, None)"),
        "test_a_lifeline_that_was_cut_gets_nothing",
    ),
    Mutation(
        "a request that finds nothing ends after some hops",
        _LEDGER,
        "Ledger._asked",
        instead_of("others and message.hops > 0", "others"),
        "test_a_request_that_finds_nothing_goes_on_to_others_a_few_times",
    ),
    Mutation(
        "workers come to know those that requests tell of",
        _LEDGER,
        "Ledger._asked",
        without("self._hear_of(message.others)"),
        "test_workers_come_to_know_others_by_requests_and_bags",
    ),
    Mutation(
        "no more are remembered than there is room for",
        _LEDGER,
        "Ledger._hear_of",
        never("len(self._known) >= KNOWN_MAX"),
        "test_workers_come_to_know_others_by_requests_and_bags",
    ),
    Mutation(
        "nobody asks itself",
        _LEDGER,
        "Ledger._hear_of",
        instead_of("other != self._address and other not in self._known", "other not in self._known"),
        "test_who_hears_its_own_request_knows_itself_and_does_not_ask_itself",
    ),
    Mutation(
        "who is nearly done asks already",
        _LEDGER,
        "Ledger.process",
        never("now >= self._ask_s and self._is_nearly_done()"),
        "test_who_is_nearly_done_asks_already_and_gives_nothing_away",
    ),
    Mutation(
        "what is done sooner than sent is not lent",
        _LEDGER,
        "Ledger._is_worth_giving",
        instead_of("not bag.is_empty() and bag.expected_tasks() >= self._chunk_tasks", "not bag.is_empty()"),
        "test_who_is_nearly_done_asks_already_and_gives_nothing_away",
    ),
)
