"""Parts of the web server that need no server: metrics, sizes of uploads."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mallob_py.service.reply import JobStatistics
from mallob_py.service.status_file import JobStatus, ServiceStatus, UserStatus
from mallob_py.service.tallies import Tallies
from mallob_py.web.metrics import metrics
from mallob_py.web.uploads import TooMuchMemory, decompressed_size

SIZE = 1_000_000
CONTENT = b"c comment\n" * (SIZE // 10)
COMPRESSORS: list[Callable[[bytes], bytes]] = [
    *(gzip.compress, bz2.compress, lzma.compress, lambda data: data),
    lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
]


def status_with(user: str) -> ServiceStatus:
    tallies = Tallies()
    for total_s in (0.0001, 0.02, 0.02, 99999.0):
        tallies.ended("result", JobStatistics(total_s=total_s))
    jobs = (JobStatus(1, user, "a", "running", volume=3), JobStatus(2, user, "b", "waiting"))
    return ServiceStatus(
        *(time.time(), 4, 8, 3, jobs),
        totals=tallies.totals(),
        states={"running": 1, "waiting": 1},
        users={user: UserStatus(2, 3)},
    )


def test_each_line_is_of_prometheus_form() -> None:
    line = re.compile(
        r'# (HELP|TYPE) mallob_py_\w+ .+|mallob_py_\w+(\{\w+="([^"\\]|\\.)*"(,\w+="[^"]*")*\})? \S+'
    )
    for text in (metrics(None, 0), metrics(status_with("u"), 7)):
        assert text.endswith("\n")
        for one in text.splitlines():
            assert line.fullmatch(one), one


def test_a_users_name_cannot_break_out_of_its_label() -> None:
    text = metrics(status_with('a"} 1\\'), 0)
    assert r'mallob_py_user_volume{user="a\"} 1\\"} 3' in text.splitlines()


def test_buckets_are_cumulative() -> None:
    found = re.findall(r'_bucket\{part="total",le="([^"]+)"\} (\d+)', metrics(status_with("u"), 0))
    counts = [int(count) for _, count in found]
    assert counts == sorted(counts)
    assert dict(found)["0.001"] == "1"
    assert dict(found)["0.025"] == "3"
    assert found[-1] == ("+Inf", "4")


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_the_size_is_that_of_the_decompressed_content(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(compress(CONTENT) + (b"" if compress is COMPRESSORS[4] else compress(CONTENT)))
    expected = SIZE if compress is COMPRESSORS[4] else 2 * SIZE
    assert decompressed_size(path, 10 * SIZE) == expected


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_counting_stops_soon_after_the_limit(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(compress(b"\0" * 20 * SIZE))
    assert SIZE < decompressed_size(path, SIZE) < 2 * SIZE


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_damaged_data_is_counted_up_to_the_damage(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "file"
    packed = compress(CONTENT)
    path.write_bytes(packed[: len(packed) // 2])
    assert decompressed_size(path, 10 * SIZE) < SIZE


def test_a_dictionary_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    # The header of a .lzma file whose dictionary has 1.5 GB, and an empty stream.
    path.write_bytes(b"\x5d" + (3 << 29).to_bytes(4, "little") + b"\xff" * 8 + b"\0" * 100)
    with pytest.raises(TooMuchMemory):
        decompressed_size(path, SIZE)
