"""Asks a cluster for what its health verdict needs. `moldau cluster status -b` and the web console share it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import join_address
from moldau_cli.health import judge, verdict
from moldau_cli.operations.node_pages import known_addresses
from moldau_cli.operations.partial import describe_present, describe_present_configs
from moldau_cli.operations.refused_logins import Refusals, ask_for_refusals
from moldau_cli.operations.reported_problems import ask_for_problems

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from moldau import Admin
    from moldau.admin import (
        ClusterDescription,
        ConfigResource,
        LogDirDescription,
        QuorumDescription,
        TopicDescription,
    )
    from moldau.cluster.metadata import BrokerNode
    from moldau_cli.health import Problem

    CopiesQuestion = Callable[[Mapping[str, TopicDescription], Sequence[BrokerNode]], Awaitable[list[Problem]]]

LOG_DIRS_S: Final = 3.0
"""How long a broker may take to describe its log directories, in seconds; a later one does not answer its clients."""
_ANSWERS: Final = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.BROKER_NOT_AVAILABLE,
)
"""Errors of a broker that answers, or has just gone; in the second case its partitions say so."""
QUORUM_S: Final = 5.0
"""How long brokers may take to reach the active controller; after that the verdict says that there is none."""
BROKERS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The reports of brokers and controllers, and the problems in them, the most serious first."""

    problems: list[Problem]
    cluster: ClusterDescription
    quorum: QuorumDescription
    topics: Mapping[str, TopicDescription]
    refusals: Refusals
    """The refused logins; they change no verdict, because clients cause them and not the cluster."""

    @property
    def verdict(self) -> str:
        """``healthy``, ``degraded`` or ``failing``."""
        return verdict(self.problems)

    @property
    def partitions(self) -> int:
        """The number of partitions of all topics."""
        return sum(len(topic.partitions) for topic in self.topics.values())


async def inspect_cluster(
    admin: Admin, quorum_admin: Admin | None = None, *, ask_copies: CopiesQuestion | None = None
) -> Inspection:
    """Describes cluster, quorum and all topics, and judges them.

    ``quorum_admin`` asks for the quorum, if ``admin`` has other users: a broker that waits for a controller answers
    nothing else on the same connection. ``ask_copies`` returns problems with the copies of tiered topics at the
    brokers that answer.

    Raises:
        KafkaError: a request was refused, or no broker answered in time.
    """
    from moldau.admin import ConfigResource, ResourceType

    cluster = await admin.describe_cluster(include_fenced=True)
    cluster = replace(cluster, brokers=tuple(one for one in cluster.brokers if one.node_id not in cluster.fenced))
    names = [topic.name for topic in await admin.list_topics(include_internal=True)]
    topics = await describe_present(admin, names)
    short = [
        ConfigResource(type=ResourceType.TOPIC, name=name)
        for name, topic in topics.items()
        if any(len(partition.isr) < len(partition.replicas) for partition in topic.partitions)
    ]
    min_isr = await _min_isr(admin, short)
    brokers = [broker.node_id for broker in cluster.brokers]
    log_dirs, silent = await _log_dirs(admin, cluster.brokers)
    answering = [broker for broker in cluster.brokers if broker.node_id not in silent]
    refusals, reported = await ask_pages(admin, answering)
    quorum = await ask_quorum(quorum_admin or admin)  # late, because it may hold up the connection
    if ask_copies is not None:
        known = {(each.kind, each.subject) for each in reported}
        copies = await ask_copies(topics, answering)
        reported += [each for each in copies if (each.kind, each.subject) not in known]
    problems = judge(topics, min_isr, quorum, brokers, cluster.fenced, log_dirs, silent, reported)
    return Inspection(problems=problems, cluster=cluster, quorum=quorum, topics=topics, refusals=refusals)


async def ask_pages(admin: Admin, brokers: Sequence[BrokerNode]) -> tuple[Refusals, list[Problem]]:
    """Returns the refused logins and the problems that brokers tell at their own addresses, both asked for at once."""
    addresses = await known_addresses(admin, brokers)
    refusals, problems = Refusals(by_node={}), list["Problem"]()

    async def logins() -> None:
        nonlocal refusals
        refusals = await ask_for_refusals(addresses)

    async def reported() -> None:
        problems.extend(await ask_for_problems(addresses))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(logins)
        nursery.start_soon(reported)
    return refusals, problems


async def _min_isr(admin: Admin, short: Sequence[ConfigResource]) -> dict[str, int]:
    """Returns ``min.insync.replicas`` of topics, without those that were deleted or may not be described.

    Raises:
        KafkaError: no broker answered.
    """
    configs = await describe_present_configs(admin, short)
    return {one.name: int(entries["min.insync.replicas"].value or 1) for one, entries in configs.items()}


async def ask_quorum(admin: Admin, within_s: float = QUORUM_S) -> QuorumDescription:
    """Returns the quorum; one without a leader and voters if no broker reaches the active controller in time.

    Raises:
        KafkaError: the request was refused.
    """
    from moldau.admin import QuorumDescription

    with trio.move_on_after(within_s):
        try:
            return await admin.describe_quorum()
        except KafkaError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                raise
    return QuorumDescription(leader_id=-1, leader_epoch=-1, high_watermark=-1, voters=(), observers=())


async def _log_dirs(
    admin: Admin, brokers: Sequence[BrokerNode]
) -> tuple[dict[int, list[LogDirDescription]], dict[int, str]]:
    """Returns the log directories of the brokers that answer in time, and why the others are taken for silent."""
    found: dict[int, list[LogDirDescription]] = {}
    silent: dict[int, str] = {}
    limit = trio.CapacityLimiter(BROKERS_AT_ONCE)

    async def ask(broker: BrokerNode) -> None:
        address = join_address(broker.host, broker.port)
        async with limit:
            with trio.move_on_after(LOG_DIRS_S) as patience:
                try:
                    found.update(await admin.describe_log_dirs([broker.node_id], partitions=[]))
                except KafkaError as error:
                    if error.code not in _ANSWERS:
                        silent[broker.node_id] = f"cannot be used at {address}: {error}"
            if patience.cancelled_caught:
                silent[broker.node_id] = (
                    f"gives no answer at {address} within {LOG_DIRS_S:g} s, although the cluster has "
                    "it in service: it hangs, or this machine cannot use its listener (address, firewall, certificate)"
                )

    async with trio.open_nursery() as nursery:
        for broker in brokers:
            nursery.start_soon(ask, broker)
    return found, silent
