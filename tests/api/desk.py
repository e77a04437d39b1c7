"""A service whose replies a test chooses beforehand, for tests of the service's clients."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waiting import DEADLINE_S, poll_until

from mallob_py.api.client import Client
from mallob_py.service import JobFileError
from mallob_py.service.jobs.reply import Reply
from mallob_py.service.store.directory import Incoming, JobDirectory

SAT = {"result": {"resultcode": 10, "solution": [1]}}
UNSAT = {"result": {"resultcode": 20, "solution": []}}
FAILED = {"error": {"field": "application", "message": "ValueError: no"}, "result": {"resultcode": 0}}


class Desk:
    """A stand-in for a service, which reads and writes the service's folder, and a client of the folder."""

    def __init__(self, folder: Path) -> None:
        self.directory = JobDirectory(folder / "api", tmp_dir=folder)
        self.client = Client(folder / "api", user="u")

    def during(self, answer: Callable[[Incoming, dict[str, Any]], None], call: Callable[[], Any]) -> Any:
        """Return the value or exception of `call`, and the fields of the job file that `answer` answers."""
        results: list[Any] = []

        def run() -> None:
            try:
                results.append(call())
            except Exception as error:
                results.append(error)

        caller = threading.Thread(target=run)
        caller.start()
        (incoming,) = poll_until(self.directory.take)
        assert isinstance(incoming.data, bytes)
        fields = json.loads(incoming.data)
        answer(incoming, fields)
        caller.join(DEADLINE_S)
        (result,) = results
        return result, fields

    def say(self, result: dict[str, Any]) -> Callable[[Incoming, dict[str, Any]], None]:
        def answer(incoming: Incoming, fields: dict[str, Any]) -> None:
            body = json.dumps(result).encode()
            self.directory.reply(incoming.internal_id, f"u.{fields['name']}", Reply(body))

        return answer

    def refuse(self, incoming: Incoming, fields: dict[str, Any]) -> None:
        self.directory.refuse(incoming, JobFileError("files", "gone", f"u.{fields['name']}"))

    def take(self) -> tuple[Incoming, dict[str, Any]]:
        """Return the next job file and its fields."""
        (incoming,) = poll_until(lambda: self.directory.take(1))
        assert isinstance(incoming.data, bytes)
        return incoming, json.loads(incoming.data)

    def close(self) -> None:
        self.client.close()
        self.directory.close()
