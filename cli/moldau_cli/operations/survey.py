"""Asks a cluster where its replicas are and how large, for commands that move them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.errors import KafkaError
from moldau_cli.errors import UsageError
from moldau_cli.operations.partial import ask_log_dirs, describe_present
from moldau_cli.plans.balance.execution import RunningMove
from moldau_cli.plans.balance.state import BrokerState, PlacedPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau import Admin
    from moldau.admin import LogDirDescription, TopicDescription
    from moldau.cluster.metadata import BrokerNode
    from moldau_cli.plans.balance.state import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Brokers, partitions and moves at one time."""

    brokers: Mapping[int, BrokerState]
    """All registered brokers."""
    nodes: Mapping[int, BrokerNode]
    topics: Mapping[str, TopicDescription]
    """All topics, internal ones too."""
    sizes: Mapping[tuple[str, int, int], int]
    """Bytes of each replica (topic, partition, broker) on a live broker."""
    moving: Mapping[Partition, RunningMove]
    described: frozenset[int]
    """The brokers whose log directories are known."""
    failures: Mapping[str, KafkaError]
    """Why those of other live brokers are not; a survey with moves fails instead."""

    @property
    def placed(self) -> dict[Partition, PlacedPartition]:
        """All partitions, each as large as its largest replica."""
        largest: dict[Partition, int] = {}
        for (topic, number, _), size in self.sizes.items():
            largest[topic, number] = max(largest.get((topic, number), 0), size)
        return {
            (name, part.partition): PlacedPartition(
                replicas=part.replicas, size_bytes=largest.get((name, part.partition), 0)
            )
            for name, topic in self.topics.items()
            for part in topic.partitions
        }

    def holders(self, node: int) -> list[Partition]:
        """Returns the partitions that have a replica on a broker."""
        return sorted(where for where, one in self.placed.items() if node in one.replicas)


async def survey(admin: Admin, *, with_moves: bool = True) -> Survey:
    """Asks for brokers, partitions, sizes and moves; the active controller is needed only for the moves.

    Raises:
        KafkaError: a request was refused, or a live broker did not answer in time.
    """
    cluster = await admin.describe_cluster(include_fenced=True)
    live = [one.node_id for one in cluster.brokers if one.node_id not in cluster.fenced]
    names = [topic.name for topic in await admin.list_topics(include_internal=True)]
    failures: Mapping[str, KafkaError] = {}
    if with_moves:  # a plan needs the sizes of all replicas
        directories = await admin.describe_log_dirs(live)
    else:
        directories, failures = await ask_log_dirs(admin, live)
    return Survey(
        brokers={
            one.node_id: BrokerState(
                rack=one.rack,
                machine=one.host or None,
                is_live=one.node_id not in cluster.fenced,
                is_excluded=_is_cordoned(directories.get(one.node_id, ())),
            )
            for one in cluster.brokers
        },
        nodes={one.node_id: one for one in cluster.brokers},
        topics=await describe_present(admin, names),
        sizes=sizes_of(directories),
        described=frozenset(directories),
        failures=failures,
        moving=await running_moves(admin) if with_moves else {},
    )


def _is_cordoned(directories: Iterable[LogDirDescription]) -> bool:
    """Returns whether a broker gets no new replicas, because all its working log directories are cordoned."""
    working = [each for each in directories if each.error == 0]
    return bool(working) and all(each.is_cordoned for each in working)


def known_broker(seen: Survey, node: int) -> None:
    """Checks that a broker is registered.

    Raises:
        UsageError: it is not.
    """
    if node not in seen.brokers:
        raise UsageError(f"no broker {node}; registered brokers are {','.join(map(str, sorted(seen.brokers)))}")


async def running_moves(admin: Admin) -> dict[Partition, RunningMove]:
    """Returns all moves in progress."""
    return {
        (where.topic, where.partition): RunningMove(replicas=one.replicas, adding=one.adding, removing=one.removing)
        for where, one in (await admin.list_partition_reassignments()).items()
    }


async def copied_bytes(admin: Admin, moves: Mapping[Partition, RunningMove]) -> dict[Partition, tuple[int, int]]:
    """Returns for each move how many bytes the new replicas have, and how many they need; only those that are known.

    Brokers that are down, or do not tell their log directories, know nothing.
    """
    cluster = await admin.describe_cluster(include_fenced=True)
    live = {one.node_id for one in cluster.brokers} - set(cluster.fenced)
    wanted: dict[int, list[Partition]] = {}
    for where, move in moves.items():
        for node in move.replicas:
            if node in live:
                wanted.setdefault(node, []).append(where)
    sizes: dict[tuple[str, int, int], int] = {}
    for node, partitions in sorted(wanted.items()):
        with suppress(KafkaError):
            sizes.update(sizes_of(await admin.describe_log_dirs([node], partitions=partitions)))
    found: dict[Partition, tuple[int, int]] = {}
    for where, move in moves.items():
        held = {node: sizes[*where, node] for node in move.replicas if (*where, node) in sizes}
        sources = [size for node, size in held.items() if node not in move.adding]
        if sources and all(node in held for node in move.adding):
            needed = max(sources)
            found[where] = sum(min(held[node], needed) for node in move.adding), needed * len(move.adding)
    return found


async def current_replicas(admin: Admin, topics: Iterable[str]) -> dict[Partition, tuple[int, ...]]:
    """Returns the replicas of the partitions of those topics that exist."""
    known = {topic.name for topic in await admin.list_topics(include_internal=True)}
    described = await describe_present(admin, [name for name in dict.fromkeys(topics) if name in known])
    return {(name, part.partition): part.replicas for name, one in described.items() for part in one.partitions}


async def settled_replicas(admin: Admin, topics: Sequence[str] = ()) -> dict[Partition, list[int]]:
    """Returns the replicas of all partitions, or of those of some topics; of one that moves, those after the move.

    Without ``topics``, internal ones count too: a broker that is to lose its replicas must not keep theirs.
    A description of a partition that moves has the old and the new replicas.

    Raises:
        KafkaError: a request was refused, or one of ``topics`` does not exist.
    """
    moving = await running_moves(admin)
    if topics:
        described = await admin.describe_topics(topics)
    else:
        names = [one.name for one in await admin.list_topics(include_internal=True)]
        described = await describe_present(admin, names)
    moving |= await running_moves(admin)  # one that began before the description may have ended since
    found = {(name, part.partition): list(part.replicas) for name, one in described.items() for part in one.partitions}
    return found | {
        where: [node for node in move.replicas if node in move.wanted]
        for where, move in moving.items()
        if where in found
    }


def sizes_of(directories: Mapping[int, Iterable[LogDirDescription]]) -> dict[tuple[str, int, int], int]:
    """Returns the bytes of each replica; copies that move between the directories of a broker do not count."""
    return {
        (part.topic_partition.topic, part.topic_partition.partition, node): part.size_bytes
        for node, found in directories.items()
        for directory in found
        for part in directory.partitions
        if not part.is_future
    }
