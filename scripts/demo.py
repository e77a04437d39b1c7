"""The demo: in half a minute, several formulas share the PEs of a service, and their workers move.

    python scripts/demo.py [RANKS]

Starts a service in a new folder, submits formulas of apps/mallob_sat/examples with different priorities
at different times, shows how the jobs share the PEs whenever that changes, and compares the answers with
the known answers. The exit code is 0 if all are right.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mallob_py import Answer, Client
from mallob_py.runtime.processes import python
from mallob_py.service.telemetry.status import ServiceStatus, read_live_status

EXAMPLES = Path(__file__).parents[1] / "apps/mallob_sat/examples"
TIMEOUT_S = 240.0
COMMAND = (*python(), "-m", "mallob_py")

NEXT = """
What to try next (mallob-py is .venv/bin/mallob-py here):

    mallob-py solve formula.cnf.xz            one formula on all cores; models, proofs, cores: --help
    mallob-py serve -n 4                      a service like this one: job files in, replies out
    mallob-py submit --wait formula.cnf.xz    a job for this service; watch it with: mallob-py top
    mallob-py simulate --seconds 60           the same scheduler on 1536 PEs, in virtual time

README.md says more; docs/writing-an-application.md says how to write an application of your own."""


@dataclass(frozen=True)
class Job:
    letter: str
    formula: str
    is_satisfiable: bool
    priority: float
    arrival_s: float


JOBS = (
    Job("A", "factoring_sat.cnf.xz", True, 1.0, 0.0),
    Job("B", "commutativity_unsat.cnf.xz", False, 1.0, 2.0),
    Job("C", "factoring_unsat.cnf.gz", False, 4.0, 4.0),
    Job("D", "tiny_sat.cnf", True, 1.0, 6.0),
)


def main() -> int:
    ranks = sys.argv[1] if len(sys.argv) > 1 else "4"
    with tempfile.TemporaryDirectory(prefix="mallob-py-demo-") as folder:
        api_dir, log_dir = Path(folder, "api"), Path(folder, "logs")
        with _serving(ranks, api_dir, log_dir), Client(api_dir) as client:
            print(f"This service has {ranks} ranks. A letter is a PE of this letter's job, a dot an idle PE.")
            wrong = _play(client, api_dir)
        _tell_latencies(log_dir)
    print(f"wrong or late: {', '.join(wrong)}" if wrong else NEXT)
    return 1 if wrong else 0


@contextmanager
def _serving(ranks: str, api_dir: Path, log_dir: Path) -> Iterator[None]:
    """Run a service until the block ends."""
    command = [*COMMAND, "serve", "-n", ranks, "--api-dir", str(api_dir), "--log-dir", str(log_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        if not any("accepting jobs" in line for line in service.stdout):
            sys.exit("the service does not start")
        try:
            yield
        finally:
            service.send_signal(signal.SIGTERM)


def _play(client: Client, api_dir: Path) -> list[str]:
    """Submit the jobs and show their progress; return the formulas that got a wrong answer or none."""
    begin_s, shown = time.monotonic(), ""
    coming, solving = list(JOBS), dict[Job, Future[Answer]]()
    wrong: list[str] = []

    def tell(what: str) -> None:
        print(f"{time.monotonic() - begin_s:5.1f} s  {what}", flush=True)

    while (coming or solving) and time.monotonic() < begin_s + TIMEOUT_S:
        if coming and time.monotonic() >= begin_s + coming[0].arrival_s:
            job = coming.pop(0)
            tell(f"{job.letter} arrives: {job.formula}, priority {job.priority:g}")
            solving[job] = client.submit(EXAMPLES / job.formula, name=job.letter, priority=job.priority)
        status = read_live_status(api_dir)
        if status is not None and (shares := _shares(status)) != shown:
            shown = shares
            tell(f"[{shares}]")
        for job in [job for job, future in solving.items() if future.done()]:
            answer = solving.pop(job).result()
            total_s = answer.reply["stats"]["time"]["total"]
            tell(f"{job.letter} is {_ANSWERS[answer.satisfiable]} after {_seconds(total_s)}")
            if answer.satisfiable is not job.is_satisfiable:
                wrong.append(job.formula)
        time.sleep(0.02)
    return wrong + [job.formula for job in (*coming, *solving)]


_ANSWERS = {True: "satisfiable", False: "unsatisfiable", None: "not decided"}


def _seconds(duration_s: float) -> str:
    return f"{duration_s:.1f} s" if duration_s >= 1 else f"{duration_s * 1000:.0f} ms"


def _shares(status: ServiceStatus) -> str:
    letters = "".join(job.name * job.volume for job in status.jobs)
    return letters.ljust(status.pes, ".")


def _tell_latencies(log_dir: Path) -> None:
    """Print how quickly workers started, as the event logs say."""
    report = subprocess.run(
        [*COMMAND, "report", log_dir, "--json"], capture_output=True, text=True, check=True
    )
    for latency in json.loads(report.stdout)["latencies"]:
        what = _LATENCIES.get(latency["kind"])
        if what and latency["count"]:
            print(
                f"median time {what}: {latency['median_ms']:.1f} ms (n = {latency['count']}, all cores busy)"
            )


_LATENCIES = {
    "scheduled": "from a job's arrival to its first worker",
    "adopted": "from a larger share to each further worker",
}


if __name__ == "__main__":
    sys.exit(main())
