"""A web server in a process of its own, and the requests of a browser or curl to the server."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from waiting import DEADLINE_S, poll_until


class Answer:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.text = body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, str]:
        """Return the error of an answer that contains only an error."""
        content = self.json
        assert set(content) == {"error"}
        assert set(content["error"]) == {"field", "message"}
        assert "Traceback" not in self.text
        error: dict[str, str] = content["error"]
        return error


class WebServer:
    """`mallob-py web` on a free port, running from construction to `stop`."""

    def __init__(self, api_dir: Path, *options: str) -> None:
        self.api_dir = api_dir
        command = [sys.executable, "-m", "mallob_py.cli.main", "web", "--api-dir", str(api_dir)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        self.greeting = self.process.stdout.readline()
        match = re.search(r"http://\S+?/", self.greeting)
        assert match, self.greeting + self.process.stdout.read()
        self.url = match[0]
        self.token = (api_dir / "web" / "token").read_text().strip()

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> Answer:
        """Send a request. `token`: a token other than the server's; "": none."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=DEADLINE_S)
        given = self.token if token is None else token
        authorization = {"Authorization": f"Bearer {given}"} if given else {}
        try:
            connection.request(method, path, body, authorization | dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post_job(self, **fields: Any) -> Answer:
        """Submit a job as JSON. Underscores in fields stand for hyphens."""
        job = {key.replace("_", "-"): value for key, value in fields.items()}
        return self.ask("POST", "/api/jobs", json.dumps(job), {"Content-Type": "application/json"})

    def upload(self, content: bytes, query: str = "") -> Answer:
        return self.ask("POST", f"/api/jobs?{query}", content)

    def uploads(self) -> list[str]:
        """Return the files of uploads in the store, without records."""
        store = self.api_dir / "web" / "submissions"  # folders may vanish during the walk
        return [name for _, _, names in os.walk(store) for name in names if name != "record.json"]

    def open_files(self) -> list[str]:
        """Return the files behind the server's descriptors."""
        found = []
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.append(os.readlink(entry))
        return found

    def await_no_upload(self) -> None:
        poll_until(lambda: not self.uploads(), lambda: str(self.uploads()))

    def stop(self) -> tuple[int, str]:
        """Return the exit code and the output since the greeting."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out
