"""Goal: the reader uses TLS, reads from the nearest replica, notices topics that were created again, shows offsets.

Method: two real nodes in two racks, each with a TLS and a plain listener; the reader and the source's classes are
called as Spark calls them; Spark does not run.
"""

import datetime

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from moldau_jepsen.launcher.ports import take_free_ports
from pyspark_moldau.errors import DataLossError, SinkError
from pyspark_moldau.sink.core.sink_options import parse_sink_options
from pyspark_moldau.sink.names import Attempt, Names
from pyspark_moldau.sink.task import write_at_least_once, write_exactly_once
from pyspark_moldau.source import planning
from pyspark_moldau.source.core.offsets import OffsetRange, from_checkpoint
from pyspark_moldau.source.core.options import OptionError, Subscription, parse_options
from pyspark_moldau.source.data_source import MoldauBatchReader
from pyspark_moldau.source.reader import ClusterReader
from pyspark_moldau.source.stream import MoldauStreamReader
from support.certificates import authority
from support.interop.clients import ConfluentClient, committed_offsets, create_topic, wait_for, wait_until
from support.started import Command

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certificates")
    (directory / "trust.pem").write_text(authority().trust)
    (directory / "foreign-trust.pem").write_text(authority(1).trust)
    for name, host in (("node", "127.0.0.1"), ("client", "client.example")):
        chain, key = authority().issue(host)
        (directory / f"{name}.pem").write_text(key + chain)
    ended = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    chain, key = authority().issue("127.0.0.1", not_after=ended)
    (directory / "expired.pem").write_text(key + chain)
    return directory


@pytest.fixture(scope="module")
def nodes(files, tmp_path_factory):
    """Yields the addresses of the plain, the TLS, and the mutual TLS listeners, and of those of an expired node."""
    directory = tmp_path_factory.mktemp("nodes")
    controller, *ports = take_free_ports(9)
    running, addresses = [], {"PLAIN": [], "SECURE": [], "MUTUAL": [], "EXPIRED": []}
    for node_id in (1, 2):
        listeners = []
        for name, port in zip(addresses, ports[4 * (node_id - 1) : 4 * node_id], strict=True):
            addresses[name].append(f"127.0.0.1:{port}")
            listeners.append(f"{name}://127.0.0.1:{port}")
        if node_id == 1:
            listeners.append(f"CONTROLLER://127.0.0.1:{controller}")
        settings = {
            "node.id": node_id,
            "process.roles": "broker,controller" if node_id == 1 else "broker",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "listener.security.protocol.map": "PLAIN:PLAINTEXT,SECURE:SSL,MUTUAL:SSL,EXPIRED:SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAIN",
            "log.dirs": directory / str(node_id),
            "broker.rack": f"rack-{node_id}",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "ssl.keystore.location": files / "node.pem",
            "ssl.truststore.location": files / "trust.pem",
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.expired.ssl.keystore.location": files / "expired.pem",
            "offsets.topic.replication.factor": 2,
            "offsets.topic.num.partitions": 1,
        }
        path = directory / f"{node_id}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        with (directory / f"{node_id}.log").open("w") as log:
            running.append(Command("server", str(path), "--with-parent", stderr=log))
    try:

        def ready():
            logs = [(directory / f"{node_id}.log").read_text() for node_id in (1, 2)]
            for node, log in zip(running, logs, strict=True):
                assert node.poll() is None, log
            return all(" ready " in log for log in logs)

        wait_until(ready, "the nodes start")
        yield {name: ",".join(both) for name, both in addresses.items()}
    finally:
        for node in running:
            node.kill()
            node.wait()


@pytest.fixture(scope="module")
def plain(nodes):
    create_topic(nodes["PLAIN"], "t", 2, 2)
    ConfluentClient(nodes["PLAIN"]).produce("t", [(b"k%d" % n, b"v%d" % n, []) for n in range(40)])
    return nodes["PLAIN"]


def parsed(bootstrap, *, streaming=False, **options):
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": "t", "kafka.default.api.timeout.ms": "10000"}
    return parse_options(
        given | {name.replace("__", "."): value for name, value in options.items()}, streaming=streaming
    )


def count(reader):
    return sum(part.num_rows for one in reader.partitions() for part in reader.read(one))


def test_a_query_reads_from_tls_listeners(nodes, plain, files):
    """Certificates come from files or as texts; the client shows its own where the listener asks for one."""
    trust = {"kafka__security__protocol": "SSL", "kafka__ssl__truststore__location": str(files / "trust.pem")}
    assert count(MoldauBatchReader(parsed(nodes["SECURE"], **trust))) == 40
    chain, key = authority().issue("client.example")
    texts = {
        "kafka__security__protocol": "SSL",
        "kafka__ssl__truststore__certificates": authority().trust,
        "kafka__ssl__keystore__certificate__chain": chain,
        "kafka__ssl__keystore__key": key,
    }
    assert count(MoldauBatchReader(parsed(nodes["MUTUAL"], **texts))) == 40
    own = trust | {"kafka__ssl__keystore__location": str(files / "client.pem")}
    assert count(MoldauBatchReader(parsed(nodes["MUTUAL"], **own))) == 40


@pytest.mark.parametrize(
    ("listener", "trust", "message"),
    [
        ("SECURE", "foreign-trust.pem", r"kafka\.ssl\.truststore\.location: the certificate of 127.* is not trusted"),
        ("SECURE", "missing.pem", r"kafka\.ssl\.truststore\.location = .*missing\.pem.*: cannot be read"),
        ("PLAIN", "trust.pem", r"does not speak TLS: set kafka\.security\.protocol to PLAINTEXT"),
        ("SECURE", None, r"this listener speaks TLS: set kafka\.security\.protocol to SSL"),
        ("MUTUAL", "trust.pem", r"kafka\.ssl\.keystore\.location: 127.* did not accept the certificate .*_REQUIRED"),
        ("EXPIRED", "trust.pem", r"kafka\.bootstrap\.servers: the certificate of 127.* has expired; the broker needs"),
    ],
    ids=["foreign", "missing", "plain listener", "plain client", "no certificate", "expired"],
)
def test_wrong_tls_settings_are_named(nodes, plain, files, listener, trust, message):
    tls = {"kafka__security__protocol": "SSL", "kafka__ssl__truststore__location": str(files / str(trust))}
    options = parsed(nodes[listener], **(tls if trust else {}) | {"kafka__default__api__timeout__ms": "1000"})
    with pytest.raises(Exception, match=message):
        MoldauBatchReader(options).partitions()


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize(
    ("listener", "trust", "message"),
    [
        (
            "SECURE",
            "foreign-trust.pem",
            r"^kafka\.ssl\.truststore\.location: .*VERIFY_FAILED: [\w -]+; name the PEM",
        ),
        ("SECURE", "missing.pem", r"^kafka\.ssl\.truststore\.location = .*missing\.pem.*: cannot be read"),
        ("PLAIN", "trust.pem", r"^kafka\.security\.protocol: .* set kafka\.security\.protocol=PLAINTEXT$"),
        ("SECURE", None, r"^kafka\.security\.protocol: .* speaks TLS: set kafka\.security\.protocol=SSL"),
        (
            "MUTUAL",
            "trust.pem",
            r"^kafka\.ssl\.keystore\.location: .* demands a certificate .*; name the PEM file",
        ),
        ("EXPIRED", "trust.pem", r"^kafka\.bootstrap\.servers: .* has expired; the broker needs a new certificate$"),
    ],
    ids=["foreign", "missing", "plain listener", "plain client", "no certificate", "expired"],
)
def test_the_sink_names_wrong_tls_settings(nodes, plain, files, listener, trust, message, guarantee):
    tls = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": str(files / str(trust))}
    given = {"kafka.bootstrap.servers": nodes[listener], "topic": "t", "deliveryGuarantee": guarantee}
    options = parse_sink_options(given | (tls if trust else {}), streaming=False)
    rows = iter([pa.RecordBatch.from_pydict({"value": ["v"]})])
    attempt = Attempt(names=Names(app_id="a"), batch=0, run="r", partition=0, attempt=0)

    def write():
        if options.is_exactly_once:
            write_exactly_once(options, attempt, rows)
        else:
            write_at_least_once(options, rows)

    with pytest.raises(SinkError, match=message):
        write()


def test_records_come_from_the_replica_in_the_readers_rack(plain):
    for rack, expected in (("rack-1", 1), ("rack-2", 2)):
        options = parsed(plain, kafka__client__rack=rack)
        reader = ClusterReader(options.client)
        batch = MoldauBatchReader(options, connect=lambda client, reader=reader: reader)
        assert count(batch) == 40
        others = [partition for partition, leader in reader._cluster.leaders.items() if leader != expected]
        nodes_used = {partition: node for partition, (node, _) in reader._preferred.items()}
        assert nodes_used == dict.fromkeys(others, expected)


def test_a_pattern_leaves_internal_topics_out(plain):
    wait_until(lambda: published(plain, "for-internal"), "the topic of the groups' offsets exists")
    found = ClusterReader(parsed(plain).client).partitions(Subscription(pattern=".*"))
    assert {topic for topic, _ in found if topic.startswith("__")} == set()
    assert ("t", 0) in found


def published(bootstrap, group):
    reader = MoldauStreamReader(
        parsed(bootstrap, streaming=True, startingOffsets="earliest", publishOffsetsToGroup=group)
    )
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.commit(end)
    return committed_offsets(bootstrap, group, "t", 2) == [from_checkpoint(end)["t", at] for at in (0, 1)]


def test_a_group_shows_how_far_the_query_is(plain):
    wait_until(lambda: published(plain, "lag"), "the group has the offsets of the query")


def test_sizes_are_those_of_the_logs(plain):
    reader = ClusterReader(parsed(plain).client)
    sizes = reader.sizes([("t", 0), ("t", 1)])
    assert all(100 < size < 100_000 for size in sizes.values())


def recreate(bootstrap, topic, records):
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(60)
    reader = ClusterReader(parsed(bootstrap).client)
    wait_until(lambda: not reader.topic_ids([topic]), "the topic is gone")
    create_topic(bootstrap, topic, 1, 2)
    ConfluentClient(bootstrap).produce(topic, [(None, b"new-%d" % n, []) for n in range(records)])


@pytest.mark.parametrize("records", [3, 30], ids=["shorter", "longer"])
def test_a_recreated_topic_is_distinguished(plain, monkeypatch, records):
    """The new topic may be shorter or longer than what was read; offsets alone would show only the first."""
    monkeypatch.setattr(planning, "SETTLE_S", 1.0)
    topic = f"again-{records}"
    create_topic(plain, topic, 1, 2)
    ConfluentClient(plain).produce(topic, [(None, b"old", [])] * 10)
    strict = MoldauStreamReader(parsed(plain, streaming=True, subscribe=topic, startingOffsets="earliest"))
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    tasks = strict.partitions(start, end)
    recreate(plain, topic, records)
    wait_for(lambda: topic in ClusterReader(parsed(plain).client).topic_ids([topic]), "the topic is known")
    with pytest.raises(DataLossError, match=f"topic {topic} was deleted and created again while the query read it"):
        strict.latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLossError, match=r"was deleted before its records 0\.\.9 were read"):
        list(strict.read(tasks[0]))
    lenient = MoldauStreamReader(parsed(plain, streaming=True, subscribe=topic, failOnDataLoss="false"))
    assert list(lenient.read(tasks[0])) == []
    following = lenient.latestOffset(end, ReadAllAvailable())
    values = [
        value
        for one in lenient.partitions(end, following)
        for part in lenient.read(one)
        for value in part.column("value").to_pylist()
    ]
    assert values == [b"new-%d" % n for n in range(records)]


def test_a_recreated_topic_may_have_fewer_partitions(plain):
    """A task of a partition that is gone waited for its leader, for as long as a failure may last, in each attempt."""
    create_topic(plain, "fewer", 2, 2)
    former = wait_for(lambda: ClusterReader(parsed(plain).client).topic_ids(["fewer"]), "the topic is known")
    work = OffsetRange(topic="fewer", partition=1, start=0, end=10, topic_id=former["fewer"])
    recreate(plain, "fewer", 1)
    with pytest.raises(DataLossError, match=r"fewer was deleted before its records 0\.\.9 were read"):
        list(ClusterReader(parsed(plain).client).read(work, fail_on_data_loss=True))
    assert list(ClusterReader(parsed(plain).client).read(work, fail_on_data_loss=False)) == []


def test_an_unknown_topic_is_refused_by_name(plain):
    for name, message in (
        ("nowhere", r"subscribe: topic nowhere does not exist; create it, or correct its name$"),
        ("tt", r"subscribe: topic tt does not exist; .*; did you mean t\?$"),
        ("no/such", r"subscribe: 'no/such' is no name of a topic"),
    ):
        with pytest.raises(OptionError, match=message):
            MoldauBatchReader(parsed(plain, subscribe=name)).partitions()
    options = {"kafka.bootstrap.servers": plain, "assign": '{"t": [9]}'}
    with pytest.raises(OptionError, match="assign: topic t has no partition 9, only 0 to 1"):
        MoldauBatchReader(parse_options(options, streaming=False)).partitions()
