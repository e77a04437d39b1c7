"""Faults on purpose, on a service in a new folder: is anything lost, doubled or left behind?

    python scripts/chaos.py soak --minutes 5 --ranks 6 --seed 1     jobs of all kinds, kills in between
    python scripts/chaos.py kills --jobs 500 --kills 20 --seed 1    all parts are killed again and again
    python scripts/chaos.py trees 'UTS 15' T3L --losses 1           bags with known results: all exact?

`CAMPAIGN --help` describes the faults and checks of each campaign; `faults/strikes.py` lists all faults,
`faults/jobs.py` all kinds of jobs. If a check fails, the exit code is 1, the folder is kept, and a report is
printed (events of the job on all ranks, and stacks if `py-spy` is installed).
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from faults import kills, soak, trees
from faults.known_trees import TREES
from faults.processes import Wrong
from faults.service import Service

from mallob_py.cli.rank_options import RANK_LOSSES


class Campaign(Protocol):
    """A service and the faults that it suffers. Both methods may raise Wrong."""

    service: Service

    def play(self) -> None: ...

    def tell(self) -> None: ...


CAMPAIGNS: Mapping[str, type[soak.Soak] | type[kills.Campaign] | type[trees.Trees]] = {
    "soak": soak.Soak,
    "kills": kills.Campaign,
    "trees": trees.Trees,
}


def parse() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="campaign", required=True, metavar="CAMPAIGN")

    def add(name: str, description: str | None, ranks: int) -> argparse.ArgumentParser:
        one = commands.add_parser(
            name, help=(description or "").split("\n")[0], description=description, formatter_class=raw
        )
        one.add_argument("--ranks", type=int, default=ranks)
        one.add_argument("--seed", type=int, default=1)
        one.add_argument("--rank-loss", choices=RANK_LOSSES, default="auto", help="the service's option")
        return one

    one = add("soak", soak.__doc__, 6)
    one.add_argument("--minutes", type=float, default=5.0)
    one.add_argument("--pes", type=int, default=1, help="PEs per rank")
    one.add_argument(
        "--rank-timeout",
        type=float,
        default=20.0,
        help="longest silence of a rank [s]; more if other programs may stop ranks for so long (default: 20)",
    )
    one = add("kills", kills.__doc__, 4)
    one.add_argument("--jobs", type=int, default=500, help="smallest number of jobs")
    one.add_argument("--kills", type=int, default=20)
    one.add_argument("--stops", type=int, default=1, help="how many kills only stop the process for a while")
    one.add_argument("--stop-seconds", type=float, default=30.0)
    one.add_argument("--durable", action="store_true", help="the service's option")
    one = add("trees", trees.__doc__, 4)
    names = ", ".join(tree.name for tree in TREES)
    one.add_argument(
        "trees", nargs="*", metavar="TREE", help=f"{names}; default: all up to 300 million tasks"
    )
    one.add_argument("--losses", type=int, default=0, help="ranks to kill during each tree")
    one.add_argument("--restarts", type=int, default=0, help="restarts of the service during each tree")
    one.add_argument("--minutes", type=float, default=30.0, help="time limit of a tree")
    options = parser.parse_args()
    if options.campaign == "trees":
        try:
            options.trees = trees.chosen(options.trees)
        except ValueError as error:
            one.error(str(error))
    return options


def main() -> int:
    options = parse()
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{options.campaign}-"))
    campaign: Campaign | None = None
    is_wrong = True
    try:
        campaign = CAMPAIGNS[options.campaign](folder, options)
        campaign.play()
        is_wrong = False
    except Wrong as wrong:
        if campaign is not None:
            campaign.service.tell(wrong.identity)
        print(f"WRONG: {wrong}\nkept: {folder}")
        return 1
    finally:
        if campaign is not None:
            campaign.service.close(is_kept=is_wrong)
    campaign.tell()
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
