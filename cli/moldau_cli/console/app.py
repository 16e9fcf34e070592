"""The HTTP application: pages and assets, the questions of pages once or live, and the few requests that change things.

Answers are JSON. Live answers are server-sent events: ``data`` when the document changed, ``trouble`` when the cluster
did not answer, ``late`` when it has not answered yet. Every number of things is bounded: live streams, running
searches, bytes of a request, sessions.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Final

import trio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.version import VERSION
from moldau_cli.console.core.access import SECURITY_HEADERS, origin_form, refuse_change, refuse_foreign
from moldau_cli.console.pages import INTERVAL_S, INTERVALS_S, NOT_LIVE, QUESTIONS, Question
from moldau_cli.console.records import draft_of, produce
from moldau_cli.console.sessions import LoginError
from moldau_jepsen.launcher import LauncherError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from moldau_cli.console.avro import AvroViews
    from moldau_cli.console.pages import Answer, Local
    from moldau_cli.console.sessions import Session, Sessions

    SendText = Callable[[str], Awaitable[None]]

STREAMS_MAX: Final = 32
SEARCHES_MAX: Final = 4
BODY_BYTES_MAX: Final = 5 * 1024 * 1024
QUESTION_S: Final = 30.0
HEARTBEAT_S: Final = 15.0
LATE_S: Final = 3.0
"""A live page says that it waits if an answer takes longer; without a broker the clients try for 8 s."""
AGAIN_MS: Final = 2_000
"""When a page that found no free stream asks again."""
REST: Final = 4
"""A live page waits at least so many times as long as its last answer took, so that large clusters are asked less."""
ASSETS: Final = {
    "index.html": "text/html; charset=utf-8",
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "pages.js": "text/javascript; charset=utf-8",
    "records.js": "text/javascript; charset=utf-8",
    "replication.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_FORBIDDEN = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_WRONG = frozenset(
    {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.MESSAGE_TOO_LARGE,
    }
)
_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.GROUP_ID_NOT_FOUND})


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """The parts that the application answers with."""

    sessions: Sessions
    bootstrap: str
    allowed_hosts: frozenset[str] = frozenset()
    cookie: str = "moldau_console"
    secure_cookie: bool = False
    read_only: bool = False
    local: Local | None = None
    avro: AvroViews | None = None


class Guard:
    """Refuses requests that may come from another site, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, allowed_hosts: frozenset[str]) -> None:
        self._app = app
        self._allowed = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *_SECURITY]
                message = {**message, "headers": headers}
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host, path = origin_form(scope["path"])
        if host is not None:
            scope = {**scope, "path": path}
            headers["host"] = host
        refusal = refuse_foreign(scope["method"], path, headers, self._allowed)
        if refusal is not None:
            answer = JSONResponse({"error": refusal.reason}, refusal.status)
            await answer(scope, receive, send_guarded)
            return
        try:
            await self._app(scope, receive, send_guarded)
        except ClientDisconnect:
            return


_SECURITY = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


def problem(error: Exception) -> tuple[int, str]:
    """Returns the HTTP status and the sentence for an error of a question; re-raises what is a defect."""
    if isinstance(error, trio.TooSlowError):
        return 504, "the cluster did not answer in time"
    if isinstance(error, LoginError):
        return 401, str(error)
    if isinstance(error, LookupError) and not isinstance(error, KeyError | IndexError):
        return 404, str(error)
    if isinstance(error, LauncherError):
        return 409, str(error)
    if isinstance(error, KafkaError):
        if error.code in _FORBIDDEN or any(each.code in _FORBIDDEN for each in _failures(error)):
            return 403, f"The cluster does not allow it: {_text(error)}"
        if error.code in _UNKNOWN or any(each.code in _UNKNOWN for each in _failures(error)):
            return 404, _text(error)
        if error.code in _WRONG or any(each.code in _WRONG for each in _failures(error)):
            return 400, _text(error)
        return (504 if error.code is ErrorCode.REQUEST_TIMED_OUT else 502), _text(error, with_code=True)
    if isinstance(error, ValueError):
        return 400, str(error)
    raise error


def _failures(error: KafkaError) -> list[KafkaError]:
    return list(_named_failures(error).values())


def _named_failures(error: KafkaError) -> dict[str, KafkaError]:
    """Returns the failures of an AdminError by name; of another error none."""
    failures = getattr(error, "failures", None)
    return failures if isinstance(failures, dict) else {}


def _text(error: KafkaError, *, with_code: bool = False) -> str:
    """Returns the sentence for an error, in which names and codes stand once."""
    texts = []
    for name, one in (_named_failures(error) or {"": error}).items():
        is_named = re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", one.message)
        text = one.message if is_named or not name else f"{name}: {one.message}"
        texts.append(f"{text} ({one.code.name})" if with_code and one.code.name not in text else text)
    return "; ".join(texts)


EXPECTED = (KafkaError, ValueError, LookupError, LauncherError, LoginError, trio.TooSlowError)


class LiveResponse(Response):
    """Server-sent events, until their source ends or the browser goes away."""

    def __init__(self, source: Callable[[SendText], Awaitable[None]]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(None, media_type="text/event-stream", headers=headers)
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})

        async def send_text(text: str) -> None:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

        async def watch(nursery_scope: trio.CancelScope) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            nursery_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            await self._source(send_text)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            nursery.cancel_scope.cancel()


class Endpoints:
    """The handlers of all routes."""

    def __init__(self, console: Console, stopping: trio.Event) -> None:
        self._console = console
        self._stopping = stopping
        self._streams = trio.CapacityLimiter(STREAMS_MAX)
        self._searches = trio.CapacityLimiter(SEARCHES_MAX)

    def routes(self) -> list[Route]:
        """Returns the routes."""
        assets = resources.files("moldau_cli.console") / "assets"
        shown = [
            Route(f"/{'' if name == 'index.html' else name}", _asset(assets.joinpath(name).read_bytes(), kind))
            for name, kind in ASSETS.items()
        ]
        return [
            *shown,
            Route("/api/session", self.session, methods=["GET"]),
            Route("/api/session", self.sign_in, methods=["POST"]),
            Route("/api/session", self.sign_out, methods=["DELETE"]),
            Route("/api/live/{name}", self.live, methods=["GET"]),
            Route("/api/records", self.send_record, methods=["POST"]),
            Route("/api/nodes/{node:int}/{action}", self.act, methods=["POST"]),
            Route("/api/{name}", self.ask, methods=["GET"]),
        ]

    # --- sessions

    def _session(self, request: Request) -> Session | None:
        return self._console.sessions.find(request.cookies.get(self._console.cookie))

    async def session(self, request: Request) -> Response:
        """Answers the page whether it has a session; opens one where neither token nor login is needed."""
        sessions, session = self._console.sessions, self._session(request)
        if session is None and not sessions.wants_token and not sessions.wants_login:
            session = await sessions.open(token="", user="", password="", mechanism="")
            return self._with_cookie(session)
        if session is None:
            wanted = {"wants_token": sessions.wants_token, "wants_login": sessions.wants_login}
            return JSONResponse({"signed_in": False, **wanted, "mechanisms": sessions.mechanisms})
        return JSONResponse(self._described(session))

    def _described(self, session: Session) -> Answer:
        console = self._console
        return {
            "signed_in": True,
            "csrf": session.csrf,
            "user": session.user,
            "can_sign_out": console.sessions.wants_token or console.sessions.wants_login,
            "read_only": console.read_only,
            "local": console.local is not None,
            "links": console.local is not None and console.local.nodes.has_links,
            "avro": console.avro is not None,
            "bootstrap": console.bootstrap,
            "version": VERSION,
        }

    def _with_cookie(self, session: Session) -> Response:
        answer = JSONResponse(self._described(session))
        console = self._console
        answer.set_cookie(console.cookie, session.key, httponly=True, samesite="strict", secure=console.secure_cookie)
        return answer

    async def sign_in(self, request: Request) -> Response:
        """Opens a session with the console's token, a user of the cluster, or both."""
        try:
            document = await _document(request)
            fields = {name: document.get(name, "") for name in ("token", "user", "password", "mechanism")}
            texts = {name: value for name, value in fields.items() if isinstance(value, str)}
            if len(texts) != len(fields):
                raise ValueError("token, user, password and mechanism are texts")
            return self._with_cookie(await self._console.sessions.open(**texts))
        except EXPECTED as error:
            return _refused(error)

    async def sign_out(self, request: Request) -> Response:
        """Ends the session."""
        session = self._session(request)
        if session is not None:
            refusal = refuse_change(request.method, request.headers, session.csrf, read_only=False)
            if refusal is not None:
                return JSONResponse({"error": refusal.reason}, refusal.status)
            self._console.sessions.close(session)
        answer = JSONResponse({"signed_in": False})
        answer.delete_cookie(self._console.cookie, httponly=True, samesite="strict")
        return answer

    # --- questions

    def _question(self, request: Request, session: Session) -> Question:
        console = self._console
        local = None if console.read_only else console.local
        return Question(
            identity=session.identity, parameters=dict(request.query_params), local=local, avro=console.avro
        )

    async def ask(self, request: Request) -> Response:
        """Answers one question."""
        session, name = self._session(request), request.path_params["name"]
        if session is None:
            return _no_session()
        if name not in QUESTIONS:
            return JSONResponse({"error": f"there is no {name:.40}"}, 404)
        question = self._question(request, session)
        limit = self._searches if name in ("messages", "message") else None
        try:
            if limit is not None and limit.available_tokens < 1:
                return JSONResponse({"error": f"{SEARCHES_MAX} searches are running; try again"}, 429)
            async with limit or trio.CapacityLimiter(1):
                with trio.fail_after(QUESTION_S):
                    return JSONResponse(await QUESTIONS[name](question))
        except EXPECTED as error:
            return _refused(self._ended(error, session))

    async def live(self, request: Request) -> Response:
        """Answers one question again and again, as server-sent events."""
        session, name = self._session(request), request.path_params["name"]
        if session is None:
            return _no_session()
        if name not in QUESTIONS or name in NOT_LIVE:
            return JSONResponse({"error": f"there is no live {name:.40}"}, 404)
        if self._streams.available_tokens < 1:
            return LiveResponse(_send_refusal)
        question = self._question(request, session)
        return LiveResponse(partial(self._send_events, name, question, session))

    async def _send_events(self, name: str, question: Question, session: Session, send: SendText) -> None:
        async with self._streams:
            last, sent_at_s = "", trio.current_time()
            await send("retry: 1000\n\n")
            while not self._stopping.is_set() and self._console.sessions.find(session.key) is not None:
                began_s = trio.current_time()
                event = await self._next_event(name, question, session, send)
                took_s = trio.current_time() - began_s
                last = "" if took_s >= LATE_S else last  # the page shows that it waits
                if event != last:
                    last, sent_at_s = event, trio.current_time()
                    await send(event)
                elif trio.current_time() - sent_at_s >= HEARTBEAT_S:
                    sent_at_s = trio.current_time()
                    await send(": alive\n\n")
                with trio.move_on_after(max(INTERVALS_S.get(name, INTERVAL_S), REST * took_s)):
                    await self._stopping.wait()

    async def _next_event(self, name: str, question: Question, session: Session, send: SendText) -> str:
        """Returns the event with the next answer; sends another one if the answer is late."""
        events: list[str] = []
        answered = trio.Event()

        async def ask() -> None:
            try:
                with trio.fail_after(QUESTION_S):
                    kind, document = "data", await QUESTIONS[name](question)
            except EXPECTED as error:
                status, text = problem(self._ended(error, session))
                kind, document = "trouble", {"error": text, "status": status}
            events.append(f"event: {kind}\ndata: {json.dumps(document)}\n\n")
            answered.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.move_on_after(LATE_S):
                await answered.wait()
            if not events:
                await send("event: late\ndata: {}\n\n")
        return events[0]

    def _ended(self, error: Exception, session: Session) -> Exception:
        """Ends the session of a user whom the cluster no longer lets in, and returns the error to answer with."""
        if not session.user or getattr(error, "code", None) is not ErrorCode.SASL_AUTHENTICATION_FAILED:
            return error
        self._console.sessions.close(session)
        return LoginError(f"The cluster no longer accepts the password of {session.user}. Sign in again.")

    # --- changes

    async def _change(self, request: Request, change: Callable[[Session, Console], Awaitable[Answer]]) -> Response:
        session = self._session(request)
        if session is None:
            return _no_session()
        refusal = refuse_change(request.method, request.headers, session.csrf, read_only=self._console.read_only)
        if refusal is not None:
            return JSONResponse({"error": refusal.reason}, refusal.status)
        try:
            return JSONResponse(await change(session, self._console))
        except EXPECTED as error:
            return _refused(self._ended(error, session))

    async def send_record(self, request: Request) -> Response:
        """Sends the record of the produce form."""

        async def change(session: Session, _: Console) -> Answer:
            draft = draft_of(await _document(request))
            async with self._searches:
                return await produce(session.identity, draft)

        return await self._change(request, change)

    async def act(self, request: Request) -> Response:
        """Performs an action of a fault button."""

        async def change(_: Session, console: Console) -> Answer:
            if console.local is None:
                raise LookupError("the console was not started for a local cluster; start it with --dir")
            began_ms = trio.current_time() * 1000
            done = await console.local.nodes.act(request.path_params["node"], request.path_params["action"])
            console.local.probe.did(done, began_ms)
            return {"done": done}

        return await self._change(request, change)


def _no_session() -> Response:
    return JSONResponse({"error": "The session has ended. Sign in again."}, 401)


def _refused(error: Exception) -> Response:
    status, text = problem(error)
    return JSONResponse({"error": text}, status)


async def _send_refusal(send: SendText) -> None:
    """Says why a page is not live: a browser shows pages no other answer than events. It asks again by itself."""
    refusal = {"error": f"{STREAMS_MAX} live pages are open; close one", "status": 503}
    await send(f"retry: {AGAIN_MS}\n\n")
    await send(f"event: trouble\ndata: {json.dumps(refusal)}\n\n")


async def _document(request: Request) -> dict[str, object]:
    """Returns the JSON object in a request's body.

    Raises:
        ValueError: it is too long, or no JSON object.
    """
    body = bytearray()
    async with aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                raise ValueError(f"the request is longer than {BODY_BYTES_MAX} bytes")
    try:
        document = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the request is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError("the request is not a JSON object")
    return document


def _asset(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}

    async def serve(request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return serve


def application(console: Console, stopping: trio.Event) -> ASGIApp:
    """Returns the ASGI application. ``stopping`` ends all live answers, so that the server can close."""
    routes = Endpoints(console, stopping).routes()
    return Guard(Starlette(routes=routes, exception_handlers={Exception: _defect}), console.allowed_hosts)


async def _defect(_: Request, error: Exception) -> Response:
    """Answers for an exception that no question expects; Starlette raises it again, so that it is logged."""
    await trio.lowlevel.checkpoint()
    text = f"This is a defect of the console ({type(error).__name__}); its output has the details."
    return JSONResponse({"error": text}, 500)
