"""Wrong arguments of public calls: trio and blocking clients refuse each with an error that says what to pass.

Goal: no argument of a wrong type reaches the inside of a client. Method: one table of calls; each row runs on the
trio client and on the blocking one, on clients without a reachable broker, so that a call which is not refused at once
ends in another error or in ``TOO_LATE``.
"""

import copy
import datetime
import functools
import pickle
import re
from array import array
from dataclasses import replace

import pytest
import trio

import moldau
import moldau.aio
import moldau.blocking
from moldau.admin import Acl, AclFilter, ConfigAlteration, ConfigResource, NewTopic, ResourceType
from moldau.cluster.arguments import ArgumentTypeError, ArgumentValueError
from moldau.cluster.committed import CommittedOffset
from moldau.runtime.config import ADMIN_CONFIG, ConfigError
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster, whole_log

NO_SERVER = "127.0.0.1:1"
CONFIGS = {
    "Producer": {"bootstrap.servers": NO_SERVER, "max.block.ms": "400", "transactional.id": "x"},
    "Sender": {"bootstrap.servers": NO_SERVER, "max.block.ms": "400"},
    "Consumer": {"bootstrap.servers": NO_SERVER, "group.id": "g", "default.api.timeout.ms": "400"},
    "Admin": {"bootstrap.servers": NO_SERVER, "default.api.timeout.ms": "400", "request.timeout.ms": "300"},
}
NOW = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
ACL = Acl(resource="topic", name="t", principal="User:a", operation="read")
TOPIC = ConfigResource(type=ResourceType.TOPIC, name="t")
NAMES = 'a list of str such as ["flights"], not '
PAIR = 'a (topic, partition) pair such as ("flights", 0), not '
PAIRS = 'a list of (topic, partition) pairs such as [("flights", 0)], not '


def row(client, call, *arguments, error=TypeError, text, **keywords):
    return pytest.param(client, call, arguments, keywords, error, text, id=f"{client}-{call}")


ROWS = [
    row("Sender", "send", None, b"v", text='send: topic must be a str such as "flights", not None'),
    row("Sender", "send", b"t", b"v", text="not bytes b't'; decode it: 't'"),
    row("Sender", "send", ["t"], b"v", text="not list ['t']"),
    row("Sender", "send", "", b"v", error=ValueError, text="send: topic is empty"),
    row("Sender", "send", "t", "text", text="send: value must be bytes or None, not str 'text'; pass 'text'.encode()"),
    row("Sender", "send", "t", 5, text="send: value must be bytes or None, not int 5"),
    row("Sender", "send", "t", {"a": 1}, text="send: value must be bytes or None, not dict {'a': 1}"),
    row("Sender", "send", "t", array("i", [1]), text="send: value must be bytes or None, not array"),
    row("Sender", "send", "t", memoryview(array("i", [1])), error=ValueError, text="pass value.tobytes()"),
    row("Sender", "send", "t", b"v", key="k", text="send: key must be bytes or None, not str 'k'"),
    row("Sender", "send", "t", b"v", headers={"a": b"1"}, text="not dict {'a': b'1'}; pass list(headers.items())"),
    row("Sender", "send", "t", b"v", headers="ab", text="send: headers must be a list of (name, value) pairs"),
    row("Sender", "send", "t", b"v", headers=["ab"], text='such as ("trace", b"1"), not str \'ab\''),
    row("Sender", "send", "t", b"v", headers=[(b"a", b"1")], text="each header's name must be a str, not bytes b'a'"),
    row("Sender", "send", "t", b"v", headers=[("a", "1")], text="value of header 'a' must be bytes or None, not str"),
    row("Sender", "send", "t", b"v", headers=7, text="send: headers must be"),
    row("Sender", "send", "t", b"v", headers=[("\ud800", b"")], error=ValueError, text="name must be valid Unicode"),
    row("Sender", "send", "t", b"v", partition="0", text="send: partition must be an int, not str '0'"),
    row("Sender", "send", "t", b"v", partition=0.0, text="send: partition must be an int, not float 0.0"),
    row("Sender", "send", "t", b"v", timestamp=NOW, text="pass int(when.timestamp() * 1000)"),
    row("Sender", "send", "t", b"v", timestamp=1.5e12, text="milliseconds since the Unix epoch, not float"),
    row("Sender", "partitions_for", None, text="partitions_for: topic must be a str"),
    row("Sender", "flush", "1", text="flush: timeout_ms must be a number of milliseconds, not str '1'"),
    row("Producer", "send_offsets_to_transaction", [("t", 0)], "g", text='a mapping such as {("flights", 0): 42}'),
    row("Producer", "send_offsets_to_transaction", {("t", 0): "1"}, "g", text="an int or a CommittedOffset, not str"),
    row("Producer", "send_offsets_to_transaction", {("t", 0): 1}, None, text="group must be a str"),
    row("Consumer", "subscribe", "flights", text=f"subscribe: topics must be {NAMES}str 'flights'; pass ['flights']"),
    row("Consumer", "subscribe", b"flights", text=f"subscribe: topics must be {NAMES}bytes b'flights'"),
    row("Consumer", "subscribe", [b"t"], text="subscribe: each of topics must be a str"),
    row("Consumer", "subscribe", [("t", 0)], text="not tuple ('t', 0)"),
    row("Consumer", "subscribe", None, text=f"subscribe: topics must be {NAMES}None"),
    row("Consumer", "subscribe", [""], error=ValueError, text="subscribe: one of topics is empty"),
    row("Consumer", "subscribe", pattern="(", error=ValueError, text="pattern '(' is no regular expression"),
    row("Consumer", "subscribe", pattern="a{99999999999}", error=ValueError, text="}' is no regular expression"),
    row("Consumer", "subscribe", pattern=re.compile("t"), text="subscribe: pattern must be a str"),
    row("Consumer", "assign", ["x"], text=f"assign: each of partitions must be {PAIR}str 'x'"),
    row("Consumer", "assign", ["xy"], text=f"assign: each of partitions must be {PAIR}str 'xy'"),
    row("Consumer", "assign", "x", text=f"assign: partitions must be {PAIRS}str 'x'"),
    row("Consumer", "assign", ("t", 0), text="pass [('t', 0)]"),
    row("Consumer", "assign", [("t", "0")], text=f"{PAIR}tuple ('t', '0')"),
    row("Consumer", "assign", [(None, 0)], text=f"{PAIR}tuple (None, 0)"),
    row("Consumer", "assign", [("t", -1)], error=ValueError, text="assign: partition -1 of t is negative"),
    row("Consumer", "assign", 5, text=f"assign: partitions must be {PAIRS}int 5"),
    row("Consumer", "seek", "t", 5, text=f"seek: partition must be {PAIR}str 't'"),
    row("Consumer", "seek", ("t", 0), "5", text="seek: offset must be an int, not str '5'"),
    row("Consumer", "seek", ("t", 0), -1, error=ValueError, text="seek: offset -1 is negative"),
    row("Consumer", "seek_to_beginning", "t", text=f"seek_to_beginning: partition must be {PAIR}"),
    row("Consumer", "seek_to_end", [("t", 0)], text=f"seek_to_end: partition must be {PAIR}list"),
    row("Consumer", "pause", "t", text=f"pause: partition must be {PAIR}"),
    row("Consumer", "resume", ("t", None), text=f"resume: partition must be {PAIR}"),
    row("Consumer", "position", "t", text=f"position: partition must be {PAIR}"),
    row("Consumer", "poll", None, text="not None; math.inf waits without end"),
    row("Consumer", "poll", datetime.timedelta(seconds=1), text="a number of milliseconds, not timedelta"),
    row("Consumer", "poll", 1000, max_records="5", text="poll: max_records must be an int, not str '5'"),
    row("Consumer", "poll", 1000, max_records=-1, error=ValueError, text="max_records must be 0 or more, not -1"),
    row("Consumer", "commit", [("t", 0)], text='commit: offsets must be a mapping such as {("flights", 0): 42}'),
    row("Consumer", "commit", {"t": 5}, text=f"commit: each key of offsets must be {PAIR}str 't'"),
    row("Consumer", "commit", {("t", 0): "5"}, text="must be an int or a CommittedOffset, not str '5'"),
    row("Consumer", "commit", {("t", 0): -5}, error=ValueError, text="commit: offset -5 is negative"),
    *(
        row("Consumer", "commit", {partition: offset}, error=error, text=f"commit: {text}")
        for partition, offset, error, text in (
            (("t", 0), 2**63, ValueError, "offset 9223372036854775808 is above 2**63 - 1"),
            (("t", 2**31), 1, ValueError, "partition 2147483648 of t is above 2**31 - 1"),
            (
                ("t", 0),
                CommittedOffset(1, 2**31),
                ValueError,
                "the leader epoch of t-0 must be between -2**31 and 2**31 - 1, not 2147483648",
            ),
            (("t", 0), CommittedOffset(1, metadata="\ud800"), ValueError, "the metadata of t-0 must be valid Unicode"),
            (("t", 0), CommittedOffset(1, metadata=b"m"), TypeError, "the metadata of t-0 must be a str"),
        )
    ),
    row("Consumer", "committed", "t", text=f"committed: partitions must be {PAIRS}"),
    row("Consumer", "beginning_offsets", ["t"], text=f"beginning_offsets: each of partitions must be {PAIR}"),
    row("Consumer", "end_offsets", ("t", 0), text="pass [('t', 0)]"),
    row("Consumer", "offsets_for_times", [("t", 0)], text="offsets_for_times: times must be a mapping such as"),
    row("Consumer", "offsets_for_times", {("t", 0): NOW}, text="pass int(when.timestamp() * 1000)"),
    row("Consumer", "partitions_for", 5, text="partitions_for: topic must be a str"),
    row("Admin", "create_topics", ["x"], text='a NewTopic such as NewTopic(name="flights", partitions=6, repl'),
    row("Admin", "create_topics", "x", text="create_topics: topics must be a list of NewTopic"),
    row("Admin", "create_topics", NewTopic(name="x"), text="create_topics: topics must be a list of NewTopic"),
    row("Admin", "create_topics", [NewTopic(name=5)], text="the name of a topic must be a str"),
    row("Admin", "create_topics", [NewTopic(name="t", partitions="3")], text="partitions of t must be an int, not str"),
    row(
        "Admin",
        "create_topics",
        [NewTopic(name="t", configs={"retention.ms": 5})],
        text="retention.ms of t must be a str, not int 5; pass '5'",
    ),
    row(
        "Admin",
        "create_topics",
        [NewTopic(name="t", configs=["a"])],
        text='a mapping such as {"retention.ms": "60000"}',
    ),
    row("Admin", "create_topics", [NewTopic(name="t", assignments={0: 1})], text="the brokers of t-0 must be a list"),
    row(
        "Admin", "delete_topics", "flights", text=f"delete_topics: names must be {NAMES}str 'flights'; pass ['flights']"
    ),
    row("Admin", "delete_topics", [5], text="delete_topics: each of names must be a str"),
    row("Admin", "create_partitions", "t", text='counts must be a mapping such as {"flights": 12}, not str'),
    row("Admin", "create_partitions", {"t": "3"}, text="the count of t must be an int, not str '3'"),
    row("Admin", "create_partitions", {"t": 0}, error=ValueError, text="the count of t must be 1 or more, not 0"),
    row("Admin", "describe_topics", "t", text=f"describe_topics: names must be {NAMES}"),
    row("Admin", "describe_configs", ["t"], text="a ConfigResource such as ConfigResource(type=ResourceType.TOPIC"),
    row("Admin", "describe_configs", TOPIC, text="resources must be a list of ConfigResource"),
    row(
        "Admin",
        "describe_configs",
        [ConfigResource(type="topic", name="t")],
        text="must be a ResourceType such as ResourceType.TOPIC, not str 'topic'",
    ),
    row("Admin", "alter_configs", {TOPIC: {"retention.ms": "5"}}, text="each of the changes of 't' must be a ConfigAl"),
    row("Admin", "alter_configs", {"t": []}, text="a resource must be a ConfigResource such as"),
    row("Admin", "alter_configs", [TOPIC], text="changes must be a mapping such as {ConfigResource("),
    row(
        "Admin",
        "alter_configs",
        {TOPIC: [ConfigAlteration(name="retention.ms", value=5)]},
        text="retention.ms must be a str, not int 5; pass '5'",
    ),
    row(
        "Admin",
        "alter_configs",
        {TOPIC: [ConfigAlteration(name="preallocate", value=True)]},
        text="preallocate must be a str, not bool True; pass 'true'",
    ),
    row("Admin", "create_topics", [NewTopic(name="t", configs={"a": 1e6})], text="pass '1000000.0'"),
    *(
        row("Admin", call, *arguments, error=ValueError, text=f"{call}: {field} must be one of {known}")
        for field, known in {
            "resource": "topic, group, cluster, transactional-id, delegation-token, user, not 'X'",
            "operation": "all, read, write, create, delete, alter, describe, cluster-action, describe-configs",
            "permission": "deny, allow, not 'X'",
            "pattern": "literal, prefixed",
        }.items()
        for call, arguments in {
            "create_acls": [[replace(ACL, **{field: "X"})]],
            "describe_acls": [AclFilter(**{field: "X"})],
            "delete_acls": [AclFilter(**{field: "X"})],
        }.items()
    ),
    row("Admin", "create_acls", [AclFilter()], text="create_acls: takes values of Acl, not AclFilter"),
    *(
        row(
            "Admin", call, *arguments, error=ValueError, mechanism="PLAIN", text=f"{call}: mechanism must be one of SCR"
        )
        for call, arguments in {"set_user_password": ["a", "b"], "remove_user_credential": ["a"]}.items()
    ),
    row("Admin", "set_user_password", "a", "", error=ValueError, text="password must be a str that is not empty"),
    row("Admin", "renew_delegation_token", "?", error=ValueError, text="hmac must be the token's secret in base64"),
    row("Admin", "within", 0, error=ValueError, text="within: timeout_ms must be 1 or more, not 0"),
    row("Admin", "describe_groups", "g", text=f"describe_groups: group_ids must be {NAMES}str 'g'"),
    row("Admin", "delete_groups", "g", text=f"delete_groups: group_ids must be {NAMES}str 'g'"),
    row("Admin", "list_group_offsets", ["g"], text="list_group_offsets: group_id must be a str"),
    row("Admin", "alter_group_offsets", "g", {"t": 1}, text=f"each key of offsets must be {PAIR}"),
    row("Admin", "alter_group_offsets", "g", {("t", 0): None}, text="must be an int or a CommittedOffset, not None"),
    row("Admin", "delete_records", [("t", 0)], text='before must be a mapping such as {("flights", 0): 42}'),
    row("Admin", "delete_records", {("t", 0): "x"}, text="the offset of t-0 must be an int, not str 'x'"),
    row("Admin", "elect_leaders", "t", text=f"elect_leaders: partitions must be {PAIRS}"),
    row("Admin", "alter_partition_reassignments", {("t", 0): 1}, text="the replicas of t-0 must be a list of int"),
    row("Admin", "describe_log_dirs", 1, text="describe_log_dirs: broker_ids must be a list of int, not int 1"),
    row("Admin", "describe_log_dirs", "1", text="describe_log_dirs: broker_ids must be a list of int, not str '1'"),
    row("Admin", "list_offsets", {("t", 0): NOW}, text="list_offsets: the time of t-0 must be an int in milliseconds"),
    row("Admin", "list_transactions", states="Ongoing", text=f"states must be {NAMES}str 'Ongoing'; pass ['Ongoing']"),
    row("Admin", "describe_transactions", "x", text=f"transactional_ids must be {NAMES}"),
    row("Admin", "describe_producers", "t", text=f"describe_producers: partition must be {PAIR}"),
    row("Admin", "terminate_transaction", None, text="transactional_id must be a str"),
    row("Admin", "add_voter", "1", "h", 1, text="add_voter: voter_id must be an int, not str '1'"),
    row("Admin", "remove_voter", None, text="remove_voter: voter_id must be an int, not None"),
    row("Admin", "update_features", {"metadata.version": "29"}, text="the level of metadata.version must be an int"),
]
PARAMETERS = ("client", "call", "arguments", "keywords", "error", "text")


def class_of(face, client):
    return getattr(face, "Producer" if client == "Sender" else client)


async def called(call, arguments, keywords):
    """Makes a call, and awaits what is to be awaited."""
    answer = call(*arguments, **keywords)
    if hasattr(answer, "__await__"):
        await answer


def refused(caught, error, text):
    assert type(caught.value) in (error, ArgumentTypeError, ArgumentValueError)
    assert text in str(caught.value)


@pytest.mark.parametrize(PARAMETERS, ROWS)
def test_trio_client_refuses(client, call, arguments, keywords, error, text):
    async def main():
        async with class_of(moldau, client)(CONFIGS[client]) as opened:
            with pytest.raises((error, TimeoutError, moldau.KafkaError)) as caught:
                await called(getattr(opened, call), arguments, keywords)
            refused(caught, error, text)

    trio.run(main)


@pytest.mark.parametrize(PARAMETERS, ROWS)
def test_blocking_client_refuses(client, call, arguments, keywords, error, text):
    opened = class_of(moldau.blocking, client)(CONFIGS[client])
    with opened, pytest.raises((error, TimeoutError, moldau.KafkaError)) as caught:
        getattr(opened, call)(*arguments, **keywords)
    refused(caught, error, text)


def ordinary(partitions):
    pass


async def asynchronous(partitions):
    pass


@pytest.mark.parametrize("face", [moldau, moldau.blocking], ids=["trio", "blocking"])
@pytest.mark.parametrize("client", ["Producer", "Consumer", "Admin"])
@pytest.mark.parametrize("config", [NO_SERVER, None, [("bootstrap.servers", NO_SERVER)]])
def test_a_configuration_is_a_mapping(face, client, config):
    with pytest.raises(TypeError) as caught:
        getattr(face, client)(config)
    start = f'{client}: config must be a mapping such as {{"bootstrap.servers": "127.0.0.1:9092"}}, not '
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize("client", ["Producer", "Consumer"])
def test_configurations_of_other_clients_are_refused(client):
    with pytest.raises(ConfigError, match=f"{client} cannot use a.* admin.* configuration"):
        getattr(moldau, client)(ADMIN_CONFIG.parse({"bootstrap.servers": NO_SERVER}))


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked", "on_lost"])
def test_callbacks_belong_to_their_face(name):
    with pytest.raises(TypeError, match=f"Consumer: {name} must be an async function .*, not int 5"):
        moldau.Consumer(CONFIGS["Consumer"], **{name: 5})
    for wrong in (asynchronous, 5):
        with pytest.raises(TypeError, match=f"{name} must be an ordinary function"):
            moldau.blocking.Consumer(CONFIGS["Consumer"], **{name: wrong})
    moldau.Consumer(CONFIGS["Consumer"], **{name: functools.partial(asynchronous)})
    moldau.blocking.Consumer(CONFIGS["Consumer"], **{name: ordinary})


@pytest.mark.parametrize("face", [moldau, moldau.blocking, moldau.aio], ids=["trio", "blocking", "aio"])
@pytest.mark.parametrize("client", ["Producer", "Consumer"])
@pytest.mark.parametrize(
    ("wrong", "text"), [(5, "must be a function, not int 5"), (asynchronous, "is a coroutine fun")]
)
def test_statistics_go_to_an_ordinary_function(face, client, wrong, text):
    with pytest.raises(TypeError, match=f"{client}: on_statistics {text}"):
        getattr(face, client)(CONFIGS[client] | {"statistics.interval.ms": "100"}, on_statistics=wrong)


@pytest.mark.parametrize("face", [moldau, moldau.blocking, moldau.aio], ids=["trio", "blocking", "aio"])
@pytest.mark.parametrize("client", ["Producer", "Consumer", "ShareConsumer", "Admin"])
def test_clients_stay_in_their_process(face, client):
    given = getattr(face, client)(CONFIGS["Consumer" if client == "ShareConsumer" else client] | {})
    for move in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=f"^an? {client} can be neither copied nor sent to another process; open"):
            move(given)


def test_a_partitioner_is_a_function():
    for face in (moldau, moldau.blocking):
        with pytest.raises(TypeError, match="Producer: partitioner must be a function, not str 'murmur2'"):
            face.Producer(CONFIGS["Sender"], partitioner="murmur2")


def simulate(scenario):
    """Runs ``scenario(cluster, open_client)`` in a simulated world."""

    async def main(world):
        cluster = FakeCluster(world, 1)
        cluster.start()
        environment = world.node("client").environment

        def client(kind, **config):
            return kind({"bootstrap.servers": cluster.bootstrap} | config, environment=environment)

        await scenario(cluster, client)

    run_world(main, 1)


SENDS = [each for each in ROWS if each.values[1] == "send"]


@pytest.mark.parametrize(PARAMETERS, SENDS)
def test_records_are_checked_where_the_topic_is_known(client, call, arguments, keywords, error, text):
    async def scenario(cluster, open_client):
        parts = cluster.add_topic("t", 2)
        async with open_client(moldau.Producer) as producer:
            await producer.send("t", b"before", partition=0)
            for send in (producer.send, producer.send_nowait):
                with pytest.raises(error) as caught:
                    await called(send, arguments, keywords)
                refused(caught, error, text)
            await producer.send("t", b"behind", partition=0)
        assert whole_log(parts) == [b"before", b"behind"]

    simulate(scenario)


def test_headers_from_an_iterator_survive_the_wait_for_metadata():
    async def scenario(cluster, open_client):
        (part,) = cluster.add_topic("t")
        async with open_client(moldau.Producer) as producer:
            await producer.send("t", bytearray(b"v"), headers=iter([("a", memoryview(b"1")), ["b", None]]))
        assert part.records()[0].headers == (("a", b"1"), ("b", None))

    simulate(scenario)


def test_a_text_for_topics_creates_none():
    async def scenario(cluster, open_client):
        config = {"group.id": "g", "allow.auto.create.topics": "true"}
        async with open_client(moldau.Consumer, **config) as consumer:
            with pytest.raises(TypeError):
                consumer.subscribe("flights")
            assert consumer.subscription == []
            consumer.subscribe(["flights"])
            assert consumer.subscription == ["flights"]
            await consumer.poll(5000)
        assert "f" not in cluster.topics

    simulate(scenario)
