"""Do the tests notice when a rule of the protocol is broken? Break each, one at a time, and see.

Each mutation (`mutations.py`) is applied to a copy of the sources. There the protocol's tests
and the simulations run until the first failure; if none fails, random seeds get a try. A
mutation that survives shows a missing test or a rule that nobody needs; then the exit code is 1.

python scripts/mutate.py                 all
python scripts/mutate.py --only token    those whose rule matches
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from mutations import MUTATIONS, Mutation, apply

_ROOT = Path(__file__).resolve().parent.parent
_COPIED = ("mallob_py", "tests/protocol", "tests/simulation", "pyproject.toml")
#: what notices most comes first; tests of the simulator itself say nothing about the protocol
_TESTS = ("tests/simulation", "tests/protocol")
_IGNORED = ("--ignore=tests/simulation/test_shrinking.py", "--ignore=tests/simulation/test_plans.py")
#: a test that waits for ever is a notice; the whole run only ends so on a very busy machine
_TEST_TIMEOUT_S = 60
_TIMEOUT_S = 600.0
_FUZZ_FIRST = 1000
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """What became of one mutation."""

    mutation: Mutation
    noticed_by: str | None
    took_s: float

    def __str__(self) -> str:
        word = "survived" if self.noticed_by is None else "noticed"
        return f"{word:8} {self.took_s:5.1f} s  {self.mutation.rule}  [{self.noticed_by or 'NOBODY'}]"


def copy_sources(folder: Path) -> None:
    for name in _COPIED:
        source, dest = _ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, dest, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, dest)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    """Run Python on the copy; None if it does not end in time."""
    try:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def noticed_by(folder: Path, fuzz_s: float) -> str | None:
    """The first test that fails on the copy, or the fuzz, or nothing."""
    place = run(folder, "-c", "import mallob_py; print(mallob_py.__file__)")
    assert place is not None
    assert Path(place.stdout.strip()).is_relative_to(folder), f"not the copy: {place.stdout}{place.stderr}"
    tests = run(
        folder,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--timeout={_TEST_TIMEOUT_S}",
        *_IGNORED,
        *_TESTS,
    )
    if tests is None:
        return "tests do not end"
    if tests.returncode not in (0, 1):
        raise RuntimeError(f"pytest cannot run on the copy\n{tests.stdout}{tests.stderr}")
    if tests.returncode == 1:
        failed = _FAILED.search(tests.stdout)
        return failed[1] if failed else "a test"
    seeds = ("--first", str(_FUZZ_FIRST), "--seconds", str(fuzz_s), "--shrink-seconds", "0", "--jobs", "1")
    fuzz = run(folder, "-m", "mallob_py.simulation.fuzz", *seeds)
    if fuzz is None:
        return "fuzz does not end"
    return "fuzz only" if fuzz.returncode else None


def judge(mutation: Mutation, fuzz_s: float) -> Verdict:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mallob-py-mutation.") as name:
        folder = Path(name).resolve()
        copy_sources(folder)
        path = folder / mutation.file
        path.write_text(apply(mutation, path.read_text()))
        notice = noticed_by(folder, fuzz_s)
    return Verdict(mutation, notice, time.monotonic() - began_s)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only rules that match this regular expression")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutations at a time")
    parser.add_argument("--fuzz-seconds", type=float, default=15.0, help="for what no test has noticed")
    options = parser.parse_args()
    began_s = time.monotonic()
    mutations = [mutation for mutation in MUTATIONS if re.search(options.only, mutation.rule)]
    verdicts = []
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = [pool.submit(judge, mutation, options.fuzz_seconds) for mutation in mutations]
        for done in as_completed(waiting):
            verdicts.append(done.result())
            print(verdicts[-1], flush=True)
    survivors = sum(verdict.noticed_by is None for verdict in verdicts)
    print(f"{len(verdicts)} mutations, {survivors} survived, {time.monotonic() - began_s:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
