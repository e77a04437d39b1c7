"""Requests of SAT jobs beyond a model, by `solve` and by job files."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Finished, Running, needs_mpiexec, poll_until, run, serving
from waiting import growing

from mallob_sat.generate import planted

pytestmark = needs_mpiexec

SAT, UNSAT, ERROR = 10, 20, 2
#: formula of three variables: 1 and 2 are not both false, and 3 is free
THREE = "p cnf 3 1\n1 2 0\n"


def write(folder: Path, text: str, name: str = "formula.cnf") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def blocks(done: Finished) -> list[list[int]]:
    """Return the solutions in the `v` lines."""
    words = [word for line in done.out.splitlines() if line.startswith("v") for word in line.split()[1:]]
    found: list[list[int]] = [[]]
    for literal in map(int, words):
        if literal:
            found[-1].append(literal)
        else:
            found.append([])
    assert found.pop() == []
    return found


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# --- the command solve ---------------------------------------------------------------------------


def test_a_portfolio_decides_who_answers(tmp_path: Path) -> None:
    done = run("solve", "-n", "1", "--portfolio", "(e)*", write(tmp_path, planted(60, 240, 1).text("")))
    assert done.code == SAT
    assert "by ergo" in done.out
    done = run("solve", "-n", "1", "--portfolio", "(e", write(tmp_path, THREE))
    assert (done.code, done.out) == (ERROR, "")
    assert done.err.startswith("mallob-py solve: --portfolio: portfolio '(e', character 1: ")


@pytest.mark.parametrize("ranks", ["1", "4"])
def test_all_solutions_are_printed_each_as_v_lines(ranks: str, tmp_path: Path) -> None:
    path = write(tmp_path, THREE)
    done = run("solve", "-n", ranks, "--solutions", "all", path)
    assert (done.code, done.answer) == (SAT, "s SATISFIABLE"), done.err
    assert len(blocks(done)) == 6
    assert "c 6 solutions; no others" in done.out
    projected = run("solve", "-n", ranks, "--solutions", "all", "--projection", "2,1", path)
    assert blocks(projected) == [[-2, 1], [2, -1], [2, 1]]
    two = run("solve", "-n", ranks, "--solutions", "2", "--projection", "1,2", "--quiet", path)
    assert len(blocks(two)) == 2


def test_solutions_go_to_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, planted(14, 20, 1).text("many"))
    printed = run("solve", "-n", "3", "--solutions", "all", path)
    done = run("solve", "-n", "3", "--solutions", "all", "--solutions-file", "found", path, cwd=tmp_path)
    assert done.code == SAT, done.err
    assert names(tmp_path) == {"formula.cnf", "found"}
    lines = (tmp_path / "found").read_text().splitlines()
    assert sorted(lines) == sorted(" ".join(map(str, [*one, 0])) for one in blocks(printed))
    assert len(set(lines)) == len(lines) > 100
    assert blocks(done) == []


def test_what_was_found_before_the_time_limit_is_in_the_file(tmp_path: Path) -> None:
    endless = write(tmp_path, planted(300, 600, 1).text("endless"))
    found = tmp_path / "found"
    for limit_s in growing(4.0):
        limits = ("--time-limit", f"{limit_s:g}s", "--solutions", "all", "--solutions-file", found)
        done = run("solve", "-n", "2", *limits, endless)
        if done.code != 0:
            break  # else the limit has come before any solution
    assert (done.code, done.answer) == (SAT, "s SATISFIABLE"), done.err
    assert names(tmp_path) == {"formula.cnf", "found"}
    lines = found.read_text().splitlines()
    assert len(set(lines)) == len(lines) > 0
    assert all(line.endswith(" 0") for line in lines)


def test_a_core_is_written_as_a_formula(tmp_path: Path) -> None:
    path = write(tmp_path, "p cnf 4 5\n3 4 0\n1 2 0\n-1 0\n-3 4 0\n-2 0\n")
    core = tmp_path / "core.cnf"
    done = run("solve", "-n", "2", "--core", core, path)
    assert done.code == UNSAT, done.err
    assert "c a core of 3 clauses" in done.out
    assert core.read_text().splitlines()[0] == "c clauses of the formula: 2 3 5"
    assert names(tmp_path) == {"formula.cnf", "core.cnf"}
    assert run("solve", "-n", "1", core).code == UNSAT
    assert run("solve", "-n", "1", "--core", core, write(tmp_path, THREE)).code == SAT
    assert names(tmp_path) == {"formula.cnf"}


# --- the service ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), "--portfolio", "(e)*", ranks=2) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.output


def ask(service: Running, name: str, literals: list[int], **configuration: Any) -> dict[str, Any]:
    wish = {key.replace("_", "-"): value for key, value in configuration.items()}
    return service.ask(name, literals=literals, configuration=wish)


def test_the_services_portfolio_is_for_jobs_that_name_none(service: Running) -> None:
    assert ask(service, "default", [1, 2, 0])["result"]["solver"] == "ergo"
    assert ask(service, "own", [1, 2, 0], solvers=["glucose4"])["result"]["solver"] == "glucose4"
    assert ask(service, "lasso", [1, 2, 0], portfolio="m(c)*")["result"]["solver"] == "maplecm"
    wrong = ask(service, "wrong", [1, 2, 0], portfolio="m(c")
    assert wrong["error"]["field"] == "configuration"
    assert "character 2" in wrong["error"]["message"]


def test_a_packed_model_comes_in_the_reply_or_beside_it(service: Running, tmp_path: Path) -> None:
    result = ask(service, "packed", [1, 0, -2, 0, 9, 0], model="packed")["result"]
    assert (result["solution-format"], result["variables"]) == ("base64", 9)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(result["solution"]), np.uint8), bitorder="little")
    assert bits[[0, 1, 8]].tolist() == [1, 0, 1]

    huge, units = 40_000_000, 2_500_000  # a formula with fewer literals may not have as many variables
    formula = write(tmp_path, f"p cnf {huge} {units + 1}\n" + "1 0\n" * units + f"{huge} 0\n")
    result = service.ask("huge", files=[str(formula)], configuration={"model": "packed"})["result"]
    assert (result["solution-format"], result["solution-size"]) == ("bytes", huge // 8)
    data = Path(result["solution-file"]).read_bytes()
    assert (len(data), data[0], data[-1]) == (huge // 8, 1, 128)


def test_solutions_come_closed_by_0(service: Running) -> None:
    result = ask(service, "some", [1, 2, 0], solutions="all")["result"]
    assert (result["resultcode"], result["solutions"], result["complete"]) == (SAT, 3, True)
    assert result["solution"] == [-1, 2, 0, 1, -2, 0, 1, 2, 0]
    result = ask(service, "none", [1, 0, -1, 0], solutions="all")["result"]
    assert (result["resultcode"], result["solutions"], result["complete"]) == (UNSAT, 0, True)


def test_an_interrupted_enumeration_leaves_what_it_has_found(service: Running, tmp_path: Path) -> None:
    found = service.box() / "results" / "found"
    endless = write(tmp_path, planted(300, 600, 1).text("endless"))

    def interrupted(name: str, **wish: str) -> dict[str, Any]:
        configuration = {"solutions": "all", "projection": list(range(1, 31)), **wish}
        reply = service.submit(name, files=[str(endless)], configuration=configuration)
        poll_until(lambda: service.interim(name), "an offer")
        service.interrupt(name)
        result = service.reply(reply)["result"]
        assert (result["outcome"], result["resultcode"], result["complete"]) == ("interrupted", SAT, False)
        return result

    result = interrupted("endless")
    assert result["solutions"] == result["solution"].count(0) > 0
    result = interrupted("filed", **{"solutions-file": "found"})
    assert names(found.parent) == {"found"}
    assert 0 < result["solutions"] <= found.read_text().count("\n")
    assert result["solution"] == []


def test_a_core_names_clauses(service: Running) -> None:
    result = ask(service, "core", [3, 0, 1, 0, -1, 2, 0, -2, 0], core=True)["result"]
    assert (result["resultcode"], result["core"], result["core-size"]) == (UNSAT, [2, 3, 4], 3)
