"""The blocks of docs/tasks.md run as printed."""

import json
import os
import re
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests/ranks")]

from running import environment as marked  # noqa: E402
from running import kill_marked, needs_mpiexec  # noqa: E402 (lies beside other tests)
from waiting import TEST_DEADLINE_S  # noqa: E402

_SECTION = re.compile(r"^## (.*)\n((?:(?!^## ).*\n)*)", re.MULTILINE)
_PYTHON = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = dict(_SECTION.findall((ROOT / "docs/tasks.md").read_text()))
#: stand-in for sbatch on this host; tests/slurm runs the script itself
_SBATCH = """#!/bin/sh
mallob-py serve -n 2 --api-dir "$API_DIR" >/dev/null 2>&1 &
echo $!
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a reader's folder with the programs that the blocks call."""
    programs = {
        "mallob-py": f'#!/bin/sh\nexec "{sys.executable}" -m mallob_py.cli.main "$@"\n',
        "python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
        "sbatch": _SBATCH,
        "scancel": '#!/bin/sh\nkill "$1"\n',
    }
    for name, text in programs.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "benchmarks").mkdir()
    for name, clauses in (("first", "1 2 0\n-1 0\n"), ("second", "1 0\n-1 0\n")):
        (tmp_path / f"benchmarks/{name}.cnf").write_text(f"p cnf 2 2\n{clauses}")
    (tmp_path / "slurm").symlink_to(ROOT / "slurm")
    return tmp_path


def _run(title: str, folder: Path) -> str:
    """Run the blocks of a section; return their output."""
    for name, text in _PYTHON.findall(SECTIONS[title]):
        (folder / name).write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = "".join(_SHELL.findall(SECTIONS[title])).replace("8642", str(port))
    mark = uuid.uuid4().hex
    env = marked(mark, {"PATH": f"{folder}/bin:{os.environ['PATH']}", "TMPDIR": str(folder)})
    try:
        done = subprocess.run(
            # job control gives %1 a group of its own, as at a prompt
            ["bash", "-m", "-eu", "-o", "pipefail", "-c", script],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=TEST_DEADLINE_S,
        )
    finally:
        kill_marked(mark)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@needs_mpiexec
def test_formulas_overnight(folder: Path) -> None:
    assert "2 of 2 ended" in _run("300 formulas overnight", folder)
    rows = (folder / "night.csv").read_text().splitlines()[1:]
    assert [("UNSAT" in row, "SAT" in row) for row in rows] == [(False, True), (True, True)]


@needs_mpiexec
def test_a_sweep(folder: Path) -> None:
    _run("A sweep of my function", folder)
    rows = (folder / "sweep.txt").read_text().splitlines()
    assert rows == [str((size, seed, size * seed % 7)) for size in (10, 20, 30) for seed in range(5)]


@needs_mpiexec
def test_a_branch_and_bound(folder: Path) -> None:
    assert "51" in _run("A branch and bound of mine", folder)
    assert json.loads((folder / "best.json").read_text())["result"]["value"] == 51


@needs_mpiexec
def test_a_server_for_a_group(folder: Path) -> None:
    assert '"SAT"' in _run("A server for a group", folder)
    assert "[Service]" in (folder / "mallob-py.service").read_text()


@needs_mpiexec
def test_an_allocation(folder: Path) -> None:
    assert "2 of 2 ended" in _run("A Slurm allocation", folder)


def test_two_schedulers_on_a_trace(folder: Path) -> None:
    out = _run("Compare two schedulers on my trace", folder)
    assert out.count("elastic") == 3
    assert (folder / "compared/index.html").exists()


def test_each_task_is_tried() -> None:
    assert len(SECTIONS) == 6
