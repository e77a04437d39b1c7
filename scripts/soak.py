"""Jobs of all kinds at random for minutes, with kills in between: who loses a reply or leaks?

    python scripts/soak.py --minutes 5 --ranks 6 --seed 1

Starts a service of its own in a new folder. Works in rounds: submit a random mix, kill worker
processes (now and then a fork server) while it runs, await every reply, then, at rest, take
memory and open descriptors of the ranks. Unless `--rank-loss restart`, ranks are killed, stopped until the
others give them up, added, drained and taken away, too; when few of the first ones are left, the
service is started again. Every job is finite by itself, by a limit or by an interruption, so a reply
that is missing is lost. Exits with 1 and tells the story of a job (events of all ranks, stacks if
`py-spy` is there, the status file) if something is wrong; the folder is kept then.

Checked: one reply per job file and no other file in `out/`; answers; models; how jobs end that
nobody killed; at the end exit code 0, no process, no file in shared memory; neither memory nor
descriptors grow with the number of jobs, and no rank stays large; the others of a rank that is lost go on,
with their processes; orders of more or fewer ranks come to what they say.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from soaking.jobs import Mix
from soaking.processes import Wrong
from soaking.ranks import Ranks
from soaking.rounds import Sample, at_rest, check_growth, check_size_at_end, play_round
from soaking.service import Service

from mallob_py.cli.rank_options import RANK_LOSSES

#: first rounds are not compared: pools and caches fill
WARM_UP_ROUNDS = 3


def soak(options: argparse.Namespace, folder: Path) -> None:
    rng = random.Random(options.seed)
    clients = rng.choice((1, 1, 2))
    further = ["--job-cache", str(rng.choice((0, 1, 4, 4))), "--threads", str(rng.choice((1, 1, 2)))]
    if rng.random() < 0.5:
        rules = folder / "users.toml"
        rules.write_text("[default]\nactive-jobs = 10\nshare = 0.75\n")
        further += ["--users", str(rules)]
    if rng.random() < 0.25:
        further += ["--durable"]
    if survives := options.rank_loss != "restart":
        further += ["--rank-timeout", f"{options.rank_timeout:g}s"]
    further += ["--rank-loss", options.rank_loss, "--pes", str(options.pes)]
    print(f"seed {options.seed}: {clients} clients, {' '.join(further)}; {folder}", flush=True)
    service = Service(folder, options.ranks, clients, further)
    try:
        timeout_s = options.rank_timeout if survives else None
        mix = Mix(service, clients, options.ranks, rng, timeout_s)
        kills: Counter[str] = Counter()
        ranks = None if timeout_s is None else Ranks(service, clients, timeout_s, rng, kills)
        samples: list[Sample] = []
        end_s = time.monotonic() + 60 * options.minutes
        rounds = 0
        while time.monotonic() < end_s:
            play_round(service, mix, rng, kills, ranks)
            rounds += 1
            if rounds >= WARM_UP_ROUNDS:
                count = options.ranks if ranks is None else ranks.left
                samples.append(at_rest(service, count, options.pes))
            if rounds % 5 == 0 and samples:
                print(f"round {rounds}, {sum(mix.done.values())} replies: {samples[-1]}", flush=True)
            if ranks is not None:
                if rng.random() < 0.3:
                    ranks.strike_under_one_job(mix)
                if ranks.is_used_up:
                    service.stop()
                    check_growth(samples)
                    samples, rounds = [], 0
                    service.start()
                    ranks.begin()
        check_growth(samples)
        check_size_at_end(service.mark)
        service.stop()
    except Wrong as wrong:
        service.tell(wrong.identity)
        raise
    finally:
        service.kill()
    print(f"killed: {dict(kills)}; replies: {dict(sorted(mix.done.items()))}")
    for kind, latencies_s in sorted(mix.latencies_s.items()):
        ordered = sorted(latencies_s)
        print(f"{kind}: median {ordered[len(ordered) // 2]:.3f} s, longest {ordered[-1]:.3f} s")
    for sample in (samples[0], samples[-1]) if samples else ():
        print(sample)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--ranks", type=int, default=6)
    parser.add_argument("--pes", type=int, default=1, help="PEs per rank")
    parser.add_argument("--rank-loss", choices=RANK_LOSSES, default="auto", help="of the service")
    parser.add_argument(
        "--rank-timeout",
        type=float,
        default=20.0,
        help="seconds; more on a machine that is busy with other things for as long (default: 20)",
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        soak(options, folder)
    except Wrong as wrong:
        print(f"WRONG: {wrong}\nkept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
