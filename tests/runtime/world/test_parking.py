"""Parking wakes for any of its descriptors, whatever their numbers, and for one that changes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from mallob_py.runtime.processes import descriptor_shortage, descriptors_needed, raise_descriptor_limit
from mallob_py.runtime.world.doorbell import Parking

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
    parking = Parking([high])
    assert parking.park(None, 0.0) == set()
    os.write(pipe[1], b"!")
    assert parking.park(None, 10.0) == {high}
    os.close(high)


def test_the_further_descriptor_comes_goes_and_is_replaced_by_another_file_of_its_number(
    pipe: tuple[int, int],
) -> None:
    parking = Parking([pipe[0]])
    reader, writer = os.pipe()
    os.write(writer, b"!")
    assert parking.park(reader, 10.0) == {reader}
    assert parking.park(None, 0.0) == set()
    assert parking.park(reader, 10.0) == {reader}
    os.close(reader)
    os.close(writer)
    second, second_writer = os.pipe()
    assert second == reader, "the number is used again"
    assert parking.park(second, 0.0) == set()
    os.write(second_writer, b"!")
    assert parking.park(second, 10.0) == {second}
    os.close(second)
    assert parking.park(None, 0.0) == set()
    os.close(second_writer)


def test_the_limit_of_descriptors_is_raised_and_pes_that_cannot_fit_are_named() -> None:
    limit = raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit
    assert descriptor_shortage(1, 8, limit) is None
    most = next(pes for pes in range(1, 1000) if descriptors_needed(pes + 1, 8) > 4096)
    assert descriptor_shortage(most, 8, 4096) is None
    problem = descriptor_shortage(most + 1, 8, 4096)
    assert problem is not None
    assert f"have at most {most} PEs per rank" in problem
