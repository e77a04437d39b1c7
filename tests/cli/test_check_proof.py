"""`mallob-py check-proof`: one line and an exit code that scripts can rely on."""

import lzma
from pathlib import Path

import pytest
from unread_output import code_without_reader

from mallob_py.cli.main import main

FORMULA = "p cnf 2 4\n1 2 0\n1 -2 0\n-1 2 0\n-1 -2 0\n"
PROOF = "5 1 0 1 2 0\n6 0 5 3 4 0\n"


def check(folder: Path, formula: bytes, proof: bytes) -> int:
    (folder / "f.cnf").write_bytes(formula)
    (folder / "proof").write_bytes(proof)
    return main(["check-proof", str(folder / "f.cnf"), str(folder / "proof")])


def test_a_right_proof_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, FORMULA.encode(), PROOF.encode()) == 0
    out = capsys.readouterr().out
    assert out.startswith("VERIFIED: ")
    assert out.count("\n") == 1


def test_both_files_may_be_compressed(tmp_path: Path) -> None:
    assert check(tmp_path, lzma.compress(FORMULA.encode()), lzma.compress(PROOF.encode())) == 0


@pytest.mark.parametrize(
    ("proof", "complaint"),
    [
        (b"5 1 0 1 0\n6 0 5 3 4 0\n", "line 1: the hints lead to no contradiction"),
        (PROOF.encode()[:-3], "line 2: does not end with 0"),
        (b"5 1 0 1 2 0\n", "without the empty clause"),
        (b"", "without the empty clause"),
        (b"a\x0a\x02\0\x02", "step 1: is incomplete"),
    ],
)
def test_a_wrong_proof_is_one_line_with_the_place(
    proof: bytes, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, FORMULA.encode(), proof) == 1
    out = capsys.readouterr().out
    assert out.startswith("NOT VERIFIED: ")
    assert out.count("\n") == 1
    assert complaint in out


@pytest.mark.parametrize("env", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_a_wrong_proof_is_not_verified_if_nobody_reads_so(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "f.cnf").write_text(FORMULA)
    (tmp_path / "proof").write_text("")
    assert code_without_reader("check-proof", str(tmp_path / "f.cnf"), str(tmp_path / "proof"), env=env) == 1


@pytest.mark.parametrize(
    ("formula", "proof", "name"),
    [
        (FORMULA.encode()[:-2], PROOF.encode(), "f.cnf"),
        (b"\xff\xfe", PROOF.encode(), "f.cnf"),
        (FORMULA.encode(), lzma.compress(PROOF.encode())[:-9], "proof"),
    ],
)
def test_what_cannot_be_read_is_exit_code_2(
    formula: bytes, proof: bytes, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, formula, proof) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert str(tmp_path / name) in captured.err


def test_missing_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-proof", str(tmp_path / "none"), str(tmp_path)]) == 2
    assert "none: No such file" in capsys.readouterr().err
    (tmp_path / "f.cnf").write_text(FORMULA)
    assert main(["check-proof", str(tmp_path / "f.cnf"), str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err
