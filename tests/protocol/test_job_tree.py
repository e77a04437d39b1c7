"""The seats of one parent, without a cluster: its requests, its queries of past workers, its withdrawals."""

import pytest

from mallob_py.protocol import messages
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import Outbox, Send
from mallob_py.protocol.job_tree import Seats

JOB, RANK, STAY = 1, 3, 7


class Asked:
    """A matcher that records requests and finds no PE."""

    def __init__(self) -> None:
        self.requests: dict[tuple[int, int], messages.Request] = {}
        self.withdrawn: list[tuple[int, int]] = []

    def ask(self, request: messages.Request) -> None:
        self.requests[request.job, request.subtree] = request

    def is_asking(self, job: int, subtree: int) -> bool:
        return (job, subtree) in self.requests

    def withdraw(self, job: int, subtree: int) -> None:
        self.requests.pop((job, subtree), None)
        self.withdrawn.append((job, subtree))

    def counts(self) -> dict[int, int]:
        """Return a dict: topmost worker of a request -> number of workers that it requests."""
        return {request.subtree: request.count for request in self.requests.values()}


class Parent:
    """A parent with the seats of a root, or with the seats `indices`."""

    def __init__(self, *indices: int) -> None:
        self.out = Outbox(RANK, 16)
        self.asked = Asked()
        self.seats = Seats(self.out, Config(), self.asked, JOB, (RANK,), STAY, indices or (1, 2))

    def sent(self) -> list[tuple[int, messages.AnyMessage]]:
        """Return the messages since the last call, with their destinations."""
        effects, self.out.effects = self.out.effects, []
        return [(effect.dest, effect.message) for effect in effects if isinstance(effect, Send)]

    def queried(self) -> list[int]:
        return [dest for dest, message in self.sent() if isinstance(message, messages.Query)]


def offer(index: int, epoch: int) -> messages.Offer:
    return messages.Offer(JOB, index, 0, epoch)


def test_a_parent_asks_for_all_below_it_with_one_request_per_seat() -> None:
    parent = Parent()
    parent.seats.fit(7, 1, 0.0)
    assert parent.asked.counts() == {1: 3, 2: 3}


def test_an_unmatched_request_is_renewed_when_the_volume_changes() -> None:
    parent = Parent()
    parent.seats.fit(2, 1, 0.0)
    assert parent.asked.counts() == {1: 1}
    parent.seats.fit(5, 2, 0.0)
    assert parent.asked.counts() == {1: 3, 2: 1}
    assert {request.epoch for request in parent.asked.requests.values()} == {2}


def test_a_seat_that_is_not_wanted_any_more_takes_its_request_back() -> None:
    parent = Parent()
    parent.seats.fit(3, 1, 0.0)
    parent.seats.fit(2, 2, 0.0)
    assert parent.asked.counts() == {1: 1}


def test_a_parent_that_leaves_takes_all_its_requests_back() -> None:
    parent = Parent()
    parent.seats.fit(3, 1, 0.0)
    parent.seats.close()
    assert not parent.asked.requests


def test_a_seat_that_somebody_else_takes_needs_its_request_no_more() -> None:
    """The seat is taken by a worker from another request."""
    parent = Parent()
    parent.seats.fit(3, 1, 0.0)
    assert parent.seats.receive_offer(9, offer(1, 1), 3, 1)
    assert parent.asked.counts() == {2: 1}


def test_a_request_that_has_failed_is_asked_anew() -> None:
    parent = Parent()
    parent.seats.fit(2, 1, 0.0)
    parent.asked.requests.clear()
    parent.seats.receive_failed(1, 2, 2, 0.0)
    assert parent.asked.counts() == {1: 1}
    assert parent.asked.requests[JOB, 1].epoch == 2


def test_a_failed_request_in_whose_place_a_past_worker_is_queried_is_over_for_the_matcher() -> None:
    """Otherwise the request would count as under way for ever: a leaving parent withdraws only its open
    requests.
    """
    parent = Parent()
    parent.seats.fit(2, 1, 0.0)
    parent.asked.requests.clear()  # the request is on its way
    parent.seats.past.add([messages.PastWorker(1, 8, 1)])
    parent.seats.receive_failed(1, 2, 2, 0.0)
    assert parent.queried() == [8]
    assert (JOB, 1) in parent.asked.withdrawn


def test_past_workers_are_queried_one_after_the_other_and_then_anybody_is_asked_for() -> None:
    parent = Parent()
    parent.seats.past.add([messages.PastWorker(1, 8, 1), messages.PastWorker(1, 9, 2)])
    parent.seats.fit(2, 3, 0.0)
    assert parent.queried() == [9]
    parent.seats.receive_denied(9, messages.Denied(JOB, 1), 2, 3)
    assert parent.queried() == [8]
    assert not parent.asked.requests
    parent.seats.receive_denied(8, messages.Denied(JOB, 1), 2, 3)
    assert parent.asked.counts() == {1: 1}


def test_a_denial_of_somebody_who_is_not_asked_any_more_changes_nothing() -> None:
    parent = Parent()
    parent.seats.past.add([messages.PastWorker(1, 8, 1), messages.PastWorker(1, 9, 2)])
    parent.seats.fit(2, 3, 0.0)
    parent.seats.receive_denied(5, messages.Denied(JOB, 1), 2, 3)
    assert parent.queried() == [9]


@pytest.mark.parametrize(("client_epoch", "is_answered"), [(1, False), (2, True)])
def test_a_root_whose_place_was_granted_is_answered_only_if_its_client_is_in_another_epoch(
    client_epoch: int, is_answered: bool
) -> None:
    client = Parent(0)
    client.seats.expect(0, 0.0)
    granted = messages.Offer(JOB, 0, 5, epoch=3, granted_epoch=1)
    assert client.seats.receive_offer(4, granted, 1, client_epoch)
    assert client.seats.is_held(0, 4, 5)
    assert [isinstance(message, messages.Accepted) for _, message in client.sent()] == [True] * is_answered


def test_a_root_whose_place_was_granted_is_told_of_past_workers_and_losses() -> None:
    for has_past, losses in ((True, 0), (False, 1)):
        client = Parent(0)
        client.seats.expect(0, 0.0)
        if has_past:
            client.seats.past.add([messages.PastWorker(1, 9, 0)])
        if losses:
            client.seats.receive_offer(4, offer(0, 1), 1, 1)
            client.seats.receive_left(4, messages.ChildLeft(JOB, 0, 0, "no process"))
            client.sent()
        client.seats.receive_offer(4, messages.Offer(JOB, 0, 5, epoch=1, granted_epoch=1), 1, 1)
        (accepted,) = (message for _, message in client.sent() if isinstance(message, messages.Accepted))
        assert (bool(accepted.past), accepted.losses) == (has_past, losses)


def test_a_description_that_comes_late_is_passed_on_to_the_children() -> None:
    parent = Parent()
    parent.seats.fit(3, 1, 0.0)
    parent.seats.receive_offer(9, offer(1, 1), 3, 1)
    parent.sent()
    description = messages.Description(10)
    parent.seats.describe(description)
    assert parent.sent() == [(9, messages.Described(JOB, 0, description))]


def test_a_past_worker_that_is_busy_now_is_remembered() -> None:
    parent = Parent()
    parent.seats.past.add([messages.PastWorker(1, 8, 1)])
    parent.seats.fit(2, 3, 0.0)
    parent.seats.receive_denied(8, messages.Denied(JOB, 1, kept=True), 2, 3)
    assert parent.asked.counts() == {1: 1}
    parent.seats.receive_offer(9, messages.Offer(JOB, 1, 5, 3), 2, 3)
    (accepted,) = [message for _, message in parent.sent() if isinstance(message, messages.Accepted)]
    assert [past.rank for past in accepted.past] == [8]


def rested(*ranks: int) -> Parent:
    """Return the client of a job whose root was on these PEs, in this order."""
    client = Parent(0)
    client.seats.past.add([messages.PastWorker(0, rank, epoch) for epoch, rank in enumerate(ranks, 1)])
    return client


def test_no_past_root_is_queried_where_a_job_is_to_go_elsewhere() -> None:
    client = rested(8, 9)
    client.seats.prefer_root(None)
    client.seats.fit(1, 3, 0.0)
    assert not client.queried()
    assert client.asked.counts() == {0: 1}


def test_the_past_root_where_a_job_is_to_go_on_is_queried_first() -> None:
    client = rested(8, 9)
    client.seats.prefer_root(8)
    client.seats.fit(1, 3, 0.0)
    assert client.queried() == [8]


def test_where_a_job_is_to_go_on_is_not_where_it_rests() -> None:
    client = rested(8, 9)
    client.seats.prefer_root(8)
    client.seats.fit(1, 3, 0.0)
    client.seats.fit(0, 4, 0.0)
    client.seats.prefer_root(None)
    client.seats.fit(1, 5, 0.0)
    assert client.asked.requests[JOB, 0].rests_at == 9


def test_a_root_that_was_queried_when_its_turn_was_taken_back_is_remembered() -> None:
    client = rested(8)
    client.seats.fit(1, 2, 0.0)
    assert client.queried() == [8]
    client.seats.fit(0, 3, 0.0)
    client.seats.receive_denied(8, messages.Denied(JOB, 0, kept=True), 0, 3)
    client.seats.fit(1, 4, 0.0)
    assert client.queried() == [8]


def test_a_job_does_not_rest_where_its_root_has_not_run() -> None:
    client = rested(8)
    client.seats.prefer_root(None)
    client.seats.fit(1, 2, 0.0)
    assert client.seats.receive_offer(9, offer(0, 2), 1, 2)
    (accepted,) = [message for _, message in client.sent() if isinstance(message, messages.Accepted)]
    client.seats.past.add(accepted.past)  # the worker sends these past workers when it leaves
    client.seats.fit(0, 3, 0.0)
    client.seats.prefer_root(None)
    client.seats.fit(1, 4, 0.0)
    assert client.asked.requests[JOB, 0].rests_at == 8


def test_a_request_for_a_root_says_where_it_rests() -> None:
    client = Parent(0)
    client.seats.fit(1, 1, 0.0)
    assert client.asked.requests[JOB, 0].rests_at == -1
    assert client.seats.receive_offer(8, offer(0, 1), 1, 1)
    client.seats.root_runs(8)
    client.seats.fit(0, 2, 0.0)
    client.seats.prefer_root(None)
    client.seats.fit(1, 3, 0.0)
    assert client.asked.requests[JOB, 0].rests_at == 8


def test_a_root_that_is_busy_elsewhere_keeps_its_process_for_who_asks() -> None:
    client = Parent(0)
    client.seats.past.add([messages.PastWorker(0, 8, 1)])
    client.seats.fit(1, 2, 0.0)
    assert client.queried() == [8]
    client.seats.receive_denied(8, messages.Denied(JOB, 0, kept=True), 1, 2)
    assert client.asked.requests[JOB, 0].rests_at == 8


def test_a_root_that_comes_after_its_turn_has_not_got_the_process_for_sure() -> None:
    client = rested(8)
    client.seats.prefer_root(None)
    client.seats.fit(1, 2, 0.0)
    client.seats.fit(0, 3, 0.0)
    assert not client.seats.receive_offer(9, offer(0, 2), 0, 3)
    client.seats.prefer_root(None)
    client.seats.fit(1, 4, 0.0)
    assert client.asked.requests[JOB, 0].rests_at == 8


def test_of_a_job_that_saves_others_let_go_when_a_root_runs_as_its_process_may_be_one_of_theirs() -> None:
    client = rested(8)
    client.seats.leaves = True
    client.seats.prefer_root(None)
    client.seats.fit(1, 2, 0.0)
    client.seats.receive_offer(9, offer(0, 2), 1, 2)
    assert messages.Release(JOB) not in [message for _, message in client.sent()]
    client.seats.root_runs(9)
    assert client.sent() == [(8, messages.Release(JOB))]


def test_of_a_job_that_saves_a_root_that_rests_is_remembered() -> None:
    client = Parent(0)
    client.seats.leaves = True
    client.seats.fit(1, 2, 0.0)
    client.seats.receive_offer(9, offer(0, 2), 1, 2)
    client.seats.root_runs(9)
    client.seats.fit(0, 3, 0.0)
    client.seats.prefer_root(None)
    client.seats.fit(1, 4, 0.0)
    assert client.asked.requests[JOB, 0].rests_at == 9
