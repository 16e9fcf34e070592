"""Runs all clients of a simulated run: chooses workloads and machines, and collects the history.

The queue and the register always run; transactions, the exactly-once pipe, the bank, the group of changing members, and
the client that deletes a topic and creates it again are drawn. Workers of the pipe, tellers and clerks of the bank, and
the changing members have their own machines: a client that is paused or cut off while its successor runs is a zombie,
which the brokers must fence.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from moldau.consumer import Consumer
from moldau.values import join_address
from moldau_broker.coordinator.transaction.core.state import EPOCH_PER_TRANSACTION
from moldau_jepsen.checkers import AnomalyKind, check_history, check_topics
from moldau_jepsen.cluster.secured import (
    ADMIN,
    STREAMER,
    LoginNodes,
    login,
    login_environment,
    password_of,
    streamer_rights,
)
from moldau_jepsen.history import Kind
from moldau_jepsen.simulation.campaign.options import (
    drawn_administration,
    drawn_few_acks,
    drawn_share_administration,
    drawn_sharing,
    drawn_streams,
    drawn_transaction_level,
)
from moldau_jepsen.simulation.inject.late_packets import PromptLinks
from moldau_jepsen.workloads.access.quotas import TOPIC as METERED_TOPIC
from moldau_jepsen.workloads.access.quotas import QuotasWorkload
from moldau_jepsen.workloads.access.rights import TOPICS as GUARDED
from moldau_jepsen.workloads.access.rights import RightsWorkload
from moldau_jepsen.workloads.acknowledgements.few_acks import FewAcksWorkload
from moldau_jepsen.workloads.administered import PARTITIONS as ADMINISTERED
from moldau_jepsen.workloads.administered import AdministeredWorkload
from moldau_jepsen.workloads.bank import BankWorkload
from moldau_jepsen.workloads.compacted import CompactedWorkload
from moldau_jepsen.workloads.members import MembersWorkload
from moldau_jepsen.workloads.phases.group_read import GroupRead, read_in_group
from moldau_jepsen.workloads.phases.liveness import Liveness
from moldau_jepsen.workloads.pipe import PipeWorkload
from moldau_jepsen.workloads.queue import QueueWorkload
from moldau_jepsen.workloads.regex_member import RegexMember
from moldau_jepsen.workloads.register import ConfigRegister
from moldau_jepsen.workloads.share import ShareWorkload
from moldau_jepsen.workloads.share_administration.topics import TOPICS as SHARE_ADMINISTERED
from moldau_jepsen.workloads.share_administration.workload import ShareAdministrationWorkload
from moldau_jepsen.workloads.streams.workload import StreamsWorkload
from moldau_jepsen.workloads.tiered.workload import TieredWorkload
from moldau_jepsen.workloads.topics import TopicsWorkload
from moldau_jepsen.workloads.transactions import TransactionWorkload

if TYPE_CHECKING:
    import random
    import uuid
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from moldau.admin import Acl
    from moldau_jepsen.checkers import Anomaly
    from moldau_jepsen.cluster.simulated import SimulatedCluster
    from moldau_jepsen.history import Operation
    from moldau_jepsen.simulation.campaign.options import RunOptions
    from moldau_jepsen.simulation.judge.rights import RightsWatch
    from moldau_jepsen.workloads.compacted import CompactedOptions
    from moldau_jepsen.workloads.questions import Nodes
    from moldau_jepsen.workloads.queue import QueueOptions
    from moldau_jepsen.workloads.recording.recorder import Rebalances, Recorder
    from moldau_jepsen.workloads.transactions import TransactionOptions
    from moldau_jepsen.world.world import World

CLIENT_HOST = "client"
VIOLATIONS_SHOWN_MAX = 20
PIPE_PROBABILITY = 0.35
TRANSACTIONS_PROBABILITY = 0.5
TOPICS_PROBABILITY = 0.35
BANK_PROBABILITY = 0.35
MEMBERS_PROBABILITY = 0.35
SEEKS_PROBABILITY = 0.5
SEEK_SHARE = 0.06
PAUSE_SHARE = 0.05
ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")


class Clients:
    """The clients of one run."""

    def __init__(
        self,
        world: World,
        cluster: SimulatedCluster,
        options: RunOptions,
        draw: random.Random,
        recorder: Recorder,
        *,
        synced: bool,
        on_acknowledged: Callable[[str, int, uuid.UUID, int], None],
        rights: RightsWatch | None = None,
        quotas: bool = False,
        compaction: CompactedOptions | None = None,
    ) -> None:
        """Starts no client. ``synced`` means that a disk loses no acknowledged record.

        ``rights`` looks at what brokers know of rights, if the cluster is secured; ``quotas``: some clients have them.
        ``compaction``: options of the compacted topic, if there is one.

        ``on_acknowledged`` hears of records in the topic that is deleted and made again.
        """
        self._world = world
        self._cluster = cluster
        self._options = options
        self._recorder = recorder
        self.environment = world.node(CLIENT_HOST).environment
        with_transactions = draw.random() < TRANSACTIONS_PROBABILITY
        with_pipe = draw.random() < PIPE_PROBABILITY
        self.transactions = with_transactions if options.transactions is None else options.transactions
        self.pipe = with_pipe if options.pipe is None else options.pipe
        # Drawn apart, so that it shifts no other draw.
        with_topics = world.random("topics").random() < TOPICS_PROBABILITY
        self.topics = with_topics if options.topics is None else options.topics
        with_bank = world.random("bank").random() < BANK_PROBABILITY
        self.bank = with_bank if options.bank is None else options.bank
        with_members = world.random("members").random() < MEMBERS_PROBABILITY
        self.members = with_members if options.members is None else options.members
        with_seeks = world.random("seeks").random() < SEEKS_PROBABILITY
        self.seeks = with_seeks if options.seeks is None else options.seeks
        self.under_way: list[str] = []
        """The workloads that have begun, and not ended in order."""
        self._workers = [f"worker-{slot}" for slot in range(options.pipe_options.workers if self.pipe else 0)]
        self._tellers = [f"teller-{slot}" for slot in range(options.bank_options.tellers if self.bank else 0)]
        self._members_hosts = [f"member-{slot}" for slot in range(options.members_options.slots if self.members else 0)]
        self._sharers = options.share_options.hosts if drawn_sharing(world.seed, options) else []
        self._streamers = options.streams_options.hosts if drawn_streams(world.seed, options) else []
        self.hosts = [CLIENT_HOST, *self._workers, *self._tellers, *self._members_hosts, *self._sharers]
        self.hosts += self._streamers
        self._share_consumers = self._share_consumers_hosts()
        self.hosts += self._share_consumers
        # Drawn apart, so that a plan whose other draws are written out is the same run again.
        self._strategy = {"partition.assignment.strategy": world.random("assignor").choice(ASSIGNORS)}
        queue = replace(options.workload, consumer={**self._strategy, **options.workload.consumer})
        queue = replace(queue, seek_share=SEEK_SHARE) if self.seeks else queue
        queue = self._near(queue)
        pipe = replace(options.pipe_options, consumer={**self._strategy, **options.pipe_options.consumer})
        nodes: Nodes = cluster
        register_environment = self.environment
        self.rights: RightsWorkload | None = None
        if rights is not None:
            nodes = LoginNodes(cluster)
            administrator = login("unused:1", ADMIN, password_of(ADMIN), mechanism="PLAIN")
            register_environment = login_environment(self.environment, administrator)
            self.rights = RightsWorkload(nodes, self.environment, rights)
        clocks = {broker_id: cluster.machines[broker_id].clock for broker_id in cluster.broker_ids}
        self.quotas = QuotasWorkload(cluster, self.environment, world.random("metered"), clocks) if quotas else None
        self.register = ConfigRegister(nodes, register_environment, options.workload.topic)
        self._queue = QueueWorkload(self.environment, cluster.bootstrap, queue, recorder)
        self._transfers = TransactionWorkload(self.environment, cluster.bootstrap, self._transactional(), recorder)
        self._topics = TopicsWorkload(
            cluster,
            self.environment,
            recorder,
            replication=(1, 3) if synced else (3,),
            on_acknowledged=on_acknowledged,
        )
        self._pipe = PipeWorkload(self.environment, cluster.bootstrap, pipe, recorder)
        self._members = MembersWorkload(cluster.bootstrap, options.members_options, recorder)
        self._regex_member = RegexMember(cluster, self.environment)
        self._share = ShareWorkload(cluster.bootstrap, options.share_options, self.environment)
        self.streams = self._streams_group()
        self._compacted = self._compacted_topic(compaction)
        self._compaction = compaction
        self.few_acks = self._few_acks_producers()
        self.tiered = self._tiered_topics()
        self.administered = self._administered_group()
        self.share_administration = self._administered_shares()
        self._bank = BankWorkload(self.environment, cluster.bootstrap, options.bank_options, recorder)

    def _share_consumers_hosts(self) -> list[str]:
        options = self._options
        is_drawn = drawn_share_administration(self._world.seed, options)
        return options.share_administration_options.hosts if is_drawn else []

    def _administered_shares(self) -> ShareAdministrationWorkload | None:
        if not self._share_consumers:
            return None
        options = self._options.share_administration_options
        return ShareAdministrationWorkload(self._cluster, self._cluster.bootstrap, self.environment, options)

    def _streams_group(self) -> StreamsWorkload:
        """Returns the members of the streams group, which log in where brokers have a listener for that."""
        options, nodes = self._options.streams_options, LoginNodes(self._cluster)
        if self.rights is None:
            return StreamsWorkload(self._cluster.bootstrap, options)
        bootstrap = ",".join(join_address(host, port) for host, port in map(nodes.address, nodes.broker_ids))
        login_keys = login(bootstrap, STREAMER, password_of(STREAMER), mechanism="PLAIN")
        return StreamsWorkload(bootstrap, replace(options, connection=login_keys))

    @property
    def acls(self) -> list[Acl]:
        """The rights that clients with a login need."""
        streams = self._options.streams_options
        return streamer_rights(streams.group, streams.topic) if self._streamers else []

    def _near(self, queue: QueueOptions) -> QueueOptions:
        """Returns the options of a queue whose readers have a rack, if brokers have."""
        if not self._cluster.shape.racks:
            return queue
        rack = f"rack-{self._world.random('rack').choice(self._cluster.broker_ids)}"
        return replace(queue, pause_share=PAUSE_SHARE, consumer={**queue.consumer, "client.rack": rack})

    def _transactional(self) -> TransactionOptions:
        options = self._options
        return replace(
            options.transaction_options,
            topic=options.workload.topic,
            partitions=options.workload.partitions,
            producer=options.transactional_producer,
        )

    @property
    def prompt_links(self) -> PromptLinks:
        """The links whose packets must not be held back in this run."""
        one_epoch = drawn_transaction_level(self._world.seed, self._options) < EPOCH_PER_TRANSACTION
        changes = self.rights is not None or self.quotas is not None
        transactional = [CLIENT_HOST, *self._workers, *self._tellers] if one_epoch else []
        return PromptLinks(
            clients=[*transactional, *([CLIENT_HOST] if changes else [])],
            between_brokers=one_epoch,
            to_controllers=changes,
        )

    def _compacted_topic(self, options: CompactedOptions | None) -> CompactedWorkload | None:
        return None if options is None else CompactedWorkload(self.environment, self._cluster.bootstrap, options)

    def _few_acks_producers(self) -> FewAcksWorkload | None:
        if not drawn_few_acks(self._world.seed, self._options):
            return None
        options, draw = self._options.few_acks_options, self._world.random("few acks clients")
        return FewAcksWorkload(self.environment, self._cluster.bootstrap, options, draw)

    def _tiered_topics(self) -> TieredWorkload | None:
        if not self._options.tiered:
            return None
        draw, bootstrap = self._world.random("tiered clients"), self._cluster.bootstrap
        rack = f"rack-{draw.choice(self._cluster.broker_ids)}" if self._cluster.shape.racks else ""
        options, brokers = self._options.tiered_options, self._cluster.broker_ids
        return TieredWorkload(self.environment, bootstrap, options, draw, brokers=brokers, rack=rack)

    def _administered_group(self) -> AdministeredWorkload | None:
        options = drawn_administration(self._world.seed, self._options)
        if options is None:
            return None
        return AdministeredWorkload(self._cluster, self._cluster.bootstrap, self.environment, options)

    async def create_topics(self) -> None:
        """Creates the topics of the workloads.

        Raises:
            ClusterNotReadyError: The cluster did not become ready in time.
        """
        options, pipe = self._options, self._options.pipe_options
        topics = {options.workload.topic: options.workload.partitions}
        if self.pipe:
            topics |= {pipe.source: pipe.partitions, pipe.target: pipe.partitions}
        if self.bank:
            topics |= options.bank_options.sizes
        if self.members:
            topics |= options.members_options.sizes
        if self.rights is not None:
            topics |= dict.fromkeys(GUARDED, 1)
        if self.quotas is not None:
            topics[METERED_TOPIC] = 1
        if self._sharers:
            topics[options.share_options.topic] = options.share_options.partitions
        if self._streamers:
            topics[options.streams_options.topic] = options.streams_options.partitions
        if self.administered is not None:
            topics |= {partition.topic: 1 for partition in ADMINISTERED}
        if self.share_administration is not None:
            topics |= SHARE_ADMINISTERED
        if self.few_acks is not None:
            topics[self._options.few_acks_options.topic] = self._options.few_acks_options.partitions
        for name, partitions in topics.items():
            await self._cluster.create_topic(self.environment, name, partitions, options.topic_settings)
        for name, (partitions, settings) in options.tiered_options.topics.items() if options.tiered else ():
            await self._cluster.create_topic(self.environment, name, partitions, settings)
        if self._compaction is not None:
            settings = self._compaction.topic_settings
            await self._cluster.create_topic(
                self.environment, self._compaction.topic, self._compaction.partitions, settings
            )
        if self._sharers:
            await self._share.set_group(self.environment)

    async def run(self) -> None:
        """Runs the workloads until ``stop``; returns when the last outcome is known."""
        client = self._world.node(CLIENT_HOST)
        register = partial(self.register.run, self._options.config_changes_per_second)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_it_ends, "queue", partial(client.run_program, self._queue.run))
            nursery.start_soon(self._until_it_ends, "register", partial(client.run_program, register))
            if self.rights is not None:
                nursery.start_soon(self._until_it_ends, "rights", partial(client.run_program, self.rights.run))
            if self.quotas is not None:
                nursery.start_soon(self._until_it_ends, "quotas", partial(client.run_program, self.quotas.run))
            if self.topics:
                nursery.start_soon(self._until_it_ends, "topics", partial(client.run_program, self._topics.run))
            if self.transactions:
                transfers = partial(client.run_program, self._transfers.run)
                nursery.start_soon(self._until_it_ends, "transactions", transfers)
            if self.pipe:
                nursery.start_soon(self._until_it_ends, "pipe", self._run_pipe)
            if self.bank:
                nursery.start_soon(self._until_it_ends, "bank", self._run_bank)
            if self.members:
                nursery.start_soon(self._until_it_ends, "members", self._run_members)
            if self._compacted is not None:
                compacted = partial(client.run_program, self._compacted.run)
                nursery.start_soon(self._until_it_ends, "compacted", compacted)
            if self.few_acks is not None:
                few_acks = partial(client.run_program, self.few_acks.run)
                nursery.start_soon(self._until_it_ends, "few-acks", few_acks)
            if self.tiered is not None:
                nursery.start_soon(self._until_it_ends, "tiered", partial(client.run_program, self.tiered.run))
            if self._sharers:
                nursery.start_soon(self._until_it_ends, "share", self._run_share)
            if self._streamers:
                nursery.start_soon(self._until_it_ends, "streams", self._run_streams)
            if self.administered is not None:
                administered = partial(client.run_program, self.administered.run)
                nursery.start_soon(self._until_it_ends, "administered", administered)

            if self.share_administration is not None:
                shares = partial(self._run_share_administration, self.share_administration)
                nursery.start_soon(self._until_it_ends, "share administration", shares)

    async def _until_it_ends(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self.under_way.append(name)
        await work()
        self.under_way.remove(name)

    async def _run_pipe(self) -> None:
        async with trio.open_nursery() as nursery:
            for slot, host in enumerate(self._workers):
                machine = self._world.node(host)
                nursery.start_soon(machine.run_program, self._pipe.work, slot, machine.environment)
            await self._world.node(CLIENT_HOST).run_program(self._pipe.feed)
            nursery.cancel_scope.cancel()

    async def _run_bank(self) -> None:
        client = self._world.node(CLIENT_HOST)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run_program, self._bank.read)
            async with trio.open_nursery() as clerks:
                for slot, host in enumerate(self._tellers):
                    machine = self._world.node(host)
                    nursery.start_soon(machine.run_program, self._bank.report, slot, machine.environment)
                    clerks.start_soon(machine.run_program, self._bank.carry_out, slot, machine.environment)
                await client.run_program(self._bank.request)
                clerks.cancel_scope.cancel()

    async def _run_members(self) -> None:
        client = self._world.node(CLIENT_HOST)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run_program, self._members.feed, self.environment)
            nursery.start_soon(client.run_program, self._regex_member.run, self._options.healing_seconds)
            for slot, host in enumerate(self._members_hosts):
                machine = self._world.node(host)
                nursery.start_soon(machine.run_program, self._members.live, slot, machine.environment)

    async def _run_share(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._world.node(CLIENT_HOST).run_program, self._share.feed, self.environment)
            for host in self._sharers:
                machine = self._world.node(host)
                nursery.start_soon(machine.run_program, self._share.live, machine.environment)

    async def _run_share_administration(self, workload: ShareAdministrationWorkload) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._world.node(CLIENT_HOST).run_program, workload.run)
            for host in self._share_consumers:
                machine = self._world.node(host)
                nursery.start_soon(machine.run_program, workload.live, machine.environment)

    async def _run_streams(self) -> None:
        async with trio.open_nursery() as nursery:
            for host in self._streamers:
                machine = self._world.node(host)
                nursery.start_soon(machine.run_program, self.streams.live, machine.environment)

    def liveness(self, *, groups: bool = True, transactions: bool = True) -> Liveness:
        """Returns what the clients must still achieve.

        That is a transaction, and records in all partitions that they send to, which their group must read. Without
        ``groups`` or ``transactions`` the parts that need them are left out. The pipe ends only when its workers have
        processed all of its records.
        """
        workload = self._options.workload
        transacts = self.transactions and transactions
        partitions = workload.topic_partitions if workload.senders or transacts else []
        partitions += self._options.pipe_options.source_partitions if self.pipe else []
        bank = self._options.bank_options
        partitions += bank.account_partitions if self.bank and transactions else []
        partitions += bank.clerks.source_partitions if self.bank else []
        transactions_in = workload.topic if transacts else ""
        earliest = workload.consumer.get("auto.offset.reset", "earliest") == "earliest"
        has_readers = workload.senders and workload.group_readers and earliest
        read = workload.topic_partitions if has_readers and groups else []
        if self.members:
            partitions += self._options.members_options.topic_partitions
            read += self._options.members_options.topic_partitions if groups else []
        return Liveness(self._recorder.now_ms(), partitions, transactions_in, read)

    def stop(self) -> None:
        """Lets all clients end after what they have under way."""
        self._queue.stop()
        self.register.stop()
        self._topics.stop()
        self._transfers.stop()
        self._pipe.stop()
        self._bank.stop()
        self._members.stop()
        self._regex_member.stop()
        if self._compacted is not None:
            self._compacted.stop()
        if self.few_acks is not None:
            self.few_acks.stop()
        if self.tiered is not None:
            self.tiered.stop()
        self._share.stop()
        self.streams.stop()
        if self.administered is not None:
            self.administered.stop()
        if self.share_administration is not None:
            self.share_administration.stop()
        if self.rights is not None:
            self.rights.stop()
        if self.quotas is not None:
            self.quotas.stop()

    async def read_in_group(self, group: str, seconds: float) -> GroupRead:
        """Reads every topic whose records are in the history from the beginning, as the only member of a new group."""
        queue, pipe, bank = self._options.workload, self._options.pipe_options, self._options.bank_options
        partitions = queue.topic_partitions
        partitions += [*pipe.source_partitions, *pipe.target_partitions] if self.pipe else []
        partitions += [*bank.account_partitions, *bank.clerks.source_partitions] if self.bank else []
        partitions += self._options.members_options.topic_partitions if self.members else []
        config: dict[str, object] = {
            "isolation.level": "read_committed",
            **self._strategy,
            **queue.consumer,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "group.id": group,
            "bootstrap.servers": self._cluster.bootstrap,
        }

        def make(rebalances: Rebalances) -> Consumer:
            reported = rebalances.reported
            return Consumer(config, environment=self.environment, on_assigned=reported, on_revoked=reported)

        return await read_in_group(make, group, partitions, self._recorder, seconds)

    async def final_read(self) -> None:
        """Reads every topic from the beginning, and the register."""
        seconds = self._options.reading_seconds
        await self._queue.final_read(seconds)
        if self.pipe:
            await self._pipe.final_read(seconds)
        if self.bank:
            await self._bank.final_read(seconds)
        if self.members:
            await self._members.final_read(self.environment, seconds)
        await self.register.final_read(seconds)
        if self.topics:
            await self._topics.final_read(seconds)
        if self._compacted is not None:
            await self._compacted.final_read(seconds)
        if self.few_acks is not None:
            await self.few_acks.final_read(seconds)
        if self.tiered is not None:
            await self.tiered.final_read(seconds)
        if self._sharers:
            await self._share.final_read(self.environment, seconds)
        if self._streamers:
            await self.streams.final_read(self.environment, seconds)
        if self.administered is not None:
            await self.administered.final_read(seconds)
        if self.share_administration is not None:
            await self.share_administration.final_read(seconds)

    def wrong_answers(self) -> list[str]:
        """Returns the answers about rights, logins and quotas that were wrong so far."""
        wrong = [*(() if self.rights is None else self.rights.verdict.wrong)]
        wrong += () if self.quotas is None else self.quotas.verdict.wrong
        asked = self._options.may_convict
        return [f"{rule}: {text}" for rule, text in wrong if asked(rule)][:VIOLATIONS_SHOWN_MAX]

    def _broken_rules(self, history: Sequence[Operation]) -> Iterator[list[str]]:
        """Yields what the checkers of single workloads found, one list for each; the first that has texts counts."""
        asked = self._options.may_convict

        def found_by(rule: str, verdict: Callable[[], Sequence[str]]) -> list[str]:
            return [f"{rule}: {text}" for text in verdict()] if asked(rule) else []

        yield found_by("topic-recreated", lambda: check_topics(self._topics.writes, self._topics.reads))
        yield found_by("compacted-key", partial(_verdict_of, self._compacted))
        yield found_by("few-acks", partial(_verdict_of, self.few_acks))
        yield found_by("tiered-read", partial(_verdict_of, self.tiered))
        yield [text for kind, text in (*self._share.wrong(), *self.streams.wrong()) if asked(kind)]
        yield found_by("group-administration", partial(_verdict_of, self.administered))
        yield found_by("share-administration", partial(_verdict_of, self.share_administration))
        yield found_by("late-write", lambda: late_writes(history, self._options.write_seconds_max))

    def judge(self, history: Sequence[Operation], *, is_final: bool = True) -> tuple[list[str], tuple[Anomaly, ...]]:
        """Returns what is wrong with the history, the register and the topics: texts, and the anomalies behind them.

        A final read that did not end comes first, and hides nothing: what its reader was given may say why. Before the
        final read (``is_final``) no record counts as lost.
        """
        unanswered = self._unanswered() if self._options.may_convict("stuck") else None
        violations, anomalies = self._judge_answers(history, is_final=is_final)
        if unanswered is not None:
            violations.insert(0, f"at the end: stuck: {unanswered}")
        return violations, anomalies

    def _unanswered(self) -> str | None:
        """Returns why a final read did not end."""
        first = (self.register, self._topics, self._regex_member, self._compacted, self.few_acks)
        then = (self.tiered, self._share, self.streams, self.administered, self.share_administration)
        return next((one.stuck for one in (*first, *then) if one is not None and one.stuck), None)

    def _judge_answers(self, history: Sequence[Operation], *, is_final: bool) -> tuple[list[str], tuple[Anomaly, ...]]:
        asked = self._options.may_convict
        register = self.register.verdict() if asked("metadata-not-linearizable") else None
        if register is not None and register.linearizable is False:
            return [f"at the end: metadata-not-linearizable: {register.text}"], ()
        for wrong in self._broken_rules(history):
            if wrong:
                return [f"at the end: {text}" for text in wrong[:VIOLATIONS_SHOWN_MAX]], ()
        pipe = self._options.pipe_options
        check = replace(
            self._options.check if is_final else replace(self._options.check, final_phase=False, ended=False),
            pipes=((pipe.source, pipe.target),) if self.pipe else (),
            banks=(self._options.bank_options.bank,) if self.bank else (),
        )
        found = [one for one in check_history(history, check).anomalies if not one.allowed and asked(one.kind.value)]
        if not is_final:  # readers that sought may have passed over a record
            found = [one for one in found if one.kind is not AnomalyKind.LOST_WRITE]
        found.sort(key=lambda anomaly: anomaly.kind is not AnomalyKind.STUCK)  # for it says what was not judged
        found = shown_of(found)
        violations = [f"at the end: {anomaly.kind.value}: {anomaly.text}" for anomaly in found]
        if register is not None and register.linearizable is None:
            violations.append(f"at the end: kit-failed: the register was not judged: {register.text}")
        return violations, tuple(found)


class _Judged(Protocol):
    """A workload with a checker of its own."""

    def verdict(self) -> Sequence[str]:
        """Returns what is wrong."""


def _verdict_of(workload: _Judged | None) -> Sequence[str]:
    return () if workload is None else workload.verdict()


def late_writes(history: Sequence[Operation], seconds_max: float | None) -> list[str]:
    """Returns the writes outside of transactions that took longer than ``seconds_max``, whatever their outcome."""
    if seconds_max is None:
        return []
    return [
        f"a write of client {operation.process} at {operation.begun_ms / 1000:.3f} s to "
        f"{', '.join(sorted({str(send.partition) for send in operation.sends}))} took "
        f"{(operation.ended_ms - operation.begun_ms) / 1000:.1f} s, {seconds_max:g} s are allowed"
        for operation in history
        if operation.kind is Kind.SEND and operation.ended_ms - operation.begun_ms > seconds_max * 1000
    ]


def shown_of(anomalies: Sequence[Anomaly]) -> list[Anomaly]:
    """Returns the first anomalies, in their order; the first of each kind is among them.

    A control is convicted by kinds, so that many of one must not hide those of another.
    """
    first_of_kind = {anomaly.kind: place for place, anomaly in reversed(list(enumerate(anomalies)))}
    rest = sorted(set(range(len(anomalies))) - set(first_of_kind.values()))
    room = max(0, VIOLATIONS_SHOWN_MAX - len(first_of_kind))
    return [anomalies[place] for place in sorted([*first_of_kind.values(), *rest[:room]])]
