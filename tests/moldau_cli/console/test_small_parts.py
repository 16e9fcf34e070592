"""Goal: parts whose other side is no cluster: quotas by answers made by hand, Avro by a registry made by hand, buttons
by processes that are no nodes.
"""

import io
import json
import math
import os
import signal
import struct
import subprocess
import sys
from types import SimpleNamespace

import fastavro
import httpx
import pytest
import trio
from trio.testing import MockClock

from moldau import Producer
from moldau.admin import TransactionListing
from moldau.admin.calls.quotas import Quotas
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from moldau_cli.console import avro, faults, records, sessions
from moldau_cli.console.app import Console, application
from moldau_cli.console.avro import AvroViews
from moldau_cli.console.data import asking, groups, rights
from moldau_cli.console.data.rights import quotas
from moldau_cli.console.faults import LocalNodes
from moldau_cli.console.pages import QUESTIONS
from moldau_cli.errors import UsageError
from moldau_jepsen.launcher import LauncherError, LauncherUsageError, Node
from moldau_jepsen.launcher.process import start_mark
from moldau_jepsen.launcher.spec import FILE_NAME, to_json
from pyspark_moldau.jobs.errors import JobError

SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "number", "type": "int"}, {"name": "note", "type": ["string", "bytes", "double"]}],
}


class Answering:
    """An admin client whose broker gives one answer."""

    def __init__(self, answer):
        self.answer = answer

    async def describe_client_quotas(self):
        return await Quotas(self).describe_client_quotas(None)

    async def ask(self, response_class, request, **more):
        await trio.lowlevel.checkpoint()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def quota(entity, **limits):
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        values=[ValueData(key=key, value=value) for key, value in limits.items()],
    )


def test_quotas_name_their_entities():
    entries = [
        quota([("user", "alice"), ("client-id", None)], producer_byte_rate=1000.0),
        quota([("user", None)], request_percentage=50.0, consumer_byte_rate=10.0),
    ]
    answer = DescribeClientQuotasResponse(entries=entries)
    found = trio.run(quotas, Answering(answer))
    assert [(row["entity"], row["key"], row["value"]) for row in found["rows"]] == [
        ("user (default)", "consumer_byte_rate", 10.0),
        ("user (default)", "request_percentage", 50.0),
        ("user alice, client-id (default)", "producer_byte_rate", 1000.0),
    ]
    assert trio.run(quotas, Answering(answer), "alice")["total"] == 1


@pytest.mark.parametrize("page", ["acls", "quotas", "controllers"])
def test_what_a_controller_must_know_holds_up_no_other_page(page):
    """The question for quotas was on the connection of the topic pages, which a broker without controller holds up."""
    asked = []

    class Waiting:
        def __getattr__(self, name):
            asked.append(name)
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    question = SimpleNamespace(identity=SimpleNamespace(quorum_admin=Waiting()), text=lambda name, default: default)
    with pytest.raises(KafkaError):
        trio.run(QUESTIONS[page], question)
    assert len(asked) == 1


def test_a_part_that_waits_for_its_turn_has_all_of_its_time():
    """A group would else have no lag on the page because others are slow."""

    async def slow():
        await trio.sleep(0.9 * asking.PART_TIMEOUT_S)
        return "found"

    names = [str(number) for number in range(3 * asking.REQUESTS_AT_ONCE)]
    notes = asking.Notes()
    found = trio.run(asking.ask_each, [(name, slow) for name in names], notes, clock=MockClock(autojump_threshold=0))
    assert sorted(found) == sorted(names)
    assert notes.texts == []


def test_notes_stand_in_the_order_of_the_questions():
    """They stood in the order of the answers, so the warnings of a page changed places every two seconds."""
    notes = asking.Notes()

    def refused(after_s):
        async def call():
            await trio.sleep(after_s)
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

        return call

    asked = [(f"broker {number}", refused(1 / number)) for number in (1, 2, 3)]
    assert trio.run(asking.ask_each, asked, notes, clock=MockClock(autojump_threshold=0)) == {}
    assert [text.partition(":")[0] for text in notes.texts] == ["broker 1", "broker 2", "broker 3"]


def test_the_oldest_transaction_is_on_the_page(monkeypatch):
    """It may be the last one of thousands of transactional ids."""
    count = asking.ROWS_MAX + 1
    listed = [
        TransactionListing(
            transactional_id=f"t{number:04}",
            producer_id=1,
            state="Ongoing" if number == count - 1 else "Empty",
            coordinator=1,
        )
        for number in range(count)
    ]

    async def ask_transactions(*_, **__):
        await trio.lowlevel.checkpoint()
        return listed, {}

    async def describe_transactions(names):
        await trio.lowlevel.checkpoint()
        return {name: SimpleNamespace(start_ms=1, timeout_ms=9, partitions=()) for name in names}

    monkeypatch.setattr(groups, "ask_transactions", ask_transactions)
    page = trio.run(groups.transactions, SimpleNamespace(describe_transactions=describe_transactions), 5.0)
    assert (len(page["rows"]), page["total"]) == (asking.ROWS_MAX, count)
    assert (page["rows"][0]["transactional_id"], page["rows"][0]["age_ms"]) == (listed[-1].transactional_id, 4)


def test_refused_quotas_are_an_error():
    answer = DescribeClientQuotasResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message="no")
    with pytest.raises(KafkaError, match="no"):
        trio.run(quotas, Answering(answer))


def test_brokers_without_quotas_are_named():
    found = trio.run(quotas, Answering(rights.UnsupportedApiError(ApiKey.DESCRIBE_CLIENT_QUOTAS, "not served")))
    assert "do not serve" in found["notes"][0]


def test_a_session_that_is_too_old_ends():
    """Each request of its page looks it up; the second one would be served. The clients of its user end, too."""

    async def main():
        async with trio.open_nursery() as nursery:
            identity = SimpleNamespace(use=lambda: None)
            found = sessions.Sessions(nursery, {}, shared=identity, token=None)
            scope = trio.CancelScope()
            key = found._add(sessions.Session(identity=identity, user="", scope=scope)).key
            await trio.sleep(sessions.SESSION_S - 1)
            assert found.find(key) is not None
            await trio.sleep(sessions.SESSION_S + 1)
            assert [found.find(key) for _ in range(2)] == [None, None]
            assert scope.cancel_called

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_the_clients_of_each_session_end_with_it():
    """However it ends. Those of a session that gave way to a login would stay connected with its user's password."""

    async def main():
        async with trio.open_nursery() as nursery:
            identity = SimpleNamespace(use=lambda: None)
            found = sessions.Sessions(nursery, {}, shared=identity, token=None)
            opened = []

            async def sign_in():
                await trio.sleep(1)
                opened.append(found._add(sessions.Session(identity=identity, user="", scope=trio.CancelScope())))
                living = [each for each in opened if each.key in found._sessions]
                assert [each for each in opened if not each.scope.cancel_called] == living
                return living

            for number in range(1, sessions.SESSIONS_MAX + 4):
                assert len(await sign_in()) == min(number, sessions.SESSIONS_MAX)
            found.close(opened[-1])
            assert len(await sign_in()) == sessions.SESSIONS_MAX
            await trio.sleep(sessions.SESSION_S)
            assert await sign_in() == [opened[-1]]

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_search_is_bounded_in_bytes():
    """Records may have a megabyte each, and those that do not match cost memory and time as well."""
    scan = records._Scan({("t", 0): 9}, [])
    reader, search = SimpleNamespace(position_nowait=lambda place: 0), records.Search(topic="t", origin="start")
    scan.bytes = records.SCANNED_BYTES_MAX - 1
    assert not scan.is_done(reader, search)
    scan.bytes += 1
    assert scan.is_done(reader, search)
    assert "narrow the search" in scan.stopped


class OneSession:
    """Sessions with one that always exists."""

    def find(self, key):
        return SimpleNamespace(identity=None, key="k", csrf="c")


def test_a_defect_is_answered_and_raised(monkeypatch):
    """The page gets a sentence, and the server gets the exception to log it."""

    async def broken(asked):
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    async def ask(*, raises):
        app = application(Console(sessions=OneSession(), bootstrap=""), trio.Event())
        transport = httpx.ASGITransport(app, raise_app_exceptions=raises)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/api/broken")

    monkeypatch.setitem(QUESTIONS, "broken", broken)
    answer = trio.run(lambda: ask(raises=False))
    assert answer.status_code == 500
    assert "defect of the console (ZeroDivisionError)" in answer.json()["error"]
    assert "content-security-policy" in answer.headers
    with pytest.raises(ZeroDivisionError):
        trio.run(lambda: ask(raises=True))


@pytest.fixture
def views():
    """Avro views whose registry knows the schema 7."""
    made = AvroViews("http://127.0.0.1:1/")
    made._registry._known[7] = fastavro.parse_schema(SCHEMA)
    made._registry._unknown[8] = math.inf
    return made


def framed(schema_id, document=None, body=b""):
    stream = io.BytesIO()
    if document is not None:
        fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), document)
    return struct.pack(">bI", 0, schema_id) + stream.getvalue() + body


def test_avro_values_are_shown_as_json(views):
    assert json.loads(trio.run(views.view, framed(7, {"number": 12, "note": "ř"}))) == {"number": 12, "note": "ř"}


def test_what_json_lacks_has_the_marks_of_consume(views):
    bare, none = (trio.run(views.view, framed(7, {"number": 1, "note": note})) for note in (b"\0\xff", math.nan))
    assert json.loads(bare)["note"] == {"$base64": "AP8="}
    assert json.loads(none)["note"] == {"$float": "NaN"}


def test_a_value_of_great_depth_does_not_end_the_console(views):
    """The process ended with SIGSEGV when such a record was shown."""
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    views._registry._known[7] = fastavro.parse_schema(node)
    assert "levels deep" in trio.run(views.view, framed(7, body=b"\x02" * 100_000 + b"\0"))


@pytest.mark.parametrize("value", [b"", b"\x00\x00", b'{"a": 1}', b"\x01\x00\x00\x00\x07abc"])
def test_other_values_are_left_alone(views, value):
    assert trio.run(views.view, value) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [(framed(8), "no Avro schema with id 8"), (framed(7, body=b"\x02\xff"), "does not fit"), (framed(9), "registry")],
)
def test_undecodable_values_show_the_reason(views, value, words):
    text = trio.run(views.view, value)
    assert text.startswith("not decoded: ")
    assert words in text


def test_a_silent_registry_is_waited_for_once(views, monkeypatch):
    """Each value of a page waited 10 s for it, so the page said that the cluster did not answer."""
    clock = SimpleNamespace(now_s=1000.0)
    asked = []

    def fetch(schema_id):
        asked.append(schema_id)
        clock.now_s += 10
        raise JobError("registry: timed out")

    monkeypatch.setattr(avro, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    assert "12" in trio.run(views.view, framed(7, {"number": 12, "note": "x"}))
    monkeypatch.setattr(views._registry, "_fetch", fetch)
    texts = [trio.run(views.view, framed(number)) for number in (9, 9, 10)]
    assert texts == ["not decoded: registry: timed out"] * 3
    assert asked == [9]
    assert "13" in trio.run(views.view, framed(7, {"number": 13, "note": "x"})), "its schema is known"
    clock.now_s += avro.SILENT_S
    trio.run(views.view, framed(10))
    assert asked == [9, 10]


def test_the_login_of_a_registry_is_not_shown():
    """Nothing listens at the address, which the text names."""
    text = trio.run(AvroViews("http://al:s3cr3t@127.0.0.1:1/").view, framed(9))
    assert "http://127.0.0.1:1/schemas/ids/9" in text
    assert "s3cr3t" not in text
    with pytest.raises(UsageError, match=r"--registry: (must be|is no URL)"):
        AvroViews("http://[x")


@pytest.fixture
def nodes(tmp_path):
    """A cluster file with one process that sleeps, as node 1."""
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    node = Node(node_id=1, role="broker", port=1, directory=str(tmp_path), config="", log="")
    node.pid, node.started = sleeper.pid, start_mark(sleeper.pid)
    (tmp_path / FILE_NAME).write_text(to_json([node]), encoding="utf-8")
    sleeper.returncode = 0  # the launcher collects the process, as it does with nodes
    yield LocalNodes(tmp_path)
    if start_mark(sleeper.pid) == node.started:
        os.kill(sleeper.pid, signal.SIGKILL)
        os.waitpid(sleeper.pid, 0)


def test_buttons_pause_resume_and_kill(nodes):
    async def press():
        found = [await nodes.states()]
        for action in ("pause", "resume", "kill"):
            assert (await nodes.act(1, action)).endswith(" broker 1.")
            found.append(await nodes.states())
        return [each[1] for each in found]

    assert trio.run(press) == ["running", "paused", "running", "stopped"]


@pytest.mark.parametrize(
    ("node", "action", "error", "words"),
    [
        (9, "kill", ValueError, "no node 9; known are 1"),
        (1, "drown", ValueError, "kill, pause, resume, start, restart"),
        (1, "resume", LauncherError, "is not paused"),
        (1, "start", LauncherError, "runs already"),
    ],
)
def test_impossible_actions_are_refused(nodes, node, action, error, words):
    with pytest.raises(error, match=words):
        trio.run(nodes.act, node, action)


def test_resume_says_that_a_paused_node_has_ended(nodes):
    """A watchdog ends a node that stays paused."""

    async def press():
        await nodes.act(1, "pause")
        await nodes.act(1, "kill")
        await nodes.act(1, "resume")

    with pytest.raises(LauncherError, match=r"not paused but stopped; its watchdog .*node.watchdog.ms; restart it"):
        trio.run(press)


def test_last_words_are_those_of_a_node_that_ended_itself(nodes, tmp_path):
    document = json.loads((tmp_path / FILE_NAME).read_text(encoding="utf-8"))
    document["nodes"][0].update(log=str(tmp_path / "log"))
    (tmp_path / FILE_NAME).write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / "log").write_text("started\nwatchdog-killed\n\n", encoding="utf-8")

    async def ends():
        found = [await nodes.last_words(1)]
        await nodes.act(1, "kill")
        return [*found, await nodes.last_words(1)]

    assert trio.run(ends) == ["watchdog-killed", ""]


def test_a_node_that_ends_at_once_says_why(nodes, tmp_path, monkeypatch):
    """Its configuration file is missing here; the last line of its log is what it said about that."""
    monkeypatch.setattr(faults, "EARLY_END_MS", 60_000)  # a busy machine may take longer to start a process
    document = json.loads((tmp_path / FILE_NAME).read_text(encoding="utf-8"))
    document["nodes"][0].update(config=str(tmp_path / "gone.properties"), log=str(tmp_path / "log"))
    (tmp_path / FILE_NAME).write_text(json.dumps(document), encoding="utf-8")

    async def press():
        await nodes.act(1, "kill")
        await nodes.act(1, "start")

    with pytest.raises(LauncherError, match=r"broker 1 ended while starting: .*gone.properties"):
        trio.run(press)


def test_a_directory_without_a_cluster_is_refused(tmp_path):
    with pytest.raises(LauncherUsageError, match="no cluster in"):
        LocalNodes(tmp_path)


class OneGroup:
    """An admin client of a cluster with one group and one topic, whose first partition has no leader."""

    async def describe_groups(self, groups):
        more = {"coordinator": 1, "epoch": -1, "members": (), "protocol": "", "type": "classic"}
        return {each: SimpleNamespace(state="Empty", **more) for each in groups}

    async def list_group_offsets(self, group):
        return {TopicPartition("t", number): SimpleNamespace(offset=40) for number in range(2)}

    async def list_topics(self, *, include_internal):
        return [SimpleNamespace(name="t")]

    async def describe_topics(self, names):
        parts = [SimpleNamespace(partition=number, leader=leader) for number, leader in enumerate((-1, 1))]
        return {name: SimpleNamespace(partitions=parts) for name in names}

    def within(self, timeout_ms):
        return self

    async def list_offsets(self, wanted, *, isolation_level):
        return dict.fromkeys(wanted, (50, -1))


def test_the_lag_of_a_group_needs_all_ends():
    page = trio.run(groups.group, OneGroup(), "g")
    assert [row["lag"] for row in page["rows"]] == [None, 10]
    assert page["lag"] is None, "the lag that is not known may be the largest"


class NewGroup(OneGroup):
    """An admin client of a cluster whose group has a member, and has committed nothing yet."""

    async def describe_groups(self, groups):
        owner = SimpleNamespace(member_id="m", client_id="c", instance_id=None, client_host="/h")
        owner.assignment = (TopicPartition("t", 1),)
        more = {"coordinator": 1, "epoch": -1, "members": (owner,), "protocol": "range", "type": "classic"}
        return {each: SimpleNamespace(state="Stable", **more) for each in groups}

    async def list_group_offsets(self, group):
        return {}


def test_a_partition_without_a_commit_has_its_end():
    (row,) = trio.run(groups.group, NewGroup(), "g")["rows"]
    assert (row["partition"], row["committed"], row["end_offset"], row["lag"]) == (1, None, 50, None)
    assert (row["member"], row["client"]) == ("m", "c")


class OtherGroup(OneGroup):
    """An admin client of a cluster whose group the calls of consumer groups describe as dead."""

    def __init__(self, kind, offsets):
        self._kind, self._offsets = kind, offsets

    async def describe_groups(self, names):
        return dict.fromkeys(names, SimpleNamespace(state="Dead"))

    async def list_groups(self, *, states, types):
        return [SimpleNamespace(group_id="g", type=self._kind)]

    async def list_group_offsets(self, group):
        if isinstance(self._offsets, KafkaError):
            raise self._offsets
        return self._offsets


@pytest.mark.parametrize(
    ("kind", "offsets"),
    [
        ("share", KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)),
        ("streams", {TopicPartition("t", 0): SimpleNamespace(offset=40)}),
    ],
)
def test_a_group_of_another_type_names_its_command(kind, offsets):
    """The list links to each group: a share group was said not to exist, a streams group to be dead."""
    with pytest.raises(LookupError, match=rf"g is a {kind} group.*moldau {kind}-groups describe g"):
        trio.run(groups.group, OtherGroup(kind, offsets), "g")


@pytest.mark.parametrize(
    ("given", "used"), [({}, 8000), ({"request.timeout.ms": "500"}, 500), ({"request.timeout.ms": "30000"}, 16_000)]
)
def test_a_long_time_limit_of_requests_keeps_no_record_back(given, used):
    """With Kafka's default in a client's file nothing could be sent, and the page Replication ended the console."""
    config = records.writing_config({"bootstrap.servers": "127.0.0.1:9", **given}, 16_000)
    assert int(config["request.timeout.ms"]) == used
    Producer(config)  # it refuses a delivery timeout that is shorter
