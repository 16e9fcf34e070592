"""Runs the clients of a chaos run: several workloads at once, with their guarantees and their histories."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import KafkaError
from moldau_jepsen.chaos.spark.workload import SparkOptions, SparkWorkload, with_configs
from moldau_jepsen.checkers import CheckOptions
from moldau_jepsen.checkers.log.copies import Copies
from moldau_jepsen.checkers.log.topics import TopicsMade
from moldau_jepsen.workloads.bank import BankOptions, BankWorkload
from moldau_jepsen.workloads.operations import ClusterOperations, OperationFailedError
from moldau_jepsen.workloads.phases.liveness import Liveness
from moldau_jepsen.workloads.pipe import PipeOptions, PipeWorkload
from moldau_jepsen.workloads.queue import QueueOptions, QueueWorkload
from moldau_jepsen.workloads.register import ConfigRegister
from moldau_jepsen.workloads.share import KEEPS_STATES, ShareOptions, ShareWorkload, settings_of
from moldau_jepsen.workloads.streams.workload import StreamsOptions, StreamsWorkload
from moldau_jepsen.workloads.topics import TopicsWorkload
from moldau_jepsen.workloads.transactions import TransactionOptions, TransactionWorkload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.chaos.nemesis.nemesis import FaultEvent
    from moldau_jepsen.checkers import RegisterOperation
    from moldau_jepsen.workloads.questions import Nodes
    from moldau_jepsen.workloads.recording.recorder import Recorder

TOPIC_TIMEOUT_S = 30.0
REGISTER_CHANGES_PER_SECOND = 2.0
QUICK = {"request.timeout.ms": 5_000}
"""Of all clients: one that waits for a paused broker sends nothing meanwhile."""
QUICK_SESSION = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_500}
"""Of group members: the partitions of one that crashed are another's after this time."""

CONSUMER_SESSION = {
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "1500",
    "group.consumer.heartbeat.interval.ms": "1500",
}
"""The same for groups of the consumer protocol, whose times brokers decide."""


class Workload(enum.Enum):
    """The workloads of a run's clients."""

    QUEUE = "queue"  # unique values sent and read, by hand-assigned readers and by a group
    TRANSACTIONS = "transactions"  # transactions of sends and polls, some aborted, beside the readers of the queue
    PIPE = "pipe"  # read, transform, write, with offsets in the transaction
    BANK = "bank"  # money is moved between accounts in two topics, by tellers and by clerks
    REGISTER = "register"  # a topic's configuration, changed and read
    SHARE = "share"  # members of a share group that accept, release, reject and renew records one by one
    STREAMS = "streams"  # members of a streams group that take tasks, commit, hang, leave and crash
    TOPICS = "topics"  # a topic that is written to, read, deleted, and made again
    SPARK = "spark"  # a streaming query of Spark from topic to topic, whose processes are killed
    ALL = "all"  # all of them at once, except Spark's, which needs a Java


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The workloads of a run, and their options."""

    workload: Workload = Workload.QUEUE
    queue: QueueOptions = field(default_factory=QueueOptions)
    """Topic, readers and senders; its producer and consumer configurations are those of the other workloads too."""
    connection: Mapping[str, str] = field(default_factory=dict)
    """How every client of every workload reaches the cluster: keys that all kinds of clients know (``ssl.``...)."""
    transactions: TransactionOptions = field(
        default_factory=lambda: TransactionOptions(clients=3, transactions_per_second=10.0)
    )
    pipe: PipeOptions = field(
        default_factory=lambda: PipeOptions(consumer=dict(QUICK_SESSION), crash_every_s=20.0, drain_seconds=120.0)
    )
    bank: BankOptions = field(
        default_factory=lambda: BankOptions(
            accounts=40,
            tellers=3,
            transactions_per_second=8.0,
            crash_every_s=20.0,
            audit_every_s=2.0,
            clerks=replace(
                BankOptions().clerks,
                records_per_second=20.0,
                consumer=dict(QUICK_SESSION),
                crash_every_s=20.0,
                drain_seconds=120.0,
            ),
        )
    )
    share: ShareOptions = field(default_factory=lambda: ShareOptions(life_s=10.0, lock_ms=3_000))
    streams: StreamsOptions = field(default_factory=lambda: StreamsOptions(session_ms=6_000))
    spark: SparkOptions = field(default_factory=SparkOptions)
    seek_share: float = 0.005
    """Of the polls of the queue's readers that returned something: the reader seeks afterwards."""

    def works(self, workload: Workload) -> bool:
        """Returns whether this one of the workloads is at work."""
        return self.workload is workload or (self.workload is Workload.ALL and workload is not Workload.SPARK)

    @property
    def topics(self) -> dict[str, int]:
        """Topics and their numbers of partitions."""
        topics = {self.queue.topic: self.queue.partitions}
        if self.works(Workload.PIPE):
            topics |= {self.pipe.source: self.pipe.partitions, self.pipe.target: self.pipe.partitions}
        if self.works(Workload.BANK):
            topics |= self.bank.sizes
        if self.works(Workload.SHARE):
            topics[self.share.topic] = self.share.partitions
        if self.works(Workload.STREAMS):
            topics[self.streams.topic] = self.streams.partitions
        if self.works(Workload.SPARK):
            topics |= {self.spark.source: self.spark.partitions, self.spark.target: self.spark.partitions}
        return topics

    @property
    def internal_topics(self) -> list[str]:
        """Topics that brokers create for the members of a streams group, on a cluster that the run did not start."""
        return self.streams.internal_topics if self.workload is Workload.STREAMS else []

    @property
    def settings(self) -> dict[str, str]:
        """Configuration of nodes that the workloads need."""
        settings = settings_of(self.share) | KEEPS_STATES if self.works(Workload.SHARE) else {}
        settings |= self.streams.settings if self.works(Workload.STREAMS) else {}
        return settings | (CONSUMER_SESSION if self.queue.consumer.get("group.protocol") == "consumer" else {})

    @property
    def promised(self) -> CheckOptions:
        """The promises of the clients' configuration.

        Transactions promise what they promise, whatever isolation level the readers are given.
        """
        acks = str(self.queue.producer.get("acks", "all"))
        idempotence = str(self.queue.producer.get("enable.idempotence", True)).lower()
        isolation = self.queue.consumer.get("isolation.level", "read_committed")
        transactional = any(map(self.works, (Workload.TRANSACTIONS, Workload.PIPE, Workload.BANK)))
        return CheckOptions(
            read_committed=transactional or isolation == "read_committed",
            idempotent=transactional or (acks in ("all", "-1") and idempotence != "false"),
            subscribe=False,  # group readers report when they were rebalanced, so nothing else may move a position
            pipes=((self.pipe.source, self.pipe.target),) if self.works(Workload.PIPE) else (),
            banks=(self.bank.bank,) if self.works(Workload.BANK) else (),
        )


class RunClients:
    """The clients of one run."""

    def __init__(
        self,
        environment: Environment,
        bootstrap: str,
        options: ClientOptions,
        recorder: Recorder,
        nodes: Nodes | None,
        *,
        replication: Sequence[int] = (3,),
        folder: Path | None = None,
    ) -> None:
        """``replication`` is drawn from for each topic that is made again. ``folder`` gets the state of Spark's query.

        Without ``nodes`` (a foreign cluster) the register does not work, since its readers ask controllers, nor the
        topics, since old brokers know no topics by their ids. The share group and the streams group, which old brokers
        do not serve, work there only if they are asked for.
        """
        self._environment = environment
        self._bootstrap = bootstrap
        self._options = options
        self._recorder = recorder
        working = options.works
        every: dict[str, object] = {**QUICK, **options.connection}
        queue = replace(
            options.queue,
            producer={**every, **options.queue.producer},
            consumer={**every, **QUICK_SESSION, **options.queue.consumer},
            seek_share=options.seek_share,
        )
        pipe = replace(
            options.pipe, producer={**every, **options.pipe.producer}, consumer={**every, **options.pipe.consumer}
        )
        clerks = options.bank.clerks
        bank = replace(
            options.bank,
            producer={**queue.producer, **options.bank.producer},
            consumer={**queue.consumer, **options.bank.consumer},
            clerks=replace(clerks, producer={**every, **clerks.producer}, consumer={**every, **clerks.consumer}),
        )
        readers_only = not working(Workload.QUEUE)
        readers = working(Workload.QUEUE) or working(Workload.TRANSACTIONS)
        self._queue = QueueWorkload(
            environment, bootstrap, replace(queue, senders=0) if readers_only else queue, recorder
        )
        self._has_readers = readers
        self._transfers = TransactionWorkload(
            environment,
            bootstrap,
            replace(
                options.transactions,
                topic=queue.topic,
                partitions=queue.partitions,
                producer=dict(queue.producer),
                consumer=dict(queue.consumer),
            ),
            recorder,
        )
        self._pipe = PipeWorkload(environment, bootstrap, pipe, recorder)
        self._bank = BankWorkload(environment, bootstrap, bank, recorder)
        self._register: ConfigRegister | None = None
        if nodes is not None and working(Workload.REGISTER):
            self._register = ConfigRegister(nodes, environment, queue.topic)
        self._spark: SparkWorkload | None = None
        if working(Workload.SPARK):
            assert folder is not None, "Spark's query keeps its checkpoint in a folder"
            spark = with_configs(options.spark, queue.producer, every)
            self._spark = SparkWorkload(environment, bootstrap, spark, recorder, folder)
        self._topics: TopicsWorkload | None = None
        if nodes is not None and working(Workload.TOPICS):
            self._topics = TopicsWorkload(nodes, environment, recorder, replication=replication)
        self._share: ShareWorkload | None = None
        if working(Workload.SHARE) and (nodes is not None or options.workload is Workload.SHARE):
            self._share = ShareWorkload(bootstrap, replace(options.share, connection=options.connection), environment)
        self._streams: StreamsWorkload | None = None
        if working(Workload.STREAMS) and (nodes is not None or options.workload is Workload.STREAMS):
            self._streams = StreamsWorkload(bootstrap, replace(options.streams, connection=options.connection))

    @property
    def register_operations(self) -> tuple[RegisterOperation, ...]:
        """The observations of the register's clients."""
        return () if self._register is None else tuple(self._register.operations)

    @property
    def topics_made(self) -> TopicsMade:
        """The observations of the client that deletes and recreates topics."""
        if self._topics is None:
            return TopicsMade()
        return TopicsMade(tuple(self._topics.writes), tuple(self._topics.reads))

    @property
    def copies(self) -> Copies:
        """The rows of Spark's query and their copies, as they were read at the end."""
        return Copies() if self._spark is None else self._spark.copies

    @property
    def kills(self) -> list[FaultEvent]:
        """The kills of Spark's processes."""
        return [] if self._spark is None else self._spark.kills

    @property
    def stuck(self) -> list[str]:
        """Why the final reads failed, of those that did."""
        reading = (self._register, self._topics, self._spark, self._share, self._streams)
        return [one.stuck for one in reading if one is not None and one.stuck]

    @property
    def wrong(self) -> list[str]:
        """The violations that members of the share group and of the streams group saw."""
        judged = [one for one in (self._share, self._streams) if one is not None]
        return [text for one in judged for _, text in one.wrong()]

    @property
    def created_topics(self) -> list[str]:
        """Topics that workloads have created beside those of the options."""
        return [] if self._share is None else self._share.created_topics

    @property
    def groups(self) -> dict[str, str]:
        """How much the share group and the streams group did, for the report, if there are any."""
        found: dict[str, str] = {}
        if self._share is not None:
            counts = Counter(type(event).__name__ for event in self._share.events)
            found["share group"] = (
                f"{counts['Sent']} records sent, {counts['Delivered']} deliveries, {counts['Acknowledged']} answers, "
                f"{counts['DeadLetter']} dead letters, {self._share.evidence}"
            )
        if self._streams is not None:
            found["streams group"] = self._streams.done
        return found

    async def create_topics(self, replication_factor: int, configs: Mapping[str, str]) -> None:
        """Creates the topics of the workloads.

        Raises:
            OperationFailedError: A topic could not be created, or a group not be set up.
        """
        for name, partitions in self._options.topics.items():
            operations = ClusterOperations(self._environment, self._bootstrap, name, self._options.connection)
            async with trio.open_nursery() as nursery:
                await nursery.start(operations.run)
                await operations.create_topic(partitions, replication_factor, configs, timeout_s=TOPIC_TIMEOUT_S)
                nursery.cancel_scope.cancel()
        if self._share is not None:
            await self._share.prepare(self._environment, TOPIC_TIMEOUT_S)
        if self._streams is not None:  # a run's own settings may be overridden, with --set
            try:
                with trio.fail_after(TOPIC_TIMEOUT_S):
                    await self._streams.ask_session(self._environment)
            except (KafkaError, trio.TooSlowError) as error:
                why = str(error) or f"no answer within {TOPIC_TIMEOUT_S:g} s"
                raise OperationFailedError(f"the session timeout of streams groups is not known: {why}") from error

    async def run(self) -> None:
        """Runs the workloads until ``stop``; returns when the last outcome is known."""
        working = self._options.works
        async with trio.open_nursery() as nursery:
            if self._has_readers:
                nursery.start_soon(self._queue.run)
            if working(Workload.TRANSACTIONS):
                nursery.start_soon(self._transfers.run)
            if working(Workload.PIPE):
                nursery.start_soon(self._pipe.run)
            if working(Workload.BANK):
                nursery.start_soon(self._bank.run)
            if self._register is not None:
                nursery.start_soon(self._register.run, REGISTER_CHANGES_PER_SECOND)
            if self._topics is not None:
                nursery.start_soon(self._topics.run)
            if self._spark is not None:
                nursery.start_soon(self._spark.run)
            if self._share is not None:
                nursery.start_soon(self._share.feed, self._environment)
                for _ in range(self._options.share.slots):
                    nursery.start_soon(self._share.live, self._environment)
            if self._streams is not None:
                for _ in range(self._options.streams.slots):
                    nursery.start_soon(self._streams.live, self._environment)

    def liveness(self) -> Liveness:
        """Returns what the clients must still achieve.

        That is a transaction, and records in all partitions that they send to, which the group of the queue must read.
        """
        options = self._options
        queue = options.queue
        transfers = options.works(Workload.TRANSACTIONS) and options.transactions.clients > 0
        sends = transfers or (options.works(Workload.QUEUE) and queue.senders > 0)
        partitions = queue.topic_partitions if sends else []
        partitions += options.pipe.source_partitions if options.works(Workload.PIPE) else []
        partitions += options.spark.source_partitions if options.works(Workload.SPARK) else []
        bank = [*options.bank.account_partitions, *options.bank.clerks.source_partitions]
        partitions += bank if options.works(Workload.BANK) else []
        earliest = queue.consumer.get("auto.offset.reset", "earliest") == "earliest"
        read = queue.topic_partitions if sends and queue.group_readers and earliest else []
        return Liveness(self._recorder.now_ms(), partitions, queue.topic if transfers else "", read)

    def stop(self) -> None:
        """Lets all clients end after what they have under way."""
        self._transfers.stop()
        self._queue.stop()
        self._pipe.stop()
        self._bank.stop()
        if self._register is not None:
            self._register.stop()
        if self._topics is not None:
            self._topics.stop()
        if self._spark is not None:
            self._spark.stop()
        if self._share is not None:
            self._share.stop()
        if self._streams is not None:
            self._streams.stop()

    async def final_read(self, timeout_s: float) -> None:
        """Reads every topic from its beginning, and the register, and the last of the topics that were made again."""
        if self._has_readers:
            await self._queue.final_read(timeout_s)
        if self._options.works(Workload.PIPE):
            await self._pipe.final_read(timeout_s)
        if self._options.works(Workload.BANK):
            await self._bank.final_read(timeout_s)
        if self._register is not None:
            await self._register.final_read(timeout_s)
        if self._topics is not None:
            await self._topics.final_read(timeout_s)
        if self._spark is not None:
            await self._spark.final_read(timeout_s)
        if self._share is not None:
            await self._share.final_read(self._environment, timeout_s)
        if self._streams is not None:
            await self._streams.final_read(self._environment, timeout_s)
