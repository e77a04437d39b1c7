"""Which offers of its application a worker passes on."""

import math
from typing import Any

import pytest

from mallob_py.kit.app import OFFER_PERIOD_S, Result
from mallob_py.kit.declaration import Declaration
from mallob_py.protocol.interim import Interim
from mallob_py.runtime.workers.offering import REPEAT_PERIOD_S, Offering


class Costs(Declaration):
    name = "COSTS"
    minimizes = True
    value_label = "cost"


class Heard:
    def __init__(self) -> None:
        self.sent: list[Interim] = []
        self.offering = Offering(lambda result: b"code %d" % result.code, self.sent.append)
        self.offering.declare(Costs())

    def offer(self, now: float, code: int | None = None, value: Any = None, bound: Any = None) -> None:
        self.offering.offer(None if code is None else Result(code), value, bound, now)


def test_the_first_offer_is_passed_on_at_once_and_the_best_of_those_that_come_soon_after_it_later() -> None:
    heard = Heard()
    heard.offer(0.0, code=1, value=9)
    assert heard.sent == [Interim(True, "cost", 9, None, b"code 1")]
    heard.offer(0.01, code=2, value=7)
    heard.offer(0.02, code=3, value=8)
    heard.offer(0.03, bound=4)
    heard.offering.turn(0.9 * OFFER_PERIOD_S)
    assert len(heard.sent) == 1
    heard.offering.turn(heard.offering.due_s)
    assert heard.sent[1:] == [Interim(True, "cost", 7, 4, b"code 2")]


def test_a_worse_offer_is_not_passed_on() -> None:
    heard = Heard()
    heard.offer(0.0, code=1, value=9)
    heard.offer(10.0, code=2, value=9)
    heard.offer(10.0, code=2, value=10)
    heard.offering.flush_news()
    assert len(heard.sent) == 1


def test_what_waits_is_passed_on_when_the_run_ends() -> None:
    heard = Heard()
    heard.offer(0.0, code=1, value=9)
    heard.offer(0.01, code=2, value=8, bound=8)
    heard.offering.flush_news()
    heard.offering.flush_news()
    assert heard.sent[1:] == [Interim(True, "cost", 8, 8, b"code 2")]


def test_an_answer_with_a_value_is_repeated_for_a_client_that_was_lost_with_it() -> None:
    heard = Heard()
    heard.offer(0.0, code=1, value=9)
    heard.offering.turn(REPEAT_PERIOD_S)
    assert heard.sent == 2 * [Interim(True, "cost", 9, None, b"code 1")]


def test_an_answer_without_a_value_is_not_repeated_since_the_last_to_come_stands() -> None:
    heard = Heard()
    heard.offer(0.0, code=1)
    assert heard.offering.due_s == math.inf
    heard.offer(1.0, code=2)
    assert [one.body for one in heard.sent] == [b"code 1", b"code 2"]


@pytest.mark.parametrize(
    ("offered", "problem"),
    [
        ({}, "an offer needs a result, a bound, or both"),
        ({"value": 1}, "an offer needs a result, a bound, or both"),
        ({"value": 1, "bound": 1}, "an offer has a value but no result"),
        ({"code": 1, "value": "7"}, "must be an int or a float"),
        ({"code": 1, "value": True}, "must be an int or a float"),
        ({"code": 1, "value": math.nan}, "nan; it must be finite"),
        ({"bound": 2**64}, "must lie between"),
    ],
)
def test_what_cannot_be_compared_is_an_error_of_the_application(offered: Any, problem: str) -> None:
    heard = Heard()
    with pytest.raises((ValueError, TypeError), match=problem):
        heard.offer(0.0, **offered)
    assert not heard.sent
