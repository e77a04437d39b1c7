"""What tests of a client's folder share."""

from __future__ import annotations

import pytest
from hand_clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
