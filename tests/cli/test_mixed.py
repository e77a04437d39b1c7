"""The mixed experiment: its stream, its tables, and a small run of it."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from running import needs_mpiexec

from mallob_py.cli import CommandError, mixed
from mallob_py.cli.mixed import OPTIMISE_S, Arrival, Difficulty, Ended, Played


def test_a_stream_is_drawn_from_its_seed_in_order_and_has_all_kinds() -> None:
    names = ["SAT", "bag"]
    jobs = mixed.stream(1, 200.0, 4, names)
    assert jobs == mixed.stream(1, 200.0, 4, names) != mixed.stream(2, 200.0, 4, names)
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    assert jobs[-1].at_s < 200.0
    assert {job.kind for job in jobs} == set(names)
    assert {job.user for job in jobs} == set(mixed.USERS)


def _played(factor: float, costs: list[tuple[float, int]]) -> Played:
    return Played(
        [
            Ended("SAT", 0, "ada", 0.0, 1.0 * factor, True),
            Ended("SAT", 1, "bob", 2.0, 3.0 * factor, False),
            Ended("MaxSAT", 2, "bob", 3.0, 8.0, True, costs),
        ]
    )


def test_tables_have_means_quotients_and_the_quality_over_time() -> None:
    half = OPTIMISE_S / 2
    ways = {
        "pool": _played(2.0, [(half, 10)]),
        "queue": _played(6.0, [(half, 20)]),
        "alone": _played(1.0, [(0.0, 15), (half, 10)]),
    }
    responses = {row[0]: row[1:] for row in mixed.table_of_responses([ways] * 2, ["SAT", "MaxSAT"]).rows}
    means = ("4.00 ± 0.00", "12.00 ± 0.00", "2.00 ± 0.00")
    assert responses["SAT"] == (4, *means, "3.00 (3.00 .. 3.00)", "2.00 (2.00 .. 2.00)")
    assert responses["MaxSAT"][-2:] == ("1.00 (1.00 .. 1.00)",) * 2
    measures = {row[0]: row[1:] for row in mixed.table_of_measures([ways] * 2).rows}
    par2_s = [(1.0 * factor + 2 * mixed.LIMIT_S) / 2 for factor in (2, 6, 1, 4)]
    assert measures["PAR-2 of formulas [s]"][:3] == tuple(f"{one:.2f} ± 0.00" for one in par2_s[:3])
    assert measures["PAR-2 of formulas [s]"][3] == "2.00 ± 0.00"
    assert measures["cost"][:3] == ("1.00 ± 0.00", "2.00 ± 0.00", "1.00 ± 0.00")
    assert measures["area"][:3] == ("1.50 ± 0.00", "2.00 ± 0.00", "1.25 ± 0.00")
    # Ada's job takes 2 times as long as alone, bob's two jobs (2 + 1) / 2 times on average.
    assert measures["slowdown"][0] == "1.67 ± 0.00"
    assert measures["fairness"][0] == f"{3.5**2 / (2 * (2**2 + 1.5**2)):.2f} ± 0.00"
    assert measures["last answer [s]"] == ("11.00 ± 0.00", "20.00 ± 0.00", "", "9.00 ± 0.00")


def test_formulas_of_a_harder_stream_are_larger() -> None:
    usual, hard = (
        [len(mixed.text_of_formula(random.Random(seed), difficulty)) for seed in range(40)]
        for difficulty in (mixed.USUAL, mixed.HARD)
    )
    assert max(usual) < max(hard)


@needs_mpiexec
@pytest.mark.parametrize("way", mixed.WAYS)
def test_jobs_of_a_stream_are_played_on_a_service(way: str) -> None:
    jobs = [Arrival(kind, place, "ada", 0.1 * place) for place, kind in enumerate(("incremental", "bag"))]
    (chain, bag) = mixed.play(3, jobs, 2, way).ended
    assert (chain.kind, bag.kind) == ("incremental", "bag")
    assert chain.is_answered
    assert bag.is_answered
    assert 0.0 < bag.response_s < 60.0


def test_all_ways_are_played_kept_and_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    played = []

    def play(seed: int, jobs: Sequence[Arrival], _pes: int, way: str, _difficulty: Difficulty) -> Played:
        played.append((seed, way))
        costs = {"MaxSAT": [(1.0, 20), (3.0, 10)]}
        return Played(
            [
                Ended(job.kind, job.number, job.user, job.at_s, 1.0, True, costs.get(job.kind, []))
                for job in jobs
            ]
        )

    monkeypatch.setattr(mixed, "play", play)
    monkeypatch.setattr(mixed, "kinds", lambda: ["SAT", "MaxSAT", "bag"])
    for _ in range(2):
        mixed.run(tmp_path, seconds=100.0, rounds=2)
    assert played == [(seed, way) for seed in range(2) for way in mixed.WAYS]
    responses, _ = (table["rows"] for table in json.loads((tmp_path / "mixed.json").read_text()))
    assert [row[0] for row in responses] == ["SAT", "MaxSAT", "bag", "all"]
    assert (tmp_path / "mixed.png").stat().st_size > 0


def test_a_time_in_which_no_job_arrives_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no job arrives in that time"):
        mixed.run(tmp_path, seconds=0.001)
