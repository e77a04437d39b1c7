"""The lines of the protocol between malleable programs and their scheduler."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.malleable.wire import (
    Grow,
    Order,
    Ready,
    Release,
    Shrink,
    Unready,
    Wanted,
    WireError,
    Wish,
    notice_line,
    order_line,
    parse_notice,
    parse_order,
)

HOSTS = st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True), min_size=1, max_size=20)
ORDERS = st.builds(Shrink, st.integers(1, 10**6)) | st.builds(lambda hosts: Grow(tuple(hosts)), HOSTS)


@given(ORDERS)
def test_an_order_is_read_as_it_was_written(order: Order) -> None:
    assert parse_order(order_line(order)) == order


def test_orders_are_those_of_the_publication() -> None:
    assert order_line(Shrink(2)) == "shrink 2"
    assert order_line(Grow(("n1", "n2"))) == "grow 2 n1 n2"


@pytest.mark.parametrize(
    "line",
    ["", "shrink", "shrink 0", "shrink -1", "shrink x", "shrink 1 n1", "grow 2 n1", "grow", "halt 1", "²"],
)
def test_what_is_no_order_is_refused_in_one_line(line: str) -> None:
    with pytest.raises(WireError) as caught:
        parse_order(line)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60))
def test_no_line_does_more_than_be_refused(line: str) -> None:
    for parse in (parse_order, parse_notice):
        with contextlib.suppress(WireError):
            parse(line)


def test_notices_are_those_of_the_publication() -> None:
    assert notice_line(Ready("10.0.0.7")) == "APGAS-Ready:10.0.0.7"
    notices = (
        Ready("10.0.0.7"),
        Unready("/a:b/c.sock"),
        Ready("/a:b/c.sock"),
        Release("n3", "10.0.0.7"),
        Wanted(3, "/a:b/c.sock"),
        Wish(1, "/a:b/c.sock"),
    )
    for notice in notices:
        assert parse_notice(notice_line(notice)) == notice


@pytest.mark.parametrize(
    "line",
    [
        "APGAS-Ready",
        "APGAS-Ready:",
        "Evolving;Release:1.2.3.4",
        "Evolving;Request;0:a",
        "Evolving;Wish;0:a",
        "Evolving;Wish;1",
        "hello:1",
    ],
)
def test_what_is_no_notice_is_refused(line: str) -> None:
    with pytest.raises(WireError):
        parse_notice(line)
