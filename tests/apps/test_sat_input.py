"""Files of all kinds, raw integers and inline literals, through the application's `read`."""

import bz2
import gzip
import lzma
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mallob_py.kit import InputError, JobInput, input_file
from mallob_py.kit.payload import decode_description, encode_description
from mallob_sat.app import SatApplication, read_formula

TEXT = b"p cnf 3 2\n1 -2 0\n3 0\n"
MARK = 2147483647


def read(path: Path, **configuration: object) -> list[int]:
    literals: list[int] = read_formula(
        JobInput(files=[str(path)], configuration=configuration)
    ).literals.tolist()
    return literals


def error(job: JobInput) -> InputError:
    with pytest.raises(InputError) as caught:
        read_formula(job)
    return caught.value


def file_error(path: Path, **configuration: object) -> str:
    caught = error(JobInput(files=[str(path)], configuration=configuration))
    assert caught.field == "files"
    assert str(path) in caught.message
    return caught.message


COMPRESSED = {
    "gzip": gzip.compress(TEXT),
    "bzip2": bz2.compress(TEXT),
    "xz": lzma.compress(TEXT),
    "lzma": lzma.compress(TEXT, format=lzma.FORMAT_ALONE),
}


@pytest.mark.parametrize("content", [TEXT, *COMPRESSED.values()], ids=["plain", *COMPRESSED])
def test_formats_are_told_apart_by_content_and_not_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "formula.txt"
    path.write_bytes(content)
    assert read(path) == [1, -2, 0, 3, 0]


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 1 << 21])
def test_a_byte_order_mark_before_a_text_is_no_part_of_it(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mallob_py.kit.input_file._BLOCK_BYTES", block_bytes)
    path = tmp_path / "f.cnf"
    marked = b"\xef\xbb\xbf" + TEXT
    for content in (marked, gzip.compress(marked)):
        path.write_bytes(content)
        if block_bytes > len(content) or content is marked:
            assert read(path) == [1, -2, 0, 3, 0]
    path.write_bytes("p cnf 1 1\n1 0\n".encode("utf-16"))
    assert "UTF-16" in file_error(path)


def test_raw_integers_may_begin_like_a_marked_text(tmp_path: Path) -> None:
    path = tmp_path / "f.raw"
    path.write_bytes(b"\xef\xbb\xbf\xff" + np.array([0, 2**31 - 1, 0], dtype="<i4").tobytes())
    configuration = {"content-mode": "raw"}
    formula = read_formula(JobInput(files=[str(path)], configuration=configuration, assumptions=[]))
    assert formula.literals.tolist() == [-0x404411, 0]


def test_a_gzip_file_of_several_members_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "f.gz"
    path.write_bytes(gzip.compress(TEXT[:12]) + gzip.compress(TEXT[12:]) + b"\0" * 20)
    assert read(path) == [1, -2, 0, 3, 0]


@pytest.mark.parametrize("name", list(COMPRESSED))
def test_a_truncated_compressed_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(COMPRESSED[name][:-5])
    assert f"the {name} file is truncated" in file_error(path)


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz"])
def test_a_damaged_compressed_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "f"
    content = bytearray(COMPRESSED[name])
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    assert f"damaged {name} file" in file_error(path)


def test_a_damaged_file_is_called_so_whatever_its_text_looks_like(tmp_path: Path) -> None:
    path = tmp_path / "f"
    content = bytearray(gzip.compress(TEXT.replace(b"-2", b"-x"), compresslevel=0))
    content[-6] ^= 0xFF  # a byte of the checksum
    path.write_bytes(content)
    assert "damaged gzip file" in file_error(path)


def test_a_compressed_file_of_many_blocks_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    clauses = [(v, -v - 1, v + 2) for v in range(1, 60_000)]
    text = "".join(f"{a} {b} {c} 0\n" for a, b, c in clauses)
    path.write_bytes(gzip.compress(f"p cnf 60001 {len(clauses)}\n{text}".encode(), compresslevel=0))
    assert path.stat().st_size > 2 * input_file.COMPRESSED_BLOCK_BYTES
    assert np.array(read(path)).reshape(-1, 4)[:, :3].tolist() == [list(clause) for clause in clauses]


def test_bytes_after_a_compressed_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(COMPRESSED["gzip"] + b"more")
    assert "damaged gzip file" in file_error(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "no such file" in file_error(tmp_path / "absent.cnf")


def test_a_directory_is_named(tmp_path: Path) -> None:
    assert "is a directory" in file_error(tmp_path)


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    assert "the file is empty" in file_error(path)
    path.write_bytes(gzip.compress(b""))
    assert "holds nothing" in file_error(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(TEXT)
    path.chmod(0)
    assert "permission denied" in file_error(path)


def test_formats_that_are_not_supported_are_called_by_name(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"?" * 20)
    assert "zstd files are not supported" in file_error(path)


def test_a_path_with_a_null_byte_is_an_input_error() -> None:
    assert "cannot be read" in error(JobInput(files=["a\0b"])).message


def test_a_named_pipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(COMPRESSED["xz"],))
    writer.start()
    assert read(path) == [1, -2, 0, 3, 0]
    writer.join()


def raw(integers: Sequence[int]) -> bytes:
    return np.array(integers, dtype="<i4").tobytes()


def test_raw_content_holds_clauses_and_assumptions(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(raw([1, -2, 0, 3, 0, MARK, -3, 4, 0]))
    formula = read_formula(JobInput(files=[str(path)], configuration={"content-mode": "raw"}))
    assert formula.literals.tolist() == [1, -2, 0, 3, 0]
    assert formula.assumptions.tolist() == [-3, 4]
    assert (formula.n_vars, formula.n_clauses) == (4, 2)


@pytest.mark.parametrize("mode", ["raw", "RAW"])
@pytest.mark.parametrize(
    ("integers", "clauses", "assumptions"),
    [
        ([1, -2, 0, 3, 0, 0, -3, 4, 0], [1, -2, 0, 3, 0], [-3, 4]),
        ([1, -2, 0, 0, 0], [1, -2, 0], []),
        ([0, 0], [], []),
        ([0, 5, 0], [], [5]),
    ],
)
def test_earlier_clients_open_the_assumptions_by_a_clause_without_literals(
    tmp_path: Path, integers: list[int], clauses: list[int], assumptions: list[int], mode: str
) -> None:
    path = tmp_path / "f"
    path.write_bytes(raw(integers))
    formula = read_formula(JobInput(files=[str(path)], configuration={"content-mode": mode}))
    assert formula.literals.tolist() == clauses
    assert formula.assumptions.tolist() == assumptions


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (raw([1, 0, 0, 2]), "not closed"),
        (raw([1, 0, 0, 2, 0, 3, 0]), "integer 6 follows the 0"),
        (raw([1, 0])[:-1], "whole number of 32-bit"),
        (raw([1, 0]), "no 2147483647 after the clauses"),
        (raw([1, 2, MARK, 0]), "last clause is not closed"),
        (raw([1, 0, MARK, 2]), "assumptions after 2147483647 are not closed"),
        (raw([1, 0, MARK, 2, 0, 3, 0]), "integer 6 follows the 0"),
        (raw([1, 0, MARK, MARK, 0]), "integer 4 opens a second"),
        (raw([1, 0, -MARK, 0, MARK, 0]), "integer 3 is -2147483647"),
        (raw([-(2**31), 0, MARK, 0]), "integer 1 is -2147483648"),
        (raw([-MARK, MARK, 0]), "not closed"),
    ],
)
def test_wrong_raw_content_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    assert words in file_error(path, **{"content-mode": "raw"})


@pytest.mark.parametrize(
    ("literals", "clauses", "assumptions", "n_vars"),
    [
        ([], [], [], 0),
        ([0], [0], [], 0),
        ([1, -2, 0], [1, -2, 0], [], 2),
        ([1, -2, 0, MARK, 0], [1, -2, 0], [], 2),
        ([1, -2, 0, MARK, 5, -1, 0], [1, -2, 0], [5, -1], 5),
        ([MARK, 1, 0], [], [1], 1),
    ],
)
def test_inline_literals_are_read(
    literals: list[int], clauses: list[int], assumptions: list[int], n_vars: int
) -> None:
    formula = read_formula(JobInput(literals=literals))
    assert formula.literals.tolist() == clauses
    assert formula.assumptions.tolist() == assumptions
    assert formula.n_vars == n_vars


@pytest.mark.parametrize(
    ("literals", "words"),
    [
        ([1, 2], "last clause is not closed"),
        ([1, 0, MARK, 2], "not closed by 0"),
        ([1, "2", 0], "integer 2 is '2'"),
        ([1, 1.5, 0], "integer 2 is 1.5"),
        ([True, 0], "integer 1 is True"),
        ([1, None, 0], "integer 2 is None"),
        ([1, 2**40, 0], "integer 2 is 1099511627776"),
        ([1, 10**30, 0], "integer 2 is 1000"),
        ([-MARK, 0], "integer 1 is -2147483647"),
        ("1 2 0", "must be a list"),
    ],
)
def test_wrong_inline_literals_are_refused(literals: list[int], words: str) -> None:
    caught = error(JobInput(literals=literals))
    assert words in caught.message
    assert caught.field == "literals"


def test_exactly_one_source_is_needed(tmp_path: Path) -> None:
    assert error(JobInput()).field == "files"
    assert "2 given" in error(JobInput(files=["a", "b"])).message
    assert error(JobInput(files=["a"], literals=[1, 0])).field == "literals"


def test_payload_survives_the_description_bytes() -> None:
    payload = SatApplication().read(JobInput(literals=[1, -2, 0, MARK, 2, 0]))
    decoded = decode_description(encode_description("SAT", {}, payload)).payload
    assert decoded["literals"].tolist() == [1, -2, 0]
    assert decoded["literals"].dtype == np.int32
    assert decoded["shape"].tolist() == [2, 1]
    assert decoded["shape"].dtype == np.int64
    assert decoded["assumptions"].tolist() == [2]
