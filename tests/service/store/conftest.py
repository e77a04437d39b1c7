"""What tests of a client's folder share."""

import pytest
from hand_clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
