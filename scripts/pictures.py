"""The pictures of the README: the web page and `mallob-py top`, of a service with some jobs.

    python scripts/pictures.py               # writes docs/pictures/page.png, page-dark.png and top.svg

This takes a minute, and needs Chromium (`apt-get install chromium`). Each run shows other jobs' states.
"""

import argparse
import io
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from mallob_py import Client
from mallob_py.cli.status import picture
from mallob_py.runtime.processes import python
from mallob_py.service.telemetry.status import read_live_status

_FOLDER = Path(__file__).resolve().parents[1] / "docs/pictures"
_OURS = [*python(), "-m", "mallob_py"]
_RANKS = 8
_WIDTH, _HEIGHT = 1180, 820
_TOP_WIDTH, _TOP_LINES = 110, 20
#: time for which the page runs before its picture is taken
_LOOK_MS = 6000
_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@contextmanager
def _running(*command: str, says: str, within: Path) -> Iterator[str]:
    """Run a command of this package until the end of the block. Yield its output once it contains `says`."""
    output = within / f"{command[0]}.log"
    with output.open("w") as file:
        process = subprocess.Popen([*_OURS, *command], cwd=within, stdout=file, stderr=file)
    try:
        deadline_s = time.monotonic() + 60.0
        while says not in output.read_text():
            if process.poll() is not None or time.monotonic() > deadline_s:
                sys.exit(f"{command[0]} has not started: {output.read_text()}")
            time.sleep(0.05)
        yield output.read_text()
    finally:
        process.terminate()
        process.wait()


def _submit_jobs(api_dir: Path) -> list[Client]:
    """Submit jobs of three users one after the other. One job waits, and one fails."""
    clients = {name: Client(api_dir, name) for name in ("alice", "bob", "carol")}
    alice, bob, carol = clients.values()
    alice.submit(application="UTS", configuration={"depth": 18}, priority=2.0, name="tree")
    time.sleep(8.0)
    bob.submit(application="QUEENS", configuration={"n": 18}, name="queens")
    carol.submit(application="UTS", configuration={"depth": 13}, name="small-tree")
    bob.submit(application="UTS", configuration={"depth": 0}, name="wrong")
    time.sleep(8.0)
    carol.submit(application="PI", configuration={"points": 10**15}, name="pi", max_demand=3)
    alice.submit([[1, -2], [2, 3], [-1]], name="formula")
    bob.submit(application="QUEENS", configuration={"n": 12}, name="queens-12")
    time.sleep(8.0)
    return list(clients.values())


def _shoot(browser: str, url: str, scheme: str, path: Path) -> None:
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={_WIDTH},{_HEIGHT}", f"--virtual-time-budget={_LOOK_MS}"]
    command += [f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"]
    subprocess.run([*command, f"--screenshot={path}", url], check=True, capture_output=True)
    print(f"wrote {path} ({path.stat().st_size >> 10} KB)")


def _draw_top(api_dir: Path, path: Path) -> None:
    status = read_live_status(api_dir)
    assert status is not None
    console = Console(record=True, width=_TOP_WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(picture(status, _TOP_WIDTH, _TOP_LINES, "id"))
    console.save_svg(str(path), title="mallob-py top")
    print(f"wrote {path} ({path.stat().st_size >> 10} KB)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=_FOLDER)
    output: Path = parser.parse_args().output
    browser = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        sys.exit("Chromium is not installed; apt-get install chromium")
    output.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="mallob-py-pictures.") as folder:
        api_dir = Path(folder) / "api"
        ranks = ("-n", str(_RANKS), "--many-ranks", "--preload", "UTS", "QUEENS", "PI")
        served = _running(
            "serve", *ranks, "--api-dir", str(api_dir), says="accepting jobs", within=Path(folder)
        )
        shown = _running(
            "web", "--api-dir", str(api_dir), "--port", port, says="#token=", within=Path(folder)
        )
        with served, shown as told:
            url = next(word for word in told.split() if word.startswith("http"))
            clients = _submit_jobs(api_dir)
            # Ranks report workers only while a page is open. The first picture starts the reports, and is
            # taken again at the end.
            for scheme, name in (("light", "page.png"), ("dark", "page-dark.png"), ("light", "page.png")):
                _shoot(browser, url, scheme, output / name)
            _draw_top(api_dir, output / "top.svg")
            for client in clients:
                client.close()


if __name__ == "__main__":
    main()
