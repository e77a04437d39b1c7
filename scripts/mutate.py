"""Test whether the tests notice broken rules: break each rule, one at a time.

Each mutation (`tests/mutations/`) is applied to a copy of the sources; the sources themselves stay unchanged.
On the copy, the test named in the mutation's entry runs first. If it passes, all tests of the changed package
run up to the first failure (for the protocol also the simulations, then random seeds). A failing test must
fail again, and must pass without the mutation: a test that fails only sometimes has noticed nothing. A
mutation that survives shows a missing test or an unnecessary rule; the exit code is then 1.

python scripts/mutate.py                 all mutations
python scripts/mutate.py --only token    the mutations whose rule contains the word
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from mutations import MUTATIONS, Mutation, apply, describe

from mallob_py.runtime.processes import python

_ROOT = Path(__file__).resolve().parent.parent
_COPIED = (
    "mallob_py",
    "apps",
    "native",
    "tests",
    "scripts",
    "docs",
    "README.md",
    "THIRD_PARTY.md",
    "pyproject.toml",
)
_PROTOCOL = "mallob_py/protocol/"
#: tests that do not concern the protocol
_TESTS_OF_THE_SIMULATOR = ("test_shrinking.py", "test_plans.py")
#: slow tests, which run after faster ones
_LAST = ("test_seeds.py", "test_liveness.py", "test_volumes.py", "test_volume_search.py")
#: pytest with few plugins, which halves the time of a single test
_PLUGINS = ("-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "anyio.pytest_plugin")
PYTEST = ("-m", "pytest", "-x", "-q", *_PLUGINS)
#: pytest option by which a time-out is a failure of its test, and does not end pytest
_TIMEOUT_METHOD = "--timeout-method=signal"
#: time limit of a test; a test that never ends has noticed the mutation
_TEST_TIMEOUT_S = 60
_TIMEOUT_S = 1200.0
_FUZZ_FIRST = 1000
#: pytest's exit code if it finds no test
_NO_TESTS = 5
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*?\])?(?: - (.*))?$", re.MULTILINE)


class Stopped(Exception):
    """The user has interrupted the run."""


@dataclass(frozen=True)
class Verdict:
    """The result of one mutation. `is_expected`: whether the test named in its entry has noticed it."""

    mutation: Mutation
    noticed_by: str | None
    is_expected: bool
    took_s: float

    def __str__(self) -> str:
        word = "survived" if self.noticed_by is None else "noticed"
        return f"{word:8} {self.took_s:5.1f} s  {self.mutation.rule}  [{self.noticed_by or 'NOBODY'}]"


class Runner:
    """Runner of Python on copies of the sources. `stop` ends all its processes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._is_stopped = False

    def run(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
        """Run Python with these arguments; return None if it takes longer than _TIMEOUT_S."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(folder), str(folder / "apps"))),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        with self._lock:
            if self._is_stopped:
                raise Stopped
            # In a group of its own, because fuzz has children, which `stop` must end, too.
            process = subprocess.Popen(
                [*python(), *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            output, _ = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self._end(process)
        if self._is_stopped:
            raise Stopped
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                os.killpg(process.pid, signal.SIGKILL)

    def _end(self, process: subprocess.Popen[str]) -> None:
        with self._lock:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            self._running.discard(process)


class Judge:
    """Judge of mutations. It copies the sources once; each mutation gets a copy of this copy."""

    def __init__(self, work: Path, runner: Runner, fuzz_s: float) -> None:
        self._work = work
        self._runner = runner
        self._fuzz_s = fuzz_s
        self._unchanged = work / "unchanged"
        for name in _COPIED:
            source, dest = _ROOT / name, self._unchanged / name
            if source.is_dir():
                shutil.copytree(source, dest, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, dest)
        self._place_of = test_places(self._unchanged)
        #: test -> whether it passes without any mutation
        self._passes: dict[str, bool] = {}

    def check_unchanged(self, mutations: list[Mutation]) -> None:
        """Check that the named tests pass without mutations, and that the tables fit the sources."""
        for mutation in mutations:
            try:
                apply(mutation, (self._unchanged / mutation.file).read_text())
            except ValueError as error:
                raise SystemExit(f"tests/mutations does not fit the sources: {error}") from None
        place = self._runner.run(self._unchanged, "-c", "import mallob_py; print(mallob_py.__file__)")
        assert place is not None
        assert Path(place.stdout.strip()).is_relative_to(self._unchanged), f"not the copy: {place.stdout}"
        named = sorted({self._place_of[mutation.test] for mutation in mutations})
        if (failure := self._failure(self._unchanged, *named)) is not None:
            raise SystemExit(f"the tests fail without any mutation: {failure}")
        self._passes = dict.fromkeys(named, True)

    def judge(self, number: int, mutation: Mutation) -> Verdict:
        began_s = time.monotonic()
        folder = self._work / f"mutation_{number}"
        shutil.copytree(self._unchanged, folder)
        path = folder / mutation.file
        path.write_text(apply(mutation, path.read_text()))
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        noticed_by = self.notice(folder, self._place_of[mutation.test])
        is_expected = noticed_by is not None
        noticed_by = noticed_by or self.notice(folder, *_tests_of_part(folder, mutation.file))
        if noticed_by is None and mutation.file.startswith(_PROTOCOL):
            noticed_by = self._fuzz(folder)
        shutil.rmtree(folder)
        return Verdict(mutation, noticed_by, is_expected, time.monotonic() - began_s)

    def notice(self, folder: Path, *tests: str) -> str | None:
        """Return the first test that fails twice with the mutation and passes without the mutation."""
        by_chance: list[str] = []
        while (failed := self._failure(folder, *tests, *by_chance)) is not None:
            if failed not in self._passes:
                self._passes[failed] = self._failure(self._unchanged, failed) is None
            if self._passes[failed] and self._failure(folder, failed) is not None:
                return failed
            is_test = "::" in failed
            print(f"{'a test fails now and then' if is_test else 'pytest cannot read'}: {failed}", flush=True)
            by_chance.append(f"--{'deselect' if is_test else 'ignore'}={failed}")
        return None

    def _failure(self, folder: Path, *tests: str) -> str | None:
        """Return pytest's name of the first test that fails. A test that does not end fails, too."""
        done = self._runner.run(folder, *PYTEST, f"--timeout={_TEST_TIMEOUT_S}", _TIMEOUT_METHOD, *tests)
        if done is None and len(tests) == 1:
            return tests[0]
        if done is None:
            raise RuntimeError(f"tests do not end, and pytest does not end them: {' '.join(tests)}")
        if done.returncode in (0, _NO_TESTS):
            return None
        failed = _FAILED.search(done.stdout)
        if done.returncode not in (1, 2) or failed is None:
            raise RuntimeError(f"pytest cannot run on the copy\n{done.stdout}")
        return failed[1]

    def _fuzz(self, folder: Path) -> str | None:
        seeds = ("--first", str(_FUZZ_FIRST), "--seconds", str(self._fuzz_s), "--shrink-seconds", "0")
        done = self._runner.run(folder, "-m", "mallob_py.simulation.fuzz", *seeds, "--jobs", "1")
        if done is None:
            return "fuzz does not end"
        return "fuzz only" if done.returncode else None


def test_places(root: Path) -> dict[str, str]:
    """Return test function -> pytest's name, for all functions with unique names outside of tests/worlds."""
    places: dict[str, list[str]] = {}
    for path in set((root / "tests").rglob("test_*.py")) - set((root / "tests/worlds").iterdir()):
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE):
            places.setdefault(name, []).append(f"{path.relative_to(root)}::{name}")
    return {name: found[0] for name, found in places.items() if len(found) == 1}


def _tests_of_part(root: Path, file: str) -> list[str]:
    """Return all test files of the package that contains a source file, fast files first."""
    is_apps = file.startswith("apps/")  # the tests of all applications are in one folder
    mirrored = Path("tests/apps") if is_apps else Path("tests", *Path(file).parent.parts[1:])
    folders = ("tests/protocol", "tests/simulation") if file.startswith(_PROTOCOL) else (str(mirrored),)
    paths = [path for folder in folders for path in sorted((root / folder).glob("test_*.py"))]
    paths = [path for path in paths if path.name not in _TESTS_OF_THE_SIMULATOR]
    return [str(path.relative_to(root)) for path in sorted(paths, key=lambda path: path.name in _LAST)]


def tell(verdicts: list[Verdict], took_s: float) -> int:
    """Print a summary of the verdicts; return the number of survivors."""
    for verdict in verdicts:
        if verdict.noticed_by is not None and not verdict.is_expected:
            print(f"\n{verdict.mutation.rule}\n  is not noticed by its entry's test, {verdict.mutation.test}")
    survivors = [verdict.mutation for verdict in verdicts if verdict.noticed_by is None]
    for mutation in survivors:
        change = describe(mutation, (_ROOT / mutation.file).read_text())
        print(f"\nNo test needs the rule: {mutation.rule}.\n{textwrap.indent(change, '    ')}")
    if survivors:
        print("\nWrite a test that fails with the change, or make the change for good and remove its entry.")
    print(f"\n{len(verdicts)} mutations, {len(survivors)} survived, {took_s:.0f} s")
    return len(survivors)


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def listen_to_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only rules that match this regular expression")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of mutations at a time")
    parser.add_argument(
        "--fuzz-seconds",
        type=float,
        default=15.0,
        help="how long to search with random seeds for each mutation that no test notices (default 15)",
    )
    options = parser.parse_args()
    mutations = [mutation for mutation in MUTATIONS if re.search(options.only, mutation.rule)]
    if not mutations:
        parser.error(f"no rule matches {options.only!r}")
    listen_to_signals(interrupt)
    began_s = time.monotonic()
    runner, verdicts = Runner(), []
    with (
        tempfile.TemporaryDirectory(prefix="mallob-py-mutations.") as work,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        try:
            judge = Judge(Path(work).resolve(), runner, options.fuzz_seconds)
            judge.check_unchanged(mutations)
            waiting = [pool.submit(judge.judge, *numbered) for numbered in enumerate(mutations)]
            for done in as_completed(waiting):
                verdicts.append(done.result())
                print(verdicts[-1], flush=True)
        except KeyboardInterrupt:
            listen_to_signals(signal.SIG_IGN)
            print(
                f"interrupted; {len(mutations) - len(verdicts)} of {len(mutations)} mutations are not judged"
            )
            return 130
        finally:
            runner.stop()
            pool.shutdown(cancel_futures=True)
    return 1 if tell(verdicts, time.monotonic() - began_s) else 0


if __name__ == "__main__":
    raise SystemExit(main())
