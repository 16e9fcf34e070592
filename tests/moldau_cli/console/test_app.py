"""Goal: every question of a page is answered as the cluster is, and access is refused as documented.

Method: the HTTP application in memory, in front of a simulated cluster of three brokers; one run in virtual time asks
everything, before and after a broker is killed, and the tests look at the answers.
"""

import json
from importlib.resources import files
from unittest.mock import patch

import httpx
import pytest
import trio

from moldau import Consumer, Producer
from moldau_cli.console.app import ASSETS, BODY_BYTES_MAX, Console, application
from moldau_cli.console.core.logins import login_settings, needs_login, offered_mechanisms, with_any_login
from moldau_cli.console.identities import SAMPLE_S, UNUSED_S, open_identity
from moldau_cli.console.pages import QUESTIONS
from moldau_cli.console.records import SCANNED_RECORDS_MAX, Search
from moldau_cli.console.sessions import SESSIONS_MAX, Sessions
from moldau_jepsen.testing import simulate

# httpx leaves the body of a refused request, which the application did not read, to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")

HOST = "http://127.0.0.1:9080"
HOSTILE = b"<script>alert(1)</script>"
TOKEN = "correct horse battery"


class Page:
    """A browser's view of the application: it keeps the cookie and sends the session's token."""

    def __init__(self, console, stopping):
        self.app = application(console, stopping)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=HOST)
        self.csrf = {}

    async def open(self, **document):
        if document:
            answer = await self.client.post("/api/session", json=document)
        else:
            answer = await self.client.get("/api/session")
        if "csrf" in answer.json():
            self.csrf = {"x-moldau-csrf": answer.json()["csrf"]}
        return answer

    async def ask(self, question, **parameters):
        return await self.client.get(f"/api/{question}", params=parameters)

    async def post(self, path, document=None, headers=None):
        return await self.client.post(path, json=document, headers=self.csrf if headers is None else headers)

    async def events(self, name, count):
        """Returns the first events of a live question, and then goes away."""
        found, gone = [], trio.Event()
        cookies = "; ".join(f"{key}={value}" for key, value in self.client.cookies.items())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": f"/api/live/{name}",
            "raw_path": f"/api/live/{name}".encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1:9080"), (b"cookie", cookies.encode())],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 9080),
            "state": {},
        }

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            text = message.get("body", b"").decode()
            if "data: " in text:
                found.append((text.split("\n")[0].removeprefix("event: "), json.loads(text.split("data: ", 1)[1])))
            if len(found) >= count:
                gone.set()

        with trio.fail_after(120):
            await self.app(scope, receive, send)
        return found


async def fill(sim, environment):
    """Writes what the pages show: three kinds of records, a group with lag, an open transaction."""
    config = {"bootstrap.servers": sim.bootstrap}
    await sim.create_topic(environment, "flights", 3, {"retention.ms": "86400000"})
    await sim.create_topic(environment, "images", 1, {"max.message.bytes": "3000000"})
    async with Producer(config, environment=environment) as producer:
        for number in range(30):
            await producer.send("flights", b'{"n": %d}' % number, key=b"k%d" % number, partition=number % 2)
        await producer.send("flights", HOSTILE, key=b"hostile", headers=[("h", HOSTILE)], partition=2)
        await producer.send("flights", b"\x00\xff" * 3000, partition=2)
        await producer.send("flights", None, key=b"gone", partition=2)
        await producer.flush()
    reading = {**config, "group.id": "analytics", "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    async with Consumer(reading, environment=environment) as consumer:
        consumer.subscribe(["flights"])
        while not await consumer.poll(100):
            pass
        await consumer.commit({("flights", 0): 4, ("flights", 1): 15})
    return config


async def scenario(sim):
    await sim.wait_healthy(60)
    environment = sim.world.node("app").environment
    config = await fill(sim, environment)
    seen = {}
    stopping = trio.Event()
    async with (
        open_identity(config, environment) as identity,
        Producer({**config, "transactional.id": "mover"}, environment=environment) as mover,
        trio.open_nursery() as nursery,
    ):
        await mover.init_transactions()
        mover.begin_transaction()
        await mover.send("flights", b"uncommitted", partition=0)
        await mover.flush()
        sessions = Sessions(nursery, config, shared=identity, token=None, environment=environment)
        page = Page(Console(sessions=sessions, bootstrap=sim.bootstrap), stopping)
        seen["before"] = await page.ask("overview")
        seen["session"] = await page.open()
        seen["index"] = await page.client.get("/")
        seen["assets"] = {name: await page.client.get(f"/{name}") for name in ASSETS if name != "index.html"}
        tag = seen["index"].headers["etag"]
        seen["unchanged"] = await page.client.get("/", headers={"if-none-match": tag})
        await identity.sample()
        for name in QUESTIONS.keys() - {"topic", "group", "configuration", "messages", "message"}:
            seen[name] = await page.ask(name)
        seen["filtered"] = await page.ask("topics", filter="nothing")
        seen["topic"] = await page.ask("topic", name="flights")
        seen["no topic"] = await page.ask("topic", name="absent")
        seen["group"] = await page.ask("group", name="analytics")
        seen["no group"] = await page.ask("group", name="absent")
        for kind, name in (("topic", "flights"), ("broker", "1"), ("cheese", "1")):
            seen["configuration", kind] = await page.ask("configuration", kind=kind, name=name)
        for name, more in BROWSED.items():
            seen["messages", name] = await page.ask("messages", topic="flights", **more)
        seen["whole"] = await page.ask("message", topic="flights", partition=2, offset=1)
        seen["no record"] = await page.ask("message", topic="flights", partition=2, offset=99)
        seen["wrong number"] = await page.ask("message", topic="flights", partition="x", offset=1)
        seen["no partition"] = await page.ask("message", topic="flights", partition=9, offset=1)
        seen["message of no topic"] = await page.ask("message", topic="absent", partition=0, offset=1)
        seen["messages of no topic"] = await page.ask("messages", topic="absent")
        seen["unknown"] = await page.ask("cheese")
        seen["nodes"] = await page.ask("nodes")
        await produce(page, seen)
        await changes(page, seen)
        seen["live"] = await page.events("overview", 1)
        identity.used_at_s -= UNUSED_S
        await trio.sleep(SAMPLE_S)  # the identity takes no sample between the next two any more
        await identity.sample()
        await mover.send("flights", b"uncommitted", partition=0)
        await mover.flush()
        await identity.sample()
        seen["busy"] = await page.ask("overview")
        await mover.abort_transaction()
        await guarded(nursery, config, environment, identity, stopping, seen)
        sim.kill(1)
        await trio.sleep(20)
        seen["killed"] = await page.ask("overview")
        seen["brokers, killed"] = await page.ask("brokers")
        seen["topic, killed"] = await page.ask("topic", name="flights")
        stopping.set()
        seen["stopped"] = await page.events("overview", 99)
        nursery.cancel_scope.cancel()
    return seen


BROWSED = {
    "tail": {"limit": 5},
    "start": {"origin": "start", "partition": 0, "limit": 3},
    "offset": {"origin": "offset", "partition": 0, "value": 14, "limit": 5},
    "past the end": {"origin": "offset", "partition": 0, "value": 10_000},
    "future": {"origin": "time", "value": 99_999_999_999_999},
    "key": {"key": "hostile"},
    "value": {"contains": '"n": 29'},
    "committed": {"partition": 0, "committed": "1", "limit": 3},
    "uncommitted": {"partition": 0, "limit": 3},
    "wrong partition": {"partition": 9},
    "wrong origin": {"origin": "middle"},
    "too many": {"limit": 100_000},
}


async def produce(page, seen):
    record = {
        "topic": "flights",
        "partition": 1,
        "key": "k",
        "value": "ff00",
        "value_form": "hex",
        "headers": [["a", "b"]],
    }
    seen["produced"] = await page.post("/api/records", record)
    seen["read back"] = await page.ask("messages", topic="flights", partition=1, limit=1)
    large = {"topic": "images", "partition": 0, "value": "x" * 1_100_000, "value_form": "text"}
    seen["produced, large"] = await page.post("/api/records", record | large)
    for name, more in REFUSED_RECORDS.items():
        seen["refused", name] = await page.post("/api/records", {**record, **more})


REFUSED_RECORDS = {
    "topic": {"topic": "absent"},
    "form": {"value": "zz"},
    "json": {"value": "{", "value_form": "json"},
    "headers": {"headers": [["a"]]},
    "partition": {"partition": -1},
    "size": {"value": "x" * 1_100_000, "value_form": "text"},
}


async def changes(page, seen):
    record = {"topic": "flights", "value": "a"}
    seen["no csrf"] = await page.post("/api/records", record, headers={})
    seen["wrong csrf"] = await page.post("/api/records", record, headers={"x-moldau-csrf": "guess"})
    seen["foreign origin"] = await page.post("/api/records", record, {**page.csrf, "origin": "http://evil.example"})
    seen["foreign host"] = await page.client.get("/api/overview", headers={"host": "evil.example"})
    seen["not json"] = await page.client.post("/api/records", content=b"{", headers=page.csrf)
    seen["long"] = await page.client.post("/api/records", content=b" " * (BODY_BYTES_MAX + 1), headers=page.csrf)
    seen["act"] = await page.post("/api/nodes/1/kill")


async def guarded(nursery, config, environment, identity, stopping, seen):
    """Asks consoles with a token and with --read-only, and one that is asked for too many sessions."""
    sessions = Sessions(nursery, config, shared=identity, token=TOKEN, environment=environment)
    with patch("moldau_cli.console.app.STREAMS_MAX", 1):
        page = Page(Console(sessions=sessions, bootstrap="", read_only=True), stopping)
    seen["token wanted"] = await page.open()
    seen["wrong token"] = await page.open(token="wrong", user="", password="", mechanism="")
    seen["right token"] = await page.open(token=TOKEN, user="", password="", mechanism="")
    seen["read-only"] = await page.post("/api/records", {"topic": "flights", "value": "a"})
    kept = page.client.cookies.get("moldau_console")
    async with trio.open_nursery() as live:

        async def watch():
            with trio.move_on_after(60) as scope:
                await page.events("overview", 1_000)
            seen["live page left"] = not scope.cancelled_caught

        live.start_soon(watch)
        await trio.sleep(1)
        seen["one page too many"] = await page.events("overview", 1)
        seen["signed out"] = await page.client.delete("/api/session", headers=page.csrf)
    page.client.cookies.set("moldau_console", kept)
    seen["after"] = await page.ask("overview")
    first = await sessions.open(token=TOKEN, user="", password="", mechanism="")
    for _ in range(SESSIONS_MAX):
        await trio.sleep(0.01)
        await sessions.open(token=TOKEN, user="", password="", mechanism="")
    seen["displaced"] = sessions.find(first.key) is None


@pytest.fixture(scope="module")
def seen():
    return simulate(scenario, seed=11)


def rows(answer, key):
    assert answer.status_code == 200, answer.text
    return {row[key]: row for row in answer.json()["rows"]}


def test_the_verdict_comes_first(seen):
    document = seen["overview"].json()
    assert next(iter(document)) == "verdict"
    assert (document["verdict"], document["problems"], document["brokers"], document["voters"]) == ("healthy", [], 3, 3)
    assert document["in_sync"] == document["replicas"] > 0


def test_a_killed_broker_is_a_problem(seen):
    document = seen["killed"].json()
    assert document["verdict"] == "degraded"
    assert document["problems"][0]["kind"] == "broker-down"
    assert document["problems"][0]["subject"] == "broker 1"
    found = rows(seen["brokers, killed"], "node")
    assert found[1]["state"] == "down"
    assert found[1]["leads"] == 0
    assert found[2]["state"] == "up"
    assert all(1 not in part["isr"] and part["leader"] != 1 for part in seen["topic, killed"].json()["rows"])


def test_brokers_share_the_leaders(seen):
    found = rows(seen["brokers"], "node")
    assert set(found) == {1, 2, 3}
    assert sum(row["leads"] for row in found.values()) == seen["overview"].json()["partitions"]
    assert all(row["bytes"] > 0 and row["log_dirs"][0]["state"] == "online" for row in found.values())
    assert not any(row["log_dirs"][0]["is_nearly_full"] for row in found.values())


def test_controllers_have_roles_and_lags(seen):
    document = seen["controllers"].json()
    found = rows(seen["controllers"], "node")
    assert found[document["leader"]]["role"] == "leader"
    assert sorted(row["role"] for row in found.values() if row["node"] > 100) == ["leader", "voter", "voter"]
    assert all(row["lag"] >= 0 for row in found.values())


def test_topics_are_counted(seen):
    row = rows(seen["topics"], "topic")["flights"]
    assert (row["partitions"], row["replication"], row["records"], row["under_replicated"]) == (3, 3, 34, 0)
    assert row["bytes"] > 6000
    assert "__consumer_offsets" not in rows(seen["topics"], "topic")
    assert seen["filtered"].json() == {"rows": [], "total": 0, "notes": []}


def test_partitions_have_leader_replicas_and_offsets(seen):
    document = seen["topic"].json()
    parts = rows(seen["topic"], "partition")
    assert [parts[number]["end_offset"] for number in (0, 1, 2)] == [16, 15, 3]
    for part in parts.values():
        assert part["leader"] in part["isr"]
        assert sorted(part["replicas"]) == [1, 2, 3]
        assert part["elr"] == []
        assert part["bytes"] > 0
    assert [each["key"] for each in document["configs"] if "topic" in each["source"]] == ["retention.ms"]


def test_groups_have_lag_by_partition(seen):
    document = seen["group"].json()
    lags = {row["partition"]: row["lag"] for row in document["rows"]}
    assert lags[0] == 12
    assert lags[1] == 0
    assert document["lag"] == sum(lags.values()) == rows(seen["groups"], "group")["analytics"]["lag"]


def test_an_open_transaction_is_shown(seen):
    row = rows(seen["transactions"], "transactional_id")["mover"]
    assert (row["state"], row["partitions"]) == ("Ongoing", ["flights-0"])
    assert row["timeout_ms"] > 0


def test_rights_and_quotas_are_answered(seen):
    assert "no authorizer" in seen["acls"].json()["notes"][0]
    assert seen["quotas"].status_code == 200
    assert seen["quotas"].json()["rows"] == []


def test_configurations_name_their_sources(seen):
    topic = rows(seen["configuration", "topic"], "key")
    assert (topic["retention.ms"]["value"], topic["retention.ms"]["source"]) == ("86400000", "dynamic topic")
    broker = rows(seen["configuration", "broker"], "key")
    assert broker["log.dirs"]["source"] == "static broker"
    assert broker["log.dirs"]["meaning"]
    assert seen["configuration", "cheese"].status_code == 400
    assert seen["configurable"].json()["broker"] == ["", "1", "2", "3"]


def values(seen, name):
    answer = seen["messages", name]
    assert answer.status_code == 200, answer.text
    return [(each["partition"], each["offset"]) for each in answer.json()["records"]]


def test_the_browser_finds_records(seen):
    assert values(seen, "start") == [(0, 0), (0, 1), (0, 2)]
    assert values(seen, "offset") == [(0, 14), (0, 15)]
    assert values(seen, "past the end") == []
    assert values(seen, "future") == []
    assert len(values(seen, "tail")) == 5
    assert values(seen, "key") == [(2, 0)]
    assert values(seen, "value") == [(1, 14)]


def test_open_transactions_are_hidden_on_demand(seen):
    assert values(seen, "uncommitted")[-1] == (0, 15)
    assert values(seen, "committed")[-1] == (0, 14)


def test_hostile_content_stays_text(seen):
    record = seen["messages", "key"].json()["records"][0]
    assert record["value"]["text"] == HOSTILE.decode()
    assert record["headers"] == [{"name": "h", "value": HOSTILE.decode()}]
    assert seen["messages", "key"].headers["content-type"] == "application/json"
    assert seen["messages", "key"].headers["x-content-type-options"] == "nosniff"


def test_a_long_value_is_cut_until_it_is_asked_for(seen):
    cut = next(
        each for each in seen["messages", "tail"].json()["records"] if (each["partition"], each["offset"]) == (2, 1)
    )
    assert (cut["value"]["bytes"], cut["value"]["cut"], cut["value"]["best"]) == (6000, True, "hex")
    whole = seen["whole"].json()
    assert (whole["value"]["cut"], whole["value"]["hex"].count("\n")) == (False, 374)
    assert whole["key"] is None


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("no topic", 404, ""),
        ("no group", 404, "absent"),
        ("no record", 404, "offset 99"),
        ("wrong number", 400, "partition: expected a whole number"),
        ("no partition", 400, "partitions 0 to 2, not 9"),
        ("message of no topic", 404, "'absent' does not exist"),
        ("messages of no topic", 404, "'absent' does not exist"),
        (("messages", "wrong partition"), 400, "partitions 0 to 2, not 9"),
        (("messages", "wrong origin"), 400, "tail, start, offset, time"),
        (("messages", "too many"), 400, "1 to 200"),
        ("unknown", 404, "no cheese"),
        ("nodes", 404, "--dir"),
        ("act", 404, "--dir"),
        ("before", 401, "Sign in"),
        ("no csrf", 403, "x-moldau-csrf"),
        ("wrong csrf", 403, "x-moldau-csrf"),
        ("foreign origin", 403, "another site"),
        ("foreign host", 421, "evil.example"),
        ("not json", 400, "not JSON"),
        ("long", 400, "longer than"),
        (("refused", "topic"), 404, ""),
        (("refused", "form"), 400, "hexadecimal"),
        (("refused", "json"), 400, "value: not JSON"),
        (("refused", "headers"), 400, "pairs of name and text"),
        (("refused", "partition"), 400, "partition"),
        (("refused", "size"), 400, "max.message.bytes is 1048588"),
        ("wrong token", 401, "token is wrong"),
        ("read-only", 403, "the console is read-only"),
        ("after", 401, "Sign in"),
    ],
    ids=str,
)
def test_invalid_requests_are_refused_with_the_reason(seen, name, status, words):
    assert seen[name].status_code == status, seen[name].text
    assert words in seen[name].json()["error"]


def test_a_record_may_be_as_large_as_its_topic_allows(seen):
    """The form has no bound of its own below the topic's ``max.message.bytes``."""
    assert seen["produced, large"].json()["offset"] == 0


def test_a_record_is_produced_and_read_back(seen):
    assert seen["produced"].json()["partition"] == 1
    assert seen["produced"].json()["offset"] == 15
    record = seen["read back"].json()["records"][0]
    assert (record["offset"], record["value"]["hex"][10:15], record["key"]["text"]) == (15, "ff 00", "k")
    assert record["headers"] == [{"name": "a", "value": "b"}]


def test_throughput_is_measured(seen):
    document = seen["busy"].json()
    assert document["rates"][-1][1] > 0
    assert document["busiest"][0]["topic"] == "flights"


def test_live_answers_are_events(seen):
    (kind, document), *_ = seen["live"]
    assert (kind, document["verdict"]) == ("data", "healthy")
    assert seen["stopped"] == []


def test_a_page_without_a_free_stream_says_so(seen):
    """It was refused with status 503, whose text no browser shows to a page: it said "offline", and stayed empty."""
    ((kind, document),) = seen["one page too many"]
    assert (kind, document["status"]) == ("trouble", 503)
    assert "live pages are open; close one" in document["error"]


def test_a_live_answer_ends_with_its_session(seen):
    """A page that stays open in another tab shows nothing after the sign-out."""
    assert seen["live page left"]


def test_cookies_and_headers_guard_the_session(seen):
    cookie = seen["session"].headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    for answer in (seen["index"], seen["overview"], seen["foreign host"], seen["unchanged"]):
        assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert seen["session"].json()["signed_in"]
    wanted = {"signed_in": False, "wants_token": True, "wants_login": False, "mechanisms": offered_mechanisms({})}
    assert seen["token wanted"].json() == wanted
    assert seen["right token"].json()["read_only"]
    assert seen["displaced"]


def test_assets_are_served_from_the_package(seen):
    assert seen["index"].text.startswith("<!doctype html>")
    assert seen["unchanged"].status_code == 304
    for name, answer in seen["assets"].items():
        assert answer.status_code == 200, name
        assert answer.headers["content-type"] == ASSETS[name]
        assert "innerHTML" not in answer.text
        assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", ""), (
            "nothing is loaded from elsewhere"
        )


def test_a_search_is_bounded():
    assert Search(topic="t", limit=200).limit * 250 <= SCANNED_RECORDS_MAX
    with pytest.raises(ValueError, match="choose the partition"):
        Search(topic="t", origin="offset", value=1)


def test_a_login_becomes_the_clients_configuration():
    """Quotes and backslashes of a password reach the cluster as they are."""
    from moldau.runtime.sasl.core.jaas import parse_jaas

    settings = login_settings({"security.protocol": "SSL"}, 'a"b', 'p\\"q', "SCRAM-SHA-256")
    assert settings["security.protocol"] == "SASL_SSL"
    assert with_any_login({"security.protocol": "sasl_ssl"})["security.protocol"] == "SASL_SSL"
    (module,) = parse_jaas(settings["sasl.jaas.config"])
    assert dict(module.options) == {"username": 'a"b', "password": 'p\\"q'}
    with pytest.raises(ValueError, match="unknown mechanism"):
        login_settings({}, "a", "b", "GSSAPI")


@pytest.mark.parametrize("key", ["sasl.oauthbearer.token", "sasl.oauthbearer.token.endpoint.url", "sasl.jaas.config"])
def test_a_console_with_a_token_has_a_login_of_its_own(key):
    """It demanded a SCRAM or PLAIN user of each person, whom a cluster with OAUTHBEARER does not have."""
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", key: "text"}
    assert not needs_login(settings)
    assert with_any_login(settings) == settings
    assert key == "sasl.jaas.config" or key not in login_settings(settings, "alice", "secret", "PLAIN")
    del settings[key]
    assert needs_login(settings)


def test_the_form_begins_with_the_configured_mechanism():
    """A cluster of SCRAM-SHA-512 alone refused each first login, though the console's settings named it."""
    assert offered_mechanisms({"sasl.mechanism": "SCRAM-SHA-512"}) == ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]
    assert offered_mechanisms({"sasl.mechanism": "GSSAPI"}) == offered_mechanisms({})
    form = (files("moldau_cli.console") / "assets" / "console.js").read_text("utf-8")
    assert "wanted.mechanisms.map(" in form
