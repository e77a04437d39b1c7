"""Options come from four sources, and every error in them is reported in one line."""

from pathlib import Path

import pytest

from mallob_py.cli import options
from mallob_py.cli.client_options import InterruptOptions, SubmitOptions
from mallob_py.cli.option_sources import OptionError, OptionSpec, table
from mallob_py.cli.rank_options import ServeOptions, SolveOptions
from mallob_py.cli.serve_desk import with_defaults
from mallob_py.runtime.memory import Reserve
from mallob_py.service.client import login_name


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(variable, raising=False)


def serve(*arguments: str, environment: dict[str, str] | None = None) -> ServeOptions:
    parsed = options.parse("serve", arguments, environment or {})
    assert isinstance(parsed, ServeOptions)
    return parsed


def solve(*arguments: str) -> SolveOptions:
    parsed = options.parse("solve", arguments, {})
    assert isinstance(parsed, SolveOptions)
    return parsed


def config_file(folder: Path, text: str) -> str:
    path = folder / "options.toml"
    path.write_text(text)
    return str(path)


def test_defaults_are_used_where_nothing_is_said() -> None:
    parsed = serve()
    assert (parsed.api_dir, parsed.clients, parsed.ranks, parsed.rank_loss) == (".api", 1, None, "auto")
    assert parsed.time_limit_s is None


def test_the_config_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert serve("--config", config_file(tmp_path, "\ufeffclients = 3\n")).clients == 3


def test_values_are_parsed_with_their_units() -> None:
    parsed = serve(
        *("-n", "4", "--time-limit", "5m", "--memory-limit", "2g", "--input-max", "1g", "--poll-directory")
    )
    assert parsed.input_max_bytes == 1 << 30
    assert (parsed.ranks, parsed.time_limit_s) == (4, 300.0)
    assert parsed.memory_limit_bytes == 2 << 30
    assert parsed.poll_directory


def test_a_limit_of_zero_is_no_limit() -> None:
    assert serve("--time-limit", "0").time_limit_s is None


def test_threads_and_solvers_are_the_same_option() -> None:
    assert serve("--threads", "3").solvers == serve("--solvers", "3").solvers == 3


def test_a_reserve_of_memory_is_a_share_or_a_size_or_none() -> None:
    assert serve().memory_reserve == solve("x.cnf").memory_reserve == Reserve(share=0.05)
    assert serve("--memory-reserve", "12.5%").memory_reserve == Reserve(share=0.125)
    assert serve("--memory-reserve", "2g").memory_reserve == Reserve(size_bytes=2 << 30)
    assert serve(environment={"MALLOB_PY_MEMORY_RESERVE": "0"}).memory_reserve is None
    assert serve("--memory-reserve", "0%").memory_reserve is None


@pytest.mark.parametrize("text", ["much", "5 percent", "-1g", ""])
def test_a_bad_reserve_of_memory_is_one_clear_line(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        serve(f"--memory-reserve={text}")
    assert str(caught.value) == (
        f"--memory-reserve: {text!r} is neither a size such as 2g nor a share such as 5%"
    )


@pytest.mark.parametrize("text", ["100%", "-5%", "x%", "nan%"])
def test_a_bad_share_of_memory_is_one_clear_line(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        serve(f"--memory-reserve={text}")
    assert str(caught.value) == f"--memory-reserve: {text!r} is not a share between 0% and 100%"


def test_a_rank_hosts_one_pe_unless_told_otherwise() -> None:
    assert serve().pes == 1
    assert serve("--pes", "4").pes == solve("--pes", "4", "x.cnf").pes == 4
    assert serve(environment={"MALLOB_PY_PES": "3"}).pes == 3
    assert serve("--pes", "auto").pes is None


@pytest.mark.parametrize("text", ["0", "-1", "257", "two", "1.5", ""])
def test_a_bad_number_of_pes_is_one_clear_line(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        serve("--pes", text)
    assert str(caught.value) == f"--pes: {text!r} is neither auto nor a number from 1 to 256"


def test_environment_wins_over_the_file_and_the_command_line_over_both(tmp_path: Path) -> None:
    file = config_file(tmp_path, 'api-dir = "from-file"\nclients = 2\nwarm = 3\n')
    environment = {"MALLOB_PY_API_DIR": "from-environment", "MALLOB_PY_CLIENTS": "4"}
    parsed = serve("--config", file, "--clients", "5", environment=environment)
    assert (parsed.api_dir, parsed.clients, parsed.warm) == ("from-environment", 5, 3)


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = config_file(tmp_path, "clients = 2\n")
    assert serve(environment={"MALLOB_PY_CONFIG": file}).clients == 2


def test_a_command_table_wins_over_the_top_level_of_the_file(tmp_path: Path) -> None:
    file = config_file(tmp_path, "warm = 2\njob-cache = 9\n[serve]\nwarm = 3\n[solve]\nwarm = 4\n")
    parsed = serve("--config", file)
    assert (parsed.warm, parsed.job_cache) == (3, 9)


def test_a_top_level_key_of_another_command_is_no_error(tmp_path: Path) -> None:
    assert serve("--config", config_file(tmp_path, 'output = "x"\n')).clients == 1


def test_a_switch_of_the_file_can_be_taken_back_on_the_command_line(tmp_path: Path) -> None:
    file = config_file(tmp_path, "poll-directory = true\n")
    assert serve("--config", file).poll_directory
    assert not serve("--config", file, "--no-poll-directory").poll_directory


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("api-dirr = 'x'", "unknown option 'api-dirr' (did you mean 'api-dir'?)"),
        ("[serv]\nclients = 1", "unknown table [serv] (did you mean 'serve'?)"),
        ("[serve]\noutput = 'x'", "[serve] has no option 'output'"),
        ("clients = 'many'", "clients: 'many' is not a whole number"),
        ("clients = true", "clients: must be a text or a number, not true or false"),
        ("poll-directory = 1", "poll-directory: must be true or false"),
        ("clients = [1]", "clients: must be a text or a number"),
        ("clients = ", "not TOML"),
        ("config = 'other.toml'", "unknown option 'config'"),
        ("[solve]\nwarm = -1", "[solve] warm: -1 is negative"),
    ],
)
def test_a_faulty_configuration_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = config_file(tmp_path, text)
    with pytest.raises(OptionError) as caught:
        serve("--config", file)
    assert str(caught.value).startswith(file)
    assert complaint in str(caught.value)


def test_a_missing_configuration_file_is_refused() -> None:
    with pytest.raises(OptionError, match=r"absent\.toml: No such file"):
        serve("--config", "absent.toml")


def test_a_faulty_variable_is_named() -> None:
    with pytest.raises(OptionError, match="MALLOB_PY_CLIENTS: 0 is less than 1"):
        serve(environment={"MALLOB_PY_CLIENTS": "0"})


def test_an_empty_variable_says_nothing() -> None:
    assert serve(environment={"MALLOB_PY_API_DIR": ""}).api_dir == ".api"


@pytest.mark.parametrize(
    "arguments",
    [
        ["-n", "0"],
        ["-n", "four"],
        ["--time-limit", "soon"],
        ["--time-limit", "-5m"],
        ["--memory-limit", "2x"],
        ["--memory-limit", "nan"],
        ["--rank-loss", "maybe"],
        ["--reuse", "none"],
        ["--api-dir", ""],
        ["--unheard-of"],
        ["--api", "x"],
        ["--clients", "3", "-n", "2"],
        ["stray"],
    ],
)
def test_a_faulty_command_line_is_refused(arguments: list[str]) -> None:
    with pytest.raises(OptionError):
        serve(*arguments)


def test_ranks_must_agree_with_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "4")
    assert serve("-n", "4").ranks == 4
    assert serve().ranks is None
    with pytest.raises(OptionError, match="contradicts the 4 ranks"):
        serve("-n", "8")
    with pytest.raises(OptionError, match="needs as many ranks"):
        serve("--clients", "5")


def test_solve_needs_a_file() -> None:
    with pytest.raises(OptionError, match="FILE"):
        solve()


def test_solve_takes_several_files_in_order() -> None:
    assert solve("b.cnf", "-n", "2", "a.cnf.gz").files == ("b.cnf", "a.cnf.gz")


def test_an_input_is_never_overwritten(tmp_path: Path) -> None:
    formula = tmp_path / "a.cnf"
    formula.write_text("p cnf 0 0\n")
    with pytest.raises(OptionError, match="would be overwritten"):
        solve(str(formula), "--output", f"{tmp_path}/./a.cnf")


def test_a_proof_is_for_one_formula_and_for_a_file_of_its_own(tmp_path: Path) -> None:
    formula = tmp_path / "f.cnf"
    formula.touch()
    for arguments, complaint in (
        (["--proof", "p", "a.cnf", "b.cnf"], "for one formula"),
        (["--proof", str(formula), str(formula)], "would be overwritten"),
        (["--proof", "./p", "--output", "p", "a.cnf"], "cannot be the same file"),
        (["--proof-format", "frat", "a.cnf"], "frat"),
    ):
        with pytest.raises(OptionError, match=complaint):
            solve(*arguments)


def test_the_output_may_be_a_device() -> None:
    assert solve("a.cnf", "--output", "/dev/null").output == "/dev/null"


@pytest.mark.parametrize("identity", ["", "a/b", ".name", "alice."])
def test_an_identity_without_user_or_name_is_refused(identity: str) -> None:
    with pytest.raises(OptionError, match=r"USER\.NAME"):
        options.parse("interrupt", [identity], {})


def test_a_name_alone_is_a_job_of_the_caller() -> None:
    parsed = options.parse("interrupt", ["sorter", "bob.sorter", "12"], {})
    assert isinstance(parsed, InterruptOptions)
    assert parsed.jobs == (f"{login_name()}.sorter", "bob.sorter", "12")


def test_one_name_is_for_one_job() -> None:
    with pytest.raises(OptionError, match="--name is for one job"):
        options.parse("submit", ["a.json", "b.cnf", "--name", "n"], {})


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["--", "-dash.cnf"], ("-dash.cnf",)),
        (["a.cnf", "-n", "2", "--", "--help", "-n"], ("a.cnf", "--help", "-n")),
        (["a.cnf", "--", "--"], ("a.cnf", "--")),
        (["a.cnf", "--"], ("a.cnf",)),
    ],
)
def test_all_that_stands_behind_two_dashes_is_no_option(arguments: list[str], files: tuple[str, ...]) -> None:
    parsed = options.parse("solve", arguments, {})
    assert isinstance(parsed, SolveOptions)
    assert parsed.files == files
    with pytest.raises(OptionError, match=r"unrecognized arguments: -b$"):
        options.parse("check-proof", ["a", "p", "--", "-b"], {})


def test_submit_options_keep_what_was_not_said_apart() -> None:
    parsed = options.parse("submit", ["a.cnf", "--priority", "2.5"], {})
    assert isinstance(parsed, SubmitOptions)
    assert (parsed.priority, parsed.max_demand, parsed.wait) == (2.5, None, False)


@pytest.mark.parametrize("command", list(options.COMMANDS))
def test_every_option_has_help_and_one_name_per_command(command: str) -> None:
    specs = [spec for spec, _ in table(options.COMMANDS[command][1]).values()]
    assert all(spec.help for spec in specs)
    assert len({spec.name for spec in specs}) == len(specs)


def test_a_portfolio_is_checked_before_anything_starts() -> None:
    assert (
        serve("--portfolio", "k(cg)*").defaults
        == solve("--portfolio", "k(cg)*", "x").wishes
        == {"portfolio": "k(cg)*"}
    )
    with pytest.raises(OptionError, match=r"^--portfolio: portfolio 'k\(c', character 2: this parenthesis"):
        serve("--portfolio", "k(c")
    with pytest.raises(OptionError, match="--portfolio contradicts 'solvers' in --configuration"):
        solve("--portfolio", "k", "--configuration", '{"solvers": ["ergo"]}', "x.cnf")


def test_a_job_that_speaks_of_its_solvers_keeps_its_word() -> None:
    assert with_defaults({"portfolio": "k"}, "SAT", {"seed": 1}) == {"seed": 1, "portfolio": "k"}
    assert with_defaults({}, "SAT", {"seed": 1}) == {"seed": 1}
    assert with_defaults({"portfolio": "k"}, "SLEEP", {}) == {}
    for key in ("portfolio", "solvers", "proof", "solutions", "core"):
        assert with_defaults({"portfolio": "k"}, "SAT", {key: "x"}) == {key: "x"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--core", "c", "--solutions", "2"], "--core and --solutions cannot be combined"),
        (["--core", "c", "--proof", "p"], "--proof and --core cannot be combined"),
        (["--core", "c", "y.cnf"], "--core is for one formula, but 2 are given"),
        (["--core", "x.cnf"], "x.cnf is an input and would be overwritten"),
        (["--core", "c", "--output", "./c"], "--output and --core cannot be the same file"),
        (["--projection", "1,2"], "--projection needs --solutions, which is missing"),
        (["--solutions-file", "f"], "--solutions-file needs --solutions, which is missing"),
        (["--solutions", "0"], "--solutions: 0 is less than 1"),
        (["--solutions", "some"], "--solutions: 'some' is not a whole number"),
        (["--solutions", "2", "--projection", "1,,2"], "--projection: '' is not a whole number"),
        (["--configuration", '{"model": "packed"}'], "model is for a service only"),
    ],
)
def test_wishes_that_do_not_go_together_are_told_before_anything_starts(
    arguments: list[str], complaint: str
) -> None:
    with pytest.raises(OptionError, match=complaint):
        solve(*arguments, "x.cnf")


def test_several_solutions_are_asked_for_by_number_or_all() -> None:
    parsed = solve("--solutions", "all", "--projection", "3, 1", "x.cnf", "y.cnf")
    assert parsed.wishes == {"solutions": "all", "projection": [3, 1]}
    assert solve("--solutions", "5", "x.cnf").wishes["solutions"] == 5


def test_options_that_are_alike_are_declared_once() -> None:
    """An option that two commands share must be one row of the table, so that it cannot become different."""
    first: dict[tuple[str, str], OptionSpec] = {}
    for command in options.COMMANDS:
        for spec, _ in table(options.COMMANDS[command][1]).values():
            assert first.setdefault((spec.name, spec.help), spec) is spec, f"{command}: {spec.name}"
