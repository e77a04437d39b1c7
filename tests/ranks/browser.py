"""A headless Chromium, driven by its DevTools over two pipes, without any package."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import DEADLINE_S

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_PATH = next((path for name in _NAMES if (path := shutil.which(name))), None)

needs_browser = pytest.mark.skipif(_PATH is None, reason="needs Chromium (apt-get install chromium)")

#: DevTools' properties of the keys that tests press
_KEYS: dict[str, dict[str, Any]] = {
    "Enter": {"code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    "Tab": {"code": "Tab", "windowsVirtualKeyCode": 9},
}


class Browser:
    """One page of the browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to_browser = to_browser
        self._from_browser = open(from_browser, "rb", buffering=0)  # noqa: SIM115
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        #: errors that the page has reported so far
        self.complaints: list[str] = []
        #: code that the page runs before each check of `await_truth`
        self.before = "null"
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        attached = self.command("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next_message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, url: str) -> None:
        self.before = "null"
        self.command("Page.navigate", url=url)
        page = json.dumps(url.partition("#")[0])
        self.await_truth(f"location.href.startsWith({page}) && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        answer = self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def await_truth(self, expression: str) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while not (value := self.evaluate(f"Promise.resolve({self.before}).then(() => {expression})")):
            assert time.monotonic() < deadline, (expression, self.text())
            time.sleep(0.05)
        return value

    def text(self) -> str:
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def press(self, key: str, **more: Any) -> None:
        """Press one key, at the element that has the focus."""
        more = _KEYS.get(key, {}) | more
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=key, **more)

    def choose_file(self, selector: str, path: str) -> None:
        root = self.command("DOM.getDocument")["root"]["nodeId"]
        node = self.command("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.command("DOM.setFileInputFiles", nodeId=node, files=[path])

    def _next_message(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            piece = self._from_browser.read(1 << 16)
            assert piece, "the browser has ended"
            self._unread += piece
        message, _, self._unread = self._unread.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event["params"]))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["source"] == "security":
            self.complaints.append(event["params"]["entry"]["text"])


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """Yield a browser with an empty profile, which is removed at the end."""
    assert _PATH is not None
    browser_reads, we_write = os.pipe()
    we_read, browser_writes = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        # The browser connects only to the page's server.
        options += ["--disable-quic", "--no-first-run", "--disable-background-networking"]
        options += ["--disable-component-update", "--disable-sync"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={profile}"]
        # The browser reads and writes descriptors 3 and 4.
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{browser_reads} 4>&{browser_writes}', "bash", _PATH, *options],
            pass_fds=(browser_reads, browser_writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_reads)
        os.close(browser_writes)
        try:
            yield Browser(we_write, we_read)
        finally:
            process.kill()
            process.wait()
            os.close(we_write)
