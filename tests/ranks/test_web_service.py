"""`mallob-py web` beside a real service: by its HTTP interface, and by its page in a browser."""

import gzip
import json
import lzma
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

import pytest
from browser import Browser, browsing, needs_browser
from running import Running, environment, needs_mpiexec, poll_until, serving
from web_process import WebServer

from mallob_sat.generate import planted

pytest.importorskip("starlette", reason="needs the extra web")
pytest.importorskip("uvicorn", reason="needs the extra web")
pytestmark = needs_mpiexec

RANKS = 3
FORMULA = planted(60, 240, seed=7)
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), "--clients", "2", ranks=RANKS) as running:
        yield running
        assert running.process.poll() is None, running.output


@pytest.fixture(scope="module")
def web(service: Running) -> Iterator[WebServer]:
    server = WebServer(service.api_dir)
    try:
        yield server
    finally:
        code, out = server.stop()
    assert (code, out) == (0, "")


def volume_of(web: WebServer, user: str) -> int:
    return sum(job.get("volume", 0) for job in web.get("/api/jobs").json["jobs"] if job["user"] == user)


def sample(web: WebServer, name: str) -> float:
    match = re.search(rf"^mallob_py_{re.escape(name)} (\S+)$", web.get("/metrics").text, re.MULTILINE)
    return float(match[1]) if match else 0.0


def test_a_compressed_formula_is_solved_and_its_upload_removed(web: WebServer) -> None:
    content = gzip.compress(FORMULA.text("easy").encode())
    answer = web.upload(content, "user=http&name=sorter&wait=60")
    assert (answer.status, answer.json["ended"]["resultstring"]) == (202, "SAT")
    lines = web.get(f"/api/jobs/{answer.json['id']}/model").text.splitlines()
    assert lines[0] == "s SATISFIABLE"
    model = {int(word) for line in lines[1:] for word in line.removeprefix("v ").split()}
    assert all(model & set(clause) for clause in FORMULA.clauses)
    web.await_no_upload()


def test_a_proof_is_written_below_the_folder_for_results_and_can_be_fetched(
    web: WebServer, service: Running, tmp_path: Path
) -> None:
    def ask(**configuration: object) -> str:
        job = web.post_job(user="http", literals=[1, 0, -1, 0], configuration=configuration).json["id"]
        assert "ended" in web.get(f"/api/jobs/{job}?wait=60").json
        return f"/api/jobs/{job}/files/proof"

    precious = tmp_path / "precious"
    precious.write_text("of the host")
    assert web.get(ask(proof=str(precious))).status == 404
    assert precious.read_text() == "of the host"
    assert "there are: core" in web.get(ask(core="http.cnf")).error["message"]
    proof = ask(proof="http.lrat")
    written = service.box() / "results" / "http.lrat"
    answer = web.get(proof)
    assert (answer.status, answer.text) == (200, written.read_text())
    written.unlink()
    written.symlink_to(precious)
    assert web.get(proof).status == 410


def test_a_damaged_upload_gets_the_error_of_the_service(web: WebServer) -> None:
    content = gzip.compress(FORMULA.text("easy").encode())[:-20]
    ended = web.upload(content, "wait=60").json["ended"]
    assert ended["error"]["field"] == "files"
    web.await_no_upload()


def test_volumes_and_interruptions_of_all_clients(web: WebServer, service: Running) -> None:
    job = web.post_job(user="http", name="sleeper", application="SLEEP").json["id"]
    other = service.submit("elsewhere", client=1, application="SLEEP")
    poll_until(lambda: volume_of(web, "http") + volume_of(web, "u") == RANKS, "all PEs are busy")
    assert sample(web, 'pes{state="busy"}') == RANKS
    assert sample(web, 'user_volume{user="http"}') >= 1
    assert web.ask("POST", f"/api/jobs/{job}/interrupt").status == 202
    assert web.get(f"/api/jobs/{job}?wait=60").json["ended"]["outcome"] == "interrupted"
    assert web.ask("POST", "/api/jobs/u.elsewhere/interrupt?client=1").status == 202
    assert service.reply(other)["result"]["outcome"] == "interrupted"


def test_ended_jobs_of_all_clients_are_listed_and_answer(web: WebServer, service: Running) -> None:
    service.reply(service.submit("file", client=1, literals=[1, 0, -2, 0]))
    web.get(f"/api/jobs/{web.post_job(user='http', name='over', literals=[1, 0]).json['id']}?wait=60")

    def ended() -> dict[str, dict[str, Any]]:
        return {job["key"]: job for job in web.get("/api/jobs").json["recent"]}

    poll_until(lambda: {"u.file", "http.over"} <= ended().keys(), "both are told")
    assert ended()["u.file"]["client"] == 1
    assert ended()["u.file"]["ended"]["resultstring"] == "SAT"
    assert web.get("/api/jobs/u.file/model?client=1").text == "s SATISFIABLE\nv 1 -2 0\n"
    assert web.get("/api/jobs/u.file/model").status == 404
    assert web.get("/api/jobs/u.file?client=7").status == 404
    keys = [job["key"] for job in web.get("/api/jobs").json["recent"]]
    assert keys.count("http.over") == 1


def test_the_history_tells_volumes_shares_and_trees(web: WebServer) -> None:
    job = web.post_job(user="http", name="grown", application="SLEEP").json["id"]

    def last() -> dict[str, Any]:
        history = web.get("/api/history").json
        numbers = [number for number, one in history["jobs"].items() if one["name"] == "grown"]
        sample: dict[str, Any] = history["samples"][-1]
        return {"number": numbers[-1] if numbers else "", **sample}

    found = poll_until(lambda: (sample := last())["workers"] and len(sample["workers"]) == RANKS and sample)
    assert found
    assert found["volumes"] == {found["number"]: RANKS}
    assert found["shares"] == {found["number"]: RANKS}
    assert sorted(index for _, _, index in found["workers"]) == list(range(RANKS))
    assert {str(number) for _, number, _ in found["workers"]} == {found["number"]}
    web.ask("POST", f"/api/jobs/{job}/interrupt")
    assert web.get(f"/api/jobs/{job}?wait=60").json["ended"]["outcome"] == "interrupted"


def test_the_second_of_two_live_jobs_of_one_name_is_refused(web: WebServer) -> None:
    first = web.post_job(user="http", name="twice", application="SLEEP").json["id"]
    second = web.post_job(user="http", name="twice", application="SLEEP").json["id"]
    ended = web.get(f"/api/jobs/{second}?wait=60").json["ended"]
    assert "is live" in ended["error"]["message"]
    assert "ended" not in web.get(f"/api/jobs/{first}").json
    web.ask("POST", f"/api/jobs/{first}/interrupt")
    assert web.get(f"/api/jobs/{first}?wait=60").json["ended"]["outcome"] == "interrupted"


def test_metrics_count_replies_times_and_memory(web: WebServer) -> None:
    web.post_job(user="http", name="count", literals=[1, 0])
    poll_until(lambda: sample(web, 'replies_total{outcome="result"}') >= 1, "a reply is counted")
    count = 'job_duration_seconds_count{part="total"}'
    assert sample(web, count) >= 1
    assert sample(web, 'job_duration_seconds_bucket{le="+Inf",part="total"}') >= 1
    ranks = [sample(web, f'rank_resident_memory_bytes{{rank="{rank}"}}') for rank in range(RANKS)]
    assert min(ranks) > 1 << 20


def test_a_service_that_comes_back_takes_up_where_it_was(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=2) as first:
        web = WebServer(first.api_dir)
        try:
            poll_until(lambda: web.get("/api/service").json["running"], "the service is seen")
            first.kill()
            poll_until(lambda: not web.get("/api/service").json["running"], "its end is seen")
            job = web.upload(FORMULA.text("easy").encode(), "name=later").json
            assert job["state"] == "queued"
            assert sample(web, "up") == 0
            with serving(tmp_path, ranks=2):
                ended = web.get(f"/api/jobs/{job['id']}?wait=60").json["ended"]
                assert ended["resultstring"] == "SAT"
                web.await_no_upload()
        finally:
            web.stop()


def test_a_rank_never_imports_the_web_server() -> None:
    code = (
        "import mallob_py.cli.serve_rank, mallob_py.runtime.workers.fork_server, sys; "
        "print([name for name in sys.modules if name.startswith(('starlette', 'uvicorn', 'mallob_py.web'))])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment("x"), capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() == "[]"


# --- the page -------------------------------------------------------------------------------------


def row_of(name: str, body: str) -> str:
    """Return a JavaScript expression for a job's row in a table."""
    cell = "row.querySelector('[data-label=Name]')"
    return f"[...document.querySelectorAll('#{body} tr')].find(row => {cell}.textContent === '{name}')"


def cell_of(name: str, body: str, label: str) -> str:
    """Return a JavaScript expression for the text of a job's cell; undefined if the job has no row."""
    return f"""{row_of(name, body)}?.querySelector('[data-label="{label}"]').textContent"""


def click(browser: Browser, row: str, button: str) -> None:
    """Click the button of the row as soon as there is one."""
    find = f"[...({row}?.querySelectorAll('button') ?? [])].find(one => one.textContent === '{button}')"
    browser.await_truth(f"(() => {{ const found = {find}; found?.click(); return Boolean(found) }})()")


def enter(browser: Browser, web: WebServer) -> None:
    """Open the page; from then on, it asks the server only when the test looks."""
    browser.open(f"{web.url}#token={web.token}")
    quieten(browser)
    browser.await_truth("document.getElementById('state').textContent.startsWith('Running')")


def quieten(browser: Browser) -> None:
    """Stop the page's timer: between two steps of a test nothing changes by itself."""
    browser.evaluate("clearInterval(ticking)")
    browser.before = "refresh()"


def go_to(browser: Browser, address: str) -> None:
    """Follow an address within the page."""
    browser.evaluate(f"location.hash = {json.dumps(address)}")
    parts = json.dumps([unquote(part) for part in address[1:].split("/")])
    browser.await_truth(f"JSON.stringify([route.view, ...route.parts]) === JSON.stringify({parts})")


def resize(browser: Browser, width: int) -> None:
    size = {"width": width, "height": 844, "deviceScaleFactor": 1}
    browser.command("Emulation.setDeviceMetricsOverride", mobile=width < 400, **size)


def interrupt(browser: Browser, name: str) -> None:
    browser.evaluate("undoMs = 0")
    click(browser, row_of(name, "live"), "Interrupt")


@needs_browser
def test_the_page_submits_watches_interrupts_and_shows_results(
    web: WebServer, service: Running, tmp_path: Path
) -> None:
    formula = tmp_path / "sorter.cnf.xz"
    formula.write_bytes(lzma.compress(FORMULA.text("easy").encode()))
    with browsing() as browser:
        enter(browser, web)
        assert web.token not in browser.evaluate("location.href")

        browser.choose_file("#file", str(formula))
        assert browser.evaluate("document.getElementById('name').value") == "sorter"
        browser.evaluate(f"document.getElementById('user').value = {EVIL!r}")
        browser.evaluate("document.getElementById('submit').requestSubmit()")
        browser.await_truth("document.getElementById('sent').textContent.includes('ended: SAT after')")
        assert browser.evaluate("document.getElementById('sent').textContent").startswith(f"{EVIL}.sorter")
        click(browser, row_of("sorter", "ended"), "Answer")
        browser.await_truth("document.getElementById('result').textContent.includes('s SATISFIABLE')")
        click(browser, row_of("sorter", "ended"), "Reply")
        browser.await_truth("document.getElementById('result').textContent.includes('internal_id')")
        assert str(web.api_dir.parent) not in browser.text()
        browser.evaluate("document.getElementById('result-close').click()")
        # A name is shown as text, even if it looks like HTML.
        go_to(browser, "#ended")
        assert browser.evaluate("document.querySelectorAll('img').length") == 0
        assert EVIL in browser.text()
        go_to(browser, "#jobs")

        web.post_job(user="http", name="endless", application="SLEEP")
        browser.await_truth(f"{cell_of('endless', 'live', 'Workers')} === '{RANKS}'")
        assert browser.evaluate(cell_of("endless", "live", "Fair share")) == str(RANKS)
        button = f"{row_of('endless', 'live')}.querySelector('button')"
        browser.evaluate(f"{button}.focus()")
        newest = browser.evaluate("samples.at(-1).time")
        browser.await_truth(f"samples.at(-1).time > {newest} + 2")
        assert browser.evaluate(f"document.activeElement === {button}")
        interrupt(browser, "endless")
        browser.await_truth(f"{cell_of('endless', 'ended', 'How')} === 'interrupted'")

        web.post_job(user="http", name="far", application="QUEENS", configuration={"n": 25})
        browser.await_truth(
            f"/[0-9.]+[kMGT] tasks, [0-9.]+[kMG]\\/s/.test({cell_of('far', 'live', 'Progress')})"
        )
        told = web.get("/api/jobs").json["jobs"]
        assert next(job for job in told if job["name"] == "far")["progress"]["unit"] == "tasks"
        interrupt(browser, "far")
        browser.await_truth(f"{cell_of('far', 'ended', 'How')} === 'interrupted'")

        other = service.submit("by-file", client=1, literals=[1, 0])
        service.reply(other)
        click(browser, row_of("by-file", "ended"), "Answer")
        browser.await_truth("document.getElementById('result').textContent.includes('v 1 0')")

        browser.choose_file("#file", str(formula))
        browser.evaluate("document.getElementById('max-demand').value = 'many'")
        browser.evaluate("document.getElementById('submit').requestSubmit()")
        browser.await_truth("document.getElementById('message').textContent.includes('max-demand')")
        assert browser.complaints == []


@needs_browser
def test_the_page_draws_volumes_pes_and_trees_and_goes_back_in_time(web: WebServer) -> None:
    def count(selector: str) -> str:
        return f"document.querySelectorAll('{selector}').length"

    with browsing() as browser:
        enter(browser, web)
        jobs = [
            web.post_job(user="http", name=name, application="SLEEP", max_demand=demand).json["id"]
            for name, demand in (("small", 1), ("large", 2))
        ]
        browser.await_truth(
            f"{count('#trees [data-job] rect')} === {RANKS} && {count('#trees [data-job]')} === 2"
        )
        browser.await_truth(f"{count('#trees .empty')} === 0")
        assert browser.evaluate(f"{count('#volumes path[data-job]')} >= 2")
        assert "http.large" in browser.evaluate("document.getElementById('legend').textContent")
        fills = "[...document.querySelectorAll('#trees [data-job] rect')].map(one => one.style.fill)"
        assert browser.evaluate(f"new Set({fills}).size") == 2
        tips = browser.evaluate(
            "[...document.querySelectorAll('#trees [data-tip]')].map(one => one.dataset.tip)"
        )
        assert sorted(tip.partition(" on PE ")[0] for tip in tips) == [
            "http.large: worker 0",
            "http.large: worker 1",
            "http.small: worker 0",
        ]
        browser.await_truth("document.getElementById('users').textContent.includes('3 / 3')")
        _walk_by_keyboard(browser)

        # Back to the moment when the jobs ran.
        slide = "slider.dispatchEvent(new Event('input'))"
        for job in jobs:
            web.ask("POST", f"/api/jobs/{job}/interrupt")
        browser.await_truth(f"{count('#trees .empty')} === {RANKS} && {count('#trees [data-job]')} === 0")
        browser.await_truth("document.getElementById('moment').textContent === 'now'")
        find = "samples.findLastIndex(sample => sample.workers && sample.workers.length === 3)"
        browser.evaluate(f"(() => {{ const slider = at('slider'); slider.value = {find}; {slide} }})()")
        assert browser.evaluate(count("#trees [data-job] rect")) == RANKS
        assert "ago" in browser.evaluate("document.getElementById('moment').textContent")
        browser.evaluate("document.getElementById('now').click()")
        assert browser.evaluate(count("#trees [data-job]")) == 0
        assert browser.complaints == []


def _walk_by_keyboard(browser: Browser) -> None:
    """Walk by keys through the charts of two jobs on three PEs: all are read out, and keep the focus when
    redrawn.
    """

    def told(key: str) -> str:
        browser.press(key)
        return str(browser.evaluate("at('told').textContent"))

    browser.evaluate("at('trees').focus()")
    assert told("Home").startswith("http.large: worker 0 on PE ")
    assert told("ArrowDown").startswith("http.large: worker 1 on PE ")
    assert told("ArrowUp").startswith("http.large: worker 0 on PE ")
    assert told("ArrowRight").startswith("http.small: worker 0 on PE ")
    browser.evaluate("pictured = null; showMoment()")
    assert browser.evaluate("document.querySelector('#trees .at').dataset.tip").startswith("http.small: ")
    assert told("ArrowLeft").startswith("http.large: worker 0 on PE ")
    browser.evaluate("at('volumes').focus()")
    assert browser.evaluate("document.querySelectorAll('.at').length") == 0
    assert told("ArrowUp").startswith("now, http.small: 1 worker")
    assert told("ArrowUp").startswith("now, http.large: 2 workers")
    assert " ago (" in told("Home")
    assert browser.evaluate("at('slider').ariaValueText").partition(" ago")[1]
    assert told("End").startswith("now, http.large: 2 workers")
    browser.press("Escape")
    assert browser.evaluate("tip.hidden && !document.querySelector('.dim')")
    assert browser.evaluate("document.querySelector('#live button').ariaLabel").startswith("Interrupt http.")


@needs_browser
def test_the_form_has_the_fields_that_an_application_declares(web: WebServer) -> None:
    def choose(application: str) -> None:
        browser.evaluate(f"at('application').value = {application!r}")
        browser.evaluate("at('application').dispatchEvent(new Event('input'))")

    keys = "[...document.querySelectorAll('#declared-fields input')].map(one => one.dataset.key).join()"
    with browsing() as browser:
        enter(browser, web)
        browser.await_truth(f"{keys}.startsWith('portfolio,seed')")
        choose("UTS")
        browser.await_truth(f"{keys} === 'type,shape,depth,branching,seed,q,m'")
        choose("QUEENS")
        browser.await_truth(f"{keys} === 'n' && at('file-label').hidden && at('declared').open")
        field = "document.querySelector('#declared-fields input')"
        assert "board" in browser.evaluate(f"{field}.closest('label').textContent")
        browser.evaluate(f"{field}.value = 'many'; at('name').value = 'fields'; at('submit').requestSubmit()")
        browser.await_truth("at('message').textContent === \"n: 'many' is not a whole number\"")
        browser.evaluate(f"{field}.value = '6'; at('submit').requestSubmit()")
        browser.await_truth("at('sent').textContent.includes('fields: ended: DONE')")
        choose("")
        browser.await_truth(f"{keys}.startsWith('portfolio,seed') && !at('file-label').hidden")
        assert browser.complaints == []


def test_settings_are_texts_of_which_the_declared_options_make_values(web: WebServer) -> None:
    def configured(**query: object) -> Any:
        text = urlencode({key: json.dumps(value) for key, value in query.items()})
        answer = web.upload(FORMULA.text("easy").encode(), f"{text}&wait=60")
        return answer.json["ended"] if answer.status == 202 else answer.error

    assert configured(settings={"projection": "1,2", "solutions": "1"})["resultstring"] == "SAT"
    assert configured(settings={"projection": "1,x"}) == {
        "field": "projection",
        "message": "'x' is not a whole number",
    }
    assert configured(settings={"seed": 1})["field"] == "settings"
    told = configured(configuration={"seed": 1}, settings={"wrong": "true"})
    assert "wrong" in told["error"]["message"]
    form = web.get("/api/applications/QUEENS").json
    assert (form["takes_input"], [field["key"] for field in form["fields"]]) == (False, ["n"])
    assert [field["key"] for field in web.get("/api/applications/MAXSAT").json["fields"]] == ["sharing"]
    assert web.ask("GET", "/api/applications/NONE").status == 404
    assert web.ask("GET", "/api/applications/CALLS").status == 403


@needs_browser
def test_the_page_finds_sorts_and_pages_ended_jobs_and_takes_any_application(web: WebServer) -> None:
    with browsing() as browser:
        enter(browser, web)
        for field, text in {
            "application": "QUEENS",
            "name": "board",
            "user": "page",
            "settings": "n=6",
        }.items():
            browser.evaluate(f"at('{field}').value = '{text}'")
        browser.evaluate("at('submit').requestSubmit()")
        browser.await_truth("at('sent').textContent.includes('page.board: ended: DONE')")
        browser.evaluate(
            "at('name').value = 'wrong'; at('settings').value = 'n=99'; at('submit').requestSubmit()"
        )
        browser.await_truth("at('sent').textContent.includes('page.wrong: ended')")
        click(browser, row_of("board", "ended"), "Answer")
        browser.await_truth("at('result').textContent.includes('\"value\": 4')")
        browser.evaluate("at('result-close').click()")

        names = (
            "[...document.querySelectorAll('#ended [data-label=Name]')].map(one => one.textContent).join()"
        )
        search = "at('ended-text').value = 'page.'; at('ended-text').dispatchEvent(new Event('input'))"
        browser.evaluate(search)
        browser.await_truth(f"{names} === 'wrong,board'")
        browser.evaluate("document.querySelector('#ended-head [data-order=name]').click()")
        browser.await_truth(f"{names} === 'board,wrong'")
        browser.evaluate(
            "at('ended-kind').value = 'failures'; at('ended-kind').dispatchEvent(new Event('change'))"
        )
        browser.await_truth(f"{names} === 'wrong'")
        assert "number" in browser.evaluate("document.querySelector('#ended .failed').textContent")
        browser.evaluate(
            "at('application').value = ''; at('settings').value = ''; at('submit').requestSubmit()"
        )
        browser.await_truth("at('message').textContent.includes('choose an input')")

        web.post_job(user="page", name="late", application="SLEEP", dependencies=["page.nobody"])
        browser.await_truth(f"{cell_of('late', 'live', 'Progress')}?.includes('waits for the end of 1 job')")
        assert browser.complaints == []


def test_ended_jobs_are_told_page_by_page(web: WebServer) -> None:
    for name in ("one", "two", "three"):
        web.post_job(user="paged", name=name, application="NOOP")
    query = "/api/ended?text=paged.&limit=2"
    poll_until(lambda: web.get(query).json["total"] == 3)
    first, second = web.get(query).json, web.get(f"{query}&offset=2").json
    assert (len(first["jobs"]), len(second["jobs"])) == (2, 1)
    ordered = web.get("/api/ended?text=paged.&order=name&ascending=1").json["jobs"]
    assert [job["name"] for job in ordered] == ["one", "three", "two"]
    assert web.get("/api/ended?text=paged.&kind=failures").json == {"total": 0, "jobs": []}
    for wrong in ("kind=none", "order=none", "offset=x"):
        answer = web.ask("GET", f"/api/ended?{wrong}")
        assert answer.status == 400
        assert answer.error["field"] == wrong.partition("=")[0]


def test_a_users_token_is_for_the_jobs_of_that_user(web: WebServer) -> None:
    path = str(web.api_dir)
    command = [sys.executable, "-m", "mallob_py.cli.main", "token", "--api-dir", path, "ann"]
    token = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def ask(method: str, path: str, body: bytes = b"", **headers: str) -> Any:
        return web.ask(method, path, body, headers={"Authorization": f"Bearer {token}", **headers})

    as_json = {"Content-Type": "application/json"}
    others = web.post_job(user="ben", name="secret", application="SLEEP", group="g").json["id"]
    own = ask("POST", "/api/jobs", b'{"application": "NOOP", "name": "mine", "group": "g"}', **as_json)
    assert (own.status, own.json["user"]) == (202, "ann")
    assert ask("GET", f"/api/jobs/{own.json['id']}?wait=60").json["ended"]["outcome"] == "result"
    assert ask("GET", "/api/jobs/ann.mine/reply").status == 200
    poll_until(lambda: any(job["name"] == "secret" for job in web.get("/api/jobs").json["jobs"]))
    poll_until(lambda: "secret" in web.get("/api/history").text)

    told = ask("GET", "/api/jobs").json
    assert told["user"] == "ann"
    assert {job["user"] for job in told["jobs"] + told["recent"]} == {"ann"}
    assert {job["user"] for job in ask("GET", "/api/ended").json["jobs"]} == {"ann"}
    assert "secret" not in ask("GET", "/api/history").text
    for key in (others, "ben.secret"):
        for rest in ("", "/reply", "/model", "/output", "/explain", "/timeline", "/file"):
            assert ask("GET", f"/api/jobs/{key}{rest}").status == 404, (key, rest)
        assert ask("POST", f"/api/jobs/{key}/interrupt").status == 404
        assert ask("GET", f"/api/jobs/{key}/files/proof").status == 404
    for fields in (b'{"user": "ben"}', b'{"incremental": true, "precursor": "ben.plan"}'):
        assert ask("POST", "/api/jobs", fields, **as_json).status == 403
    assert ask("GET", "/metrics").status == 403
    assert ask("GET", "/api/group?user=ben&name=g").status == 404
    assert ask("POST", "/api/group/interrupt?user=ben&name=g").status == 404
    poll_until(lambda: ask("GET", "/api/group?user=ann&name=g").json["answers"] == {"DONE": 1})
    assert "its result is DONE" in ask("GET", "/api/jobs/ann.mine/explain").text
    assert ask("GET", "/api/jobs/ann.mine/file").json["group"] == "g"
    assert ask("GET", "/api/jobs/ann.mine/timeline").status == 200
    held = b'{"application": "NOOP", "name": "after", "dependencies": ["ben.secret"]}'
    assert ask("POST", "/api/jobs", held, **as_json).status == 202
    why = poll_until(lambda: "waits for" in (told := ask("GET", "/api/jobs/ann.after/explain").text) and told)
    assert "ben.secret." in why, "neither its state nor its absence is told"
    assert web.ask("POST", f"/api/jobs/{others}/interrupt").status == 202


@needs_browser
def test_the_page_says_what_troubles_a_host(web: WebServer) -> None:
    with browsing() as browser:
        enter(browser, web)
        assert browser.evaluate("document.getElementById('troubles').textContent") == ""
        hosts = '[{name: "one", troubles: []}, {name: "two", troubles: ["short of memory"]}]'
        browser.evaluate(f"showService({{running: true, up: 1, ranks: 2, pes: 2, busy: 0, hosts: {hosts}}})")
        assert browser.evaluate("document.getElementById('troubles').textContent") == "two: short of memory"
        assert browser.complaints == []


@needs_browser
def test_live_rows_keep_their_places_and_heights_and_hide_no_busy_job(web: WebServer) -> None:
    def shown(*jobs: dict[str, Any]) -> dict[str, list[Any]]:
        told = {"jobs": [{"user": "u", "state": "", **job} for job in jobs], "service": {}}
        rows = "[...at('live').children]"
        look = f"""(() => {{ showJobs({json.dumps(told)}); return {{
            names: {rows}.map(row => row.querySelector('[data-label=Name]').textContent),
            heights: {rows}.map(row => row.offsetHeight) }} }})()"""
        found: dict[str, list[Any]] = browser.evaluate(look)
        return found

    def job(name: str, **fields: Any) -> dict[str, Any]:
        return {"name": name, "key": f"u.{name}", **fields}

    with browsing() as browser:
        enter(browser, web)
        browser.before = "null"  # from here on, the page shows nothing by itself
        browser.evaluate("at('live').replaceChildren(); places.clear()")
        why = {"why": "It rests. " * 30}
        before = shown(job("one", volume=1), job("two", **why), job("same", client=0), job("same", client=1))
        after = shown(job("same", client=1, volume=2), job("one", **why), job("two", volume=1), job("same"))
        assert before["names"] == after["names"] == ["one", "two", "same", "same"]
        assert after["heights"][1] == before["heights"][1]
        crowd = [job(f"j{number}") for number in range(40)]
        assert "late" in shown(*crowd, job("late", volume=1))["names"]
        crowd[39]["volume"] = 1
        names = shown(*crowd)["names"]
        assert (len(names), names[-1]) == (25, "j39")


@needs_browser
def test_letters_that_nobody_sees_are_shown_as_escapes(web: WebServer) -> None:
    """All texts of the page are checked, and all attributes that are shown or read out."""
    name, user = "a\u202eb\u00adc\u061cd", "t\u200eu"
    web.post_job(user=user, name=name, application="QUEENS", configuration={"n": 99})
    live = web.post_job(user=user, name=f"{name}live", application="SLEEP").json["id"]
    held = web.post_job(user=user, name="held", application="SLEEP", dependencies=[f"x.{name}"]).json["id"]
    shown = name.encode("unicode_escape").decode().replace("\\x", "\\u00").replace("\\", "\\\\")
    raw = """(() => {
        const found = [], walker = document.createTreeWalker(document.body, 5), hidden = /\\p{Cf}/u;
        for (let node; (node = walker.nextNode());)
            for (const text of node.attributes ? [...node.attributes] : [node])
                if (text.name !== 'data-key' && hidden.test(text.value ?? text.data))
                    found.push(text.name ?? node.data);
        return found.join();
    })()"""
    with browsing() as browser:
        enter(browser, web)
        browser.await_truth(f"{cell_of(shown, 'ended', 'How')} === 'failed'")
        browser.await_truth(f"{cell_of(shown + 'live', 'live', 'State')} === 'running'")
        browser.await_truth(f"{cell_of('held', 'live', 'Progress')}?.includes('{shown}')")
        click(browser, row_of(shown, "ended"), "Reply")
        browser.await_truth("document.getElementById('result').textContent.includes('internal_id')")
        assert browser.evaluate(raw) == ""
        assert browser.complaints == []
    for job in (live, held):
        web.ask("POST", f"/api/jobs/{job}/interrupt")
        assert "ended" in web.get(f"/api/jobs/{job}?wait=60").json


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_follows_the_scheme(web: WebServer, scheme: str) -> None:
    web.post_job(user="http-" + "u" * 60, name="n" * 100, literals=[1, 0])
    with browsing() as browser:
        resize(browser, 390)
        browser.command(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        enter(browser, web)
        browser.await_truth(f"{cell_of('n' * 100, 'ended', 'Result')} === 'SAT'")
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        lightness = sum(int(part) for part in re.findall(r"\d+", ground)[:3]) / 3
        assert (lightness > 128) == (scheme == "light")


@needs_browser
def test_the_page_asks_for_the_token_and_says_when_the_service_is_away(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=1) as service, browsing() as browser:
        web = WebServer(service.api_dir)
        try:
            browser.open(f"{web.url}#token=wrong")
            browser.await_truth("!document.getElementById('login').hidden")
            assert browser.evaluate("document.getElementById('inside').hidden")
            browser.evaluate(f"document.getElementById('token').value = '{web.token}'")
            browser.evaluate("document.getElementById('login').requestSubmit()")
            browser.await_truth("document.getElementById('state').textContent.startsWith('Running')")
            assert service.stop() == 0
            browser.await_truth(
                "document.getElementById('state').textContent.includes('No service is running')"
            )
            with serving(tmp_path, ranks=1):
                browser.await_truth("document.getElementById('state').textContent.startsWith('Running')")
            web.stop()
            browser.await_truth("document.getElementById('state').textContent.includes('cannot be reached')")
        finally:
            web.stop()


@needs_browser
def test_an_interruption_waits_for_seconds_and_can_be_undone_by_keyboard(web: WebServer) -> None:
    job = web.post_job(user="http", name="spared", application="SLEEP").json["id"]
    button = f"{row_of('spared', 'live')}.querySelector('button')"
    bar = "at('pending').textContent"
    with browsing() as browser:
        enter(browser, web)
        browser.evaluate("undoMs = 1e8")  # interruptions are sent only when the test says so
        browser.await_truth(f"{row_of('spared', 'live')} && ({button}.focus(), true)")
        browser.press("Enter")
        browser.await_truth(f"{button}.textContent.startsWith('Undo (')")
        assert browser.evaluate(f"document.activeElement === {button}")
        assert browser.evaluate(f"{button}.ariaLabel") == "Undo the interruption of http.spared"
        assert browser.evaluate(bar).startswith("Interrupting http.spared in ")
        assert "undoes this" in browser.evaluate("at('told').textContent")
        browser.press("Enter")
        assert browser.evaluate(f"{button}.textContent + {bar}") == "Interrupt"
        control_z = "new KeyboardEvent('keydown', { key: 'z', ctrlKey: true, bubbles: true })"
        for undo in (
            "at('pending').querySelector('button').click()",
            f"document.body.dispatchEvent({control_z})",
            "dispatchEvent(new Event('pagehide'))",  # leaving the page cancels the interruption
        ):
            browser.evaluate(f"{button}.click()")
            assert browser.evaluate("pending.size") == 1
            browser.evaluate(undo)
            assert browser.evaluate(f"pending.size + {button}.textContent") == "0Interrupt"
        for detail in (1, 2):  # two clicks of a double click
            browser.evaluate(f"{button}.dispatchEvent(new MouseEvent('click', {{ detail: {detail} }}))")
        assert browser.evaluate("pending.size") == 1
        browser.evaluate("undo([...pending.keys()][0])")
        assert "ended" not in web.get(f"/api/jobs/{job}").json
        interrupt(browser, "spared")
        browser.await_truth(f"{cell_of('spared', 'ended', 'How')} === 'interrupted'")
        assert browser.complaints == []


CROWD = """(() => {
    const all = [...Array(300).keys()].map(i => ({ user: "u" + i % 7, group: "g", name: "instance-" + i,
        key: "k." + i, number: i + 1, state: i < 120 ? "running" : i < 220 ? "resting" : "queued",
        volume: i < 120 ? 3 : 0, application: "SAT", demand: 400, standing: i,
        why: i < 220 ? "" : "Because of " + i }));
    const workers = [...Array(360).keys()].map(pe => [pe, Math.floor(pe / 3) + 1, pe % 3]);
    const volumes = Object.fromEntries(all.slice(0, 50).map(job => [job.number, job.volume]));
    const uses = [[2e9, 3.5, 2e10, 1e11]], hosts = [...Array(50).keys()].map(rank =>
        ({ name: "node" + rank, ranks: [rank], pes: 8, busy: 7, turns: 0, uses,
            troubles: rank ? [] : ["short of memory"] }));
    const service = { running: true, up: 5, ranks: 50, pes: 400, busy: 360, hosts,
        states: { running: 120, resting: 100, queued: 70, held: 10 } };
    const sample = { time: 2e9, pes: 400, busy: 370, volumes, shares: {}, others: 210, groups: { 60: 30 } };
    learn({ samples: [{ ...sample, workers }], jobs:
        Object.fromEntries(all.map(job => [job.number, job])) });
    showService(service); showHosts(hosts); showJobs({ jobs: all, service });
    showQueue(all, service.states); showMoment();
})()"""


@needs_browser
def test_a_crowd_is_legible_counted_and_filtered_also_on_a_phone(web: WebServer) -> None:
    names = "[...document.querySelectorAll('#live [data-label=Name]')].map(one => one.textContent)"
    with browsing() as browser:
        enter(browser, web)
        for width in (1280, 390):
            browser.before = "null"
            resize(browser, width)
            for view in ("jobs", "queue", "hosts"):
                browser.await_truth("Promise.resolve(asking).then(() => true)")
                go_to(browser, f"#{view}")
                browser.await_truth("Promise.resolve(asking).then(() => !asking)")
                browser.evaluate(CROWD)
                assert browser.evaluate("document.documentElement.scrollHeight") < 6000, (width, view)
                assert browser.evaluate("document.documentElement.scrollWidth") <= width, (width, view)
            go_to(browser, "#jobs")
            browser.await_truth("Promise.resolve(asking).then(() => !asking)")
            browser.evaluate(CROWD)
            cells = browser.evaluate(
                "[...document.querySelectorAll('#trees rect')].map(one => +one.getAttribute('width'))"
            )
            assert len(cells) == 400
            assert min(cells) >= 4
            hint = browser.evaluate("at('trees-hint').textContent")
            assert "40 PEs, idle or not reported yet" in hint, "30 are idle; 10 are not told"
        browser.evaluate("showVolumes(at('group-volumes'), number => names.get(number).user === 'u3')")
        assert browser.evaluate("document.querySelectorAll('#group-volumes path.rest').length") == 1
        assert "120 jobs running, 100 resting, 80 waiting" in browser.evaluate("at('state').textContent")
        assert browser.evaluate("at('queue-link').textContent") == "Queue (80)"
        reasons = "[...document.querySelectorAll('#queue [data-label=Reason]')].map(one => one.textContent)"
        assert browser.evaluate(f"{reasons}[0]") == "Because of 299"
        assert browser.evaluate("at('hosts').rows[0].textContent").startswith("node0")
        assert "short of memory" in browser.evaluate("at('hosts').rows[0].textContent")
        assert "20 GB of 100 GB" in browser.evaluate("at('hosts').rows[0].textContent")
        browser.evaluate(
            "at('live-text').value = 'U3 stance-1'; at('live-text').dispatchEvent(new Event('input'))"
        )
        assert browser.evaluate(f"{names}.length") == 8
        fitting = [i for i in range(300) if i % 7 == 3 and str(i).startswith("1")]
        assert browser.evaluate("at('live-hint').textContent") == f"{len(fitting)} of 300 jobs fit the filter"
        browser.evaluate(
            "at('live-kind').value = 'resting'; at('live-kind').dispatchEvent(new Event('input'))"
        )
        resting = [i for i in fitting if 120 <= i < 220]
        assert browser.evaluate("at('live-hint').textContent") == f"{len(resting)} of 300 jobs fit the filter"
        assert set(browser.evaluate(f"{names}.map(name => +name.split('-')[1] % 7)")) == {3}
        assert browser.complaints == []


@needs_browser
def test_a_job_has_a_page_with_an_address(web: WebServer, service: Running) -> None:
    name = EVIL.replace("/", "")
    configuration = {"seed": 3}
    with browsing() as browser:
        fields: dict[str, Any] = {"user": "page", "name": name, "application": "SLEEP", "group": "g"}
        web.post_job(**fields, configuration=configuration, time_limit="1h")
        browser.open(f"{web.url}#job/{quote('page.' + name)}")
        browser.await_truth("!at('login').hidden")  # this tab has no token yet
        browser.evaluate(f"at('token').value = '{web.token}'; at('login').requestSubmit()")
        quieten(browser)
        browser.await_truth("at('job-why').textContent.includes('is running with ')")
        assert browser.evaluate("at('job-title').textContent") == f"page.{name}"
        assert "leaves it" in browser.evaluate("at('job-why').textContent")
        assert json.loads(browser.evaluate("at('job-file').textContent"))["configuration"] == configuration
        browser.await_truth("document.querySelectorAll('#job-volumes [data-part]').length > 0")
        browser.evaluate("at('job-volumes').focus()")
        browser.press("Home")
        assert "running, " in browser.evaluate("at('told').textContent")
        browser.evaluate("undoMs = 0; document.querySelector('#job-actions button').click()")
        browser.await_truth("at('job-why').textContent.includes('it was interrupted')")
        browser.evaluate("at('job-reply-box').open = true")
        browser.await_truth("at('job-reply').textContent.includes('internal_id')")
        assert browser.evaluate("at('job-facts').textContent").startswith("Stateinterrupted")

        browser.evaluate(
            "[...at('job-actions').children].find(one => one.textContent === 'Resubmit').click()"
        )
        browser.await_truth("route.view === 'submit' && carried")
        assert browser.evaluate("[at('name').value, at('time-limit').value, at('settings').value]") == [
            f"{name}-2",
            "1h",
            json.dumps(configuration, separators=(",", ":")),
        ]
        browser.evaluate("at('submit').requestSubmit()")
        again = f"page.{name}-2"
        browser.await_truth(f"at('sent').textContent.includes({json.dumps(again)})")
        assert browser.evaluate("carried") is None
        job = web.get(f"/api/jobs/{quote(again)}/file").json
        assert (job["group"], job["configuration"]) == ("g", configuration)
        go_to(browser, f"#job/{quote(again)}")
        browser.await_truth("at('job-facts').querySelector('a')?.click() ?? route.view === 'group'")
        web.ask("POST", f"/api/jobs/{quote(again)}/interrupt")
        go_to(browser, "#job/page.nobody")
        browser.await_truth("at('job-why').textContent.includes('no job page.nobody')")
        assert browser.evaluate("document.querySelectorAll('img').length") == 0
        assert browser.complaints == []


@needs_browser
def test_a_group_has_a_page_and_ends_as_a_whole(web: WebServer) -> None:
    group, user = EVIL.replace("/", ""), "grouped"
    for number in range(3):
        web.post_job(user=user, name=f"j{number}", application="SLEEP", group=group)
    job = web.post_job(user=user, name="short", literals=[1, 0], group=group).json["id"]
    web.post_job(user=user, name="other", application="SLEEP")
    assert web.get(f"/api/jobs/{job}?wait=60").json["ended"]["resultstring"] == "SAT"
    why = "at('group-why').textContent"
    with browsing() as browser:
        enter(browser, web)
        browser.await_truth(f"at('groups').textContent.includes({json.dumps(f'{user}.{group}')})")
        browser.evaluate(
            "[...at('groups').querySelectorAll('a')].find(one => one.text.includes('<')).click()"
        )
        browser.await_truth(f"{why}.includes('1 of 4 jobs have ended: ')")
        assert browser.evaluate("at('group-title').textContent") == f"{user}.{group}"
        assert browser.evaluate("at('group-facts').textContent").startswith("SAT1")
        browser.await_truth("document.querySelectorAll('#group-volumes path[data-job]').length > 0")
        browser.evaluate("undoMs = 0; at('group-actions').querySelector('button').click()")
        browser.await_truth(f"{why}.includes('4 of 4 jobs have ended.')")
        assert browser.evaluate("at('group-facts').textContent").startswith("interrupted3SAT1")
        browser.evaluate("at('group-actions').querySelector('button').click()")
        browser.await_truth("at('result').textContent === '3 jobs handed in again.'")
        browser.await_truth(f"{why}.includes('1 of 4 jobs have ended: ')")
        assert browser.complaints == []
    query = urlencode({"user": user, "name": group})
    assert web.ask("POST", f"/api/group/interrupt?{query}").json == {"jobs": 3}
    web.ask("POST", f"/api/jobs/{user}.other/interrupt")
    poll_until(lambda: volume_of(web, user) == 0, "all have ended")
    assert web.get(f"/api/group?{query}&limit=2&offset=3").json["total"] == 4
    assert web.ask("GET", f"/api/group?user={user}&name=none").status == 404
    assert web.ask("POST", f"/api/group/interrupt?user={user}&name=none").status == 409


@needs_browser
def test_it_is_told_why_jobs_of_a_group_are_not_handed_in_again(web: WebServer) -> None:
    broken = web.upload(b"p cnf 1 1\nno 0\n", "user=again&group=g&name=uploaded").json["id"]
    web.post_job(user="again", name="slept", application="SLEEP", group="g")
    web.ask("POST", "/api/jobs/again.slept/interrupt")
    for job in (broken, "again.slept"):
        assert web.get(f"/api/jobs/{job}?wait=60").json["ended"]
    with browsing() as browser:
        enter(browser, web)
        go_to(browser, "#group/again/g")
        browser.await_truth("at('group-why').textContent.includes('2 of 2 jobs have ended')")
        browser.evaluate("at('group-actions').querySelector('button').click()")
        told = "1 job handed in again; uploaded not: the input was uploaded and is gone."
        browser.await_truth(f"at('result').textContent === '{told}'")
        assert browser.complaints == []
    web.ask("POST", "/api/jobs/again.slept/interrupt")
    poll_until(lambda: volume_of(web, "again") == 0, "all have ended")


@needs_browser
def test_every_view_is_reached_by_keyboard_alone(web: WebServer) -> None:
    with browsing() as browser:
        enter(browser, web)
        for view in ("queue", "ended", "hosts", "submit"):
            browser.evaluate("(top => { top.tabIndex = -1; top.focus(); })(document.querySelector('h1'))")
            reached = f"document.activeElement.hash === '#{view}'"
            for _ in range(6):
                browser.press("Tab")
                if browser.evaluate(reached):
                    break
            assert browser.evaluate(reached), view
            browser.press("Enter")
            browser.await_truth(f"route.view === '{view}' && document.activeElement.tagName === 'H2'")
            assert browser.evaluate("document.querySelector('nav [aria-current]').hash") == f"#{view}"
        assert browser.complaints == []


_AXE = os.environ.get("MALLOB_PY_AXE", "")


@needs_browser
@pytest.mark.skipif(not os.path.isfile(_AXE), reason="MALLOB_PY_AXE names no axe.min.js (npm: axe-core)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(web: WebServer, scheme: str) -> None:
    web.post_job(user="axe", name="job", application="SLEEP", group="g")
    told = "axe.run().then(it => it.violations.map(one => [one.impact, one.id, one.nodes[0].html]))"
    with browsing() as browser:
        browser.command(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        enter(browser, web)
        browser.evaluate(f"{Path(_AXE).read_text()}; 0")
        for address in (*("#jobs", "#queue", "#ended", "#hosts", "#submit"), "#job/axe.job", "#group/axe/g"):
            go_to(browser, address)
            for width in (1280, 390):
                resize(browser, width)
                browser.await_truth("Promise.resolve(refresh()).then(() => true)")
                found = browser.evaluate(told)
                assert [one for one in found if one[0] in ("serious", "critical")] == [], (address, width)
    web.ask("POST", "/api/jobs/axe.job/interrupt")
