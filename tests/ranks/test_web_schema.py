"""The web server follows its own description: schemathesis sends requests that `/openapi.json` allows, and
others.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from test_web_api import Desk
from web_process import WebServer

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed (extra `test`)")

#: number of requests per operation
EXAMPLES = 12


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebServer]:
    desk = Desk(tmp_path)
    server = WebServer(tmp_path / "api")
    try:
        yield server
    finally:
        server.stop()
        desk.directory.close()


def test_every_answer_is_one_that_the_description_allows(web: WebServer) -> None:
    """No answer is an internal error (500), and each answer has a described form."""
    schema = schemathesis.openapi.from_url(f"{web.url}openapi.json")
    headers = {"Authorization": f"Bearer {web.token}"}
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.CHECKS.get_one("content_type_conformance"),
        schemathesis.checks.CHECKS.get_one("response_schema_conformance"),
    ]
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def asks(case: object) -> None:
            response = case.call(base_url=web.url.rstrip("/"), headers=headers)  # type: ignore[attr-defined]
            if response.status_code != 503:  # 503: no service runs
                case.validate_response(response, checks=checks)  # type: ignore[attr-defined]

        asks()
