"""Keys of the clients: what all share, and those of producer, consumer and admin client."""

from __future__ import annotations

from moldau.runtime.config.declaration import INT_MAX, REQUIRED
from moldau.runtime.config.declare import MIB, MINUTE_MS, boolean, integer, long, names, password, string
from moldau.runtime.config.keys.recovery import RECOVERY_KEYS

CLIENT_KEYS = (
    names(
        name="bootstrap.servers",
        default=REQUIRED,
        group="Connection",
        doc="Addresses host:port where the cluster is found; a few of its brokers suffice.",
    ),
    string(
        name="client.id",
        default="",
        group="Connection",
        doc="Name of the client in logs, metrics and quotas of the brokers.",
    ),
    boolean(
        name="enable.metrics.push",
        default=True,
        group="Metrics",
        doc="Whether the client pushes metrics to brokers that subscribe to them (KIP-714). It needs the extra "
        "`client-metrics`; a client without it asks, and pushes nothing. Admin clients push none.",
    ),
    string(
        name="security.protocol",
        default="PLAINTEXT",
        group="Connection",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        ignores_case=True,
        doc="What the connections speak below Kafka's protocol.",
    ),
    string(
        name="ssl.truststore.location",
        default=None,
        group="Connection",
        doc="PEM file with the trusted certificates; without it those of the system.",
    ),
    string(
        name="ssl.ca.location",
        default=None,
        group="Connection",
        is_own=True,
        doc="The name of librdkafka and kcat for ssl.truststore.location, which is used if both are set.",
    ),
    password(
        name="ssl.truststore.certificates",
        default=None,
        group="Connection",
        doc="Trusted certificates as PEM text, instead of a file.",
    ),
    string(
        name="ssl.truststore.type",
        default="PEM",
        group="Connection",
        is_own=True,
        choices=("PEM", "PKCS12"),
        ignores_case=True,
        doc="Format of the trust store's file.",
    ),
    password(
        name="ssl.truststore.password",
        default=None,
        group="Connection",
        doc="Password of a trust store of type PKCS12.",
    ),
    string(
        name="ssl.keystore.location",
        default=None,
        group="Connection",
        doc="File with the client's key and certificate chain, of the type that ssl.keystore.type names.",
    ),
    password(
        name="ssl.keystore.key",
        default=None,
        group="Connection",
        doc="Private key as PEM text, instead of a file.",
    ),
    password(
        name="ssl.keystore.certificate.chain",
        default=None,
        group="Connection",
        doc="Certificate chain as PEM text, instead of a file.",
    ),
    string(
        name="ssl.keystore.type",
        default="PEM",
        group="Connection",
        is_own=True,
        choices=("PEM", "PKCS12"),
        ignores_case=True,
        doc="Format of the key store's file.",
    ),
    password(
        name="ssl.keystore.password",
        default=None,
        group="Connection",
        doc="Password of a key store of type PKCS12.",
    ),
    names(
        name="ssl.enabled.protocols",
        default=("TLSv1.2", "TLSv1.3"),
        group="Connection",
        choices=("TLSv1.2", "TLSv1.3"),
        doc="TLS versions that are allowed.",
    ),
    string(
        name="ssl.protocol",
        default="TLSv1.3",
        group="Connection",
        choices=("TLSv1.2", "TLSv1.3", "TLS"),
        doc="Newest TLS version that the client offers; TLS means TLSv1.3.",
    ),
    names(
        name="ssl.cipher.suites",
        default=(),
        group="Connection",
        doc="Cipher suites, in Kafka's (IANA's) or OpenSSL's names; empty leaves the choice to OpenSSL. Suites of TLS "
        "1.3 are named together or not at all, which disables TLS 1.3.",
    ),
    password(
        name="ssl.key.password",
        default=None,
        group="Connection",
        doc="Password of the private key.",
    ),
    string(
        name="ssl.endpoint.identification.algorithm",
        default="https",
        group="Connection",
        choices=("https", ""),
        ignores_case=True,
        doc="How the host name of a broker is checked; empty for no check.",
    ),
    long(
        name="metadata.max.age.ms",
        default=5 * MINUTE_MS,
        group="Connection",
        minimum=0,
        doc="Age at which metadata is fetched again, in milliseconds.",
    ),
    *RECOVERY_KEYS,
    integer(
        name="request.timeout.ms",
        default=30000,
        group="Connection",
        minimum=1,
        doc="How long a request may take, in milliseconds.",
    ),
    long(
        name="reconnect.backoff.ms",
        default=50,
        group="Connection",
        minimum=0,
        doc=("Wait before the first attempt to reconnect to a broker, in milliseconds; it doubles with each failure."),
    ),
    long(
        name="reconnect.backoff.max.ms",
        default=1000,
        group="Connection",
        minimum=0,
        doc="Greatest wait before an attempt to reconnect, in milliseconds; if only reconnect.backoff.ms is given, at "
        "least that.",
    ),
    long(
        name="retry.backoff.ms",
        default=100,
        group="Connection",
        minimum=0,
        doc=("Wait before the first repetition of a failed request, in milliseconds; it doubles with each failure."),
    ),
    long(
        name="retry.backoff.max.ms",
        default=1000,
        group="Connection",
        minimum=0,
        doc="Greatest wait before a repetition, in milliseconds.",
    ),
    long(
        name="socket.connection.setup.timeout.ms",
        default=10000,
        group="Connection",
        minimum=1,
        doc="How long opening a connection may take, in milliseconds.",
    ),
    long(
        name="connections.max.idle.ms",
        default=9 * MINUTE_MS,
        group="Connection",
        doc="Age of silence after which a connection is closed, in milliseconds; negative for no end.",
    ),
)


PRODUCER_KEYS = (
    string(
        name="acks",
        default="all",
        group="Producer",
        choices=("all", "-1", "0", "1"),
        doc=(
            "The replicas that must have a record before it counts as sent: none (0), the leader (1), all in-sync "
            "replicas (all, -1)."
        ),
    ),
    boolean(
        name="enable.idempotence",
        default=True,
        group="Producer",
        doc=(
            "Whether retries are kept from writing a record twice. It needs acks=all; given acks of 0 or 1 "
            "it is off unless it was asked for."
        ),
    ),
    integer(
        name="batch.size",
        default=65536,
        group="Producer",
        minimum=0,
        doc="Size of a batch at which it is sent, before compression. Kafka's default is 16384, with which small "
        "records cost clients and brokers more. Where a topic takes only smaller batches (max.message.bytes), "
        "the producer splits them, and makes later ones smaller.",
        is_own=True,
    ),
    long(
        name="linger.ms",
        default=5,
        group="Producer",
        minimum=0,
        doc="How long a batch that is not full waits for more records, in milliseconds.",
    ),
    long(
        name="buffer.memory",
        default=32 * MIB,
        group="Producer",
        minimum=1,
        doc="Bytes of records that wait to be sent; send waits above it.",
    ),
    long(
        name="max.block.ms",
        default=60000,
        group="Producer",
        minimum=0,
        doc="How long send waits for metadata and for memory, in milliseconds.",
    ),
    integer(
        name="delivery.timeout.ms",
        default=2 * MINUTE_MS,
        group="Producer",
        minimum=0,
        doc="How long after send a record is given up, in milliseconds.",
    ),
    integer(
        name="max.in.flight.requests.per.connection",
        default=5,
        group="Producer",
        minimum=1,
        doc="Produce requests to one broker that wait for an answer; at most 5 with idempotence.",
    ),
    integer(
        name="retries",
        default=INT_MAX,
        group="Producer",
        minimum=0,
        doc="How often a failed batch is repeated; delivery.timeout.ms bounds it too.",
    ),
    integer(
        name="max.request.size",
        default=MIB,
        group="Producer",
        minimum=0,
        doc="Greatest size of a produce request, and of a record.",
    ),
    string(
        name="compression.type",
        default="none",
        group="Producer",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        doc="Codec of the batches.",
    ),
    integer(
        name="compression.gzip.level",
        default=-1,
        group="Producer",
        minimum=-1,
        maximum=9,
        doc="Level of gzip.",
    ),
    integer(
        name="compression.lz4.level",
        default=9,
        group="Producer",
        minimum=1,
        maximum=17,
        doc="Level of lz4.",
    ),
    integer(
        name="compression.zstd.level",
        default=3,
        group="Producer",
        minimum=-131072,
        maximum=22,
        doc="Level of zstd.",
    ),
    string(
        name="partitioner.class",
        default=None,
        group="Producer",
        choices=(
            "default",
            "sticky",
            "round-robin",
            "RoundRobinPartitioner",
            "org.apache.kafka.clients.producer.RoundRobinPartitioner",
        ),
        doc=(
            "How a partition is chosen: by key, and for records without a key sticky to one partition for a "
            "batch, by load (default, KIP-794); round-robin; sticky without adaptation (KIP-480). A function "
            "can be given to the constructor instead."
        ),
    ),
    boolean(
        name="partitioner.ignore.keys",
        default=False,
        group="Producer",
        doc="Whether keys are left out of the choice of partitions.",
    ),
    boolean(
        name="partitioner.adaptive.partitioning.enable",
        default=True,
        group="Producer",
        doc="Whether partitions of slower brokers get fewer records without a key.",
    ),
    long(
        name="partitioner.availability.timeout.ms",
        default=0,
        group="Producer",
        minimum=0,
        doc=(
            "Partitions of a broker that took no batch for so long get no records without a key, in "
            "milliseconds; 0 switches it off."
        ),
    ),
    string(
        name="transactional.id",
        default=None,
        group="Producer",
        doc="Name of this producer's transactions; it survives restarts and fences older instances.",
    ),
    integer(
        name="transaction.timeout.ms",
        default=60000,
        group="Producer",
        minimum=1,
        doc="How long a transaction may take before the coordinator aborts it, in milliseconds.",
    ),
    long(
        name="metadata.max.idle.ms",
        default=5 * MINUTE_MS,
        group="Producer",
        minimum=5000,
        doc="How long metadata of an unused topic is kept, in milliseconds.",
    ),
    integer(
        name="statistics.interval.ms",
        default=0,
        group="Metrics",
        is_own=True,
        minimum=0,
        doc="Interval of the calls of `on_statistics`; 0 makes none. librdkafka has a key of this name.",
    ),
)


CONSUMER_KEYS = (
    string(
        name="group.id",
        default=None,
        group="Consumer",
        doc="Consumer group, needed to subscribe and to commit.",
    ),
    string(
        name="group.protocol",
        default="classic",
        group="Consumer",
        choices=("classic", "consumer"),
        ignores_case=True,
        doc=(
            "How the group divides partitions: `classic` lets a member assign, `consumer` the coordinator (KIP-848), "
            "which then also sets the heartbeat interval."
        ),
    ),
    string(
        name="group.remote.assignor",
        default=None,
        group="Consumer",
        doc="Assignor of the coordinator (uniform, range) with `group.protocol=consumer`; by default it chooses.",
    ),
    string(
        name="group.instance.id",
        default=None,
        group="Consumer",
        doc="Name of a static member, which may restart without a rebalance (KIP-345).",
    ),
    string(
        name="auto.offset.reset",
        default="latest",
        group="Consumer",
        doc=(
            "Where to start without a committed offset: earliest, latest, none (an error), or "
            "by_duration:<ISO 8601 duration>."
        ),
    ),
    boolean(
        name="enable.auto.commit",
        default=True,
        group="Consumer",
        doc="Whether positions are committed in the background.",
    ),
    integer(
        name="auto.commit.interval.ms",
        default=5000,
        group="Consumer",
        minimum=0,
        doc="Time between commits in the background, in milliseconds.",
    ),
    integer(
        name="fetch.min.bytes",
        default=1,
        group="Consumer",
        minimum=0,
        doc="Bytes for which the broker makes a fetch wait.",
    ),
    integer(
        name="fetch.max.wait.ms",
        default=500,
        group="Consumer",
        minimum=0,
        doc="How long the broker makes a fetch wait, in milliseconds.",
    ),
    integer(
        name="fetch.max.bytes",
        default=50 * MIB,
        group="Consumer",
        minimum=0,
        doc="Bytes of one answer; a single larger batch still comes.",
    ),
    integer(
        name="max.partition.fetch.bytes",
        default=MIB,
        group="Consumer",
        minimum=0,
        doc="Bytes of one partition in an answer; a single larger batch still comes.",
    ),
    integer(
        name="queued.max.messages.kbytes",
        default=65536,
        group="Consumer",
        minimum=1,
        maximum=2097151,
        doc=(
            "Kibibytes of records that a consumer fetches ahead of the application, over all partitions; the name is "
            "librdkafka's. Exceeded by at most one answer for each broker."
        ),
    ),
    integer(
        name="max.poll.records",
        default=500,
        group="Consumer",
        minimum=1,
        doc="Records that one poll returns at most.",
    ),
    integer(
        name="max.poll.interval.ms",
        default=5 * MINUTE_MS,
        group="Consumer",
        minimum=1,
        doc="Time between polls after which the member leaves its group, in milliseconds.",
    ),
    integer(
        name="session.timeout.ms",
        default=45000,
        group="Consumer",
        minimum=1,
        doc="How long the coordinator keeps a member without heartbeats, in milliseconds.",
    ),
    integer(
        name="heartbeat.interval.ms",
        default=3000,
        group="Consumer",
        minimum=1,
        doc="Time between heartbeats, in milliseconds.",
    ),
    string(
        name="isolation.level",
        default="read_uncommitted",
        group="Consumer",
        choices=("read_committed", "read_uncommitted"),
        doc="Whether records of open and aborted transactions are seen.",
    ),
    names(
        name="partition.assignment.strategy",
        default=("range", "cooperative-sticky"),
        group="Consumer",
        choices=(
            "range",
            "roundrobin",
            "sticky",
            "cooperative-sticky",
            "org.apache.kafka.clients.consumer.RangeAssignor",
            "org.apache.kafka.clients.consumer.RoundRobinAssignor",
            "org.apache.kafka.clients.consumer.StickyAssignor",
            "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        ),
        doc="Assignors in order of preference; Kafka's class names are understood.",
    ),
    integer(
        name="fetch.max.uncompressed.bytes",
        default=64 * MIB,
        group="Consumer",
        is_own=True,
        minimum=1,
        doc="Greatest size of the records of one compressed batch, decompressed. A larger batch is reported as "
        "corrupt; brokers of Moldau accept half of it by default (max.message.uncompressed.bytes).",
    ),
    boolean(
        name="check.crcs",
        default=True,
        group="Consumer",
        doc="Whether the CRC of fetched batches is checked.",
    ),
    boolean(
        name="allow.auto.create.topics",
        default=True,
        group="Consumer",
        doc="Whether subscribing to an unknown topic may create it.",
    ),
    boolean(
        name="exclude.internal.topics",
        default=True,
        group="Consumer",
        doc="Whether patterns leave internal topics out.",
    ),
    string(
        name="client.rack",
        default="",
        group="Consumer",
        doc="Rack of the consumer, for reads from the closest replica.",
    ),
    integer(
        name="default.api.timeout.ms",
        default=60000,
        group="Consumer",
        minimum=1,
        doc="How long calls such as commit and position may take, in milliseconds.",
    ),
    integer(
        name="statistics.interval.ms",
        default=0,
        group="Metrics",
        is_own=True,
        minimum=0,
        doc="Interval of the calls of `on_statistics`; 0 makes none. librdkafka has a key of this name.",
    ),
)


ADMIN_KEYS = (
    names(
        name="bootstrap.controllers",
        default=(),
        group="Connection",
        doc="Addresses host:port of controllers (KIP-919), instead of `bootstrap.servers`: for what the controllers "
        "decide or know, also while no broker runs.",
    ),
    integer(
        name="default.api.timeout.ms",
        default=60000,
        group="Admin",
        minimum=1,
        doc="How long a call may take with all its repetitions, in milliseconds.",
    ),
    integer(
        name="retries",
        default=INT_MAX,
        group="Admin",
        minimum=0,
        doc="How often a failed request is repeated.",
    ),
)
