"""What tests of executors share."""

from collections.abc import Iterator
from typing import Any

import pytest
from running import Running


@pytest.fixture
def executor(service: Running) -> Iterator[Any]:
    """An executor on the service of the module."""
    from mallob_py import Executor

    with Executor(service.api_dir) as one:
        yield one
