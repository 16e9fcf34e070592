"""Sets and lifts the limit on the copies of moves (KIP-73)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau import Admin
    from moldau.admin import ConfigAlteration, ConfigResource


async def replicas_of(admin: Admin, topics: list[str]) -> dict[tuple[str, int], list[int]]:
    """Returns the replicas of all partitions of those topics that exist."""
    from moldau_cli.operations.partial import describe_present

    described = await describe_present(admin, dict.fromkeys(topics))
    return {(name, part.partition): list(part.replicas) for name, one in described.items() for part in one.partitions}


async def throttle_moves(
    admin: Admin, moves: dict[tuple[str, int], list[int]], rate: int, *, may_be_gone: bool = False
) -> None:
    """Limits the copies of moves that begin next or are in progress; ``rate`` is in bytes a second, for each broker.

    Raises:
        UsageError: a partition does not exist; with ``may_be_gone`` it is left out.
        KafkaError: a change was refused.
    """
    from moldau.admin import ConfigAlteration, ConfigOperation, ConfigResource, ResourceType
    from moldau_cli.plans.throttle import FOLLOWER_RATE, LEADER_RATE, involved_brokers, throttled_replicas

    current = await replicas_of(admin, [topic for topic, _ in moves])
    unknown = [f"{topic}-{number}" for topic, number in moves if (topic, number) not in current]
    if unknown and not may_be_gone:
        raise UsageError(f"there is no partition {unknown[0]}")
    moves = {where: targets for where, targets in moves.items() if where in current}
    adding = {(m.topic, m.partition): one.adding for m, one in (await admin.list_partition_reassignments()).items()}
    # The replicas that a move in progress adds copy like those of a move that is about to begin.
    settled = {where: [node for node in held if node not in adding.get(where, ())] for where, held in current.items()}
    changes: dict[ConfigResource, list[ConfigAlteration]] = {
        ConfigResource(type=ResourceType.TOPIC, name=topic): [
            ConfigAlteration(name=key, value=",".join(entries), operation=ConfigOperation.APPEND)
            for key, entries in lists.items()
        ]
        for topic, lists in throttled_replicas(settled, moves).items()
    }
    live = {one.node_id for one in (await admin.describe_cluster()).brokers}
    for broker in live.intersection(involved_brokers(current, moves)):
        changes[ConfigResource(type=ResourceType.BROKER, name=str(broker))] = [
            ConfigAlteration(name=key, value=str(rate)) for key in (LEADER_RATE, FOLLOWER_RATE)
        ]
    await _alter_present(admin, changes)


async def throttled_with(admin: Admin, topics: list[str], broker: int) -> list[tuple[str, int]]:
    """Returns the partitions whose throttled replicas have one on a broker."""
    from moldau.admin import ConfigResource, ResourceType
    from moldau_cli.operations.partial import describe_present_configs
    from moldau_cli.plans.throttle import FOLLOWER_REPLICAS, LEADER_REPLICAS, partitions_of

    resources = [ConfigResource(type=ResourceType.TOPIC, name=name) for name in topics]
    found = await describe_present_configs(admin, resources)
    return [
        (resource.name, number)
        for resource, entries in found.items()
        for number in partitions_of([entries[key].value or "" for key in (LEADER_REPLICAS, FOLLOWER_REPLICAS)], broker)
    ]


async def lift_throttle(admin: Admin, ended: list[tuple[str, int]], *, any_moves: bool) -> None:
    """Takes partitions that do not move off the lists of their topics, and the rates off brokers when nothing moves."""
    from moldau.admin import ConfigAlteration, ConfigOperation, ConfigResource, ResourceType
    from moldau.runtime.config import ConfigSource
    from moldau_cli.operations.partial import configs_of_present
    from moldau_cli.plans.throttle import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS, entries_of

    numbers: dict[str, list[int]] = {}
    for topic, number in ended:
        numbers.setdefault(topic, []).append(number)
    topics = [ConfigResource(type=ResourceType.TOPIC, name=name) for name in numbers]
    changes: dict[ConfigResource, list[ConfigAlteration]] = {}
    for resource, entries in (await configs_of_present(admin, topics)).items():
        for key in (LEADER_REPLICAS, FOLLOWER_REPLICAS):
            listed = entries[key].value or ""
            gone = entries_of(listed, numbers[resource.name])
            if not gone:
                continue
            operation = ConfigOperation.DELETE if len(gone) == len(listed.split(",")) else ConfigOperation.SUBTRACT
            value = None if operation is ConfigOperation.DELETE else ",".join(gone)
            change = ConfigAlteration(name=key, value=value, operation=operation)
            changes.setdefault(resource, []).append(change)
    if not any_moves:
        nodes = [one.node_id for one in (await admin.describe_cluster()).brokers]
        brokers = [ConfigResource(type=ResourceType.BROKER, name=str(node)) for node in nodes]
        for resource, entries in (await admin.describe_configs(brokers)).items():
            for key in (LEADER_RATE, FOLLOWER_RATE):
                if entries[key].source is ConfigSource.DYNAMIC_BROKER:
                    change = ConfigAlteration(name=key, operation=ConfigOperation.DELETE)
                    changes.setdefault(resource, []).append(change)
    await _alter_present(admin, changes)


async def _alter_present(admin: Admin, changes: Mapping[ConfigResource, Sequence[ConfigAlteration]]) -> None:
    """Changes configurations; a topic that was deleted meanwhile needs no change."""
    from moldau.admin import AdminError
    from moldau_cli.operations.partial import is_of_gone_topics

    try:
        if changes:
            await admin.alter_configs(changes)
    except AdminError as error:
        if not is_of_gone_topics(error):
            raise
