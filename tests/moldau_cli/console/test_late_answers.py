"""Goal: an open page says that it waits, and asks for the password again, when the cluster no longer answers its user.

Method: live answers of the application alone, to questions of the test; virtual time.
"""

import json
from types import SimpleNamespace

import httpx
import pytest
import trio
from trio.testing import MockClock

from moldau.admin import AdminError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.console.app import LATE_S, Console, Endpoints, application, problem
from moldau_cli.console.pages import INTERVAL_S, QUESTIONS

REFUSED = KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, "invalid credentials")


class OneSession:
    """The sessions of a console in which one user has signed in; None if it has none."""

    def __init__(self, user="bob"):
        self.session = SimpleNamespace(identity=None, key="k", csrf="c", user=user)

    def find(self, key):
        return self.session

    def close(self, session):
        assert session is self.session
        self.session = None


def events(monkeypatch, answers):
    """Returns the events of a live page whose question takes so many seconds for each answer, with their times."""
    seen, left, stopping = [], list(answers), trio.Event()
    sessions = OneSession()

    async def question(asked):
        took_s, document = left.pop(0)
        await trio.sleep(took_s)
        if isinstance(document, Exception):
            raise document
        if not left:
            stopping.set()
        return document

    async def send(text):
        await trio.lowlevel.checkpoint()
        kind, _, data = text.strip().partition("\ndata: ")
        if data:
            seen.append((trio.current_time(), kind.removeprefix("event: "), json.loads(data)))

    async def main():
        monkeypatch.setitem(QUESTIONS, "topic", question)
        endpoints = Endpoints(Console(sessions=sessions, bootstrap=""), stopping)
        began_s = trio.current_time()
        await endpoints._send_events("topic", None, sessions.session, send)
        return [(round(at_s - began_s, 3), *event) for at_s, *event in seen]

    return trio.run(main, clock=MockClock(autojump_threshold=0)), sessions


def test_a_late_answer_is_announced(monkeypatch):
    """The page was called live for up to 10 s after the last broker had died.

    The answer behind it is sent though it is the one before: the page shows that it waits.
    """
    one = {"rows": [1]}
    rest_s = 4 * (LATE_S + 1)
    found, _ = events(monkeypatch, [(0, one), (0, one), (LATE_S + 1, one), (1, {})])
    late_at_s = 2 * INTERVAL_S + LATE_S
    assert found == [
        (0, "data", one),
        (late_at_s, "late", {}),
        (late_at_s + 1, "data", one),
        (late_at_s + 1 + rest_s + 1, "data", {}),
    ]


def test_a_changed_password_ends_the_session(monkeypatch):
    """The page said that it goes on when the cluster answers, and tried the old password again and again."""
    found, sessions = events(monkeypatch, [(0, {}), (0, REFUSED)])
    text = "The cluster no longer accepts the password of bob. Sign in again."
    assert found == [(0, "data", {}), (INTERVAL_S, "trouble", {"error": text, "status": 401})]
    assert sessions.session is None


@pytest.mark.parametrize(("user", "status"), [("bob", 401), ("", 502)])
def test_only_users_that_signed_in_are_asked_again(user, status, monkeypatch):
    """The login of the console itself stands in its configuration."""
    sessions = OneSession(user)

    async def refused(asked):
        await trio.lowlevel.checkpoint()
        raise REFUSED

    async def main():
        transport = httpx.ASGITransport(application(Console(sessions=sessions, bootstrap=""), trio.Event()))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/api/topic")

    monkeypatch.setitem(QUESTIONS, "topic", refused)
    answer = trio.run(main)
    assert answer.status_code == status
    assert (sessions.session is None) == (status == 401)
    assert ("Sign in again" if user else "invalid credentials") in answer.json()["error"]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("group g1: no broker answers", "group g1: no broker answers (COORDINATOR_NOT_AVAILABLE)"),
        ("g1: COORDINATOR_NOT_AVAILABLE: no leader", "g1: COORDINATOR_NOT_AVAILABLE: no leader"),
        ("no broker g1.example answers", "g1: no broker g1.example answers (COORDINATOR_NOT_AVAILABLE)"),
    ],
)
def test_names_and_codes_stand_once(message, text):
    """The page of a group said ``g1: COORDINATOR_NOT_AVAILABLE: group g1: ... (COORDINATOR_NOT_AVAILABLE)``."""
    error = AdminError({"g1": KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)})
    assert problem(error) == (502, text)
    assert problem(KafkaError(ErrorCode.NETWORK_EXCEPTION, "lost"))[1] == "lost (NETWORK_EXCEPTION)"
