"""Clients of the web server during a soak: some submit jobs, some are silent, send slowly or do not read.

Check: in spite of the slow clients, another user's upload is accepted within `PATIENCE_S` and gets exactly
one reply. At most `OPEN_MAX` connections are open, all to the server that the soak has started on this host.
"""

import contextlib
import http.client
import os
import random
import re
import socket
import subprocess
from collections import Counter, deque
from urllib.parse import urlsplit

from faults.jobs import USER, Jobs
from faults.processes import MARK, Wrong
from faults.service import Service
from mallob_py.runtime.processes import python

OPEN_MAX = 60
PATIENCE_S = 30.0
#: status of the server's answers while a disk is full
_NO_ROOM = 507
_FORMULA = b"p cnf 3 3\n1 -2 0\n2 3 0\n-1 -3 0\n"


class WebClients:
    """A web server beside the service, and its clients."""

    def __init__(self, service: Service, rng: random.Random, deeds: Counter[str]) -> None:
        self._rng = rng
        self._deeds = deeds
        self._service = service
        self._count = 0
        self._open: deque[socket.socket] = deque()
        command = [*python(), "-m", "mallob_py.cli.main", "web", "--api-dir", str(service.api_dir)]
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        self._process = subprocess.Popen(
            [*command, "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        greeting = self._process.stdout.readline()
        if (found := re.search(r"http://(\S+?)/", greeting)) is None:
            raise Wrong(f"the web server does not start: {greeting}")
        self._netloc = found[1]
        self._token = (service.api_dir / "web/token").read_text().strip()

    def look(self, jobs: Jobs) -> None:
        """Let a random client act. Raises Wrong."""
        if self._process.poll() is not None:
            raise Wrong(f"the web server has ended by itself, with code {self._process.returncode}")
        kind = self._rng.choice(("silent", "half a head", "slow upload", "unread", "upload", "upload"))
        self._deeds[f"web: {kind}"] += 1
        if kind == "upload":
            self._upload(jobs)
            return
        path = "/api/jobs?user=slow" if kind == "slow upload" else "/api/history"
        method = "POST" if kind == "slow upload" else "GET"
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._token}\r\n"
        said = {
            "silent": "",
            "half a head": head,
            "slow upload": f"{head}Content-Length: 1000000\r\n\r\np cnf",
            "unread": f"{head}\r\n" * 20,
        }[kind]
        url = urlsplit(f"//{self._netloc}")
        connection = socket.create_connection((url.hostname, url.port), timeout=PATIENCE_S)
        connection.sendall(said.encode())
        self._open.append(connection)
        while len(self._open) > OPEN_MAX:
            self._open.popleft().close()

    def _upload(self, jobs: Jobs) -> None:
        self._count += 1
        name = f"web-{self._count}"
        connection = http.client.HTTPConnection(self._netloc, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            connection.request("POST", f"/api/jobs?user={USER}&name={name}", _FORMULA, headers)
            response = connection.getresponse()
            said = response.read()
        except OSError as error:
            raise Wrong(f"{name}: not accepted over HTTP within {PATIENCE_S:g} s: {error!r}") from None
        finally:
            connection.close()
        if response.status == http.client.ACCEPTED:
            jobs.handed_in("web", name, (("result", 10),))
        elif response.status != _NO_ROOM:
            raise Wrong(f"{name}: {response.status} over HTTP: {said[:300]!r}")

    def end(self) -> None:
        """Stop the server. Raises Wrong if it does not end with code 0."""
        for connection in self._open:
            connection.close()
        self._process.terminate()
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Wrong("the web server does not end") from None
        if code:
            raise Wrong(f"the web server ends with {code}")

    def kill(self) -> None:
        """Kill the server, so that no process is left after an error."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
