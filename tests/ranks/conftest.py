"""Fixtures of the tests of executors."""

from collections.abc import Iterator
from typing import Any

import pytest
from running import Running


@pytest.fixture
def executor(service: Running) -> Iterator[Any]:
    """Yield an executor on the module's service."""
    from mallob_py import Executor

    with Executor(service.api_dir) as one:
        yield one
