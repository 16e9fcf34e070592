"""Keys of a node (broker or controller): identity, metadata quorum, network."""

from __future__ import annotations

from moldau.runtime.config.declaration import INT_MAX, LONG_MAX, REQUIRED
from moldau.runtime.config.declare import (
    CLUSTER_WIDE,
    MIB,
    MINUTE_MS,
    PER_BROKER,
    boolean,
    integer,
    long,
    names,
    string,
)

NODE_KEYS = (
    names(
        name="process.roles",
        default=REQUIRED,
        group="Node",
        choices=("broker", "controller"),
        doc="What this node is: broker, controller, or both.",
    ),
    integer(
        name="node.id",
        default=REQUIRED,
        group="Node",
        minimum=0,
        doc="Number of this node, unique in the cluster.",
    ),
    string(
        name="cluster.id",
        default=None,
        group="Node",
        is_own=True,
        doc=(
            "Id of the cluster. A new node writes it into meta.properties; later it must agree with what is "
            "there. Without it the controllers choose one."
        ),
    ),
    string(
        name="broker.rack",
        default=None,
        group="Node",
        doc="Rack of the broker, for placement of replicas and for reads from the closest replica.",
    ),
    string(
        name="metadata.log.dir",
        default=None,
        group="Node",
        doc="Directory of the metadata log; without it the first of log.dirs.",
    ),
    string(
        name="log.dir",
        default="/tmp/moldau-logs",
        group="Node",
        is_own=True,
        doc="Directory of the partition logs, where log.dirs is not set.",
    ),
    names(
        name="log.dirs",
        default=None,
        group="Node",
        doc="Directories of the partition logs; without it log.dir.",
    ),
    names(
        name="cordoned.log.dirs",
        default=(),
        group="Node",
        dynamic=PER_BROKER,
        doc=(
            "Those of log.dirs that take no new replicas; their replicas stay in service. * stands for all: then the "
            "broker gets no new replicas. Without effect below metadata.version 4."
        ),
    ),
    integer(
        name="broker.processes",
        default=1,
        group="Node",
        is_own=True,
        minimum=1,
        maximum=256,
        doc=(
            "Number of brokers that moldau server runs on this machine from one file, each in a process of its own. "
            "Process i, from 0, adds i to node.id and to each port, and keeps its data in broker.ID below each of "
            "log.dirs. A controller of the file runs in process 0."
        ),
    ),
    boolean(
        name="controlled.shutdown.enable",
        default=True,
        group="Node",
        doc="Whether a stopping broker first moves its leaders away.",
    ),
    long(
        name="server.max.startup.time.ms",
        default=LONG_MAX,
        group="Node",
        minimum=0,
        doc="How long a node may take to start before it gives up, in milliseconds.",
    ),
    integer(
        name="node.watchdog.ms",
        default=2000,
        group="Node",
        is_own=True,
        minimum=0,
        doc=(
            "How long the event loop of a ready node may stand still before its guard, a small process of its own, "
            "kills the node, in milliseconds; 0 starts no guard."
        ),
    ),
    string(
        name="node.log.format",
        default="text",
        group="Node",
        is_own=True,
        choices=("text", "json"),
        doc=(
            "Form of the node's own log on stderr: text, or json with one object a line. The option --log-format of "
            "moldau server overrides it."
        ),
    ),
    integer(
        name="node.log.repeats.max",
        default=10,
        group="Node",
        is_own=True,
        minimum=0,
        maximum=1_000_000,
        doc=(
            "How many identical lines the node's own log shows within ten seconds, and a hundred times as many of one "
            "event; the line lines-left-out counts the others. 0 sets no limit."
        ),
    ),
    string(
        name="metrics.listener",
        default=None,
        group="Node",
        is_own=True,
        doc=(
            "Address host:port where metrics (/metrics, for Prometheus), counts of refused logins (/logins), problems "
            "of tiered storage (/problems) and health (/health/live, /health/ready) are served over HTTP, without "
            "authentication; none without it."
        ),
    ),
)


QUORUM_KEYS = (
    names(
        name="controller.quorum.voters",
        default=(),
        group="Metadata quorum",
        doc="Voters of the metadata quorum, each id@host:port.",
    ),
    names(
        name="controller.quorum.bootstrap.servers",
        default=(),
        group="Metadata quorum",
        doc="Addresses host:port where a node without controller.quorum.voters finds the quorum.",
    ),
    names(
        name="controller.listener.names",
        default=("CONTROLLER",),
        group="Metadata quorum",
        is_own=True,
        doc=(
            "Names of the listeners that controllers serve and brokers use to reach them; the first one "
            "counts for brokers."
        ),
    ),
    string(
        name="metadata.quorum.engine",
        default="raft",
        group="Metadata quorum",
        is_own=True,
        choices=("raft", "pysyncobj"),
        doc=(
            "What replicates the metadata log: raft, Moldau's own engine with a durable write-ahead log, or pysyncobj."
        ),
    ),
    integer(
        name="controller.quorum.election.timeout.ms",
        default=1000,
        group="Metadata quorum",
        minimum=1,
        doc=(
            "Longest time that a voter waits for a leader before it stands for election, in milliseconds; the wait is "
            "drawn between half of it and the whole."
        ),
    ),
    string(
        name="controller.quorum.node.principals",
        default="",
        group="Metadata quorum",
        is_own=True,
        doc="Patterns of the distinguished names that certificates of controllers have, separated by semicolons, for "
        "example CN=controller-*,O=Example. It counts where a controller listener has ssl.client.auth=required. Empty: "
        "the certificate must name the host that the quorum knows the controller by. Where controllers log in with "
        "SASL, the patterns are those of their user names; empty: all log in as the same user.",
    ),
    integer(
        name="controller.quorum.retry.backoff.ms",
        default=20,
        group="Metadata quorum",
        minimum=0,
        doc=(
            "First wait of a broker before it asks a controller again after none has answered, in milliseconds; it "
            "doubles up to a second, with jitter."
        ),
    ),
    long(
        name="metadata.log.max.record.bytes.between.snapshots",
        default=20 * MIB,
        group="Metadata quorum",
        minimum=1,
        doc="Bytes of metadata records after which a snapshot is written.",
    ),
    integer(
        name="broker.heartbeat.interval.ms",
        default=2000,
        group="Metadata quorum",
        minimum=1,
        doc="Time between the heartbeats of a broker to the controller, in milliseconds.",
    ),
    integer(
        name="broker.session.timeout.ms",
        default=9000,
        group="Metadata quorum",
        minimum=1,
        doc="How long a broker without heartbeats stays unfenced, in milliseconds.",
    ),
    integer(
        name="broker.session.grace.ms",
        default=250,
        group="Metadata quorum",
        is_own=True,
        minimum=0,
        doc=(
            "How long a broker whose connection to the controller broke stays unfenced, in milliseconds. A "
            "broker that lives reconnects sooner; one that was killed is fenced after this time, without the "
            "whole session timeout."
        ),
    ),
    integer(
        name="broker.session.unreachable.ms",
        default=3000,
        group="Metadata quorum",
        is_own=True,
        minimum=0,
        doc=(
            "How long a broker without heartbeats stays unfenced if its host does not answer the controller's "
            "connection attempts either, while other brokers' hosts do, in milliseconds; 0: for the whole session "
            "timeout. The host of a paused or overloaded process answers. Set it above broker.heartbeat.interval.ms "
            "by a second, so that the controller makes no attempts in ordinary times."
        ),
    ),
    integer(
        name="initial.broker.registration.timeout.ms",
        default=60000,
        group="Metadata quorum",
        minimum=1,
        doc="How long a starting broker tries to register before it gives up, in milliseconds.",
    ),
    integer(
        name="controller.quota.window.num",
        default=11,
        group="Metadata quorum",
        minimum=1,
        doc="Number of windows over which controller mutations are counted.",
    ),
    integer(
        name="controller.quota.window.size.seconds",
        default=1,
        group="Metadata quorum",
        minimum=1,
        doc="Length of a window of controller mutations.",
    ),
)


NETWORK_KEYS = (
    names(
        name="listeners",
        default=("PLAINTEXT://:9092",),
        group="Network",
        doc="Addresses this node listens on, each NAME://host:port. An empty host means all interfaces.",
    ),
    names(
        name="advertised.listeners",
        default=None,
        group="Network",
        doc="Addresses that brokers name to clients; the addresses of listeners by default, so name them here if a "
        "listener has all interfaces: other machines cannot connect to 0.0.0.0. A controller listener may be named "
        "too, without effect.",
    ),
    names(
        name="listener.security.protocol.map",
        default=("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"),
        group="Network",
        doc=(
            "Security protocol of each listener name, NAME:PROTOCOL. A controller listener without an entry "
            "is PLAINTEXT while this key is not set."
        ),
    ),
    string(
        name="inter.broker.listener.name",
        default=None,
        group="Network",
        doc=(
            "Listener over which brokers talk to each other; without it the first that speaks "
            "security.inter.broker.protocol."
        ),
    ),
    string(
        name="security.inter.broker.protocol",
        default="PLAINTEXT",
        group="Network",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        doc="Protocol between brokers where inter.broker.listener.name is not set.",
    ),
    integer(
        name="socket.request.max.bytes",
        default=100 * MIB,
        group="Network",
        minimum=1,
        doc="Greatest size of a request.",
    ),
    integer(
        name="request.max.entries",
        default=10_000,
        group="Network",
        is_own=True,
        minimum=100,
        doc="How many topics, partitions, groups, members, keys and other entries a request may hold; eight for each "
        "partition of the cluster come on top. A request with more is refused with INVALID_REQUEST. Produce and Fetch "
        "have limits of their own.",
    ),
    long(
        name="queued.max.request.bytes",
        default=256 * MIB,
        group="Network",
        is_own=True,
        minimum=MIB,
        doc="Bytes of requests in flight over all connections above which no more are read.",
    ),
    integer(
        name="telemetry.max.bytes",
        default=MIB,
        group="Network",
        minimum=1,
        doc="Largest push of a client's metrics (KIP-714), in bytes, as it is sent and after decompression.",
    ),
    integer(
        name="socket.send.buffer.bytes",
        default=-1,
        group="Network",
        minimum=-1,
        doc="Send buffer of a broker's connections (SO_SNDBUF). -1 leaves it to the system, which adapts it to the "
        "connection; Kafka's default is 102400, which no connection can outgrow.",
    ),
    integer(
        name="socket.receive.buffer.bytes",
        default=-1,
        group="Network",
        minimum=-1,
        doc="Receive buffer of a broker's connections (SO_RCVBUF). -1 leaves it to the system, which adapts it to the "
        "connection; Kafka's default is 102400.",
    ),
    integer(
        name="socket.listen.backlog.size",
        default=1024,
        group="Network",
        is_own=True,
        minimum=1,
        doc="Connections that may wait to be accepted.",
    ),
    integer(
        name="max.connections",
        default=INT_MAX,
        group="Network",
        dynamic=CLUSTER_WIDE,
        minimum=0,
        doc="Greatest number of connections of this node; by default 100,000, and 0 only in a file. On the only "
        "listener of a broker the other brokers count as clients do, and need 3 each: a lower value makes brokers "
        "refuse each other, and the operator. Brokers with a listener of their own (`inter.broker.listener.name`) are "
        "admitted beyond it. At a controller a value in the metadata leaves room for 3 connections of each other node "
        "and one more, unless that of its file is lower. A node warns of a value that is too "
        "low (`connections-bound-low`).",
    ),
    integer(
        name="max.connections.per.ip",
        default=INT_MAX,
        group="Network",
        dynamic=CLUSTER_WIDE,
        minimum=0,
        doc="Greatest number of connections from one address; 0 needs max.connections.per.ip.overrides, as the only "
        "addresses that are admitted. At a controller a value in the metadata leaves room as "
        "`max.connections` does, because all nodes may have one address.",
    ),
    names(
        name="max.connections.per.ip.overrides",
        default=(),
        group="Network",
        dynamic=CLUSTER_WIDE,
        doc="Exceptions from max.connections.per.ip, each address:number.",
    ),
    integer(
        name="max.connection.creation.rate",
        default=INT_MAX,
        group="Network",
        dynamic=CLUSTER_WIDE,
        minimum=0,
        doc="Greatest number of new connections a second; 0 only in a file.",
    ),
    long(
        name="connections.max.idle.ms",
        default=10 * MINUTE_MS,
        group="Network",
        doc="Age of silence after which a connection is closed, in milliseconds; negative for no end.",
    ),
    integer(
        name="connection.failed.authentication.delay.ms",
        default=100,
        group="Network",
        minimum=0,
        doc="How long the answer to a failed authentication is held back, in milliseconds.",
    ),
    long(
        name="connections.max.reauth.ms",
        default=0,
        group="Network",
        doc=(
            "Life of an authenticated session, after which it must authenticate again, in milliseconds; 0 is "
            "without end."
        ),
    ),
    integer(
        name="request.timeout.ms",
        default=30000,
        group="Network",
        minimum=1,
        doc="How long a request to another node may take, in milliseconds.",
    ),
    long(
        name="socket.connection.setup.timeout.ms",
        default=10000,
        group="Network",
        minimum=1,
        has_effect=False,
        doc="Accepted, without effect: a node bounds the time of each connection to another node by its purpose.",
    ),
    integer(
        name="num.network.threads",
        default=3,
        group="Network",
        dynamic=CLUSTER_WIDE,
        minimum=1,
        has_effect=False,
        doc="Accepted, without effect: one event loop serves all connections.",
    ),
    integer(
        name="num.io.threads",
        default=8,
        group="Network",
        dynamic=CLUSTER_WIDE,
        minimum=1,
        has_effect=False,
        doc="Accepted, without effect: requests are handled by the event loop.",
    ),
    integer(
        name="background.threads",
        default=10,
        group="Network",
        dynamic=CLUSTER_WIDE,
        minimum=1,
        has_effect=False,
        doc="Accepted, without effect: background work runs as tasks of the event loop.",
    ),
)
