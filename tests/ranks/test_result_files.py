"""Files that jobs of a service write: below one folder, as new files only, whatever path a job asks for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from other_user import NOBODY, as_nobody, folder_for_all, needs_root
from running import Running, needs_mpiexec, poll_until, run, serving, with_apps

from mallob_sat.app import SatApplication

pytestmark = needs_mpiexec

RANKS = 2
ENV = with_apps(WRITER="rank_apps:Writer")
UNSATISFIABLE = [1, 0, -1, 0]
SATISFIABLE = [1, 2, 0]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), ranks=RANKS, env=ENV) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.output


@pytest.fixture
def precious(service: Running, tmp_path: Path) -> Iterator[Path]:
    """Check that jobs change neither a file of the host nor the reply of another user."""
    service.ask("victim", literals=SATISFIABLE)
    mine = tmp_path / "mine"
    mine.write_text("of the host")
    files = [mine, service.box() / "out" / "u.victim.json"]
    before = [path.read_bytes() for path in files]
    yield mine
    assert [path.read_bytes() for path in files] == before
    (service.box() / "out" / "u.victim.json").unlink()


def refusal(service: Running, name: str, **fields: Any) -> str:
    """Return the message of a job's error reply about its configuration."""
    reply = service.ask(name, **fields)
    assert reply["error"]["field"] == "configuration", reply
    return str(reply["error"]["message"])


KEYS = [("proof", UNSATISFIABLE), ("core", UNSATISFIABLE), ("solutions-file", SATISFIABLE)]


def test_these_are_all_files_that_sat_writes() -> None:
    assert {key for key, _ in KEYS} == set(SatApplication.result_files)


@pytest.mark.parametrize(("key", "literals"), KEYS)
def test_sat_jobs_write_nothing_outside_of_the_folder(
    key: str, literals: list[int], service: Running, precious: Path
) -> None:
    further = {"solutions": "all"} if key == "solutions-file" else {}
    for number, path in enumerate(
        (precious, service.box() / "out" / "u.victim.json", "../out/u.victim.json")
    ):
        for answer in (literals, [1, 0], UNSATISFIABLE):
            name = f"{key}-{number}-{len(answer)}"
            message = refusal(service, name, literals=answer, configuration={key: str(path), **further})
            assert message.startswith(f"{key} ")
    written = service.ask(f"{key}-in", literals=literals, configuration={key: f"{key}.txt", **further})
    assert written["result"]["result-files"] == {key: str(service.box() / "results" / f"{key}.txt")}
    again = refusal(service, f"{key}-again", literals=literals, configuration={key: f"{key}.txt", **further})
    assert "exists already" in again


def test_a_key_that_the_application_does_not_declare_is_none_of_our_business(
    service: Running, precious: Path
) -> None:
    reply = service.ask("noop", application="NOOP", configuration={"proof": str(precious)})
    assert reply["result"]["resultcode"] == 10


def test_another_application_is_kept_to_what_it_declares(service: Running, precious: Path) -> None:
    def ask(name: str, report: object) -> dict[str, Any]:
        return service.ask(name, application="WRITER", configuration={"report": report, "text": "hello"})

    assert "outside of" in ask("writer-1", str(precious))["error"]["message"]
    reply = ask("writer-2", "report")
    (path,) = map(Path, reply["result"]["result-files"].values())
    assert path.read_text() == "hello"
    assert "exists already" in ask("writer-3", "report")["error"]["message"]
    assert path.read_text() == "hello"


def test_a_job_that_runs_again_after_a_kill_writes_its_file_anew(tmp_path: Path) -> None:
    results = tmp_path / "results"
    options = ("--results-dir", str(results))
    with serving(tmp_path, *options, ranks=RANKS, env=ENV) as first:
        configuration = {"report": "report", "text": "hello", "stays": True}
        reply = first.submit("writer", application="WRITER", configuration=configuration)
        poll_until((results / "report").exists, "the report is there")
        first.kill()
    before = (results / "report").stat().st_mtime_ns
    with serving(tmp_path, *options, ranks=RANKS, env=ENV) as second:

        def is_written_anew() -> bool:
            return (results / "report").exists() and (results / "report").stat().st_mtime_ns != before

        poll_until(is_written_anew, "the report is there again")
        second.interrupt("writer")
        assert second.reply(reply)["result"]["result-files"] == {"report": str(results / "report")}
        assert [path.name for path in results.iterdir()] == ["report"]
        assert (results / "report").read_text() == "hello"
        assert second.stop() == 0


def test_results_may_not_be_written_where_jobs_and_replies_are(tmp_path: Path) -> None:
    for folder in ("api", "api/jobs.0/out", "."):
        done = run("serve", "-n", "1", "--api-dir", "api", "--results-dir", folder, cwd=tmp_path)
        assert (done.code, len(done.err.splitlines())) == (2, 1), done.err
        assert "overlap" in done.err


@needs_root
def test_links_of_another_user_lead_nowhere(tmp_path: Path) -> None:
    """Another user owns a folder below the folder for results, as on a disk that a group shares."""
    with (
        folder_for_all() as results,
        serving(tmp_path, "--results-dir", str(results), ranks=RANKS, env=ENV) as service,
    ):
        target = tmp_path / "target"
        target.mkdir()

        def attack() -> None:
            (results / "stranger").mkdir()
            (results / "stranger" / "out").symlink_to(target)
            (results / "stranger" / "proof").symlink_to(target / "new")

        as_nobody(attack)
        assert (results / "stranger").stat().st_uid == NOBODY
        message = refusal(service, "a", literals=UNSATISFIABLE, configuration={"proof": "stranger/out/proof"})
        assert "symbolic links" in message
        message = refusal(service, "b", literals=UNSATISFIABLE, configuration={"proof": "stranger/proof"})
        assert "exists already" in message
        assert list(target.iterdir()) == []
