"""Make a sample api folder: as a killed service leaves it, with a file of each format on disk.

    python scripts/format_sample.py FOLDER

`tests/ranks/test_upgrade.py` has such a folder for each format of `service/store/format_mark.py`, and lets
today's service continue with each folder. Before you change a format, run this script and commit the folder.
The script runs the mallob_py that this Python imports.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mallob_py.runtime.processes import python

#: files that the next service needs; all other files are made anew or concern one run only
_KEPT = (".finished", ".format", ".last_id", ".running", "history.jsonl", "*/*")
_PATIENCE_S = 60.0


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        api = Path(folder, "api")
        command = [*python(), "-m", "mallob_py.cli.main", "serve", "-n", "2", "--api-dir", str(api)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as service:
            assert service.stdout is not None
            service.stdout.readline()
            try:
                _fill(api / "jobs.0")
            finally:
                os.killpg(service.pid, signal.SIGKILL)
                service.stdout.read()  # returns once the ranks have ended, too
        _leave_reply_unpublished(api / "jobs.0")
        _put(api / "jobs.0", "untaken", literals=[-1, 0])
        for pattern in _KEPT:
            for path in api.glob(f"jobs.0/{pattern}"):
                kept = target / path.relative_to(api)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, kept)


def _fill(client: Path) -> None:
    """Submit jobs, and wait until they are in all states."""
    for name in ("solved", "decided"):
        _put(client, name, group="night", literals=[1, 2, 0, -1, 0])
        _await((client / f"out/alice.{name}.json").exists)
    _put(client, "revised", incremental=True, literals=[1, 2, 0])
    _await((client / "out/alice.revised.json").exists)
    _put(client, "bag", application="QUEENS", configuration={"n": 16})
    _await(lambda: any(client.glob("checkpoints/[0-9]*")))
    _put(client, "after", group="night", literals=[3, 0], dependencies=["alice.bag"])
    _await(lambda: any(client.glob("journal/*.job.after.json")))
    time.sleep(2)  # later checkpoints contain more


def _put(client: Path, name: str, **fields: object) -> None:
    """Submit a job of the user alice."""
    text = json.dumps({"user": "alice", "name": name, "application": "SAT", **fields})
    (client / f"in/~{name}.json").write_text(text)
    (client / f"in/~{name}.json").rename(client / f"in/{name}.json")


def _leave_reply_unpublished(client: Path) -> None:
    """Move a published reply back to the journal, where it was just before it was published."""
    reply = client / "out/alice.decided.json"
    number = json.loads(reply.read_bytes())["internal_id"]
    reply.rename(client / f"journal/{number}.reply.alice.decided.json")


def _await(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > until_s:
            raise SystemExit("the service is too slow")
        time.sleep(0.01)


if __name__ == "__main__":
    main()
