"""Fixtures of the tests of a client's folder."""

import pytest
from hand_clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
