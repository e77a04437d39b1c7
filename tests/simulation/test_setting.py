"""A setting is one TOML file: missing values have defaults, and errors name the wrong value."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mallob_py.protocol.config import Config, Matching
from mallob_py.simulation.setting import Faults, Jobs, Network, Processes, Setting, SettingError, read_setting

TABLES = {"network": Network, "processes": Processes, "faults": Faults, "jobs": Jobs, "protocol": Config}


def written(folder: Path, text: str) -> Path:
    path = folder / "setting.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str) -> str:
    path = written(folder, text)
    with pytest.raises(SettingError) as caught:
        read_setting(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(str(path))


def defaults(value: object, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of all fields."""
    assert isinstance(value, msgspec.Struct)
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, msgspec.Struct):
            yield from defaults(field, f"{before}{name}.")
        else:
            yield before + name, field


def test_an_empty_file_is_the_default_setting(tmp_path: Path) -> None:
    assert read_setting(written(tmp_path, "")) == Setting()


@pytest.mark.parametrize(("name", "value"), [pair for pair in defaults(Setting()) if pair[1] is not None])
def test_every_default_is_a_value_that_a_file_may_give(tmp_path: Path, name: str, value: object) -> None:
    *table, field = name.split(".")
    head = f"[{table[0]}]\n" if table else ""
    text = f"{head}{field} = {msgspec.json.encode(value).decode()}"
    assert read_setting(written(tmp_path, text)) == Setting()


def test_the_default_system_is_the_papers() -> None:
    setting = Setting()
    assert (setting.pes, setting.seconds, setting.jobs.clients) == (1536, 3600.0, 4)
    assert (setting.jobs.interarrival_s, setting.jobs.arrivals) == (5.0, "poisson")
    assert setting.protocol == Config()


def test_what_a_file_says_replaces_defaults_and_nothing_else(tmp_path: Path) -> None:
    text = """
        pes = 7
        seconds = 20
        capacities = [4, 2]
        [network]
        jitter_us = 0
        [jobs]
        stream = "jobs.csv"
        [protocol]
        matcher = "routing-tree"
    """
    assert read_setting(written(tmp_path, text)) == Setting(
        pes=7,
        seconds=20.0,
        capacities=(4, 2),
        network=Network(jitter_us=0.0),
        jobs=Jobs(stream="jobs.csv"),
        protocol=Config(matcher=Matching.ROUTING_TREE),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("pse = 3", ": Object contains unknown field `pse`"),
        ("[netwrok]", ": Object contains unknown field `netwrok`"),
        *(
            (f"[{table}]\nnonsense = 1", f": {table}: Object contains unknown field `nonsense`")
            for table in TABLES
        ),
        ('pes = "many"', ": pes: Expected `int`, got `str`"),
        ("pes = 2.5", ": pes: Expected `int`, got `float`"),
        ("seconds = true", ": seconds: Expected `float`, got `bool`"),
        ("jobs = 3", ": jobs: Expected `object`, got `int`"),
        ("capacities = 2", ": capacities: Expected `array`, got `int`"),
        ('[protocol]\nreuse = "some"', ": protocol.reuse: Invalid enum value 'some'"),
    ],
)
def test_unknown_fields_and_wrong_types_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    assert refused(tmp_path, text) == complaint


@pytest.mark.parametrize(
    "text",
    [
        *(
            "pes = 0",
            "pes = 2000000",
            "pes_per_host = 0",
            "seed = -1",
            "capacities = []",
            "capacities = [1, 0]",
        ),
        *("seconds = 0", "seconds = -1.0", "seconds = inf", "seconds = nan", "seconds = 1e10"),
        *("network.other_host_us = -1", "network.jitter_us = inf", "network.handling_us = nan"),
        *("processes.start_ms = -0.1", "processes.fetch_ms = inf"),
        *("faults.slow_pes = 1.5", "faults.slow_factor = 0.5", "faults.delayed_messages = -0.1"),
        *("jobs.clients = 0", "jobs.interarrival_s = 0", "jobs.burst_mean = inf", "jobs.burst_max = 0"),
        *("jobs.priority_min = 0", "jobs.wallclock_mean_s = 0", "jobs.demand_max = -1", "jobs.solved = 2"),
        *("protocol.threads = 0", "protocol.matching_delay_s = -1", "protocol.balancing_delay_s = inf"),
        *("protocol.job_cache = -1", "protocol.random_hops = -2", "protocol.hops_max = 0"),
        *("protocol.ageing_s = 0",),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    name = text.partition(" ")[0]
    assert refused(tmp_path, text).startswith((f": {name}: Expected", f": {name}[1]: Expected"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('arrivals = "hourly"', "arrivals 'hourly' is none of poisson, uniform, normal"),
        ("priority_min = 2", "priority_min 2 exceeds priority_max 1"),
        ("wallclock_min_s = 601", "wallclock_min_s 601 exceeds wallclock_max_s 600"),
    ],
)
def test_values_that_contradict_each_other_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    assert refused(tmp_path, f"[jobs]\n{text}") == f": jobs: {complaint}"


@pytest.mark.parametrize("text", ["pes = ", "pes 3", "[jobs", "pes = 1\npes = 2"])
def test_what_is_not_toml_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    assert refused(tmp_path, text).startswith(" is not TOML: ")


def test_bytes_that_are_no_text_are_not_toml(tmp_path: Path) -> None:
    (tmp_path / "setting.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match=r"setting\.toml is not TOML"):
        read_setting(tmp_path / "setting.toml")


def test_a_missing_file_and_a_folder_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(SettingError, match=reason) as caught:
            read_setting(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("pes", "capacities", "expected"),
    [
        (5, (1,), None),
        (4, (2,), [2, 2]),
        (5, (2,), [2, 2, 1]),
        (12, (4, 2), [4, 2, 4, 2]),
        (7, (4, 2), [4, 2, 1]),
        (3, (8,), [3]),
    ],
)
def test_capacities_are_taken_in_turn_until_no_pe_is_left(
    pes: int, capacities: tuple[int, ...], expected: list[int] | None
) -> None:
    assert Setting(pes=pes, capacities=capacities).rank_capacities() == expected
