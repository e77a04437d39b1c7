"""Parking ends when any of its descriptors is ready, whatever their numbers."""

import os
import resource
import select
from collections.abc import Iterator
from typing import Any

import pytest

from mallob_py.runtime.bells import Parking
from mallob_py.runtime.processes import descriptor_shortage, descriptors_needed, raise_descriptor_limit

HIGH = 3000


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for each in ends:
        os.close(each)


@pytest.mark.skipif(raise_descriptor_limit() <= HIGH, reason="the hard limit of descriptors is low")
def test_a_descriptor_beyond_those_of_select_wakes_it(pipe: tuple[int, int]) -> None:
    high = os.dup2(pipe[0], HIGH)
    parking = Parking()
    parking.watch(high)
    assert parking.park(0.0) == set()
    os.write(pipe[1], b"!")
    assert parking.park(10.0) == {high}
    os.close(high)


def test_one_that_is_not_read_wakes_it_again_and_others_do_not(pipe: tuple[int, int]) -> None:
    parking = Parking()
    reader, writer = os.pipe()
    for each in (pipe[0], reader):
        assert parking.watch(each) == each
    os.write(writer, b"!")
    assert parking.park(10.0) == {reader}
    assert parking.park(10.0) == {reader}
    os.read(reader, 1)
    assert parking.park(0.0) == set()
    for each in (reader, writer):
        os.close(each)


@pytest.mark.parametrize(
    ("timeout_s", "is_fine"), [(0.0, False), (1e-6, True), (0.002, True), (0.003, False)]
)
def test_only_a_short_wait_takes_a_second_system_call(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, is_fine: bool
) -> None:
    asked: list[float] = []

    def select_nothing(*arguments: Any) -> tuple[list[Any], ...]:
        asked.append(arguments[-1])
        return [], [], []

    monkeypatch.setattr(select, "select", select_nothing)
    assert Parking().park(timeout_s) == set()
    assert asked == [timeout_s] * is_fine


def test_the_limit_of_descriptors_is_raised_and_pes_that_cannot_fit_are_named() -> None:
    limit = raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit
    assert descriptor_shortage(1, 8, limit) is None
    most = next(pes for pes in range(1, 1000) if descriptors_needed(pes + 1, 8) > 4096)
    assert descriptor_shortage(most, 8, 4096) is None
    assert descriptor_shortage(most, 8, 4096, links=1000) is not None
    problem = descriptor_shortage(most + 1, 8, 4096)
    assert problem is not None
    assert f"have at most {most} PEs per rank" in problem


def test_where_not_one_pe_fits_it_is_told_what_would_help() -> None:
    raised = "raise the hard limit (ulimit -Hn, LimitNOFILE)"
    needed = descriptors_needed(1, 8)
    assert descriptor_shortage(1, 8, needed - 1) == (
        f"a rank may need {needed} file descriptors, {needed - 1} are allowed: "
        f"lower --job-cache or --warm, or {raised}"
    )
    problem = descriptor_shortage(1, 8, 64)
    assert problem == f"a rank may need {needed} file descriptors, 64 are allowed: {raised}"
