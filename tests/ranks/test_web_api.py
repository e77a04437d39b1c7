"""The HTTP interface, with the test in place of the service: what is stored, refused, answered and never
passed on.
"""

import functools
import gzip
import json
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest
from waiting import poll_until
from web_process import DEADLINE_S, Answer, WebServer

from mallob_py.protocol.effects import Outcome
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.runtime.worker_wire import SolutionForm
from mallob_py.service.jobs.job_file import InputUse, JobFile
from mallob_py.service.jobs.reply import Ending, JobStatistics, failure_reply, result_reply
from mallob_py.service.store.directory import JobDirectory

pytest.importorskip("starlette", reason="needs the extra web")
pytest.importorskip("uvicorn", reason="needs the extra web")

FORMULA = b"p cnf 2 2\n1 2 0\n-1 0\n"
APPLICATIONS = {"SAT": InputUse.REQUIRED, "SLEEP": InputUse.NONE}
LIMITS = ("--upload-limit", "100k", "--input-limit", "1m", "--store-limit", "150k")


def integers(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little", signed=True) for value in values)


class Desk:
    """A stand-in for the service, which takes and answers jobs when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.directory = JobDirectory(folder / "api", tmp_dir=folder)

        self._live: dict[int, JobFile] = {}

    def take(self) -> tuple[int, JobFile]:
        (incoming,) = self.directory.take()
        job = incoming.parse(APPLICATIONS)
        assert isinstance(job, JobFile)
        self._live[incoming.internal_id] = job
        return incoming.internal_id, job

    def finish(self) -> None:
        for incoming in self.directory.take():
            job = incoming.parse(APPLICATIONS)
            assert isinstance(job, JobFile)
            self._live[incoming.internal_id] = job
        for internal_id, job in list(self._live.items()):
            self.answer(internal_id, job)

    def forget(self, internal_id: int) -> None:
        """Forget a job that the test itself has answered."""
        del self._live[internal_id]

    def answer(self, internal_id: int, job: JobFile, ending: Ending | None = None) -> None:
        del self._live[internal_id]
        ending = ending or Ending(Outcome.RESULT, 10, b"{}", integers(-1, 2), name="SAT")
        path = self.directory.solution_path(internal_id, job.identity)
        reply = result_reply(job, internal_id, ending, JobStatistics(), path, inline_max=3)
        self.directory.reply(internal_id, job.identity, reply)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="module")
def shared_desk(folder: Path) -> Iterator[Desk]:
    opened = Desk(folder)
    yield opened
    opened.directory.close()


@pytest.fixture(scope="module")
def shared_web(folder: Path, shared_desk: Desk) -> Iterator[WebServer]:
    server = WebServer(folder / "api", *LIMITS)
    try:
        yield server
    finally:
        code, out = server.stop()
    assert (code, out) == (0, "")


@pytest.fixture
def desk(shared_desk: Desk) -> Iterator[Desk]:
    """Yield the stand-in of the shared web server; at the test's end, it answers all open jobs."""
    yield shared_desk
    shared_desk.finish()


@pytest.fixture
def web(shared_web: WebServer, desk: Desk) -> Iterator[WebServer]:
    yield shared_web
    desk.finish()
    shared_web.await_no_upload()


@pytest.fixture
def own_desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.directory.close()


def keyed(answer: Answer) -> str:
    assert answer.status == 202, answer.text
    assert answer.headers["location"] == f"/api/jobs/{answer.json['id']}"
    return str(answer.headers["location"])


# --- a job from upload to result ----------------------------------------------------------------


def test_an_upload_is_kept_until_the_service_will_never_read_it_again(web: WebServer, desk: Desk) -> None:
    job = keyed(web.upload(FORMULA, "name=n&user=u&priority=2&wallclock-limit=5m&max-demand=3"))
    internal_id, taken = desk.take()
    assert Path(taken.files[0]).read_bytes() == FORMULA
    assert taken.identity == "u.n"
    assert taken.terms == JobTerms(priority=2, wallclock_limit_s=300, max_demand=3)
    assert web.get(job).json["state"] == "queued"
    assert web.uploads() == ["input"]
    desk.answer(internal_id, taken)
    web.await_no_upload()
    assert web.get(job).json["ended"]["resultstring"] == "SAT"
    for key in (job, "/api/jobs/u.n"):
        assert web.get(f"{key}/model").text == "s SATISFIABLE\nv -1 2 0\n"
        assert web.get(f"{key}/reply").json["result"]["solution"] == [-1, 2]


def test_a_model_comes_as_json_too(web: WebServer, desk: Desk) -> None:
    job = keyed(web.upload(FORMULA))
    desk.answer(*desk.take())
    answer = web.ask("GET", f"{job}/model", headers={"Accept": "application/json"})
    assert answer.json == {"resultcode": 10, "solution": [-1, 2]}


def test_a_job_has_its_file_and_is_explained_at_every_step(web: WebServer, desk: Desk) -> None:
    configuration = {"secret": "hidden", "seed": 3}
    job = keyed(web.upload(FORMULA, f"user=u&name=n&configuration={quote(json.dumps(configuration))}"))
    told = {"user": "u", "name": "n", "configuration": {"seed": 3}, "files": ["upload"]}

    def look() -> str:
        for key in (job, "/api/jobs/u.n"):
            assert web.get(f"{key}/file").json == told
            assert web.get(f"{key}/timeline").json["volumes"] == []
        return web.get(f"{job}/explain").text

    assert look().startswith("u.n is handed in and has no reply yet.\nNo service is running")
    internal_id, taken = desk.take()
    assert look().startswith("u.n is handed in")
    desk.answer(internal_id, taken)
    poll_until(lambda: "its result is SAT." in look())
    output = web.api_dir / "output"
    output.mkdir(exist_ok=True)
    (output / f"{internal_id}.log").write_text("first\nlast\n")
    assert web.get(f"{job}/output").text == "first\nlast\n"
    assert web.get(f"{job}/output?tail=5").text == "last\n"
    assert web.get(f"{job}/output?tail=0").text == ""
    for path in ("file", "explain", "timeline"):
        assert web.get(f"/api/jobs/u.none/{path}").status == 404
    assert web.get("/api/group?user=u&name=").status == 404
    assert web.get("/api/group").status == 404


@pytest.mark.parametrize("variables", [3, 200])  # the model is in the reply (3), or in a file beside it (200)
def test_a_packed_model_comes_as_literals(web: WebServer, desk: Desk, variables: int) -> None:
    true = {1, 3}
    bits = sum(1 << (variable - 1) for variable in true).to_bytes((variables + 7) // 8, "little")
    expected = [v if v in true else -v for v in range(1, variables + 1)]
    job = keyed(web.post_job(literals=[1, 0], configuration={"model": "packed"}))
    fields = json.dumps({"variables": variables}).encode()
    desk.answer(*desk.take(), Ending(Outcome.RESULT, 10, fields, bits, SolutionForm.BYTES))
    lines = web.get(f"{job}/model").text.splitlines()
    assert lines[0] == "s SATISFIABLE"
    assert [int(word) for line in lines[1:] for word in line[2:].split()] == [*expected, 0]
    answer = web.ask("GET", f"{job}/model", headers={"Accept": "application/json"})
    assert answer.json == {"resultcode": 10, "solution": expected}


def test_an_answer_of_bytes_comes_as_json_only(web: WebServer, desk: Desk) -> None:
    job = keyed(web.post_job(application="SLEEP"))
    desk.answer(*desk.take(), Ending(Outcome.RESULT, 1, b"{}", b"abc", SolutionForm.BYTES))
    assert web.get(f"{job}/model").status == 406
    answer = web.ask("GET", f"{job}/model", headers={"Accept": "application/json"})
    assert answer.json == {"resultcode": 1, "solution": "YWJj", "solution-format": "base64"}


def test_several_solutions_are_v_lines_of_their_own(web: WebServer, desk: Desk) -> None:
    job = keyed(web.post_job(literals=[1, 2, 0], configuration={"solutions": 2}))
    found = Ending(Outcome.RESULT, 10, b'{"solutions": 2}', integers(-1, 2, 0, 1, 2, 0))
    desk.answer(*desk.take(), found)
    assert web.get(f"{job}/model").text == "s SATISFIABLE\nv -1 2 0\nv 1 2 0\n"


def test_a_restarted_web_server_knows_its_jobs_and_removes_their_uploads(
    tmp_path: Path, own_desk: Desk
) -> None:
    first = WebServer(tmp_path / "api")
    job = keyed(first.upload(FORMULA))
    assert first.stop() == (0, "")
    second = WebServer(tmp_path / "api")
    try:
        assert first.token in first.greeting
        assert second.token == first.token
        assert second.token not in second.greeting
        assert second.uploads() == ["input"]
        internal_id, taken = own_desk.take()
        assert Path(taken.files[0]).read_bytes() == FORMULA
        own_desk.answer(internal_id, taken)
        second.await_no_upload()
        assert second.get(job).json["ended"]["resultstring"] == "SAT"
    finally:
        second.stop()


def test_the_files_of_a_job_are_found_by_a_web_server_for_another_client(
    tmp_path: Path, own_desk: Desk
) -> None:
    first = WebServer(tmp_path / "api")
    job = keyed(first.upload(FORMULA))
    own_desk.answer(*own_desk.take(), Ending(Outcome.RESULT, 10, b"{}", integers(-1, 2, 3, 4), name="SAT"))
    assert list((tmp_path / "api" / "jobs.0" / "out").glob("*.solution"))
    first.stop()
    second = WebServer(tmp_path / "api", "--client", "1")
    try:
        assert second.get(f"{job}/model").text == "s SATISFIABLE\nv -1 2 3 4 0\n"
    finally:
        second.stop()


def test_who_waits_or_sends_is_answered_when_the_server_is_ended_however_often(
    tmp_path: Path, own_desk: Desk
) -> None:
    server = WebServer(tmp_path / "api")
    with ThreadPoolExecutor() as others:
        try:
            path = keyed(server.post_job(user="u", name="n", application="SLEEP"))
            waiting = others.submit(server.get, f"{path}?wait=300")
            poll_until(lambda: any("inotify" in one for one in server.open_files()))
            netloc = urlsplit(server.url)
            with socket.create_connection((netloc.hostname, netloc.port), DEADLINE_S) as connection:
                head = f"POST /api/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n"
                connection.sendall(f"{head}Content-Length: 1000\r\n\r\np cnf".encode())
                poll_until(server.uploads)
                for _ in range(3):
                    server.process.send_signal(signal.SIGINT)
                answer = waiting.result(DEADLINE_S)
                assert (answer.status, answer.json.get("ended")) == (200, None), answer.text
                assert b" 503 " in connection.recv(1000)
        finally:
            code, out = server.stop()
    assert code == 0
    assert "Traceback" not in out
    assert server.uploads() == []


def test_each_of_two_jobs_of_one_name_has_its_own_answer(web: WebServer, desk: Desk) -> None:
    first = keyed(web.upload(FORMULA, "name=n&user=u"))
    desk.answer(*desk.take())
    assert web.get(first).json["ended"]["outcome"] == "result"
    second = keyed(web.upload(FORMULA, "name=n&user=u"))
    assert web.get(second).json["state"] == "queued"
    assert web.get(f"{second}/reply").status == 409
    desk.answer(*desk.take())
    assert web.get(f"{second}/reply").status == 200
    assert "a later job of this name" in web.get(f"{first}/reply").error["message"]


def test_a_reply_asked_for_by_number_is_that_of_this_job(web: WebServer, desk: Desk) -> None:
    keyed(web.upload(FORMULA, "name=n&user=u"))
    first, taken = desk.take()
    desk.answer(first, taken)
    keyed(web.upload(FORMULA, "name=n&user=u"))
    second, taken = desk.take()
    # A later job of this name is live, but the first job's reply still exists.
    assert web.get("/api/jobs/u.n/reply").status == 409
    assert web.get(f"/api/jobs/u.n/reply?number={first}").json["internal_id"] == first
    assert web.get(f"/api/jobs/u.n/model?number={first}").status == 200
    desk.answer(second, taken)
    assert web.get(f"/api/jobs/u.n/reply?number={first}").status == 410
    assert web.get(f"/api/jobs/u.n/reply?number={second}").status == 200
    assert web.get("/api/jobs/u.n/reply?number=x").error["field"] == "number"


def test_a_refusal_by_the_service_reaches_its_submitter(web: WebServer, desk: Desk) -> None:
    job = keyed(web.post_job(user="u", name="n", application="NONE"))
    (incoming,) = desk.directory.take()
    with pytest.raises(Exception, match="no application") as refused:
        incoming.parse(APPLICATIONS)
    refused.value.identity = None  # type: ignore[attr-defined]
    desk.directory.refuse(incoming, refused.value)  # type: ignore[arg-type]
    assert web.get(job).json["ended"]["error"]["field"] == "application"
    assert web.get(f"{job}/reply").json["error"]["field"] == "application"
    assert web.get(f"{job}/model").status == 409


def test_an_interruption_reaches_the_service_only_while_the_job_is_live(web: WebServer, desk: Desk) -> None:
    job = keyed(web.post_job(user="u.v", name="n", application="SLEEP"))
    internal_id, taken = desk.take()
    assert web.ask("POST", f"{job}/interrupt").status == 202
    assert web.ask("POST", "/api/jobs/u.v.n/interrupt").status == 202
    requests = [incoming.parse(APPLICATIONS) for incoming in desk.directory.take()]
    assert [request.identity for request in requests] == ["u.v.n", "u.v.n"]
    desk.answer(internal_id, taken)
    assert web.ask("POST", f"{job}/interrupt").status == 409
    assert web.ask("POST", "/api/jobs/u.none/interrupt").status == 409


def test_jobs_are_listed_and_counted_also_while_no_service_runs(web: WebServer, desk: Desk) -> None:
    keyed(web.upload(FORMULA, "name=n&user=u"))
    overview = web.get("/api/jobs").json
    assert overview["service"]["running"] is False
    assert [job["key"] for job in overview["jobs"]] == ["u.n"]
    metrics = web.get("/metrics").text
    assert "\nmallob_py_up 0.0\n" in metrics
    assert f"\nmallob_py_web_upload_bytes {float(len(FORMULA))}\n" in metrics


def test_a_folder_that_no_service_has_used_is_said(tmp_path: Path) -> None:
    server = WebServer(tmp_path / "api")
    try:
        answer = server.upload(FORMULA)
        assert answer.status == 503
        assert "mallob-py serve" in answer.error["message"]
        assert str(tmp_path) not in answer.text
    finally:
        server.stop()


# --- tokens -------------------------------------------------------------------------------------

GUARDED = [
    *(("GET", "/api/jobs"), ("POST", "/api/jobs"), ("GET", "/api/jobs/u.n"), ("GET", "/api/jobs/u.n/reply")),
    *(
        ("GET", "/api/jobs/u.n/files/proof"),
        ("GET", "/api/jobs/u.n/output"),
        ("GET", "/api/jobs/u.n/explain"),
    ),
    *(("GET", "/api/jobs/u.n/timeline"), ("GET", "/api/jobs/u.n/file")),
    *(("GET", "/api/group"), ("POST", "/api/group/interrupt")),
    *(("GET", "/api/jobs/u.n/model"), ("POST", "/api/jobs/u.n/interrupt"), ("GET", "/api/service")),
    *(("GET", "/api/history"), ("GET", "/api/ended"), ("GET", "/metrics"), ("GET", "/api/batch")),
    ("GET", "/api/applications/QUEENS"),
]


def test_nothing_is_told_or_done_without_the_token(web: WebServer) -> None:
    for method, path in GUARDED:
        for token in ("", "x", web.token[:-1], web.token + "x", "é" * 20):
            answer = web.ask(method, path, token=token)
            assert answer.status == 401, (method, path, token)
            assert "token" in answer.error["message"]
        assert web.ask(method, path, headers={"Authorization": f"Basic {web.token}"}, token="").status == 401
        assert web.ask(method, f"{path}?token={web.token}", token="").status == 401


def test_every_path_but_the_page_and_the_description_is_guarded(web: WebServer) -> None:
    paths = web.ask("GET", "/openapi.json", token="").json["paths"]
    described = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    open_ones = {path for path in paths if paths[path].get("get", {}).get("security") == []}
    assert open_ones == {"/", "/docs", "/openapi.json"}
    named = (("u.n", "{key}"), ("proof", "{name}"), ("QUEENS", "{name}"))
    guarded = {
        (method, functools.reduce(lambda path, pair: path.replace(*pair), named, path))
        for method, path in GUARDED
    }
    assert {(method, path) for method, path in described if path not in open_ones} == guarded


def test_the_token_is_for_its_owner_only(web: WebServer) -> None:
    path = web.api_dir / "web" / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(web.token) >= 40


def run_web(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "mallob_py.cli.main", "web", "--port", "0", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    return finished.returncode, finished.stderr


@pytest.mark.parametrize(
    ("content", "mode", "told"), [("x" * 40, 0o644, "others can read"), ("short", 0o600, "no token")]
)
def test_a_token_file_that_keeps_no_secret_is_refused(
    tmp_path: Path, content: str, mode: int, told: str
) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    code, err = run_web("--api-dir", str(tmp_path / "api"), "--token-file", str(path))
    assert code == 2
    assert told in err
    assert err.count("\n") == 1


def test_a_second_web_server_on_the_same_folder_is_refused(web: WebServer) -> None:
    code, err = run_web("--api-dir", str(web.api_dir))
    assert code == 2
    assert "another `mallob-py web`" in err


# --- requests that are refused --------------------------------------------------------------------


def test_files_of_the_host_cannot_be_named(web: WebServer, desk: Desk) -> None:
    for path in ("/etc/passwd", "../../x.cnf", str(web.api_dir / "web" / "token")):
        answer = web.post_job(files=[path])
        assert (answer.status, answer.error["field"]) == (403, "files")
        answer = web.post_job(file=path)
        assert (answer.status, answer.error["field"]) == (403, "file")
    for field in ("files", "file"):
        assert web.upload(FORMULA, f"{field}=/etc/passwd").error["field"] == field
    assert desk.directory.take() == []


def test_with_allow_paths_files_of_that_folder_can_be_named_and_no_others(
    tmp_path: Path, own_desk: Desk
) -> None:
    allowed = tmp_path / "allowed"
    (allowed / "deep").mkdir(parents=True)
    (allowed / "deep" / "a.cnf").write_bytes(FORMULA)
    (allowed / "out").symlink_to(tmp_path)
    (tmp_path / "allowed-not").mkdir()
    web = WebServer(tmp_path / "api", "--allow-paths", str(allowed))
    try:
        for path in ("out/x.cnf", "../x.cnf", "/etc/passwd", str(tmp_path / "allowed-not" / "x"), 7, "a\0"):
            assert web.post_job(files=[path]).error["field"] == "files"
        keyed(web.post_job(files=["deep/a.cnf", str(allowed / "deep" / "a.cnf")]))
        _, taken = own_desk.take()
        assert set(taken.files) == {str(allowed / "deep" / "a.cnf")}
    finally:
        web.stop()


@pytest.mark.parametrize(
    "key",
    ["..%2f..%2fetc%2fpasswd.x", "%2e%2e", "..", "a%00.b", "a%0d%0aX:y.b", "~u.n", ".u.n", "nodot", "0" * 32],
)
def test_a_key_never_leads_out_of_the_folder(web: WebServer, key: str) -> None:
    out = web.api_dir / "jobs.0" / "out"
    there = out / f"{unquote(key)}.json"
    with suppress(ValueError):  # no name of a file contains a zero byte
        there.parent.mkdir(exist_ok=True)
        there.write_text('{"result": {"resultcode": 10}}')
    for rest in ("", "/reply", "/model"):
        answer = web.get(f"/api/jobs/{key}{rest}")
        assert answer.status == 404
        assert answer.error["message"]
    with suppress(ValueError):
        there.unlink()


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "~x", "a\r\nSet-Cookie: x", "a\0", "n" * 300])
def test_a_name_that_is_no_file_name_is_refused(web: WebServer, desk: Desk, name: str) -> None:
    answer = web.post_job(name=name, literals=[1, 0])
    assert (answer.status, answer.error["field"]) == (400, "name")
    assert "set-cookie" not in answer.headers
    assert desk.directory.take() == []


def test_a_name_in_any_script_gets_through(web: WebServer, desk: Desk) -> None:
    job = keyed(web.post_job(name="<script>名前</script>".replace("/", "|"), literals=[1, 0]))
    _, taken = desk.take()
    assert taken.name == "<script>名前<|script>"
    assert web.get(job).json["name"] == taken.name


BAD_JOBS: list[tuple[Any, str]] = [
    ({"priority": -1, "literals": [1, 0]}, "priority"),
    ({"priorty": 1, "literals": [1, 0]}, "priorty"),
    ({"literals": ["x"]}, "literals"),
    ({"interrupt": True}, "interrupt"),
    ({"user": 7, "literals": [1, 0]}, "user"),
    ({"application": ["x"]}, "application"),
    ({"application": "\ud800", "literals": [1, 0]}, "application"),
    ([], ""),
    ("x", ""),
]


@pytest.mark.parametrize(("job", "field"), BAD_JOBS)
def test_a_bad_job_is_an_error_that_names_the_field(web: WebServer, job: Any, field: str) -> None:
    answer = web.ask("POST", "/api/jobs", json.dumps(job), {"Content-Type": "application/json"})
    assert (answer.status, answer.error["field"]) == (400, field)
    assert web.uploads() == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *(
            ("priority=x", "priority"),
            ("max-demand=1.5", "max-demand"),
            ("wallclock-limit=5x", "wallclock-limit"),
        ),
        *(("name=a&name=b", "name"), ("nonsense=1", "nonsense"), ("wait=-1", "wait")),
        ("configuration=[]", "configuration"),
    ],
)
def test_a_bad_query_is_an_error_that_names_the_field(web: WebServer, query: str, field: str) -> None:
    answer = web.upload(FORMULA, query)
    assert (answer.status, answer.error["field"]) == (400, field)
    assert web.uploads() == []


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000, b"1e999999", b""])
def test_a_body_that_is_no_json_is_an_error(web: WebServer, body: bytes) -> None:
    answer = web.ask("POST", "/api/jobs", body, {"Content-Type": "application/json"})
    assert answer.status == 400
    assert answer.error["message"]


def test_a_field_that_stands_twice_is_refused(web: WebServer, desk: Desk) -> None:
    body = '{"literals": [1, 0], "time-limit": 1, "time-limit": 2}'
    answer = web.ask("POST", "/api/jobs", body, {"Content-Type": "application/json"})
    assert (answer.status, answer.error["field"]) == (400, "time-limit")
    assert desk.directory.take() == []


def test_a_job_that_is_nested_deeply_is_refused_at_any_depth(web: WebServer) -> None:
    for depth in (101, 500, *range(900, 1000), 10_000):
        body = '{"literals": [1, 0], "configuration": {"x": ' + "[" * depth + "]" * depth + "}}"
        answer = web.ask("POST", "/api/jobs", body, {"Content-Type": "application/json"})
        assert answer.status == 400, (depth, answer.text)
        assert answer.error["message"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"x": ' + "[" * 100_000])
def test_a_damaged_reply_is_said(web: WebServer, content: str) -> None:
    path = web.api_dir / "jobs.0" / "out" / "u.damaged.json"
    path.write_text(content)
    assert "the file u.damaged.json" in web.get("/api/jobs/u.damaged").json["ended"]["error"]["message"]
    assert web.get("/api/jobs/u.damaged/model").status == 409
    path.unlink()


def test_what_is_too_large_is_refused_and_leaves_nothing(web: WebServer, desk: Desk) -> None:
    plain = b"c" * 200_000
    bomb = gzip.compress(b"\n" * 20_000_000)
    assert len(bomb) < 100_000
    for content in (plain, bomb):
        answer = web.upload(content)
        assert answer.status == 413
        assert "larger than the limit" in answer.error["message"]
    chunked = web.ask("POST", "/api/jobs", iter([plain, plain]))  # type: ignore[arg-type]
    assert chunked.status == 413
    assert web.upload(b"").status == 400
    assert desk.directory.take() == []
    assert web.uploads() == []


def test_uploads_of_live_jobs_are_bounded_together(web: WebServer, desk: Desk) -> None:
    content = FORMULA + b"c" * 80_000
    assert web.upload(content).status == 202
    answer = web.upload(content)
    assert answer.status == 507
    assert "try again later" in answer.error["message"]
    desk.finish()
    web.await_no_upload()
    assert web.upload(content).status == 202


def test_an_upload_that_is_cut_off_leaves_nothing(web: WebServer, desk: Desk) -> None:
    netloc = urlsplit(web.url)
    with socket.create_connection((netloc.hostname, netloc.port)) as connection:
        head = f"POST /api/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {web.token}\r\n"
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\np cnf".encode())
        poll_until(web.uploads)
    web.await_no_upload()
    assert web.get("/api/jobs").json["jobs"] == []
    assert desk.directory.take() == []


def test_unknown_paths_and_methods_are_errors_in_json(web: WebServer) -> None:
    assert web.get("/nothing").status == 404
    assert web.ask("DELETE", "/api/jobs").status == 405
    assert web.get("/nothing").error["message"]
    assert web.upload(FORMULA, "").status == 202
    answer = web.ask("POST", "/api/jobs", b"x", {"Content-Type": "multipart/form-data; boundary=x"})
    assert answer.status == 415


def test_no_answer_names_a_path_of_the_host(web: WebServer, desk: Desk) -> None:
    job = keyed(web.upload(FORMULA, "name=n&user=u"))
    internal_id, taken = desk.take()
    error = f"{taken.files[0]}: line 3: no literal"
    desk.directory.reply(
        internal_id, "u.n", failure_reply(taken, internal_id, "files", error, JobStatistics())
    )
    desk.forget(internal_id)
    large = keyed(web.upload(FORMULA, "name=large&user=u"))
    desk.answer(*desk.take(), Ending(Outcome.RESULT, 10, b"{}", integers(*range(1, 100))))
    assert web.get(job).json["ended"]["error"] == {"field": "files", "message": "upload: line 3: no literal"}
    reply = web.get(f"{large}/reply").json
    assert reply["files"] == ["upload"]
    assert reply["result"]["solution-size"] == 99
    assert web.get(f"{large}/model").text.startswith("s SATISFIABLE\nv 1 2 3")
    for path in ("/api/jobs", job, f"{job}/reply", f"{large}/reply", "/api/jobs/u.n", "/api/jobs/u.n/reply"):
        assert str(web.api_dir.parent) not in web.get(path).text


# --- the page, and the description of the interface -----------------------------------------------


def test_the_page_needs_nothing_from_elsewhere_and_runs_no_foreign_script(web: WebServer) -> None:
    answer = web.ask("GET", "/", token="")
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|@import|url\(", answer.text)
    assert "innerHTML" not in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_answers_are_kept_out_of_caches_and_other_pages(web: WebServer) -> None:
    for path in ("/", "/docs", "/openapi.json", "/api/jobs", "/nothing"):
        headers = web.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert not {"set-cookie", "access-control-allow-origin", "server"} & set(headers)


def test_the_description_is_whole(web: WebServer) -> None:
    text = web.get("/openapi.json").text
    components = json.loads(text)["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) <= set(components)
    assert components["JobFields"]["properties"]["max-demand"]["minimum"] == 0
    docs = web.get("/docs").text
    for path in json.loads(text)["paths"]:
        assert path in docs
