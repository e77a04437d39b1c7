"""Check of the logs of loans (`mallob-py run NAME --log-loans DIR`): was each task counted once?

python scripts/loans.py DIR          print all contradictions and a summary; exit code 1 if there are any
python scripts/loans.py DIR --dot    print the open loans, from lender to borrower, as DOT for Graphviz

The script uses none of the ledgers' code: it adds up the entries of all workers. Rules:

- A loan must be merged into an account at most once, either as it was lent or in a state that its borrower
  has reported.
- The number of tasks in an account's final report must be the tasks done on the account plus the tasks of
  the loans merged into it.
- The same holds for the job's own account at its end. If this account began with a checkpoint, a root must
  have reported this checkpoint.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

#: a line of a log
Entry = dict[str, Any]


def read(folder: Path) -> list[list[Entry]]:
    """Read the log of each worker, without an incomplete last line."""
    logs = []
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_bytes().split(b"\n")
        logs.append([json.loads(line) for line in lines[:-1]])
    return logs


def problems(logs: Iterable[list[Entry]]) -> Iterator[str]:
    """Yield the contradictions in the logs."""
    logs = list(logs)
    told = defaultdict(set)
    lent = set()
    for entry in (entry for log in logs for entry in log):
        if entry["what"] == "lent":
            lent.add(entry["loan"])
        elif entry["what"] in ("told", "returned"):
            told[entry["account"]].add((entry.get("seq", 0), entry.get("done", 0)))
    taken: Counter[int] = Counter()
    for log in logs:
        yield from _problems_of_one(log, told, lent, taken)
    for loan, times in taken.items():
        if times > 1:
            yield f"loan {loan} was merged {times} times"


def _problems_of_one(
    log: list[Entry], told: dict[int, set[tuple[int, int]]], lent: set[int], taken: Counter[int]
) -> Iterator[str]:
    """Yield the contradictions in one worker's log; count in `taken` how often each loan was merged."""
    added: Counter[int] = Counter()
    for entry in log:
        account, done = entry["account"], entry.get("done", 0)
        match entry["what"]:
            case "opened":
                added[account] = done
                if done and (0, done) not in told[0]:
                    yield f"a root began with {done} tasks done, which no root had reported"
            case "taken":
                loan, state = entry["loan"], (entry.get("seq", 0), done)
                taken[loan] += 1
                added[account] += done
                if loan not in lent:
                    yield f"loan {loan} was merged, but nobody had lent it"
                elif state != (0, 0) and state not in told[loan]:
                    yield f"loan {loan} was merged with {done} tasks done, which nobody had reported"
            case "told" | "returned" | "finished" as what:
                sum_up = entry.get("own", 0) + added[account]
                if (what != "told" or entry.get("final")) and done != sum_up:
                    told_as = f"account {account} was {what} with {done} tasks done"
                    yield f"{told_as}, but its entries add up to {sum_up}"


def open_loans(logs: Iterable[list[Entry]]) -> list[tuple[int, int]]:
    """Return (lender's account, loan) of each loan that no worker has merged or dropped; 0: the job's
    account.
    """
    lenders: dict[int, int] = {}
    dropped = set()
    for entry in sorted((entry for log in logs for entry in log), key=lambda entry: entry["t"]):
        match entry["what"]:
            case "lent" | "inherited":
                lenders[entry["loan"]] = entry["account"]
            case "taken":
                lenders.pop(entry["loan"], None)
            case "dropped":
                dropped.add(entry["account"])
    return sorted((lender, loan) for loan, lender in lenders.items() if lender not in dropped)


def dot(logs: Iterable[list[Entry]]) -> str:
    """Return the open loans in DOT, each with the last state that its borrower has reported."""
    logs = list(logs)
    last: dict[int, int] = {}
    known = {0}
    for entry in sorted((entry for log in logs for entry in log), key=lambda entry: entry["t"]):
        if entry["what"] == "told":
            last[entry["account"]] = entry.get("done", 0)
        elif entry["what"] == "opened":
            known.add(entry["account"])
    lines = ["digraph loans {", '  0 [label="the job"];']
    for lender, loan in open_loans(logs):
        state = "nothing reported" if loan in known else "not arrived"
        if loan in last:
            state = f"{last[loan]} tasks done"
        lines.append(f'  {loan} [label="{loan}\\n{state}"];')
        lines.append(f"  {lender} -> {loan};")
    return "\n".join([*lines, "}"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--dot", action="store_true", help="print the open loans")
    options = parser.parse_args()
    try:
        logs = read(options.folder)
    except (OSError, ValueError) as error:
        parser.error(f"{options.folder}: {error}")
    if not logs:
        parser.error(f"{options.folder} contains no logs of loans")
    if options.dot:
        print(dot(logs))
        return 0
    found = list(problems(logs))
    for problem in found:
        print(problem, file=sys.stderr)
    finished = [entry["done"] for log in logs for entry in log if entry["what"] == "finished"]
    lent = sum(entry["what"] == "lent" for log in logs for entry in log)
    end = f"the job ended with {finished[-1]} tasks" if finished else "the job has not ended"
    print(f"{len(logs)} workers, {lent} loans, {len(open_loans(logs))} open; {end}; {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
