"""The HTTP interface: every route, its permitted users, and its errors.

All answers have headers that keep them out of caches, frames and the reach of other sites' pages. There are
no cookies. Each failure becomes one JSON error with field and message. The description of the interface, for
programs and for people, is generated from the table of routes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, cast

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mallob_py import __version__
from mallob_py.applications import DEFAULT_APPLICATION
from mallob_py.async_loop import LoopWatch
from mallob_py.loop_rate import shown
from mallob_py.protocol.job_terms import TERMS
from mallob_py.service.jobs.job_file import JobFields, json_schema
from mallob_py.web import ApiError
from mallob_py.web.jobs import ENDED_KINDS, ENDED_ORDERS, Jobs
from mallob_py.web.looks import Arrivals
from mallob_py.web.metrics import CONTENT_TYPE, metrics
from mallob_py.web.receiving import Receiver
from mallob_py.web.shares import Answers, Counts, Ending, FromFile, Places
from mallob_py.web.store import Store, Token
from mallob_py.web.timelines import Timeline
from mallob_py.web.tokens import OPERATOR, UserTokens, Visitor
from mallob_py.web.views import (
    ApplicationForm,
    EndedJobs,
    GroupJobs,
    HistoryPart,
    Job,
    Overview,
    ServiceState,
    answer_lines,
    form_of,
    solution_json,
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query, or in the path if its name stands there."""

    name: str
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table of routes. `body` and `answers`: content type -> schema."""

    method: str
    path: str
    summary: str
    answers: dict[str, Any]
    parameters: tuple[Parameter, ...] = ()
    body: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    is_open: bool = False


ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["field", "message"],
            "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
        }
    },
}


def document(operations: Sequence[Operation], types: Sequence[type]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document. In the operations, a type stands for its schema."""
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}", schema_hook=json_schema
    )
    schema_of: dict[Any, Any] = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mallob-py", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": ERROR_SCHEMA},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _described(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    def content(by_type: dict[str, Any]) -> dict[str, Any]:
        return {
            kind: {"schema": schema if isinstance(schema, dict) else schema_of[schema]}
            for kind, schema in by_type.items()
        }

    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            str(operation.status): {"description": "Done.", "content": content(operation.answers)},
            "default": {"description": "The error.", "content": error},
        },
    }
    if operation.parameters:
        described["parameters"] = [
            {
                "name": one.name,
                "in": "path" if f"{{{one.name}}}" in operation.path else "query",
                "required": f"{{{one.name}}}" in operation.path,
                "description": one.text,
                "schema": {"type": one.type},
            }
            for one in operation.parameters
        ]
    if operation.body:
        described["requestBody"] = {"required": True, "content": content(operation.body)}
    if operation.is_open:
        described["security"] = []
    return described


def readable(operations: Sequence[Operation]) -> str:
    """Return the description of these operations as a page."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>mallob-py: HTTP interface</title>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        '<meta name=color-scheme content="light dark">',
        "<h1>mallob-py: HTTP interface</h1>",
        "<p>Send the token as <code>Authorization: Bearer TOKEN</code>. Errors are answered by "
        '<code>{"error": {"field": ..., "message": ...}}</code>. '
        'For programs: <a href="openapi.json">openapi.json</a>.</p>',
    ]
    for one in operations:
        title = f"{one.method} {one.path}"
        parts.append(f"<h2><code>{html.escape(title)}</code></h2><p>{html.escape(one.summary)}</p>")
        if one.body:
            parts.append(f"<p>Body: {html.escape(' or '.join(one.body))}</p>")
        if one.parameters:
            rows = (
                f"<li><code>{html.escape(parameter.name)}</code>: {html.escape(parameter.text)}</li>"
                for parameter in one.parameters
            )
            parts.append(f"<ul>{''.join(rows)}</ul>")
        parts.append(f"<p>Answer {one.status}: {html.escape(' or '.join(one.answers))}</p>")
    return "\n".join(parts)


_WAIT_MAX_S = 300.0
#: the number of ended jobs on a page, by default and at most
_PAGE_SIZE, _PAGE_SIZE_MAX = 20, 200
#: the longest text of a search
_TEXT_MAX = 200
_SWEEP_S = 2.0
_NOTE_S = 1.0
_JSON = "application/json"
_TEXT = "text/plain"
_BYTES = "application/octet-stream"
#: greatest number of large answers that are produced at a time, for one user and for all users; then the
#: greatest number of concurrent requests of a user, and of bytes of a user's unread answers
_MADE_AT_ONCE, _MADE_AT_ONCE_MAX = 1, 3
_REQUESTS_MAX = 500
_TOO_MANY = "too many of your requests are under way; wait until some of them have ended"
_ANSWERS_BYTES_MAX = 1 << 30

_KEY = Parameter("key", "string", "id of the submission, or USER.NAME")
_FILE = Parameter("name", "string", "configuration key that names the file: proof, core or solutions-file")
_CLIENT = Parameter("client", "integer", "number of the job's client, for USER.NAME (default: this server's)")
_NUMBER = Parameter("number", "integer", "the job's number, to exclude other jobs of the same USER.NAME")
_WAIT = Parameter("wait", "number", "seconds to wait for the job's end, at most 300 (default 0)")
_OFFSET = Parameter("offset", "integer", "number of jobs to leave out (default 0)")
_LIMIT = Parameter("limit", "integer", "number of jobs to return, at most 200 (default 20)")
_GROUP = (Parameter("user", "string", "user of the group"), Parameter("name", "string", "name of the group"))
_SINCE = Parameter("since", "number", "return samples after this time, in seconds since 1970 (default: all)")
_TYPES = {(float, True): "string", (float, False): "number", (int, False): "integer"}
_FIELDS = (
    Parameter("name", "string", "name of the job (default: a new name)"),
    Parameter("user", "string", "user of the job (default: web)"),
    *(Parameter(term.file_name, _TYPES[term.type, term.is_duration], term.meaning) for term in TERMS),
    Parameter("configuration", "string", 'settings for the application, as JSON: {"seed": 1}'),
)
_SETTINGS = Parameter(
    "settings", "string", 'further settings, each as the text that a command takes for it: {"seed": "1"}'
)
_INPUT = {
    "type": "string",
    "format": "binary",
    "description": "a formula, or other input that the job's application reads",
}
_REPLY = {"type": "object", "description": "the service's reply, without paths of its host"}
_MODEL = {
    "type": "object",
    "required": ["resultcode", "solution"],
    "properties": {
        "resultcode": {"type": "integer"},
        "solution": {
            "oneOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}],
            "description": "integers (each of several solutions ends with a 0), or bytes in Base64",
        },
        "solutions": {"type": "integer", "description": "number of solutions, if several were asked for"},
        "solution-format": {"enum": ["base64"], "description": "set if the solution consists of bytes"},
    },
}
_ASKED = {"type": "object", "properties": {"key": {"type": "string"}}}
_SOLUTION_LINES = {"type": "string", "description": "as the application writes it; SAT: s and v lines"}

OVERVIEW = Operation(
    "GET", "/api/jobs", "Live jobs, their users, and the jobs that ended last.", {_JSON: Overview}
)
SUBMIT = Operation(
    "POST",
    "/api/jobs",
    "Submit a job. The body is the job's input, or a JSON object with the fields of a job file; `user` and"
    " `name` are optional there, and `files` is allowed only if the server was started with --allow-paths."
    " The answer contains the id for later requests about the job.",
    {_JSON: Job},
    (*_FIELDS, _SETTINGS, _WAIT),
    {"application/octet-stream": _INPUT, _JSON: JobFields},
    status=202,
)
JOB = Operation(
    "GET", "/api/jobs/{key}", "One job: state, volume, age, result.", {_JSON: Job}, (_KEY, _CLIENT, _WAIT)
)
REPLY = Operation(
    "GET",
    "/api/jobs/{key}/reply",
    "The reply of a job that ended.",
    {_JSON: _REPLY},
    (_KEY, _CLIENT, _NUMBER),
)
MODEL = Operation(
    "GET",
    "/api/jobs/{key}/model",
    "The answer of a job as the text that its application defines; as JSON with Accept: application/json.",
    {_TEXT: _SOLUTION_LINES, _JSON: _MODEL},
    (_KEY, _CLIENT, _NUMBER),
)
OUTPUT = Operation(
    "GET",
    "/api/jobs/{key}/output",
    "What a job's workers have printed so far: the last megabyte or two.",
    {_BYTES: {"type": "string", "format": "binary"}},
    (_KEY, _CLIENT, Parameter("tail", "integer", "number of bytes to return, from the end (default: all)")),
)
EXPLAIN = Operation(
    "GET",
    "/api/jobs/{key}/explain",
    "Why a job waits or has its number of workers, or how it ended, in sentences.",
    {_TEXT: {"type": "string"}},
    (_KEY, _CLIENT),
)
TIMELINE = Operation(
    "GET",
    "/api/jobs/{key}/timeline",
    "A job's workers, states, best values and bounds over time, while this server ran.",
    {_JSON: Timeline},
    (_KEY, _CLIENT),
)
JOB_FILE = Operation(
    "GET",
    "/api/jobs/{key}/file",
    "The fields of a job as handed in, with its configuration.",
    {_JSON: {"type": "object", "description": "fields of a job file, without paths of the host"}},
    (_KEY, _CLIENT),
)
RESULT_FILE = Operation(
    "GET",
    "/api/jobs/{key}/files/{name}",
    "A file that the job has written, such as its proof.",
    {_BYTES: {"type": "string", "format": "binary"}},
    (_KEY, _FILE, _CLIENT),
)
INTERRUPT = Operation(
    "POST",
    "/api/jobs/{key}/interrupt",
    "Ask for the end of a job.",
    {_JSON: _ASKED},
    (_KEY, _CLIENT),
    status=202,
)
GROUP = Operation(
    "GET",
    "/api/group",
    "A user's group in numbers, and its jobs by pages: live jobs, then ended jobs, the latest end first.",
    {_JSON: GroupJobs},
    (*_GROUP, _OFFSET, _LIMIT),
)
INTERRUPT_GROUP = Operation(
    "POST",
    "/api/group/interrupt",
    "Ask for the end of all live jobs of a group.",
    {_JSON: {"type": "object", "properties": {"jobs": {"type": "integer"}}}},
    _GROUP,
    status=202,
)
HISTORY = Operation(
    "GET",
    "/api/history",
    "Volumes, fair shares and job trees of the last ten minutes, second by second.",
    {_JSON: HistoryPart},
    (_SINCE,),
)
ENDED = Operation(
    "GET",
    "/api/ended",
    "Ended jobs, also of earlier runs of the service: one page of the jobs that match.",
    {_JSON: EndedJobs},
    (
        Parameter("text", "string", "part of user, name, application, result or reason"),
        Parameter("kind", "string", f"kind of jobs: {', '.join(ENDED_KINDS)} (default all)"),
        Parameter("order", "string", f"value to sort by: {', '.join(ENDED_ORDERS)} (default ended)"),
        Parameter("ascending", "integer", "1: smallest value first; 0: greatest value first (default 0)"),
        _OFFSET,
        _LIMIT,
    ),
)
APPLICATION = Operation(
    "GET",
    "/api/applications/{name}",
    "The fields of a form for jobs of an application.",
    {_JSON: ApplicationForm},
    (Parameter("name", "string", "one of service.applications of /api/jobs"),),
)
BATCH = Operation(
    "GET",
    "/api/batch",
    "Queue, slots and the last minutes of the batch scheduler whose folder is --batch-dir.",
    {
        _JSON: {
            "type": "object",
            "description": "jobs and chart, or an error: the reason why there is nothing to show",
        }
    },
)
SERVICE = Operation("GET", "/api/service", "Whether a service runs, and its load.", {_JSON: ServiceState})
METRICS = Operation("GET", "/metrics", "Numbers for Prometheus.", {_TEXT: {"type": "string"}})
PAGE = Operation("GET", "/", "The page.", {"text/html": {"type": "string"}}, is_open=True)
OPENAPI = Operation("GET", "/openapi.json", "This description.", {_JSON: {"type": "object"}}, is_open=True)
DOCS = Operation(
    "GET", "/docs", "This description as a page.", {"text/html": {"type": "string"}}, is_open=True
)
_OPERATIONS = (
    SUBMIT,
    OVERVIEW,
    JOB,
    INTERRUPT,
    REPLY,
    MODEL,
    RESULT_FILE,
    OUTPUT,
    EXPLAIN,
    TIMELINE,
    JOB_FILE,
    GROUP,
    INTERRUPT_GROUP,
    HISTORY,
    ENDED,
    APPLICATION,
    BATCH,
    SERVICE,
    METRICS,
    PAGE,
    OPENAPI,
    DOCS,
)

#: operations that answer with megabytes, or read replies of megabytes
_LARGE = (REPLY, MODEL, OUTPUT, EXPLAIN, JOB_FILE, TIMELINE, RESULT_FILE)

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Interface:
    """The objects that the handlers use."""

    token: Token
    user_tokens: UserTokens
    store: Store
    jobs: Jobs
    receiver: Receiver
    arrivals: Arrivals
    loop: LoopWatch
    #: the function that returns the state of the batch scheduler, if there is one
    look_at_batch: Callable[[], object] | None = None
    #: large answers in production, and finished answers that are not read yet
    making: Places = field(default_factory=lambda: Places(_MADE_AT_ONCE, _MADE_AT_ONCE_MAX))
    answers: Answers = field(init=False)
    requests: Counts = field(default_factory=lambda: Counts(_REQUESTS_MAX, 429, _TOO_MANY))

    def __post_init__(self) -> None:
        object.__setattr__(self, "answers", Answers(self.store.path, _ANSWERS_BYTES_MAX))

    # --- requests that read ---------------------------------------------------------------------

    async def overview(self, request: Request) -> Response:
        overview = await run_in_threadpool(self.jobs.overview, _user(request))
        has_batch = self.look_at_batch is not None and _user(request) is None
        return _json(msgspec.structs.replace(overview, batch=has_batch))

    async def batch(self, request: Request) -> Response:
        if _user(request) is not None:
            raise ApiError(403, "batch jobs belong to the operator; ask with the operator's token")
        if self.look_at_batch is None:
            raise ApiError(404, "this server shows no batch scheduler; give --batch-dir to mallob-py web")
        return _json(await run_in_threadpool(self.look_at_batch))

    async def history(self, request: Request) -> Response:
        since_s = _seconds(request, "since")
        await run_in_threadpool(self.jobs.look)
        await run_in_threadpool(self.jobs.note)
        part = await run_in_threadpool(self.jobs.history.since, since_s, _user(request))
        return Response(part, media_type=_JSON)

    async def ended(self, request: Request) -> Response:
        page = (
            request.query_params.get("text", "")[:_TEXT_MAX],
            _one_of(request, "kind", ENDED_KINDS),
            _one_of(request, "order", ENDED_ORDERS),
            not _number(request, "ascending"),
            *_page_of(request),
            _user(request),
        )
        return _json(await run_in_threadpool(self.jobs.ended, *page))

    async def group(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self.jobs.group, *_group(request), *_page_of(request)))

    async def interrupt_group(self, request: Request) -> Response:
        return _json({"jobs": await run_in_threadpool(self.jobs.interrupt_group, *_group(request))}, 202)

    async def explain(self, request: Request) -> Response:
        asked = await self._admitted(request)
        text = await run_in_threadpool(self.jobs.explain, *asked, _user(request))
        return Response(text, media_type=_TEXT)

    async def timeline(self, request: Request) -> Response:
        asked = await self._admitted(request)
        return _json(await run_in_threadpool(self.jobs.timeline, *asked, _user(request)))

    async def job_file(self, request: Request) -> Response:
        asked = await self._admitted(request)
        return await run_in_threadpool(
            _json, await run_in_threadpool(self.jobs.job_file, *asked, _user(request))
        )

    async def application(self, request: Request) -> Response:
        return _json(await run_in_threadpool(form_of, str(request.path_params["name"])))

    async def service(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self.jobs.service))

    async def job(self, request: Request) -> Response:
        key, client = await self._admitted(request)
        return _json(await self._ended(key, _wait_s(request), client, _user(request)))

    async def reply(self, request: Request) -> Response:
        asked = await self._admitted(request)
        reply = await run_in_threadpool(self.jobs.reply, *asked, _number(request, "number"), _user(request))
        try:
            return await run_in_threadpool(_json, reply)  # the reply can be megabytes
        except RecursionError:
            raise ApiError(409, "the reply is nested too deeply; look at its file on the host") from None

    async def model(self, request: Request) -> Response:
        key, client = await self._admitted(request)
        asked = (key, client, _number(request, "number"), _user(request))
        reply = await run_in_threadpool(self.jobs.reply, *asked)
        if "error" in reply:
            raise ApiError(409, f"the job failed: {reply['error'].get('message', '')}")
        solution = await run_in_threadpool(self.jobs.solution, reply, client)
        if _JSON in request.headers.get("accept", ""):
            return await run_in_threadpool(_json, solution_json(reply["result"], solution))
        application = str(reply.get("application", DEFAULT_APPLICATION))
        text = await run_in_threadpool(answer_lines, application, reply["result"], solution)
        return Response(text, media_type=_TEXT)

    async def output(self, request: Request) -> Response:
        key, client = await self._admitted(request)
        printed = await run_in_threadpool(
            self.jobs.output, key, client, _number(request, "tail"), _user(request)
        )
        return Response(printed, media_type=_BYTES)

    async def result_file(self, request: Request) -> Response:
        key, client = await self._admitted(request)
        name = str(request.path_params["name"])
        reply = await run_in_threadpool(self.jobs.reply, key, client, None, _user(request))
        file = await run_in_threadpool(self.jobs.result_file, reply, name, client)
        return FromFile(file, media_type=_BYTES)

    async def metrics(self, request: Request) -> Response:
        if _user(request) is not None:
            raise ApiError(403, "metrics are about all users; ask with the operator's token")
        status = await run_in_threadpool(self.jobs.status)
        turns = shown(self.loop.per_second())
        text = await run_in_threadpool(metrics, status, self.store.upload_bytes(), turns)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    # --- requests that change jobs --------------------------------------------------------------

    async def submit(self, request: Request) -> Response:
        wait_s = _wait_s(request)
        self.jobs.check_room()
        record = await self.receiver.receive(request, _user(request))
        job = await self._ended(record.id, wait_s)
        return _json(job, 202, {"location": f"/api/jobs/{record.id}"})

    async def interrupt(self, request: Request) -> Response:
        key, client = await self._admitted(request)
        await run_in_threadpool(self.jobs.interrupt, key, client)
        return _json({"key": key}, 202)

    async def _admitted(self, request: Request) -> tuple[str, int]:
        """Return key and client of the requested job. Raises ApiError if the job is not the visitor's."""
        key, client = _key(request), self.jobs.client_of(_key(request), _client(request))
        if (user := _user(request)) is not None:
            await run_in_threadpool(self.jobs.check_owner, key, client, user)
        return key, client

    async def _ended(
        self, key: str, wait_s: float, client: int | None = None, user: str | None = None
    ) -> Job:
        """Return the job when it ends, when `wait_s` is over, or when the server ends. `user`: who asks."""
        job: Job = await run_in_threadpool(self.jobs.get, key, client, user)
        if not wait_s or job.ended is not None:
            return job
        deadline = time.monotonic() + wait_s
        with self.arrivals.expecting(*self.jobs.files_awaited(key, client)) as news:
            while True:
                job = await run_in_threadpool(self.jobs.get, key, client, user)
                remaining_s = deadline - time.monotonic()
                if job.ended is not None or remaining_s <= 0 or self.arrivals.is_over:
                    return job
                await news.wait(remaining_s)


def _handlers(interface: Interface) -> tuple[tuple[Operation, Handler], ...]:
    """Return the operations on jobs and the service, with their handlers."""
    return (
        (OVERVIEW, interface.overview),
        (SUBMIT, interface.submit),
        (JOB, interface.job),
        (REPLY, interface.reply),
        (OUTPUT, interface.output),
        (MODEL, interface.model),
        (RESULT_FILE, interface.result_file),
        (INTERRUPT, interface.interrupt),
        (EXPLAIN, interface.explain),
        (TIMELINE, interface.timeline),
        (JOB_FILE, interface.job_file),
        (GROUP, interface.group),
        (INTERRUPT_GROUP, interface.interrupt_group),
        (HISTORY, interface.history),
        (ENDED, interface.ended),
        (APPLICATION, interface.application),
        (BATCH, interface.batch),
        (SERVICE, interface.service),
        (METRICS, interface.metrics),
    )


def make_app(interface: Interface) -> Starlette:
    page, page_policy = _page()
    description = msgspec.json.encode(
        document(
            _OPERATIONS,
            (
                *(JobFields, Job, Overview, EndedJobs, GroupJobs, ApplicationForm, ServiceState),
                *(HistoryPart, Timeline),
            ),
        )
    )
    docs = readable(_OPERATIONS)

    async def show_page(request: Request) -> Response:
        return Response(page, media_type="text/html", headers={"content-security-policy": page_policy})

    async def show_description(request: Request) -> Response:
        return Response(description, media_type=_JSON)

    async def show_docs(request: Request) -> Response:
        return Response(docs, media_type="text/html")

    described = ((PAGE, show_page), (OPENAPI, show_description), (DOCS, show_docs))
    routes = [
        Route(operation.path, _guarded(operation, handler, interface), methods=[operation.method])
        for operation, handler in (*_handlers(interface), *described)
    ]

    @asynccontextmanager
    async def sweeping(app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(_sweep(interface.jobs)), asyncio.create_task(_note(interface.jobs))]
        yield
        for task in tasks:
            task.cancel()

    app = Starlette(
        routes=routes,
        lifespan=sweeping,
        exception_handlers={HTTPException: _http_error, ApiError: _api_error, Exception: _internal_error},
    )
    app.router.redirect_slashes = False
    return app


async def _sweep(jobs: Jobs) -> None:
    """Remove uploads soon after their jobs end, also while no page is open."""
    while True:
        try:
            await run_in_threadpool(jobs.sweep)
        except OSError as error:
            print(f"mallob-py web: cannot look for replies: {error}", flush=True)
        await asyncio.sleep(_SWEEP_S)


async def _note(jobs: Jobs) -> None:
    """Record the last minutes, so that a page can show them when it is opened."""
    while True:
        await run_in_threadpool(jobs.note)
        await asyncio.sleep(_NOTE_S)


def _guarded(operation: Operation, handler: Handler, interface: Interface) -> Handler:
    def visitor_of(authorization: str | None) -> Visitor | None:
        if operation.is_open or interface.token.admits(authorization):
            return OPERATOR
        return interface.user_tokens.visitor(authorization)

    async def guarded(request: Request) -> Response:
        visitor = visitor_of(request.headers.get("authorization"))
        request.state.visitor = visitor
        if visitor is None:
            error = {
                "error": {"field": "", "message": "a valid token is needed: Authorization: Bearer TOKEN"}
            }
            return _json(error, 401, {"www-authenticate": "Bearer"})
        try:
            return await counted(request)
        except asyncio.CancelledError:  # the server ended before the request was answered
            error = {"error": {"field": "", "message": "the web server ends; try again when it is back"}}
            return _json(error, 503)

    async def counted(request: Request) -> Response:
        """Return the answer, which counts as one of the user's requests until it has been read."""
        whose = f"anyone at {_peer(request)}" if operation.is_open else _whose(request)
        interface.requests.take(whose)
        ends: list[Callable[[], None]] = [lambda: interface.requests.give_back(whose)]
        try:
            if operation in _LARGE:  # only a few large answers are produced and filed at a time
                async with interface.making.place(whose):
                    response, read = await interface.answers.kept(await handler(request), whose)
            else:
                response, read = await interface.answers.kept(await handler(request), whose)
            ends.append(read)
        except BaseException:
            ends[0]()
            raise
        _secure(response)
        return cast("Response", Ending(response, ends))

    return guarded


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": {"field": "", "message": error.detail}}, error.status_code, error.headers)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _json({"error": {"field": error.field, "message": error.message}}, error.status)


async def _internal_error(request: Request, error: Exception) -> Response:
    message = "internal error of the web server; its operator finds the cause in its output"
    return _json({"error": {"field": "", "message": message}}, 500)


def _json(content: object, status: int = 200, headers: Any = None) -> Response:
    # Replies may echo values that only the standard library's encoder accepts, such as huge integers.
    plain = content if isinstance(content, dict) else msgspec.to_builtins(content)
    response = Response(json.dumps(plain), status, headers, media_type=_JSON)
    _secure(response)
    return response


def _secure(response: Response) -> None:
    response.headers.setdefault("content-security-policy", "default-src 'none'; frame-ancestors 'none'")
    response.headers.setdefault("x-content-type-options", "nosniff")
    response.headers.setdefault("referrer-policy", "no-referrer")
    response.headers.setdefault("cross-origin-resource-policy", "same-origin")
    response.headers.setdefault("cache-control", "no-store")


def _page() -> tuple[str, str]:
    """Return the page with the policy that lets a browser run no script but the page's own."""
    files = resources.files("mallob_py.web")
    page, views = (files.joinpath(name).read_text("utf-8") for name in ("page.html", "views.js"))
    page = page.replace('<script src="views.js"></script>', f"<script>{views}</script>")

    def sources(tag: str) -> str:
        parts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    policy = (
        f"default-src 'none'; script-src {sources('script')}; style-src {sources('style')}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def _user(request: Request) -> str | None:
    """Return the user whose token the request has; None for the operator's."""
    visitor: Visitor = request.state.visitor
    return visitor.user


def _whose(request: Request) -> str:
    """Return the name under which limits count a request: its token's user, or the operator at its peer."""
    return _user(request) or f"operator at {_peer(request)}"


def _peer(request: Request) -> str:
    return request.client.host if request.client else ""


def _key(request: Request) -> str:
    return str(request.path_params["key"])


def _client(request: Request) -> int | None:
    return _number(request, "client")


def _group(request: Request) -> tuple[str, str]:
    """Return user and name of the requested group. Raises ApiError if the group is not the visitor's."""
    user, name = (request.query_params.get(parameter, "")[:_TEXT_MAX] for parameter in ("user", "name"))
    if _user(request) not in (None, user):
        raise ApiError(404, f"no group {name} of {user} here")
    return user, name


def _page_of(request: Request) -> tuple[int, int]:
    """Return the requested offset and the requested number of rows, at most `_PAGE_SIZE_MAX`."""
    limit = min(_number(request, "limit") or _PAGE_SIZE, _PAGE_SIZE_MAX)
    return _number(request, "offset") or 0, limit


def _number(request: Request, parameter: str) -> int | None:
    text = request.query_params.get(parameter)
    if text is not None and not re.fullmatch("[0-9]{1,18}", text):
        raise ApiError(400, "must be a number", parameter)
    return None if text is None else int(text)


def _one_of(request: Request, parameter: str, names: Mapping[str, object]) -> str:
    """Return the parameter's value; the first of the names if the parameter is missing."""
    text = request.query_params.get(parameter, next(iter(names)))
    if text not in names:
        raise ApiError(400, f"must be one of {', '.join(names)}", parameter)
    return text


def _wait_s(request: Request) -> float:
    return min(_seconds(request, "wait"), _WAIT_MAX_S)


def _seconds(request: Request, parameter: str) -> float:
    text = request.query_params.get(parameter, "0")
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text):
        raise ApiError(400, "must be a number of seconds", parameter)
    return float(text)
