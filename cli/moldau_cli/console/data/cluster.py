"""The overview with the health verdict, the brokers, the controllers, and configurations with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau.admin import ConfigResource, ResourceType
from moldau.runtime.config import join_address
from moldau_cli.console.core.rates import is_fresh
from moldau_cli.console.data.asking import ROWS_MAX, Notes, ask_log_dirs
from moldau_cli.health import is_nearly_full, is_silent
from moldau_cli.inspection import ask_quorum, inspect_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau import Admin
    from moldau.admin import PartitionDescription
    from moldau_cli.console.core.rates import Point, RateHistory
    from moldau_cli.inspection import CopiesQuestion
    from moldau_cli.output import Json

PROBLEMS_MAX = 100
CONFIG_KINDS = {"topic": ResourceType.TOPIC, "broker": ResourceType.BROKER, "group": ResourceType.GROUP}


async def overview(
    admin: Admin, quorum_admin: Admin, rates: RateHistory, ask_copies: CopiesQuestion | None = None
) -> dict[str, Json]:
    """Returns the verdict and its reasons first, then the figures of the whole cluster."""
    seen = await inspect_cluster(admin, quorum_admin, ask_copies=ask_copies)
    parts = [part for topic in seen.topics.values() for part in topic.partitions]
    return {
        "verdict": seen.verdict,
        "problems": [
            {"kind": problem.kind, "subject": problem.subject, "detail": problem.detail}
            for problem in seen.problems[:PROBLEMS_MAX]
        ],
        "problem_count": len(seen.problems),
        "cluster_id": seen.cluster.cluster_id,
        "brokers": len(seen.cluster.brokers),
        "controller": seen.quorum.leader_id,
        "voters": len(seen.quorum.voters),
        "topics": sum(not topic.is_internal for topic in seen.topics.values()),
        "internal_topics": sum(topic.is_internal for topic in seen.topics.values()),
        "partitions": len(parts),
        "replicas": sum(len(part.replicas) for part in parts),
        "in_sync": sum(len(part.isr) for part in parts),
        "refused_logins": seen.refusals.total if seen.refusals.is_known else None,
        "rates": points(rates.total, trio.current_time() * 1000),
        "busiest": _busiest(rates, list(seen.topics)),
    }


def points(found: Sequence[Point], now_ms: float) -> list[Json]:
    """Returns points as ``[milliseconds ago, records a second, bytes a second]``; none if the last is not fresh."""
    if not is_fresh(found, now_ms):
        return []
    return [[round(now_ms - point.now_ms), point.records, point.bytes] for point in found]


def _busiest(rates: RateHistory, names: Sequence[str]) -> list[Json]:
    now_ms = trio.current_time() * 1000
    latest = [
        (name, point) for name in names if (point := rates.latest(name, now_ms)) is not None and point.records > 0
    ]
    latest.sort(key=lambda each: (-each[1].records, each[0]))
    return [{"topic": name, "records": point.records, "bytes": point.bytes} for name, point in latest[:5]]


@dataclass(slots=True)
class _Held:
    """The replicas of one broker, counted."""

    leads: int = 0
    preferred: int = 0
    replicas: int = 0
    out_of_sync: int = 0


def _held(parts: Iterable[PartitionDescription]) -> dict[int, _Held]:
    """Counts the replicas of each broker in one pass: a large cluster has a hundred thousand partitions."""
    found: dict[int, _Held] = {}
    for part in parts:
        for node_id in part.replicas:
            counts = found.setdefault(node_id, _Held())
            counts.replicas += 1
            counts.leads += part.leader == node_id
            counts.preferred += part.replicas[0] == node_id
            counts.out_of_sync += node_id not in part.isr
    return found


async def brokers(admin: Admin, quorum_admin: Admin) -> dict[str, Json]:
    """Returns each broker with what it leads, holds and stores; replicas of missing brokers are listed as well."""
    notes = Notes()
    seen = await inspect_cluster(admin, quorum_admin)
    directories = await ask_log_dirs(admin, [broker.node_id for broker in seen.cluster.brokers], notes)
    held = _held(part for topic in seen.topics.values() for part in topic.partitions)
    alive = {broker.node_id: broker for broker in seen.cluster.brokers}
    rows: list[Json] = []
    for node_id in sorted(alive.keys() | held.keys()):
        broker = alive.get(node_id)
        counts = held.get(node_id) or _Held()
        dirs = directories.get(node_id)
        rows.append(
            {
                "node": node_id,
                "state": "down" if broker is None else "up",
                "address": None if broker is None else join_address(broker.host, broker.port),
                "rack": None if broker is None else broker.rack,
                "leads": counts.leads,
                "preferred": counts.preferred,
                "replicas": counts.replicas,
                "out_of_sync": counts.out_of_sync,
                "refused_logins": seen.refusals.of(node_id),
                "bytes": None if dirs is None else sum(part.size_bytes for each in dirs for part in each.partitions),
                "log_dirs": None
                if dirs is None
                else [
                    {
                        "path": each.path,
                        "state": each.error.name if each.error else "online",
                        "total_bytes": each.total_bytes,
                        "usable_bytes": each.usable_bytes,
                        "is_nearly_full": is_nearly_full(each),
                        "is_cordoned": each.is_cordoned,
                    }
                    for each in dirs
                ],
            }
        )
    return {"rows": rows[:ROWS_MAX], "total": len(rows), "notes": list(notes.texts)}


async def controllers(admin: Admin) -> dict[str, Json]:
    """Returns voters and observers of the metadata log with their lag behind its end; none without a leader."""
    quorum = await ask_quorum(admin)
    now_ms = next((one.last_fetch_ms for one in quorum.voters if one.replica_id == quorum.leader_id), -1)
    end = max((voter.log_end_offset for voter in quorum.voters), default=0)
    addresses = {node: join_address(host, port) for node, host, port in quorum.endpoints}
    replicas = [("voter", one) for one in quorum.voters] + [("observer", one) for one in quorum.observers]
    rows: list[Json] = [
        {
            "node": one.replica_id,
            "role": "leader" if role == "voter" and one.replica_id == quorum.leader_id else role,
            "address": addresses.get(one.replica_id),
            "log_end_offset": one.log_end_offset,
            "lag": max(0, end - max(0, one.log_end_offset)),
            "is_silent": is_silent(one, now_ms),
            "last_fetch_ms": one.last_fetch_ms if one.last_fetch_ms >= 0 else None,
            "last_caught_up_ms": one.last_caught_up_ms if one.last_caught_up_ms >= 0 else None,
        }
        for role, one in replicas
    ]
    return {
        "leader": quorum.leader_id,
        "epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "rows": rows[:ROWS_MAX],
        "total": len(rows),
    }


async def configuration(admin: Admin, kind: str, name: str) -> dict[str, Json]:
    """Returns every key of one configuration with its source and meaning, the ones that were set first.

    Raises:
        ValueError: there is no such kind.
        AdminError: the configuration could not be described.
    """
    if kind not in CONFIG_KINDS:
        raise ValueError(f"unknown kind {kind!r:.40}; known are {', '.join(CONFIG_KINDS)}")
    resource = ConfigResource(type=CONFIG_KINDS[kind], name=name)
    entries = (await admin.describe_configs([resource], include_documentation=True))[resource]
    rows: list[Json] = [
        {
            "key": entry.name,
            "value": entry.value,
            "source": entry.source.name.lower().replace("_", " "),
            "default": entry.is_default,
            "read_only": entry.is_read_only,
            "sensitive": entry.is_sensitive,
            "meaning": entry.documentation,
        }
        for entry in sorted(entries.values(), key=lambda each: (each.is_default, each.name))
    ]
    return {"kind": kind, "name": name, "rows": rows[:ROWS_MAX], "total": len(rows)}


async def configurable(admin: Admin) -> dict[str, Json]:
    """Returns the names of the brokers and topics whose configuration can be shown."""
    cluster = await admin.describe_cluster()
    topics = await admin.list_topics(include_internal=True)
    return {
        "broker": ["", *[str(broker.node_id) for broker in cluster.brokers][:ROWS_MAX]],
        "topic": [topic.name for topic in topics[:ROWS_MAX]],
    }
