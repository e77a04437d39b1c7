"""Small jobs flow in while everything is killed again and again: exactly one right reply each?

    python scripts/kill_and_restart.py --jobs 500 --kills 20 --ranks 4 --seed 1

Jobs depend on others, form chains of revisions, are interrupted, and are sometimes wrong. A kill hits the
service at a random moment, its start included: all of its processes at once (as when a machine loses
power), the launching process alone, MPI's launcher or its proxy, one rank, a fork server, a worker (which
may just read an input); unless `--rank-loss restart` also the first rank, the client's, and two at once. Some
kills are stops instead, for `--stop-seconds`, longer than ranks may be silent. What the service does not
start again by itself is started on the same folder. Exits with 1, and keeps the folder, if something is
wrong.

Checked: one reply per job, with the right answer, after those of the jobs it depends on; no reply changes
once it is there, or comes again when it was removed; nothing else in `out/`, nothing left in `in/` and in
the journal; no process and no file in shared memory is left; at the end exit code 0. Unless `--rank-loss
restart`, ranks are not started again as long as one is left over.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from killing.jobs import Jobs
from killing.service import DEADLINE_S, Killer, Service
from soaking.processes import Wrong, wait_until

from mallob_py.cli.rank_options import RANK_LOSSES

JOB_EVERY_S = 0.1


def play(options: argparse.Namespace, folder: Path) -> None:
    rng = random.Random(options.seed)
    further = ["--durable"] if options.durable else []
    service = Service(folder, options.ranks, ["--rank-loss", options.rank_loss, *further])
    box = service.api_dir / "jobs.0"
    wait_until((box / "in").exists, "the service makes its folders", DEADLINE_S)
    jobs = Jobs(box, folder, rng)
    kill_rng = random.Random(rng.random())
    stops = kill_rng.sample(range(options.kills), min(options.stops, options.kills))
    survives = options.rank_loss != "restart"
    killer = Killer(service, options.kills, stops, options.stop_seconds, kill_rng, survives=survives)
    try:
        killer.start()
        for _ in range(options.jobs):
            jobs.submit()
            jobs.look()
            time.sleep(rng.expovariate(1 / JOB_EVERY_S))
        while killer.is_alive():  # none of them finds the service idle
            jobs.submit()
            jobs.look()
            time.sleep(rng.expovariate(1 / JOB_EVERY_S / 10))
        if killer.problem is not None:
            raise killer.problem
        jobs.submit()  # its reply shows that the ranks are up again
        jobs.end_chains()
        try:
            while missing := unanswered(service, jobs):
                wait_until(lambda: unanswered(service, jobs) < missing, "a further reply", DEADLINE_S)
        except Wrong as wrong:
            raise Wrong(f"{wrong}; no reply: {jobs.missing()}") from None
        wait_until(lambda: not jobs.left(), "the chains have ended", DEADLINE_S)
        service.stop()
        jobs.look()
        jobs.check_nothing_left()
    finally:
        killer.join()
        service.kill_everything()
    print(f"{jobs.count} jobs, one right reply each: {dict(sorted(jobs.outcomes.items()))}")
    print(f"kills: {dict(killer.done)}")


def unanswered(service: Service, jobs: Jobs) -> int:
    # The last kill may have hit ranks that had not come up, which are not started again.
    service.start_if_ended()
    return jobs.look()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=500, help="at least so many")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stops", type=int, default=1, help="how many of the kills are stops")
    parser.add_argument("--stop-seconds", type=float, default=30.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rank-loss", choices=RANK_LOSSES, default="auto", help="of the service")
    parser.add_argument("--durable", action="store_true", help="the service waits for the medium")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kill-and-restart-"))
    try:
        play(options, folder)
    except Wrong as wrong:
        print(f"WRONG: {wrong}\n{(folder / 'output').read_text()[-3000:]}\nkept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
