"""The documents are true: their examples run, their options exist, their errors are in the code."""

import ast
import functools
import itertools
import json
import lzma
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pysat.formula import CNF, WCNF

import mallob_py
from mallob_py import kit
from mallob_py.cli.option_sources import table
from mallob_py.cli.options import COMMANDS
from mallob_py.log_events import LogEvent
from mallob_py.log_events import table as table_of_events
from mallob_py.service.client import login_name
from mallob_py.service.jobs.job_file import field_table
from mallob_sat import portfolio

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests/ranks")]

from fake_context import FakeContext  # noqa: E402 (lies beside other tests)
from running import Finished, Running, needs_mpiexec, poll_until, run, serving  # noqa: E402
from source_trees import source, sources  # noqa: E402

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/results").glob("*.md")),
]
_BLOCK = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that docs/writing-an-application.md shows."""
    folder = tmp_path_factory.mktemp("package")
    for name, content in _BLOCK.findall((ROOT / "docs/writing-an-application.md").read_text()):
        (folder / name).write_text(content)
    return folder


@pytest.fixture(scope="module")
def service(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield a service with the document's application, under the name of its entry point."""
    project = tomllib.loads((package / "pyproject.toml").read_text())
    (entry,) = project["project"]["entry-points"]["mallob_py.apps"].items()
    path = os.pathsep.join([str(package), str(ROOT), str(ROOT / "apps")])
    env = {"MALLOB_PY_APPS": "=".join(entry), "PYTHONPATH": path}
    with serving(tmp_path_factory.mktemp("service"), env=env) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.output


def test_the_tests_of_the_example_application_pass(package: Path) -> None:
    path = os.pathsep.join([str(package), str(ROOT), str(ROOT / "apps")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(package)],
        cwd=package,
        env=dict(os.environ) | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


@pytest.mark.parametrize(("number", "code"), [(77, 10), (2, 20), (97, 20), (9409, 10)])
@pytest.mark.parametrize("index", [0, 1, 70])
def test_the_example_of_the_interface_answers_with_any_one_worker(number: int, code: int, index: int) -> None:
    assert kit.__doc__ is not None
    example = kit.__doc__.partition("A complete application:\n")[2].partition("and in its package")[0]
    names: dict[str, Any] = {}
    exec(textwrap.dedent(example), names)
    factor = names["Factor"]()
    payload = factor.read(kit.JobInput(literals=[number]))
    assert factor.run(FakeContext(payload, index, {})).code == code


@needs_mpiexec
def test_the_example_application_answers_in_a_service(service: Running, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.txt"
    numbers.write_text("1001 2431\n")
    reply = service.ask("some", application="DIVISOR", files=[str(numbers)])
    assert reply["result"]["resultcode"] == 10, reply
    assert reply["result"]["solution"][0] in (11, 13, 143)
    assert "share" in reply["result"]


@needs_mpiexec
def test_workers_of_the_example_application_learn_from_each_other(service: Running) -> None:
    numbers = itertools.count()

    def the_last_worker_had_help() -> bool:
        name = f"none-{next(numbers)}"
        reply = service.ask(name, application="DIVISOR", literals=[100000007, 100000037])
        assert reply["result"]["resultcode"] == 20, reply
        return bool(reply["result"]["own_shares"] < 64)

    poll_until(the_last_worker_had_help)


@needs_mpiexec
def test_the_example_application_answers_revisions(service: Running) -> None:
    first = service.ask("first", application="DIVISOR", incremental=True, literals=[77, 91])
    second = service.ask(
        "second", application="DIVISOR", incremental=True, precursor="u.first", literals=[10]
    )
    assert first["result"]["solution"] == [7], first
    assert second["result"]["resultcode"] == 20, second
    service.submit("third", application="DIVISOR", incremental=True, precursor="u.second", done=True)


@needs_mpiexec
def test_the_example_application_refuses_what_it_cannot_use(service: Running) -> None:
    reply = service.ask("small", application="DIVISOR", literals=[1])
    assert reply["error"] == {"field": "files", "message": "1 is not between 2 and 2147483647"}
    reply = service.ask("key", application="DIVISOR", literals=[6], configuration={"colour": 1})
    assert reply["error"]["field"] == "configuration"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_options_that_documents_name_exist(document: Path) -> None:
    for line in document.read_text().splitlines():
        spans = [line] if line.startswith("    ") else re.findall(r"`([^`]+)`", line)
        for span in spans:
            for command, rest in re.findall(
                r"mallob-py ((?:batch |service )?[a-z][a-z-]*)((?: [^#|:;]*)?)", span
            ):
                assert command in COMMANDS, line
                flags = set(re.findall(r"(?<=\s)--?[a-z][a-z-]*", rest))
                assert flags <= _flags(command), line


def test_every_option_has_a_line_in_a_document() -> None:
    text = "".join(document.read_text() for document in DOCUMENTS)
    told = set(re.findall(r"(?<![\w-])--?[a-zA-Z][a-z-]*", text))
    specs = {spec.name: spec for command in COMMANDS for spec, _ in table(COMMANDS[command][1]).values()}
    missing = {name for name, spec in specs.items() if spec.flags and not told & set(spec.flags)}
    assert not missing, missing


def test_options_that_the_operators_guide_names_exist() -> None:
    known = {flag for command in COMMANDS for flag in _flags(command)} | _OF_OTHERS
    guides = ("clusters", "operating", "failures")
    text = "".join((ROOT / f"docs/{name}.md").read_text() for name in guides)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= known


def test_the_table_of_portfolios_is_that_of_the_code() -> None:
    text = (ROOT / "docs/sat-jobs.md").read_text()
    table_of_portfolios = text.split("| formula | portfolio |")[1].split("\n\n")[0]
    in_code = {value for name, value in vars(portfolio).items() if name.endswith("_PORTFOLIO")}
    assert set(re.findall(r"`([^`]*\*)` \|$", table_of_portfolios, re.MULTILINE)) == in_code


#: page of a paper in docs/results -> the paper's numbers of tables and of figures
_PUBLISHED = {"euro-par": (2, 6), "glb": (2, 11), "mebf": (7, 16), "sd": (2, 9), "cp": (1, 0)}
_VERDICTS = ("same", "better", "worse", "direction", "open", "not comparable", "not possible", "no number")


@pytest.mark.parametrize(("paper", "counts"), _PUBLISHED.items())
def test_every_table_and_figure_of_a_paper_has_a_row_with_a_verdict(
    paper: str, counts: tuple[int, int]
) -> None:
    text = (ROOT / f"docs/results/{paper}.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    said = set[tuple[str, int]]()
    for row in rows[2:]:
        assert row[-1].strip().startswith(_VERDICTS), row
        assert "±" in row[-2] or "direction" not in row[-1], f"a direction has its interval beside it: {row}"
        for kind, numbers in re.findall(r"(Table|Fig\.) (\d+(?:(?: to |, )\d+)*)", row[0]):
            for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
                said |= {(kind, number) for number in range(int(first), int(last or first) + 1)}
    assert said == {
        (kind, 1 + number)
        for kind, count in zip(("Table", "Fig."), counts, strict=True)
        for number in range(count)
    }


@pytest.mark.parametrize("paper", _PUBLISHED)
def test_experiments_that_pages_of_papers_name_exist(paper: str) -> None:
    text = (ROOT / f"docs/results/{paper}.md").read_text()
    commands = "".join(line for line in text.splitlines(keepends=True) if line.startswith("    "))
    found = {"batch ": "mallob_py/batch/experiments", "": "mallob_py/experiments"}
    named = re.findall(r"mallob-py (batch |)experiment ([a-z]+)", commands)
    assert named
    assert all((ROOT / found[kind] / f"{name}.py").exists() for kind, name in named)
    assert all((ROOT / path).exists() for path in re.findall(r"scripts/\S+\.py", text))
    rows = [line.split("|") for line in text.splitlines() if line.startswith("|")]
    if "experiment" in (column := [cell.strip() for cell in rows[0]]):
        cells = [row[column.index("experiment")] for row in rows[2:]]
        ours = {name for cell in cells for name in re.findall(r"`([a-z]+)`", cell)}
        assert all(any((ROOT / folder / f"{name}.py").exists() for folder in found.values()) for name in ours)


#: flags of pip, mpiexec, srun and the benchmarks
_OF_OTHERS = {
    "--upgrade", "--only", "--bind-to", "--cpu-bind", "--mpi", "--signal", "--kill-on-bad-exit", "--no-kill",
    "--with-ft", "--dependency", "--exclude", "--nodes", "--no-shell", "--ntasks",
}  # fmt: skip


def test_the_table_of_fields_of_job_files_is_that_of_the_code() -> None:
    rows = [
        f"| `{name}` | {be} | {f'`{default}`' if default else ''} | {meaning} |"
        for name, be, default, meaning in field_table()
    ]
    table = "\n".join(["| field | must be | default | |", "|---|---|---|---|", *rows])
    assert table in (ROOT / "docs/job-files.md").read_text(), f"docs/job-files.md should have:\n{table}"


def test_errors_that_the_operators_guide_explains_are_in_the_code() -> None:
    """Errors are the first cells of tables; `...` stands for a part that varies."""
    text = (ROOT / "docs/failures.md").read_text().partition("## It does not start")[2]
    cells = re.findall(r"^\| (`[^`]+`(?:, `[^`]+`)*) \|", text, re.MULTILINE)
    assert len(cells) == text.count("\n| `"), "a first cell is messages, with commas between them"
    explained = [error.strip() for cell in cells for error in re.findall(r"`([^`]+)`", cell)]
    assert len(explained) > 100
    pieces = [*_texts_of_the_code(), "unrecognized arguments"]  # the last is an error of argparse itself
    for error in explained:
        for fragment in (part.strip() for part in error.split("...")):
            assert not fragment or any(fragment in piece for piece in pieces), f"{fragment!r} of {error!r}"


def test_the_table_of_events_is_that_of_the_code() -> None:
    assert table_of_events() in (ROOT / "docs/log-events.md").read_text(), table_of_events()


def test_what_is_written_to_logs_is_declared_and_all_that_is_declared_is_written() -> None:
    written = list(_events_of_the_code())
    known = {event.value: set(event.fields) for event in LogEvent}
    assert [(name, fields) for name, fields in written if not fields <= known.get(name, set())] == []
    # The log itself writes these two events, without naming them.
    assert known.keys() - {name for name, _ in written} == {LogEvent.CONTINUED, LogEvent.DROPPED}


def test_no_reader_of_logs_compares_an_event_with_a_name_of_its_own() -> None:
    names = {event.value for event in LogEvent}
    # The simulator is left out: it gets events directly from the machines, and reads no log.
    for file in (file for file in sources("mallob_py", "scripts") if file.path.parent.name != "simulation"):
        for node in file.nodes:
            if isinstance(node, ast.Compare) and re.search(r"\bevent\b['\]]*$", ast.unparse(node.left)):
                constants = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
                assert not constants & names, f"{file.name}:{node.lineno}"


def _events_of_the_code() -> Iterator[tuple[str, set[str]]]:
    """Yield, for each place that writes an event, its name and the fields that its function mentions."""
    for file in sources("mallob_py"):
        for function in file.nodes:
            if not isinstance(function, ast.FunctionDef):
                continue
            dicts = {
                ast.unparse(one.targets[0]): one.value
                for one in ast.walk(function)
                if isinstance(one, ast.Assign) and isinstance(one.value, ast.Dict)
            }
            for node in ast.walk(function):
                if not isinstance(node, ast.Call) or not re.search(
                    r"^((\w+\.)?(Log|Note)|self\._log|.*log\.write)$", ast.unparse(node.func)
                ):
                    continue
                for name, fields in pairwise(node.args):
                    if (event := _event_of(name)) is not None:
                        given = dicts.get(ast.unparse(fields), fields)
                        keys = given.keys if isinstance(given, ast.Dict) else []
                        yield event, {str(key.value) for key in keys if isinstance(key, ast.Constant)}


def _event_of(name: ast.expr) -> str | None:
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        return name.value
    if ast.unparse(name).startswith("LogEvent."):
        return LogEvent[ast.unparse(name).removeprefix("LogEvent.")].value
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_documents_link_to_exist(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


def _names_in(path: Path) -> set[str]:
    """Return the names of all functions and classes of a file, methods as Class.method."""
    names = set[str]()
    for node in source(path).tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}.{one.name}" for one in ast.walk(node) if isinstance(one, ast.FunctionDef)}
    return names


def test_each_mechanism_is_in_the_file_and_function_that_its_row_names() -> None:
    rows = [
        line.strip("|\n ").split(" | ")
        for line in (ROOT / "docs/results/mechanisms.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| section ")
    ]
    assert len(rows) > 85
    for _, mechanism, where in rows:
        assert "`" in where or where.startswith("not "), (
            f"{mechanism}: neither a place nor that it is not there"
        )
        for path, names in re.findall(
            r"`((?:mallob_py|apps|tests|scripts)/\S+\.py)`(?:: ((?:`[\w.]+`(?:, )?)+))?", where
        ):
            there = _names_in(ROOT / path)
            for name in re.findall(r"`([\w.]+)`", names):
                assert name in there, f"{mechanism}: {path} has no {name}"
        for path in re.findall(r"`((?:mallob_py|apps|tests|scripts|docs)/\S+)`", where):
            assert (ROOT / path).exists(), f"{mechanism}: there is no {path}"


#: document -> planned number of words; a tenth more is accepted
_WORDS = {
    "CHANGELOG.md": 300,
    "CONTRIBUTING.md": 1800,
    "README.md": 1800,
    "docs/bags.md": 2000,
    "docs/batch-live.md": 2200,
    "docs/batch-policies.md": 730,
    "docs/batch.md": 1000,
    "docs/clusters.md": 260,
    "docs/commands.md": 600,
    "docs/comparison.md": 510,
    "docs/failures.md": 3000,
    "docs/for-a-group.md": 900,
    "docs/functions.md": 900,
    "docs/groups.md": 320,
    "docs/incremental.md": 300,
    "docs/job-files.md": 800,
    "docs/log-events.md": 900,
    "docs/mallob-clients.md": 400,
    "docs/maxsat.md": 900,
    "docs/operating.md": 2240,
    "docs/papers.md": 145,
    "docs/python.md": 900,
    "docs/sat-jobs.md": 1800,
    "docs/service.md": 800,
    "docs/shares.md": 900,
    "docs/smt.md": 700,
    "docs/tasks.md": 700,
    "docs/web.md": 1000,
    "docs/writing-an-application.md": 2800,
    "docs/results/cp.md": 290,
    "docs/results/euro-par.md": 700,
    "docs/results/glb.md": 690,
    "docs/results/mebf.md": 610,
    "docs/results/mixed.md": 560,
    "docs/results/mechanisms.md": 1560,
    "docs/results/sd.md": 600,
}


@pytest.mark.parametrize(("document", "planned"), _WORDS.items())
def test_a_document_is_as_long_as_planned(document: str, planned: int) -> None:
    words = len((ROOT / document).read_text().split())
    assert words <= 1.1 * planned, f"{document} has {words} words; measurements belong into docs/lab/"


def test_lab_notes_are_dated_and_few() -> None:
    notes = [path.read_text() for path in (ROOT / "docs/lab").glob("*.md")]
    assert all(re.match(r"# .*\b20\d\d-\d\d-\d\d$", note, re.MULTILINE) for note in notes)
    assert sum(len(note.split()) for note in notes) <= 8000


def _flags(command: str) -> set[str]:
    specs = [spec for spec, _ in table(COMMANDS[command][1]).values()]
    switches = {f"--no-{spec.name}" for spec in specs if spec.is_switch}
    return {"--help", *(flag for spec in specs for flag in spec.flags), *switches}


def _texts_of_the_code() -> Iterator[str]:
    """Yield all string constants; an f-string gives a text for each part between placeholders."""
    for file in sources("mallob_py", "apps"):
        for node in file.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _run(folder: Path, name: str, place: str, *options: str) -> Finished:
    """Run a job of an application in a folder."""
    path = os.pathsep.join([str(folder), str(ROOT), str(ROOT / "apps")])
    env = {"MALLOB_PY_APPS": f"{name}={place}", "PYTHONPATH": path}
    return run("run", name, *options, cwd=folder, env=env)


@needs_mpiexec
@pytest.mark.parametrize(("numbers", "code", "called"), [("1001 2431", 0, "DIVISOR"), ("8 9", 1, "NONE")])
def test_the_example_application_runs_without_a_service(
    numbers: str, code: int, called: str, package: Path, tmp_path: Path
) -> None:
    (tmp_path / "numbers.txt").write_text(numbers)
    done = _run(package, "DIVISOR", "divisor:Divisor", "-n", "2", str(tmp_path / "numbers.txt"))
    assert done.code == code, done.err
    assert json.loads(done.out)["result"]["resultstring"] == called


@needs_mpiexec
@pytest.mark.parametrize("ranks", ["1", "3"])
def test_the_example_of_a_head_finds_its_number_with_and_without_workers_below(
    ranks: str, package: Path
) -> None:
    done = _run(package, "BISECTION", "bisection:Bisection", "-n", ranks, "--set", "number=1000000")
    assert json.loads(done.out)["result"]["solution"] == [1000], done.err


@pytest.mark.parametrize(("document", "package"), [("kit", kit), ("python", mallob_py)])
def test_the_reference_names_all_that_a_package_offers(document: str, package: ModuleType) -> None:
    text = (ROOT / f"docs/{document}.md").read_text()
    named = re.findall(rf"^::: {package.__name__}\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted([*package.__all__, *getattr(package, "_NEEDS", ())])


@pytest.fixture(scope="module")
def bag_of_ones_own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that docs/bags.md shows."""
    folder = tmp_path_factory.mktemp("bag")
    for name, content in _BLOCK.findall((ROOT / "docs/bags.md").read_text()):
        (folder / name).write_text(content)
    return folder


@needs_mpiexec
def test_the_bag_of_the_document_runs(bag_of_ones_own: Path) -> None:
    weights = ("--set", "weights=[1,2,3,4,5,6,7,8,9]", "--set", "target=15")
    done = _run(bag_of_ones_own, "SUBSETS", "subsets:SubsetsApplication", "-n", "2", *weights)
    assert done.code == 0, done.err
    sums = (sum(subset) for size in range(10) for subset in itertools.combinations(range(1, 10), size))
    assert json.loads(done.out)["result"]["value"] == list(sums).count(15)


@needs_mpiexec
def test_the_search_of_the_document_finds_the_best(bag_of_ones_own: Path) -> None:
    items = [[12, 24], [7, 13], [11, 23], [8, 15], [9, 16]]
    given = ("--set", f"items={json.dumps(items)}", "--set", "capacity=26")
    knapsack = ("KNAPSACK", "knapsack:KnapsackApplication", "-n", "2", *given)
    result = json.loads(_run(bag_of_ones_own, *knapsack).out)["result"]
    subsets = [subset for size in range(6) for subset in itertools.combinations(items, size)]
    best = max(sum(item[1] for item in each) for each in subsets if sum(item[0] for item in each) <= 26)
    assert result["value"] == best == sum(item[1] for item in result["items"])
    assert "best, learn" in _run(bag_of_ones_own, *knapsack, "--check-laws").out


def _python_of_the_documents() -> Iterator[tuple[str, str]]:
    """Yield (document, text) of the indented blocks of Python that a reader would copy."""
    for document in DOCUMENTS:
        for block in re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", document.read_text(), re.MULTILINE):
            if block.lstrip("\n").startswith("    from mallob_py import"):
                yield document.name, textwrap.dedent(block)


@pytest.fixture(scope="module")
def folder_of_a_reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder with a service on `.api` and the files that documents name."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "formula.cnf.xz").write_bytes(lzma.compress(b"p cnf 2 2\n1 2 0\n-1 2 0\n"))
    (folder / "formula.wcnf").write_text("h 1 2 0\n3 -1 0\n4 -2 0\n")
    (folder / "script.smt2").write_text("(declare-const p Bool)(assert p)(check-sat)\n")
    (folder / ".api").symlink_to("api")
    with serving(folder) as running:
        for user in (login_name(), "bob"):
            job = {"user": user, "name": "sorter", "literals": [1, 0]}
            running.drop(f"{user}.sorter.json", json.dumps(job))
        yield folder


@needs_mpiexec
@pytest.mark.parametrize(("document", "text"), [*_python_of_the_documents()])
def test_python_that_documents_show_runs(
    document: str, text: str, folder_of_a_reader: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cnf, wcnf = CNF(from_clauses=[[1, 2], [3]]), WCNF(from_file=str(folder_of_a_reader / "formula.wcnf"))
    if "solve_smt" in text:
        pytest.importorskip("z3", reason="the extra `smt` is not installed")
    monkeypatch.chdir(folder_of_a_reader)
    names = {"cnf": cnf, "wcnf": wcnf, "formulas": [cnf, [[1]]], "square": functools.partial(pow, exp=2)}
    exec(text.replace("n=13", "n=6").replace("ranks=4", "ranks=2"), names)
