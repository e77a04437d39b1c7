"""Parts of the web server that need no server: metrics, sizes of uploads."""

import bz2
import errno
import gzip
import json
import lzma
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.service import ServiceError
from mallob_py.service.jobs.reply import JobStatistics
from mallob_py.service.telemetry.history import HistoryWriter
from mallob_py.service.telemetry.status import (
    Counters,
    EndedJob,
    GroupStatus,
    JobStatus,
    ServiceStatus,
    UserStatus,
    write_status,
)

pytest.importorskip("prometheus_client", reason="needs the extra web")

from prometheus_client.parser import text_string_to_metric_families

from mallob_py.service.telemetry.measures import MEASURES, fair_shares
from mallob_py.web.jobs import Jobs, status_of
from mallob_py.web.metrics import metrics
from mallob_py.web.receiving import TooMuchMemory, decompressed_size
from mallob_py.web.store import Store
from mallob_py.web.views import summary_of

REPOSITORY = Path(__file__).parents[2]
SIZE = 1_000_000
CONTENT = b"c comment\n" * (SIZE // 10)
COMPRESSORS: list[Callable[[bytes], bytes]] = [
    *(gzip.compress, bz2.compress, lzma.compress, lambda data: data),
    lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
]


def status_with(user: str) -> ServiceStatus:
    counters = Counters()
    for total_s in (0.0001, 0.02, 0.02, 99999.0):
        counters.ended("result", JobStatistics(total_s=total_s, used_pe_s=2.0, used_cpu_s=1.0))
    jobs = (
        JobStatus(1, user, "a", "running", volume=3, demand=8, balanced_priority=3.0),
        JobStatus(2, user, "b", "waiting", demand=8, balanced_priority=1.0),
        JobStatus(3, "other", "c", "queued"),
    )
    return ServiceStatus(
        *(time.time(), 4, 8, 3, jobs),
        totals=counters.totals(),
        states={"running": 1, "waiting": 1, "queued": 1},
        users={user: UserStatus(2, 3), "other": UserStatus(1, 0)},
    )


def samples(status: ServiceStatus | None) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return (name, labels) -> value, as Prometheus reads the page."""
    families = text_string_to_metric_families(metrics(status, 7, 0).decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(status: ServiceStatus, name: str, **labels: str) -> float:
    return samples(status)[f"mallob_py_{name}", frozenset(labels.items())]


def test_without_a_service_only_that_and_the_uploads_are_told() -> None:
    assert samples(None) == {
        ("mallob_py_up", frozenset()): 0.0,
        ("mallob_py_web_upload_bytes", frozenset()): 7.0,
        ("mallob_py_web_loop_turns_per_second", frozenset()): 0.0,
    }


def test_a_users_name_cannot_break_out_of_its_label() -> None:
    user = 'a"} 1\\\n'
    assert value(status_with(user), "user_volume", user=user) == 3


def test_numbers_of_jobs_and_users() -> None:
    status = status_with("u")
    assert value(status, "up") == 1
    assert value(status, "pes", state="idle") == 5
    assert value(status, "jobs", state="held") == 0
    assert value(status, "jobs", state="queued") == 1
    assert value(status, "user_jobs", user="u") == 2
    assert value(status, "user_fair_share", user="u") == 8
    assert value(status, "user_fair_share", user="other") == 0
    assert value(status, "replies_total", outcome="result") == 4
    assert value(status, "pe_seconds_total") == 8
    assert value(status, "cpu_seconds_total") == 4


def test_live_jobs_of_groups_are_counted() -> None:
    status = msgspec.structs.replace(status_with("u"), groups=(GroupStatus("u", 'g"\n', 7),))
    assert value(status, "group_jobs", group='u.g"\n') == 7


def test_groups_with_live_jobs_are_told_to_those_whose_they_are(tmp_path: Path) -> None:
    ended = time.time() - 50.0
    writer = HistoryWriter(tmp_path / "jobs.0")
    (tmp_path / "jobs.0").mkdir()
    for number, (user, group) in enumerate([("u", "g"), ("u", "over"), ("v", "g")]):
        writer.add(EndedJob(number, user, f"j{number}", "result", ended, code=10, group=group))
    writer.flush()
    groups = (GroupStatus("u", "g", 3, running=1, since=ended - 10.0), GroupStatus("v", "g", 1))
    write_status(tmp_path, msgspec.structs.replace(status_with("u"), time=time.time(), groups=groups))
    store = Store(tmp_path)
    jobs = Jobs(tmp_path, 0, store, None)
    told = {(one.user, one.name): (one.ended, one.live, one.running) for one in jobs.overview().groups}
    assert told == {("u", "g"): (1, 3, 1), ("v", "g"): (1, 1, 0)}
    assert [one.user for one in jobs.overview("v").groups] == ["v"]
    assert "group_jobs" not in jobs.service().measures, "names of other users' groups"
    store.close()


def test_buckets_are_cumulative() -> None:
    status = status_with("u")
    counts = [
        count
        for (name, labels), count in samples(status).items()
        if name.endswith("_bucket") and ("part", "total") in labels
    ]
    assert counts == sorted(counts)
    assert value(status, "job_duration_seconds_bucket", part="total", le="0.001") == 1
    assert value(status, "job_duration_seconds_bucket", part="total", le="0.025") == 3
    assert value(status, "job_duration_seconds_bucket", part="total", le="+Inf") == 4
    assert value(status, "job_duration_seconds_count", part="total") == 4


def test_the_guide_tells_of_the_numbers_that_are_here_alone() -> None:
    guide = (REPOSITORY / "docs" / "log-events.md").read_text()
    table = guide.partition("| `mallob_py_...` |")[2].partition("\n\n")[0]
    told = set(re.findall(r"^\| `(\w+)", table, re.MULTILINE))
    page = metrics(status_with("u"), 0, 0).decode()
    there = set(re.findall(r"^# HELP mallob_py_(\w+) ", page, re.MULTILINE))
    assert told == there - {one.name + "_total" * one.is_counter for one in MEASURES}


def test_the_dashboard_asks_for_numbers_that_there_are() -> None:
    dashboard = json.loads((REPOSITORY / "docs" / "grafana.json").read_text())
    there = samples(status_with("u"))
    # values that depend on the host are added, because this service has no ranks
    labels_of = {
        "mallob_py_rank_resident_memory_bytes": {"rank"},
        "mallob_py_loop_turns_per_second": {"host"},
    }
    for name, labels in there:
        labels_of.setdefault(name, set()).update(label for label, _ in labels)
    queries = [target for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 10
    for query in queries:
        asked = re.findall(r"(mallob_py_\w+)\{([^}]*)\}", query["expr"])
        assert len(asked) == query["expr"].count("mallob_py_") > 0, query
        known = set().union(*(labels_of[name] for name, _ in asked))
        for name, selector in asked:
            wanted = set(re.findall(r"(\w+)[!=~]+", selector)) - {"job"}  # Prometheus adds the label `job`
            assert wanted <= labels_of[name], query
        assert set(re.findall(r"\{\{(\w+)\}\}", query["legendFormat"])) <= known, query
    shown = {name for query in queries for name in re.findall(r"mallob_py_\w+", query["expr"])}
    # not shown as a curve: the age of the numbers, and the service's start
    unseen = {f"mallob_py_{name}" for name in ("ranks", "generation", "status_age_seconds")}
    unseen.add("mallob_py_start_time_seconds")
    assert {name for name, _ in there} - unseen <= shown


# --- fair shares ----------------------------------------------------------------------------------


def test_shares_are_by_priority_and_capped_by_demand() -> None:
    assert fair_shares([], [], 8) == []
    assert fair_shares([1.0, 1.0], [8, 8], 8) == [4.0, 4.0]
    assert fair_shares([3.0, 1.0], [8, 8], 8) == [6.0, 2.0]
    assert fair_shares([3.0, 1.0], [2, 8], 8) == [2.0, 6.0]
    assert fair_shares([1.0, 1.0], [2, 3], 8) == [2.0, 3.0]
    assert fair_shares([1.0] * 4, [9] * 4, 2) == [0.5] * 4


@given(st.lists(st.tuples(st.floats(1e-4, 1e4), st.integers(1, 2**31)), max_size=30), st.integers(1, 10_000))
def test_shares_use_all_pes_in_one_proportion(jobs: list[tuple[float, int]], pes: int) -> None:
    priorities, demands = [job[0] for job in jobs], [job[1] for job in jobs]
    shares = fair_shares(priorities, demands, pes)
    assert math.fsum(shares) == pytest.approx(min(pes, sum(demands)))
    free = [share / priority for share, priority, demand in zip(shares, priorities, demands, strict=True)
            if share < demand * (1 - 1e-9)]  # fmt: skip
    capped = [demand / priority for share, priority, demand in zip(shares, priorities, demands, strict=True)
              if share >= demand * (1 - 1e-9)]  # fmt: skip
    if free:
        assert min(free) == pytest.approx(max(free), rel=1e-5)
        assert all(one <= free[0] * (1 + 1e-5) for one in capped)


# --- uploads --------------------------------------------------------------------------------------


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


def test_the_short_form_of_a_reply_has_what_the_application_says_unless_that_is_long() -> None:
    result = {"outcome": "result", "resultcode": 1, "resultstring": "DONE", "solution": [1], "value": 7}
    assert summary_of({"result": result}, None).result == {"value": 7}
    assert summary_of({"result": result | {"text": "x" * 5000}}, None).result == {}


@pytest.mark.parametrize(
    ("number", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.ENOENT, 503)]
)
def test_a_job_that_finds_no_room_is_no_missing_service(number: int, status: int) -> None:
    error = ServiceError("cannot write a job")
    error.__cause__ = OSError(number, os.strerror(number))
    assert status_of(error) == status
