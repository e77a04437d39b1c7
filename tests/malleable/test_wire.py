"""The lines of the protocol between malleable programs and their scheduler."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.malleable import wire

HOSTS = st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True), min_size=1, max_size=20)
ORDERS = st.builds(wire.Shrink, st.integers(1, 10**6)) | st.builds(
    lambda hosts: wire.Grow(tuple(hosts)), HOSTS
)


@given(ORDERS)
def test_an_order_is_read_as_it_was_written(order: wire.Order) -> None:
    assert wire.parse_order(wire.order_line(order)) == order


def test_orders_are_those_of_the_publication() -> None:
    assert wire.order_line(wire.Shrink(2)) == "shrink 2"
    assert wire.order_line(wire.Grow(("n1", "n2"))) == "grow 2 n1 n2"


@pytest.mark.parametrize(
    "line",
    ["", "shrink", "shrink 0", "shrink -1", "shrink x", "shrink 1 n1", "grow 2 n1", "grow", "halt 1", "²"],
)
def test_what_is_no_order_is_refused_in_one_line(line: str) -> None:
    with pytest.raises(wire.WireError) as caught:
        wire.parse_order(line)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60))
def test_no_line_does_more_than_be_refused(line: str) -> None:
    for parse in (wire.parse_order, wire.parse_notice):
        with contextlib.suppress(wire.WireError):
            parse(line)


def test_notices_are_those_of_the_publication() -> None:
    assert wire.notice_line(wire.Ready("10.0.0.7")) == "APGAS-Ready:10.0.0.7"
    notices = (
        wire.Ready("10.0.0.7"),
        wire.Unready("/a:b/c.sock"),
        wire.Ready("/a:b/c.sock"),
        wire.Release("n3", "10.0.0.7"),
        wire.Wanted(3, "/a:b/c.sock"),
        wire.Wish(1, "/a:b/c.sock"),
        wire.Progress(0.0, "/a:b/c.sock"),
        wire.Progress(1e17 / 3, "/a:b/c.sock"),
    )
    for notice in notices:
        assert wire.parse_notice(wire.notice_line(notice)) == notice


@pytest.mark.parametrize(
    "line",
    [
        "APGAS-Ready",
        "APGAS-Ready:",
        "Evolving;Release:1.2.3.4",
        "Evolving;Request;0:a",
        "Evolving;Wish;0:a",
        "Evolving;Wish;1",
        "Evolving;Progress;1",
        "Evolving;Progress;-1:a",
        "Evolving;Progress;nan:a",
        "Evolving;Progress;inf:a",
        "Evolving;Progress;much:a",
        "hello:1",
    ],
)
def test_what_is_no_notice_is_refused(line: str) -> None:
    with pytest.raises(wire.WireError, match="is no notice such as") as caught:
        wire.parse_notice(line)
    assert "\n" not in str(caught.value)
