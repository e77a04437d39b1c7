"""Every fault of a job file gets a message that names the field."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mallob_py.protocol.job_terms import JobTerms
from mallob_py.service.jobs.job_file import (
    FIELD_NAMES,
    InputUse,
    Interruption,
    JobFile,
    JobFileError,
    parse_job,
)
from mallob_py.service.jobs.mallob_clients import is_bridge

APPLICATIONS = {"SAT": InputUse.REVISIONS, "NOOP": InputUse.NONE, "OTHER": InputUse.UNKNOWN}
SMALLEST = {"user": "admin", "name": "job", "application": "NOOP"}


def parse(**fields: Any) -> JobFile:
    job = parse_job(json.dumps({**SMALLEST, **fields}).encode(), APPLICATIONS)
    assert isinstance(job, JobFile)
    return job


def refusal_of(data: bytes) -> JobFileError:
    with pytest.raises(JobFileError) as caught:
        parse_job(data, APPLICATIONS)
    assert caught.value.message
    return caught.value


def refusal(**fields: Any) -> JobFileError:
    return refusal_of(json.dumps({**SMALLEST, **fields}).encode())


def test_smallest_job_gets_all_defaults() -> None:
    job = parse()
    assert job.identity == "admin.job"
    assert job.terms == JobTerms()
    assert (job.arrival_s, job.dependencies, job.literals, job.files) == (0.0, (), None, ())
    assert {key: json.loads(text) for key, text in job.submitted.items()} == SMALLEST


def test_complete_job_is_understood() -> None:
    job = parse(
        application="SAT",
        files=["/tmp/x.cnf.xz"],
        literals=[1, -2, 0, 2147483647, -1],
        priority=0.5,
        **{"wallclock-limit": "5m", "cpu-limit": "2h", "max-demand": 3, "arrival": 1.5},
        dependencies=["admin.first", "a.b.c", "admin.first"],
        configuration={"content-mode": "raw", "deep": [1, {"x": None}]},
        incremental=False,
        done=False,
        precursor="",
        interrupt=False,
        checksum=[1, 2],
        **{"group-id": "g", "description-id": "d"},
    )
    assert job.terms == JobTerms(priority=0.5, wallclock_limit_s=300, cpu_limit_s=7200, max_demand=3)
    assert job.arrival_s == 1.5
    assert job.literals is not None
    assert job.literals.tolist() == [1, -2, 0, 2147483647, -1]
    assert job.dependencies == ("admin.first", "a.b.c")
    assert job.configuration["content-mode"] == "raw"


def test_content_mode_beside_the_configuration_reaches_the_application() -> None:
    assert parse(**{"content-mode": "raw"}).configuration == {"content-mode": "raw"}


def test_content_modes_at_two_places_must_agree() -> None:
    raw = {"content-mode": "raw"}
    assert parse(**raw, configuration=raw).configuration == raw
    assert refusal(**raw, configuration={"content-mode": "text"}).field == "content-mode"


def test_one_file_may_be_named_as_mallob_did_at_first() -> None:
    job = parse(application="SAT", file="/f.cnf")
    assert job.files == ("/f.cnf",)
    assert refusal(file="/f", files=["/g"]).field == "file"


def test_what_the_ipasir_bridge_of_mallob_writes_is_understood() -> None:
    fields = {"application": "SAT", "files": ["/tmp/x.pipe"], "content-mode": "raw", "incremental": True}
    limits = {"wallclock-limit": "0", "cpu-limit": "0"}
    job = parse(**fields, **limits, **{"piped-response": True, "precursor": "ipasir.job-7_0-0"})
    assert is_bridge(job.user, job.name, job.submitted)
    assert job.warnings == ()
    of_bridge = parse(user="ipasir", name="job-7_0-0", **fields)
    assert is_bridge(of_bridge.user, of_bridge.name, of_bridge.submitted)
    for user, name in (("ipasir", "py-7"), ("u", "job-7_0-0")):
        of_others = parse(user=user, name=name, **fields)
        assert not is_bridge(of_others.user, of_others.name, of_others.submitted)


def test_wishes_that_change_nothing_are_told() -> None:
    job = parse(**{"group-id": "1", "description-id": "x", "checksum": [1, 2]})
    assert [warning.partition(":")[0] for warning in job.warnings] == [
        "group-id",
        "description-id",
        "checksum",
    ]
    assert parse(**{"group-id": ""}).warnings == ()
    mine = {"options": "-t=2", "__NV": "7", "seed": 1}
    warnings = parse(application="SAT", literals=[1, 0], configuration=mine).warnings
    assert [warning.split()[1] for warning in warnings] == ["options", "__NV"]
    assert parse(application="OTHER", configuration=mine).warnings == ()


def test_application_is_sat_by_default() -> None:
    job = parse_job(b'{"user":"u","name":"n","files":["/f"]}', APPLICATIONS)
    assert isinstance(job, JobFile)
    assert job.application == "SAT"


def test_byte_order_mark_is_tolerated() -> None:
    assert isinstance(parse_job(b"\xef\xbb\xbf" + json.dumps(SMALLEST).encode(), APPLICATIONS), JobFile)


def test_interruption_needs_user_and_name_only_and_ignores_the_rest() -> None:
    data = b'{"user":"u","name":"n","interrupt":true,"application":"NO","incremental":true,"x":1}'
    assert parse_job(data, APPLICATIONS) == Interruption("u", "n")


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "line 1, column 1"),
        (b'{"user": "u",\n "name" "n"}', "line 2, column 9"),
        (b'{"user": "u"', "not JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b"[]", "is a list"),
        (b"null", "is a null"),
        (b'"text"', "is a string"),
        (b'{"user":"u","name":"n","priority":NaN}', "NaN"),
        (b'{"user":"u","name":"n","priority":-Infinity}', "Infinity"),
        (b'{"user":"u","name":"n","priority":1e999}', "1e999"),
        (b'{"priority":' + b"9" * 5000 + b"}", "digits"),
        (b"[" * 200_000, "nested"),
        (b'{"user":"u"} trailing', "line 1, column 14"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_json_object_is_refused_as_a_file(data: bytes, part: str) -> None:
    error = refusal_of(data)
    assert part in error.message
    assert error.field == ""
    assert error.identity is None


def test_duplicate_keys_are_refused_also_inside() -> None:
    assert refusal_of(b'{"user":"u","name":"n","user":"v"}').field == "user"
    assert refusal_of(b'{"user":"u","name":"n","configuration":{"k":1,"k":1}}').field == "k"


@pytest.mark.parametrize("key", ["user", "name"])
@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        True,
        [],
        {},
        "",
        ".x",
        "~x",
        "a/b",
        "a..b",
        "..",
        "a\0b",
        "a\nb",
        "a\x7f",
        "x" * 201,
        "\ud800",
    ],
    ids=lambda value: ascii(value)[:12],
)
def test_user_and_name_must_be_fit_for_a_file_name(key: str, value: object) -> None:
    error = refusal(**{key: value})
    assert error.field == key
    assert error.identity is None


@pytest.mark.parametrize("key", ["user", "name"])
def test_user_and_name_are_required(key: str) -> None:
    fields = {k: v for k, v in SMALLEST.items() if k != key}
    assert refusal_of(json.dumps(fields).encode()).field == key


def test_user_and_name_together_must_fit_into_a_file_name() -> None:
    assert refusal(user="u" * 150, name="n" * 150).field == "name"
    assert refusal(user="ü" * 75, name="n" * 75).field == "name"
    assert parse(user="u" * 99, name="n" * 100).identity


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("application", ["UNHEARD", "", 1, None]),
        ("priority", [0, -1, -0.5, "1", None, True, 1e-300, 1e300, 10**400]),
        ("wallclock-limit", ["abc", "", "-5s", -5, "5 parsecs", "1e3", None, True, [], 10**400, "٣s", "s"]),
        ("cpu-limit", ["abc", -0.1, "5m5"]),
        ("max-demand", [-1, 1.5, "3", None, True, 2**31]),
        ("arrival", [-1, "now", None, False]),
        ("dependencies", ["a.b", ["nodot"], [1], [".a"], ["a."], ["a/../b.c"], [""], ["a.b", None]]),
        ("interrupt", [1, "true", None]),
        ("incremental", [1, "yes", None]),
        (
            "files",
            ["/f.cnf", [1], [""], ["f.cnf"], ["./f"], ["/f", "../f"], ["a\0b"], [None], ["\ud800"], {}],
        ),
        ("literals", ["1 2 0", [1.0], [True], ["1"], [None], [2**31], [-(2**31) - 1], [10**30]]),
        ("configuration", [[], "x", None, {"big": 2**64}, {"bad": "\ud800"}]),
        ("checksum", [1, [1], [1, 2, 3], ["a", "b"], [1.5, 2]]),
        ("group-id", [1, None]),
        ("description-id", [[]]),
        ("content-mode", [1]),
        ("file", [1, "", "f.cnf", ["/f"]]),
        ("piped-response", ["yes", 1, None]),
        ("internalliterals", ["some job"]),
        ("done", ["no"]),
        ("precursor", [7, "nodot", ".a", "a/../b.c"]),
        ("assumptions", ["1", [1.5], [2**31], {}]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nonsense_in_a_field_is_refused_by_its_name(field: str, values: list[object]) -> None:
    for value in values:
        error = refusal(**{field: value})
        assert error.field == field, value
        assert error.identity == "admin.job"


@pytest.mark.parametrize("field", FIELD_NAMES)
def test_half_a_character_is_refused_wherever_it_stands_or_kept_as_a_text(field: str) -> None:
    for value in ("\ud800", ["\ud800"], [1, "\ud800"], {"a": "\ud800"}):
        data = json.dumps({"user": "admin", "name": "job", "literals": [1, 0]} | {field: value}).encode()
        with contextlib.suppress(JobFileError):
            parse_job(data, APPLICATIONS)


def test_a_job_depends_on_ten_thousand_others_at_most() -> None:
    others = [f"a.{number}" for number in range(10_000)]
    assert len(parse(dependencies=others).dependencies) == 10_000
    message = refusal(dependencies=[*others, "a.one-more"]).message
    assert message == "must be a list of at most 10000 strings, is a list of 10001"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("priority", -1, "must be a number between 1e-09 and 1e+09, is -1"),
        ("max-demand", "3", "must be an integer between 0 and 2147483647, is a string"),
        ("interrupt", None, "must be true or false, is null"),
        ("files", ["/f", 7], "must be a list of strings, item 2 is 7"),
        ("wallclock-limit", [], 'must be a duration such as "5m", or a number of seconds, is a list of 0'),
        ("configuration", "x", "must be a JSON object, is a string"),
        ("interrupt", "\ud800", "must be true or false, holds text that is not valid Unicode"),
        ("files", "\ud800", "must be a list of strings, holds text that is not valid Unicode"),
    ],
)
def test_a_refusal_says_what_a_field_must_be_and_what_is_there(
    field: str, value: object, message: str
) -> None:
    assert refusal(**{field: value}).message == message


@pytest.mark.parametrize("group", ["../up", "a/b", ".hidden", "~x", "two\nlines", "\ud800", "x" * 201])
def test_a_group_has_a_name_as_a_job_has(group: str) -> None:
    error = refusal(group=group)
    assert (error.field, error.group, error.identity) == ("group", "", "admin.job")
    assert "a group is named like a job" in error.message


def test_a_job_is_in_its_group_also_where_it_is_refused() -> None:
    assert (parse().group, parse(group="g h.i").group) == ("", "g h.i")
    assert refusal(group="g", priority=-1).group == "g"
    assert refusal(group=7, priority=-1).group == ""


def test_unknown_field_is_refused_and_the_nearest_suggested() -> None:
    error = refusal(**{"wallclock_limit": "5s"})
    assert error.field == "wallclock_limit"
    assert "'wallclock-limit'" in error.message
    assert "did you mean 'time-limit'" in refusal(timeout=1).message
    assert "leave it out" in refusal(zzzzzz=1).message


def test_unknown_application_is_told_the_known_ones() -> None:
    assert "NOOP, OTHER, SAT" in refusal(application="UNHEARD").message
    assert "did you mean 'SAT'" in refusal(application="sat").message


def test_a_revision_may_add_nothing_or_only_assume() -> None:
    assert parse(application="SAT", incremental=True).incremental
    later = parse(application="SAT", incremental=True, precursor="admin.a", literals=[], assumptions=[1, -2])
    assert (later.precursor, later.assumptions, later.done) == ("admin.a", (1, -2), False)
    assert parse(application="SAT", files=["/f"], assumptions=[3]).assumptions == (3,)


def test_a_file_that_ends_a_chain_names_it_and_adds_nothing() -> None:
    end = parse(incremental=True, precursor="admin.a", done=True, files=[], literals=[])
    assert (end.done, end.precursor) == (True, "admin.a")
    assert refusal(incremental=True, done=True).field == "done"
    assert refusal(precursor="admin.a", done=True).field == "done"
    for key, value in {"files": ["/f"], "literals": [1, 0], "assumptions": [1]}.items():
        assert refusal(incremental=True, precursor="admin.a", done=True, **{key: value}).field == key


def test_what_belongs_to_chains_is_refused_elsewhere() -> None:
    assert refusal(precursor="admin.a").field == "precursor"
    assert refusal(application="SAT", incremental=True, precursor="admin.job").field == "precursor"
    assert refusal(application="NOOP", incremental=True).field == "incremental"
    assert refusal(application="NOOP", assumptions=[1]).field == "assumptions"


def test_input_must_be_given_where_it_is_needed_and_only_there() -> None:
    assert refusal(application="SAT").field == "files"
    assert refusal(application="SAT", files=[]).field == "files"
    assert parse(application="SAT", literals=[]).literals is not None
    assert refusal(application="NOOP", files=["/f"]).field == "files"
    assert refusal(application="NOOP", literals=[1]).field == "literals"
    assert parse(application="NOOP", files=[]).files == ()
    assert parse(application="OTHER").files == ()
    assert parse(application="OTHER", files=["/f"]).files == ("/f",)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        *["user", "name", "application", "files", "literals", "priority", "wallclock-limit", "cpu-limit"],
        *["max-demand", "arrival", "dependencies", "interrupt", "incremental", "precursor", "done"],
        *["group-id", "description-id", "content-mode", "configuration", "checksum", "stranger"],
        *["assumptions", "file", "piped-response"],
    ]
)


@given(st.binary())
def test_any_bytes_give_a_job_or_a_job_file_error(data: bytes) -> None:
    with pytest.raises(JobFileError):
        parse_job(data, APPLICATIONS)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, JSON_VALUES, max_size=6), st.booleans())
def test_any_object_gives_a_job_or_a_job_file_error(fields: dict[str, Any], with_identity: bool) -> None:
    if with_identity:
        fields = {**fields, **SMALLEST}
    with contextlib.suppress(JobFileError):
        parse_job(json.dumps(fields).encode(), APPLICATIONS)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    user=st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True),
    name=st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9_ -]{0,20}", fullmatch=True),
    literals=st.lists(st.integers(-(2**31), 2**31 - 1)),
    priority=st.floats(1e-9, 1e9),
    limit_s=st.floats(0, 1e6),
    max_demand=st.integers(0, 2**31 - 1),
)
def test_valid_jobs_come_back_as_written(
    user: str, name: str, literals: list[int], priority: float, limit_s: float, max_demand: int
) -> None:
    fields = {"user": user, "name": name, "literals": literals, "priority": priority}
    fields |= {"cpu-limit": limit_s, "max-demand": max_demand}
    job = parse_job(json.dumps(fields).encode(), APPLICATIONS)
    assert isinstance(job, JobFile)
    assert job.literals is not None
    assert (job.user, job.name, job.literals.tolist()) == (user, name, literals)
    assert job.terms == JobTerms(priority=priority, cpu_limit_s=limit_s, max_demand=max_demand)
