"""Streams of jobs: drawn jobs respect bounds and seed; files are read right, or refused with the line."""

from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean

import pytest

from mallob_py.simulation.setting import (
    ARRIVALS,
    STREAM_COLUMNS,
    Jobs,
    JobSpec,
    SettingError,
    job_stream,
    read_stream,
)

HOUR_S = 3600.0
HEADER = ",".join(STREAM_COLUMNS)


def drawn(jobs: Jobs | None = None, pes: int = 100, seconds: float = HOUR_S, seed: int = 0) -> list[JobSpec]:
    return job_stream(jobs or Jobs(), pes, seconds, seed)


def bursts(specs: list[JobSpec]) -> list[list[JobSpec]]:
    """Return the jobs grouped by client and arrival time."""
    ordered = sorted(specs, key=lambda spec: (spec.client, spec.arrival_s))
    return [list(group) for _, group in groupby(ordered, lambda spec: (spec.client, spec.arrival_s))]


# --- drawn workloads ---------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_stream_and_another_seed_another() -> None:
    assert drawn(seed=3) == drawn(seed=3)
    assert drawn(seed=3) != drawn(seed=4)


def test_jobs_come_in_order_of_arrival_and_within_the_time() -> None:
    arrivals_s = [spec.arrival_s for spec in drawn(seconds=100.0)]
    assert arrivals_s == sorted(arrivals_s)
    assert arrivals_s[0] > 0.0
    assert arrivals_s[-1] < 100.0


@pytest.mark.parametrize("arrivals", ARRIVALS)
@pytest.mark.parametrize("interarrival_s", [2.5, 10.0])
def test_each_client_brings_bursts_with_the_mean_time_between_them(
    arrivals: str, interarrival_s: float
) -> None:
    specs = drawn(Jobs(arrivals=arrivals, interarrival_s=interarrival_s, clients=3), seconds=10 * HOUR_S)
    for client in range(3):
        own = bursts([spec for spec in specs if spec.client == client])
        assert len(own) == pytest.approx(10 * HOUR_S / interarrival_s, rel=0.07)


def test_uniform_arrivals_are_never_farther_apart_than_twice_the_mean() -> None:
    times = sorted({spec.arrival_s for spec in drawn(Jobs(arrivals="uniform", clients=1))})
    gaps_s = [after - before for before, after in pairwise(times)]
    assert max(gaps_s) <= 10.0
    assert max(gaps_s) > 9.0


def test_bursts_are_of_all_sizes_up_to_the_largest() -> None:
    sizes = {len(burst) for burst in bursts(drawn(Jobs(burst_max=4), seconds=5 * HOUR_S))}
    assert sizes == {1, 2, 3, 4}


@pytest.mark.parametrize(("mean", "size"), [(-1000.0, 1), (1000.0, 6)])
def test_bursts_that_could_hardly_be_drawn_take_the_nearest_bound(mean: float, size: int) -> None:
    specs = drawn(Jobs(burst_mean=mean, burst_deviation=0.1, burst_max=6), seconds=60.0)
    assert {len(burst) for burst in bursts(specs)} == {size}


def test_the_number_of_jobs_of_an_hour_is_near_bursts_times_their_mean_size() -> None:
    """Four clients with a burst every 5 s; normal(1, 2) rounded to 1..8 has a mean of 2.31."""
    assert len(drawn()) == pytest.approx(4 * HOUR_S / 5.0 * 2.31, rel=0.05)


def test_priorities_and_demands_are_equally_likely_between_their_bounds() -> None:
    specs = drawn(Jobs(priority_min=0.2, priority_max=0.6, demand_max=10))
    priorities = [spec.priority for spec in specs]
    assert 0.2 <= min(priorities) < 0.21
    assert 0.59 < max(priorities) <= 0.6
    assert fmean(priorities) == pytest.approx(0.4, abs=0.01)
    assert {spec.max_demand for spec in specs} == set(range(1, 11))


def test_demands_go_up_to_the_number_of_pes_where_no_largest_is_given() -> None:
    assert {spec.max_demand for spec in drawn(pes=5)} == {1, 2, 3, 4, 5}


def test_wallclock_limits_are_normal_and_cut_off_at_their_bounds() -> None:
    limits_s = [spec.wallclock_limit_s for spec in drawn()]
    assert min(limits_s) >= 1.0
    assert max(limits_s) <= 600.0
    assert fmean(limits_s) == pytest.approx(300.0, rel=0.02)
    cut = Jobs(wallclock_min_s=290.0, wallclock_max_s=310.0)
    assert {290.0, 310.0} <= {spec.wallclock_limit_s for spec in drawn(cut)}


@pytest.mark.parametrize("solved", [0.0, 0.3, 1.0])
def test_so_many_jobs_are_solved_and_all_of_these_before_their_limit(solved: float) -> None:
    specs = drawn(Jobs(solved=solved))
    assert fmean(spec.work_s > 0.0 for spec in specs) == pytest.approx(solved, abs=0.02)
    assert all(spec.work_s <= spec.wallclock_limit_s for spec in specs)


def test_solved_jobs_take_a_third_of_their_limit_on_average() -> None:
    """A third is the mean of a uniform number's square."""
    shares = [spec.work_s / spec.wallclock_limit_s for spec in drawn(Jobs(solved=1.0), seconds=5 * HOUR_S)]
    assert fmean(shares) == pytest.approx(1 / 3, rel=0.03)


def test_every_job_has_the_cpu_limit() -> None:
    assert {spec.cpu_limit_s for spec in drawn(Jobs(cpu_limit_s=12.5), seconds=60.0)} == {12.5}


def test_more_clients_than_pes_share_the_pes() -> None:
    assert {spec.client for spec in drawn(Jobs(clients=5), pes=2)} == {0, 1}


def test_a_stream_too_short_for_any_arrival_is_empty() -> None:
    assert drawn(seconds=1e-6) == []


# --- workloads from a file ---------------------------------------------------------------------


def stream(folder: Path, text: str | bytes) -> Path:
    path = folder / "jobs.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


ONE = JobSpec(client=1, name="one", arrival_s=2.5, priority=0.5, wallclock_limit_s=30.0, max_demand=4)


@pytest.mark.parametrize(
    "text",
    [
        "1,one,2.5,0.5,30,4",
        f"{HEADER}\n1,one,2.5,0.5,30,4\n",
        f"{HEADER}\r\n1,one,2.5,0.5,30,4\r\n",
        f"\n{HEADER}\n\n1,one,2.5,0.5,30,4\n\n",
        HEADER.replace(",", ", ") + '\n"1","one","2.5","0.5","30","4.0"\n',
        b"\xef\xbb\xbf" + f"{HEADER}\n 1 ,one, 2.5, .5,3e1, 4\n".encode(),
    ],
)
def test_a_stream_is_read_with_or_without_header_blank_lines_quotes_and_byte_order_mark(
    tmp_path: Path, text: str | bytes
) -> None:
    assert read_stream(stream(tmp_path, text), 8) == [ONE]


def test_clients_beyond_the_pes_are_put_among_them_and_an_empty_file_has_no_jobs(tmp_path: Path) -> None:
    assert [spec.client for spec in read_stream(stream(tmp_path, "9,a,0,1,1,1\n"), 4)] == [1]
    assert read_stream(stream(tmp_path, ""), 4) == []
    assert read_stream(stream(tmp_path, f"{HEADER}\n"), 4) == []


def test_jobs_of_a_file_are_put_in_order_and_those_after_the_end_left_out(tmp_path: Path) -> None:
    path = stream(tmp_path, "0,c,9,1,5,1\n0,b,3,1,5,1\n0,a,1,1,5,1\n0,d,10,1,5,1\n")
    specs = drawn(Jobs(stream=str(path), cpu_limit_s=7.0), seconds=10.0)
    assert [spec.name for spec in specs] == ["a", "b", "c"]
    assert {spec.cpu_limit_s for spec in specs} == {7.0}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1,one,2.5,0.5,30", "5 columns instead of"),
        ("1,one,2.5,0.5,30,4,5", "7 columns instead of"),
        ("one", "1 columns instead of"),
        ("x,one,2.5,0.5,30,4", "client 'x' is not a number"),
        ("-1,one,2.5,0.5,30,4", "client '-1' is not a finite number of at least 0"),
        ("1.5,one,2.5,0.5,30,4", "client '1.5' is not a whole number"),
        ("1,one,soon,0.5,30,4", "arrival_s 'soon' is not a number"),
        ("1,one,,0.5,30,4", "arrival_s '' is not a number"),
        ("1,one,-2,0.5,30,4", "arrival_s '-2' is not a finite number"),
        ("1,one,nan,0.5,30,4", "arrival_s 'nan' is not a finite number"),
        ("1,one,2.5,0,30,4", "priority must be above 0"),
        ("1,one,2.5,inf,30,4", "priority 'inf' is not a finite number"),
        ("1,one,2.5,0.5,-30,4", "wallclock_limit_s '-30' is not a finite number"),
        ("1,one,2.5,0.5,30,4.5", "max_demand '4.5' is not a whole number"),
        ("1,one,2.5,0.5,30,-4", "max_demand '-4' is not a finite number"),
        ('1,"one,2.5,0.5,30,4', "unexpected end of data"),
        (f"1,{'x' * 200_000},2.5,0.5,30,4", "field larger than field limit"),
        (HEADER, "priority 'priority' is not a number"),
    ],
)
def test_a_bad_line_is_refused_by_its_number_and_column(tmp_path: Path, line: str, complaint: str) -> None:
    path = stream(tmp_path, f"{HEADER}\n\n0,good,0,1,1,1\n{line}\n")
    with pytest.raises(SettingError) as caught:
        read_stream(path, 8)
    assert str(caught.value).startswith(f"{path}, line 4: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_line_counts_in_the_file_where_a_name_spans_two(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="line 3: priority"):
        read_stream(stream(tmp_path, '0,"a\nb",0,1,1,1\n0,c,0,x,1,1\n'), 8)


@pytest.mark.parametrize(
    "header", ["client,name,priority,arrival_s,wallclock_limit_s,max_demand", "client,name"]
)
def test_a_header_with_other_columns_is_refused(tmp_path: Path, header: str) -> None:
    with pytest.raises(SettingError, match=f"line 1: the columns must be {', '.join(STREAM_COLUMNS)}"):
        read_stream(stream(tmp_path, f"{header}\n0,a,0,1,1,1\n"), 8)


def test_a_stream_that_cannot_be_read_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"none\.csv cannot be read: No such file"):
        read_stream(tmp_path / "none.csv", 8)
    with pytest.raises(SettingError, match="cannot be read: Is a directory"):
        read_stream(tmp_path, 8)
    with pytest.raises(SettingError, match=r"jobs\.csv is not text in UTF-8"):
        read_stream(stream(tmp_path, b"0,\xff,0,1,1,1\n"), 8)
