"""Headers of job scripts: what they request, and a line about each wrong header."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.batch.job import Kind
from mallob_py.batch.live.requests import Done, JobLine, Submit
from mallob_py.batch.live.script import ScriptError, Wishes, on_node, parse_script, slurm_lines
from mallob_py.cli import batch_live, options
from mallob_py.cli.batch_options import BatchSubmitOptions

HEAD = "#!/bin/sh\n"


def test_the_scripts_of_the_publication_are_understood() -> None:
    rigid = (
        "#!/bin/bash\n#JOB_TYPE apgas\n#JOB_CLASS rigid\n#JOB_NAME BC_18_2\n#REQUIRED_TIME 800000\n#NODES 2\n"
    )
    assert parse_script(f"{rigid}\ndir=1\n", "x") == Wishes("BC_18_2", Kind.RIGID, 800.0, 2, 2, 2)
    malleable = "#JOB_CLASS malleable\n#REQUIRED_TIME 800000\n#MIN_NODES 2\n#MAX_NODES 16\n"
    assert parse_script(f"{HEAD}{malleable}run\n", "x") == Wishes("x", Kind.MALLEABLE, 800.0, 2, 2, 16)


def test_comments_are_nobodys_business() -> None:
    head = f"{HEAD}# NODES are many\n#NODES 2\n#TODO: more\n#REQUIRED_TIME 1\n"
    text = f"{head}\ncode\n# a comment\n#SBATCH -n 2\n"
    assert parse_script(text, "x").nodes == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "line 1: a script begins with what runs it"),
        ("echo\n", "line 1: a script begins with what runs it"),
        (
            f"{HEAD}#JOB_CLASS moldable\n#REQUIRED_TIME 1\n",
            "the header #MIN_NODES is missing: a number of nodes",
        ),
        (f"{HEAD}#NODES 1\n", "the header #REQUIRED_TIME is missing: a number of milliseconds"),
        (f"{HEAD}#NODES 0\n#REQUIRED_TIME 1\n", "line 2: #NODES is '0', not a number from 1 to 1000000"),
        (f"{HEAD}#NODES 1\n#REQUIRED_TIME soon\n", "line 3: #REQUIRED_TIME is 'soon', not a number"),
        (f"{HEAD}#NODES 1\n#NODES 2\n", "line 3: #NODES stands in line 2 already"),
        (
            f"{HEAD}#NODES 1\n\necho\n#REQUIRED_TIME 1\n",
            "line 5: #REQUIRED_TIME stands behind the first command",
        ),
        (f"{HEAD}#JOB_CLAS rigid\n", "line 2: no header #JOB_CLAS (did you mean #JOB_CLASS?)"),
        (f"{HEAD}#JOB_CLASS soft\n", "line 2: #JOB_CLASS is 'soft', not one of rigid, moldable, malleable"),
        (
            f"{HEAD}#NODES 1\n#MAX_NODES 2\n#REQUIRED_TIME 1\n",
            "line 3: #MAX_NODES is not for a rigid job, which has #NODES",
        ),
        (
            f"{HEAD}#JOB_CLASS malleable\n#MIN_NODES 3\n#MAX_NODES 2\n#REQUIRED_TIME 1\n",
            "line 4: #MAX_NODES is 2, below #MIN_NODES 3",
        ),
        (
            f"{HEAD}#JOB_CLASS malleable\n#MIN_NODES 3\n#MAX_NODES 4\n#NODES 5\n#REQUIRED_TIME 1\n",
            "line 5: #NODES is 5, not between 3 and 4",
        ),
        (
            f"{HEAD}#JOB_NAME a\a\n#NODES 1\n#REQUIRED_TIME 1\n",
            "line 2: #JOB_NAME is 'a\\x07', not 1 to 200 characters that can be printed",
        ),
        (
            f"{HEAD}#REQUIRED_TIME 1\n#JOB_OUTPUT a%Z\n",
            "line 3: #JOB_OUTPUT contains %Z, which means nothing here: %j is",
        ),
        (
            f"{HEAD}#REQUIRED_TIME 1\n#JOB_ERRORS a%\n",
            "line 3: #JOB_ERRORS contains %, which means nothing here: %j is",
        ),
        (f"{HEAD}#REQUIRED_TIME 1\n#JOB_OUTPUT\n", "line 3: #JOB_OUTPUT names no file"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, error: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parse_script(text, "job")
    assert str(caught.value).startswith(error)


@given(st.lists(st.sampled_from(["#NODES", "#JOB_CLASS", "#REQUIRED_TIME", " 1", " x", "\n", "\0", "²"])))
def test_no_script_does_more_than_be_refused(pieces: list[str]) -> None:
    with contextlib.suppress(ScriptError):
        wishes = parse_script(HEAD + "".join(pieces), "job")
        assert 1 <= wishes.nodes_min <= wishes.nodes <= wishes.nodes_max


def test_the_lines_of_slurm_scripts_are_understood() -> None:
    head = (
        f"{HEAD}#SBATCH --job-name=sweep -n 4\n#SBATCH -t 1:30 --mem=2G\n#SBATCH -N2\n\nrun\n#SBATCH -n 9\n"
    )
    assert parse_script(head, "x") == Wishes("sweep", Kind.RIGID, 90.0, 4, 4, 4)
    assert slurm_lines(head).ignored == ["line 3: #SBATCH --mem=2G"]
    assert parse_script(f"{HEAD}#SBATCH -N 2 -t 10\n", "x") == Wishes("x", Kind.RIGID, 600.0, 2, 2, 2)
    assert parse_script(f"{HEAD}#NODES 3\n#SBATCH -N 2 -t 10\n", "x").nodes == 3


@pytest.mark.parametrize(
    ("line", "slots"),
    [
        ("-n 4 -N 2", 4),
        ("-N 2 --ntasks-per-node=3", 6),
        ("-n 4 --ntasks-per-node=3", 4),
        ("-n 3 -c 2", 6),
        ("--cpus-per-task 4", 4),
        ("--mem=1G", 1),
    ],
)
def test_a_slurm_script_has_a_slot_for_each_core_of_its_tasks(line: str, slots: int) -> None:
    assert parse_script(f"{HEAD}#SBATCH -t 1\n#SBATCH {line}\n", "x").nodes == slots


def test_a_script_without_headers_is_a_job_of_one_slot_and_the_schedulers_time() -> None:
    assert parse_script(f"{HEAD}true\n", "x", default_s=7.0) == Wishes("x", Kind.RIGID, 7.0, 1, 1, 1)


def test_files_and_folder_are_seen_from_where_the_job_was_submitted() -> None:
    text = f"{HEAD}#SBATCH -J sweep -D run -o %x-%j-%%.out -e /logs/%j\n"
    wishes = parse_script(text, "x", default_s=1.0).as_of(12, "/home/me", {})
    assert (wishes.folder, wishes.output) == ("/home/me/run", "/home/me/run/sweep-12-%.out")
    assert wishes.errors == "/logs/12"
    plain = parse_script(f"{HEAD}true\n", "x", default_s=1.0).as_of(12, "/home/me", {})
    assert (plain.folder, plain.output, plain.errors) == ("/home/me", "", "")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("1:30", 90), ("2:00:30", 7230), ("1-12", 129600), ("1-0:30", 88200), ("1-0:0:5", 86405)],
)
def test_times_are_those_of_slurm(text: str, seconds: int) -> None:
    assert parse_script(f"{HEAD}#SBATCH -n 1 --time={text}\n", "x").required_s == seconds


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("#SBATCH -n many -t 1", "line 2: --ntasks=many is not a number from 1"),
        ("#SBATCH -n 1 -c 0", "line 2: --cpus-per-task=0 is not a number from 1"),
        ("#SBATCH -n 1000 -c 9999999 -t 1", "line 2: --ntasks times --cpus-per-task is '9999999000', not a"),
        ("#SBATCH -n 1 -d afterok:12", "line 2: --dependency=afterok:12 names jobs by numbers of another"),
        ("#SBATCH -n 1 --dependency=afterany:1", "leave it out and submit with --after JOB"),
        ("#SBATCH --array=4-1", "line 2: --array is 4-1: an array has 1 to 10000 tasks"),
        ("#SBATCH --array=0-99999999%3", "line 2: --array is 0-99999999%3, not tasks such as 1-10"),
        ("#SBATCH --array=1-4:0", "line 2: --array is 1-4:0, not tasks such as 1-10"),
        ("#SBATCH --nodes=4-2 -t 1", "line 2: --nodes goes from 4 to 2"),
        ("#SBATCH --nodes=2-x -t 1", "line 2: --nodes=2-x is not a number from 1"),
        ("#SBATCH -t 1 -o out_%Z", "line 2: --output contains %Z, which means nothing here"),
        ("#SBATCH -n 1 -t soon", "line 2: --time=soon is no time such as 30"),
        ("#SBATCH -n 1 -t", "line 2: argument -t/--time: expected one argument"),
        ("#SBATCH -n '1", "line 2: No closing quotation"),
    ],
)
def test_what_slurm_would_not_understand_is_named(line: str, error: str) -> None:
    with pytest.raises(ScriptError, match=error):
        parse_script(f"{HEAD}{line}\n", "x")


def test_options_of_the_command_line_come_before_headers() -> None:
    text = f"{HEAD}#NODES 3\n#REQUIRED_TIME 1000\n"
    given = {"NODES": "2", "REQUIRED_TIME": "5000", "JOB_NAME": "mine"}
    assert parse_script(text, "x", given) == Wishes("mine", Kind.RIGID, 5.0, 2, 2, 2)
    assert (
        parse_script(HEAD, "x", {"MIN_NODES": "1", "MAX_NODES": "4", "REQUIRED_TIME": "1"}).kind
        is Kind.MALLEABLE
    )
    with pytest.raises(ScriptError, match="no header #PATH"):
        parse_script(text, "x", {"PATH": "1"})
    with pytest.raises(ScriptError, match=r"^#NODES is '0'"):
        parse_script(text, "x", {"NODES": "0"})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"MIN_NODES": "2"}, "#MIN_NODES is not for a rigid job, which has #NODES"),
        ({"JOB_OUTPUT": "out_%Z"}, "#JOB_OUTPUT contains %Z, which means nothing here"),
    ],
)
def test_an_error_in_an_option_names_no_line(given: dict[str, str], error: str) -> None:
    with pytest.raises(ScriptError, match=f"^{error}"):
        parse_script(f"{HEAD}#JOB_CLASS rigid\n#REQUIRED_TIME 1\n", "x", given)


@pytest.mark.parametrize(
    "name", ["nf-STEP_(sample_1_100_200)", "DTI/imob", "'Big simulation'", "n" * 80, "größe:7", "a,b=c"]
)
def test_a_name_may_be_what_it_may_be_under_slurm(name: str) -> None:
    text = f"{HEAD}#SBATCH -t 1 -o %x.out --job-name={name}\n"
    wishes = parse_script(text, "x").as_of(1, "/home/me", {})
    assert wishes.name == name.strip("'")
    assert wishes.output == f"/home/me/{wishes.name.replace('/', '_')}.out"


@pytest.mark.parametrize("time", ["0", "UNLIMITED", "infinite", "0:00", "0-0"])
def test_no_limit_may_be_said_as_under_slurm(time: str) -> None:
    assert parse_script(f"{HEAD}#SBATCH --time={time}\n", "x").required_s == 365 * 86400


@pytest.mark.parametrize(
    ("line", "kind", "low", "high"),
    [
        ("--nodes=2-4", Kind.MOLDABLE, 2, 4),
        ("-N 2-4 --ntasks-per-node=3", Kind.MOLDABLE, 6, 12),
        ("-N 3-3", Kind.RIGID, 3, 3),
        ("-N 2-4 -n 5", Kind.RIGID, 5, 5),
    ],
)
def test_a_range_of_nodes_is_a_moldable_job(line: str, kind: Kind, low: int, high: int) -> None:
    text = f"{HEAD}#SBATCH -t 1 {line}\n"
    assert parse_script(text, "x") == Wishes("x", kind, 60.0, low, low, high)
    assert parse_script(f"{text}#NODES 3\n", "x") == Wishes("x", Kind.RIGID, 60.0, 3, 3, 3)


def test_names_of_files_have_slurms_signs() -> None:
    text = f"{HEAD}#SBATCH -t 1 -o slurm-%A_%a.%4j.%u.%%j -e %N\n"
    told = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "USER": "me"}
    wishes = parse_script(text, "x").as_of(12, "/home", told)
    assert wishes.output == "/home/slurm-7_3.0012.me.%j"
    assert on_node(wishes.errors, "node7.cluster") == "/home/node7"
    assert on_node(wishes.errors, None) == "/home/%N"
    assert on_node(wishes.output, "node7") == wishes.output
    alone = parse_script(text, "x").as_of(12, "/home", {"USER": "a/b"})
    assert alone.output == "/home/slurm-12_0.0012.a_b.%j"


@pytest.mark.parametrize(
    ("array", "tasks", "at_once"),
    [
        ("1-4", (1, 2, 3, 4), 0),
        ("0-8:4%2", (0, 4, 8), 2),
        ("7", (7,), 0),
        ("1,5,9-10", (1, 5, 9, 10), 0),
        ("1,1-2", (1, 2), 0),
    ],
)
def test_the_tasks_of_an_array_are_known(array: str, tasks: tuple[int, ...], at_once: int) -> None:
    lines = slurm_lines(f"{HEAD}#SBATCH --array={array}\n")
    assert (lines.tasks, lines.at_once) == (tasks, at_once)


def test_no_more_tasks_of_an_array_run_at_once_than_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Submit] = []

    def ask(_: object, request: Submit, __: str) -> Done:
        asked.append(request)
        return Done(10 + len(asked))

    monkeypatch.setattr(batch_live, "_ask", ask)
    script = tmp_path / "job.sh"
    script.write_text(f"{HEAD}#SBATCH --array=3-7%2\n")
    parsed = options.parse("batch submit", ["--after", "4", str(script)], {})
    assert isinstance(parsed, BatchSubmitOptions)
    assert batch_live.run_submit(parsed) == 0
    assert [request.after for request in asked] == [[4], [4], [4, 11], [4, 12], [4, 13]]
    assert [request.environment.get("SLURM_ARRAY_JOB_ID") for request in asked] == [None, *["11"] * 4]
    assert [request.environment["SLURM_ARRAY_TASK_ID"] for request in asked] == list("34567")
    assert capsys.readouterr().out.split() == ["11", "12", "13", "14", "15"]


def test_what_the_task_of_an_array_submits_is_no_member_of_that_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Submit] = []

    def ask(_: object, request: Submit, __: str) -> Done:
        asked.append(request)
        return Done(10 + len(asked))

    monkeypatch.setattr(batch_live, "_ask", ask)
    for name in ("JOB_ID", "TASK_ID", "TASK_COUNT", "TASK_MIN", "TASK_MAX", "TASK_STEP"):
        monkeypatch.setenv(f"SLURM_ARRAY_{name}", "7")
    single, array = tmp_path / "single.sh", tmp_path / "array.sh"
    single.write_text(HEAD)
    array.write_text(f"{HEAD}#SBATCH --array=3\n")
    parsed = options.parse("batch submit", [str(single), str(array)], {})
    assert isinstance(parsed, BatchSubmitOptions)
    assert batch_live.run_submit(parsed) == 0
    told = [
        {name: value for name, value in request.environment.items() if "SLURM_ARRAY" in name}
        for request in asked
    ]
    names = ("TASK_ID", "TASK_COUNT", "TASK_MIN", "TASK_MAX")
    assert told == [{}, dict(zip((f"SLURM_ARRAY_{name}" for name in names), "3133", strict=True))]


def test_the_tasks_of_an_array_that_are_in_one_state_are_one_line() -> None:
    def line(job: int, state: str, array: int = 0) -> JobLine:
        return JobLine(job, "sweep", "rigid", state, 1, 1, 1, 0.0, 0.0, 60.0, "out", array=array)

    lines = [line(1, "runs"), line(2, "runs"), line(3, "runs", 3), line(4, "waits", 3), line(5, "waits", 3)]
    told = [(one.job, one.name) for one in batch_live.folded([*lines, line(7, "waits", 7)])]
    assert told == [(1, "sweep"), (2, "sweep"), (3, "sweep"), (4, "sweep (2 of array 3)"), (7, "sweep")]


@pytest.mark.parametrize(
    ("environment", "array"),
    [
        ({}, 0),
        ({"SLURM_ARRAY_TASK_ID": "1"}, 12),
        ({"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "7"}, 7),
    ],
)
def test_a_task_knows_its_array(environment: dict[str, str], array: int) -> None:
    assert parse_script(HEAD, "x", default_s=1.0).as_of(12, "/home", environment).array == array


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("-J one  # once: -J two", "one"),
        ("-J one # don't", "one"),
        ("-J one#two", "one"),
        ("-J 'a # b' # c", "a # b"),
        ('-J "a # b"', "a # b"),
        (r"-J a\#b", "a#b"),
        ("# -J one", "file"),
    ],
)
def test_a_comment_behind_slurms_options_ends_the_line(line: str, name: str) -> None:
    text = f"{HEAD}  # an indented comment\n#SBATCH {line}\n\t# another one\n#SBATCH -n 3\n"
    assert parse_script(text, "file", default_s=1.0) == Wishes(name, Kind.RIGID, 1.0, 3, 3, 3)
    assert slurm_lines(text).ignored == []


def test_headers_may_stand_behind_an_indented_comment() -> None:
    assert parse_script(f"{HEAD}  # a comment\n#NODES 3\n", "file", default_s=1.0).nodes == 3
