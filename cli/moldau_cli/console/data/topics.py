"""Topics with their figures, and one topic with its partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.admin import ConfigResource, ResourceType
from moldau_cli.console.data.asking import ROWS_MAX, Notes, ask_each, ask_ends, ask_log_dirs, leader_sizes
from moldau_cli.console.data.cluster import points
from moldau_cli.console.data.requests import eligible_replicas
from moldau_cli.operations.partial import describe_present

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau import Admin
    from moldau.admin import ConfigEntry, PartitionDescription, TopicDescription
    from moldau.admin.requester import Requester
    from moldau_cli.console.core.rates import RateHistory
    from moldau_cli.console.data.asking import Partition
    from moldau_cli.output import Json


async def topics(admin: Admin, rates: RateHistory, wanted: str = "", *, internal: bool = False) -> dict[str, Json]:
    """Returns the topics whose names contain ``wanted``, with figures that come from their leaders."""
    notes = Notes()
    listed = [one.name for one in await admin.list_topics(include_internal=internal) if wanted in one.name]
    described = await describe_present(admin, listed[:ROWS_MAX])
    begins, ends = await ask_ends(admin, described, notes)
    brokers = {replica for topic in described.values() for part in topic.partitions for replica in part.isr}
    sizes = leader_sizes(described, await ask_log_dirs(admin, brokers, notes))
    rows: list[Json] = [_row(topic, begins, ends, sizes, rates) for _, topic in sorted(described.items())]
    return {"rows": rows, "total": len(listed), "notes": list(notes.texts)}


def _row(
    topic: TopicDescription,
    begins: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    sizes: Mapping[Partition, int],
    rates: RateHistory,
) -> dict[str, Json]:
    places = [(topic.name, part.partition) for part in topic.partitions]
    known = all(place in begins and place in ends for place in places)
    latest = rates.latest(topic.name, trio.current_time() * 1000)
    return {
        "topic": topic.name,
        "internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replication": max((len(part.replicas) for part in topic.partitions), default=0),
        "offline": sum(part.leader < 0 for part in topic.partitions),
        "under_replicated": sum(len(part.isr) < len(part.replicas) for part in topic.partitions),
        "records": sum(ends[place] - begins[place] for place in places) if known else None,
        "bytes": sum(sizes[place] for place in places) if all(place in sizes for place in places) else None,
        "records_per_s": None if latest is None else latest.records,
        "bytes_per_s": None if latest is None else latest.bytes,
    }


async def topic(admin: Admin, requester: Requester, rates: RateHistory, name: str) -> dict[str, Json]:
    """Returns one topic: its partitions with leader, replicas and offsets, and the configuration that was set.

    The configuration is None where the user may not see it.

    Raises:
        AdminError: there is no such topic, or it may not be described.
    """
    notes = Notes()
    described = await admin.describe_topics([name])
    found = described[name]
    begins, ends = await ask_ends(admin, described, notes)
    brokers = {replica for part in found.partitions for replica in part.isr}
    sizes = leader_sizes(described, await ask_log_dirs(admin, brokers, notes))
    resource = ConfigResource(type=ResourceType.TOPIC, name=name)

    async def ask_configs() -> dict[str, ConfigEntry]:
        return (await admin.describe_configs([resource]))[resource]

    configs = (await ask_each([("configuration", ask_configs)], notes)).get("configuration")
    eligible = (await ask_each([("eligible replicas", lambda: eligible_replicas(requester, name))], notes)).get(
        "eligible replicas", {}
    )
    shown = [
        {**_partition(name, part, begins, ends, sizes), **_eligible(eligible.get(part.partition))}
        for part in found.partitions[:ROWS_MAX]
    ]
    return {
        **_row(found, begins, ends, sizes, rates),
        "topic_id": str(found.topic_id),
        "rows": list(shown),
        "total": len(found.partitions),
        "configs": None if configs is None else _own(configs),
        "min_isr": None if configs is None else _min_isr(configs),
        "rates": points(rates.topic(name), trio.current_time() * 1000),
        "notes": list(notes.texts),
    }


def _min_isr(configs: Mapping[str, ConfigEntry]) -> int | None:
    entry = configs.get("min.insync.replicas")
    return None if entry is None else int(entry.value or 1)


def _own(configs: Mapping[str, ConfigEntry]) -> list[Json]:
    """Returns the keys that were set."""
    return [
        {"key": entry.name, "value": entry.value, "source": entry.source.name.lower().replace("_", " ")}
        for entry in sorted(configs.values(), key=lambda each: each.name)
        if not entry.is_default
    ]


def _partition(
    topic_name: str,
    part: PartitionDescription,
    begins: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    sizes: Mapping[Partition, int],
) -> dict[str, Json]:
    place = (topic_name, part.partition)
    return {
        "partition": part.partition,
        "leader": part.leader,
        "leader_epoch": part.leader_epoch,
        "replicas": list(part.replicas),
        "isr": list(part.isr),
        "start_offset": begins.get(place),
        "end_offset": ends.get(place),
        "bytes": sizes.get(place),
    }


def _eligible(found: tuple[list[int], list[int]] | None) -> dict[str, Json]:
    if found is None:
        return {"elr": None, "last_known_elr": None}
    return {"elr": list(found[0]), "last_known_elr": list(found[1])}
