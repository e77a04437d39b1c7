"""Proofs as users get them: written by real ranks, checked by `check-proof`."""

import gzip
import json
import os
import signal
from pathlib import Path

import pytest
from running import DEADLINE_S, ROOT, Finished, needs_mpiexec, read_until, run, serving, started

from mallob_sat.generate import commutativity, pigeonhole, planted

pytestmark = needs_mpiexec

SAT, UNSAT, UNKNOWN, ERROR = 10, 20, 0, 2
EXAMPLES = ROOT / "apps" / "mallob_sat" / "examples"


def formula(folder: Path, text: str) -> Path:
    path = folder / "formula.cnf"
    path.write_text(text)
    return path


def assert_verified(formula_path: Path, proof: Path) -> None:
    checked = run("check-proof", formula_path, proof)
    assert checked.code == 0, checked.out + checked.err
    assert checked.out.startswith("VERIFIED")


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


@pytest.mark.parametrize("ranks", [1, 2])
def test_unsatisfiable_comes_with_a_proof_that_is_verified(ranks: int, tmp_path: Path) -> None:
    example, proof = EXAMPLES / "tiny_unsat.cnf.gz", tmp_path / "proof.lrat"
    done = run("solve", "-n", str(ranks), "--proof", proof, example)
    assert (done.code, done.answer) == (UNSAT, "s UNSATISFIABLE"), done.err
    assert names(tmp_path) == {"proof.lrat"}
    assert_verified(example, proof)


def test_several_solver_processes_and_a_relative_path(tmp_path: Path) -> None:
    path = formula(tmp_path, pigeonhole(6).text("holes"))
    done = run("solve", "-n", "2", "--threads", "2", "--proof", "proof", path, cwd=tmp_path)
    assert done.code == UNSAT, done.err
    assert names(tmp_path) == {"formula.cnf", "proof"}
    assert_verified(path, tmp_path / "proof")


def test_drat_is_written_if_asked_for(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    arguments = ("-n", "1", "--proof", proof, "--proof-format", "drat")
    assert run("solve", *arguments, formula(tmp_path, pigeonhole(5).text("holes"))).code == UNSAT
    assert proof.read_text().splitlines()[-1] == "0"


@pytest.mark.parametrize(
    ("text", "limit", "code"),
    [(planted(60, 240, seed=1).text("easy"), "1h", SAT), (pigeonhole(14).text("hard"), "1s", UNKNOWN)],
    ids=["satisfiable", "time limit"],
)
def test_without_that_answer_no_proof_is_left(text: str, limit: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "proof").write_text("of an earlier run")
    path = formula(tmp_path, text)
    done = run("solve", "-n", "2", "--time-limit", limit, "--proof", tmp_path / "proof", path)
    assert done.code == code, done.err
    assert names(tmp_path) == {"formula.cnf"}


def test_a_signal_leaves_no_unfinished_proof(tmp_path: Path) -> None:
    path = formula(tmp_path, pigeonhole(14).text("hard"))
    with started("solve", "-n", "2", "--proof", tmp_path / "proof", path) as (process, _):
        read_until("worker", process)
        assert len(names(tmp_path)) == 2
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
    assert names(tmp_path) == {"formula.cnf"}


def assert_one_error(done: Finished, complaint: str) -> None:
    assert done.code == ERROR
    assert len(done.err.splitlines()) == 1, done.err
    assert complaint in done.err
    assert "s UNSATISFIABLE" not in done.out


def test_a_proof_that_cannot_be_written_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    path = formula(tmp_path, "p cnf 1 2\n1 0\n-1 0\n")
    done = run("solve", "-n", "2", "--proof", tmp_path / "none" / "proof", path)
    assert_one_error(done, "No such file or directory")
    assert_one_error(run("solve", "-n", "2", "--proof", "/dev/null", path), "no regular file")
    assert os.path.exists("/dev/null")


def test_the_service_writes_proofs_and_tidies_up(tmp_path: Path) -> None:
    path = tmp_path / "formula.cnf.gz"
    path.write_bytes(gzip.compress(pigeonhole(6).text("holes").encode()))
    with serving(tmp_path / "service", ranks=2) as service:
        folder = service.box() / "results"
        reply = service.ask("proved", files=[str(path)], configuration={"proof": "proof"})
        assert reply["result"]["resultcode"] == UNSAT, json.dumps(reply)
        assert reply["result"]["result-files"] == {"proof": str(folder / "proof")}
        assert names(folder) == {"proof"}
        assert_verified(path, folder / "proof")

        path.write_bytes(gzip.compress(pigeonhole(14).text("hard").encode()))
        limited = {"wallclock-limit": "1s", "configuration": {"proof": str(folder / "other")}}
        reply = service.ask("limited", files=[str(path)], **limited)
        assert reply["result"]["resultcode"] == UNKNOWN, json.dumps(reply)
        assert "result-files" not in reply["result"]
        assert names(folder) == {"proof"}

        nowhere = {"proof": "none/proof"}
        reply = service.ask("nowhere", files=[str(path)], configuration=nowhere)
        assert "No such file" in reply["error"]["message"]
        assert service.stop() == 0


def test_a_proof_is_verified_of_a_job_that_takes_turns_with_others(tmp_path: Path) -> None:
    path = formula(tmp_path, commutativity(6).text("circuits"))
    with serving(tmp_path / "service", "--slice", "100ms", ranks=2) as service:
        for name in ("one", "two", "three"):
            service.submit(name, application="SLEEP")
            job = service.await_event("accepted", name=name)["job"]
            service.await_event("started", job=job)
        reply = service.ask("proved", files=[str(path)], configuration={"proof": "proof"})
        assert reply["result"]["resultcode"] == UNSAT, json.dumps(reply)
        service.await_event("suspended", job=reply["internal_id"])
        assert_verified(path, service.box() / "results" / "proof")
