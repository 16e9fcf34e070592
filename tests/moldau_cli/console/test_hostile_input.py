"""Goal: no text or number that a browser sends ends the console, and each is refused with a sentence.

Method: the HTTP application in memory in front of a simulated cluster of one broker; logins without a cluster.
"""

import json

import httpx
import pytest
import trio
from trio.testing import MockClock

from moldau_cli.console.app import Console, application
from moldau_cli.console.core.logins import login_settings
from moldau_cli.console.identities import open_identity
from moldau_cli.console.sessions import LoginError, Sessions
from moldau_jepsen.testing import simulate

LONE = "\ud800"
"""Half of a surrogate pair: JSON can carry it, and UTF-8 cannot."""
POSTED = [
    {"topic": LONE, "value": "v"},
    {"topic": "t", "value": LONE},
    {"topic": "t", "value": "v", "headers": [[LONE, "x"]]},
    {"topic": "t", "value": "v", "headers": [["x", LONE]]},
    {"topic": "t", "value": "v", "partition": 2**40},
    {"topic": "t", "value": "v", "partition": 10**30},
    {"topic": "a/b", "value": "v"},
]
ASKED = [
    ("message", {"topic": "t", "partition": 2**40, "offset": 0}),
    ("message", {"topic": "t", "partition": -1, "offset": 0}),
    ("message", {"topic": "t", "partition": 0, "offset": 2**70}),
    ("message", {"topic": "a/b", "partition": 0, "offset": 0}),
    ("messages", {"topic": "t", "origin": "time", "value": 10**30}),
    ("messages", {"topic": "t", "origin": "offset", "partition": 2**40, "value": 10**30}),
    ("messages", {"topic": "x" * 40_000}),
    ("messages", {"topic": ""}),
    ("topic", {"name": ""}),
    ("topic", {"name": "x" * 40_000}),
    ("group", {"name": ""}),
    ("group", {"name": "x" * 40_000}),
    ("configuration", {"kind": "broker", "name": "one"}),
    ("configuration", {"kind": "topic", "name": ""}),
    ("configuration", {"kind": "group", "name": ""}),
]


async def scenario(sim):
    await sim.wait_healthy(60)
    environment = sim.world.node("app").environment
    config = {"bootstrap.servers": sim.bootstrap}
    await sim.create_topic(environment, "t", 1, {})
    answers = []
    async with open_identity(config, environment) as identity, trio.open_nursery() as nursery:
        sessions = Sessions(nursery, config, shared=identity, token=None, environment=environment)
        app = application(Console(sessions=sessions, bootstrap=sim.bootstrap), trio.Event())
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9080") as client:
            csrf = {"x-moldau-csrf": (await client.get("/api/session")).json()["csrf"]}
            for document in POSTED:
                content = json.dumps(document).encode()
                answers.append(("POST", document, await client.post("/api/records", content=content, headers=csrf)))
            for name, parameters in ASKED:
                answers.append((name, parameters, await client.get(f"/api/{name}", params=parameters)))
            answers.append(("overview", {}, await client.get("/api/overview")))
        nursery.cancel_scope.cancel()
    return answers


def test_hostile_requests_are_refused_and_the_console_goes_on():
    answers = simulate(scenario, seed=3, brokers=1, controllers=1)
    assert answers[-1][2].status_code == 200
    wrong = [
        f"{name} {str(asked)[:80]}: {answer.status_code} {answer.text[:200]}"
        for name, asked, answer in answers[:-1]
        if answer.status_code not in (400, 403, 404, 409)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize(("user", "password"), [("a" + LONE, "p"), ("a", "p" + LONE), ("a\0b", "p"), ("a", "p\0")])
def test_a_login_without_utf8_does_not_end_the_console(user, password, mechanism):
    """The clients of a user fail in the console's own tasks, and so ended it, before anyone had signed in."""

    async def main():
        async with trio.open_nursery() as nursery:
            sessions = Sessions(nursery, {"bootstrap.servers": "127.0.0.1:1"}, shared=None, token=None)
            with pytest.raises(LoginError, match="has a character that no login can hold"):
                await sessions.open(token="", user=user, password=password, mechanism=mechanism)
            await trio.lowlevel.checkpoint()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_other_characters_of_a_login_are_taken():
    settings = login_settings({}, 'á"\\\n', "😀", "PLAIN")
    assert "sasl.jaas.config" in settings
