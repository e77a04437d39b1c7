"""`mallob-py logs` of running and of ended jobs, and the same output over HTTP."""

import subprocess
import sys
from pathlib import Path

from running import DEADLINE_S, Running, needs_mpiexec, poll_until, serving

pytestmark = needs_mpiexec

_CALL = """
import sys
from mallob_py import Executor
def speak(text):
    print("out", text)
    print("err", text, file=sys.stderr)
with Executor(sys.argv[1], user="u") as executor:
    list(executor.map(speak, ["one", "two"]))
"""


def logs(service: Running, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mallob_py.cli.main", "logs", "--api-dir", str(service.api_dir)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=DEADLINE_S)


def test_prints_of_functions_are_in_the_log_of_their_job_and_not_in_that_of_the_service(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, ranks=2) as service:
        subprocess.run([sys.executable, "-c", _CALL, str(service.api_dir)], check=True, timeout=DEADLINE_S)
        (reply,) = (service.box() / "out").glob("u.*.json")
        lines = ["", "err one", "err two", "out one", "out two"]
        # On a busy machine the reply may come before the last line is written.
        poll_until(lambda: sorted(logs(service, reply.stem).stdout.split("\n")) == lines, "all is written")
        said = logs(service, reply.stem, "--follow")
        assert sorted(said.stdout.split("\n")) == lines
        assert logs(service, "1").stdout == said.stdout
        assert "out one" not in service.output
        silent = service.ask("silent", application="NOOP")
        assert silent["result"]["outcome"] == "result"
        nothing = logs(service, "u.silent")
        assert (nothing.returncode, nothing.stdout) == (0, "")
        assert "has printed nothing" in nothing.stderr
        assert logs(service, str(silent["internal_id"])).returncode == 0
        for unknown in ("u.unknown", "12345"):
            told = logs(service, unknown)
            assert (told.returncode, told.stderr.count("\n")) == (2, 1)
        assert service.stop() == 0
        poll_until(lambda: service.processes() == [], "nothing is left")
        assert logs(service, reply.stem).stdout == said.stdout  # readable without a service, too
