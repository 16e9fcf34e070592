"""Consumer groups with their lag and members, and transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.admin import LATEST
from moldau_cli.console.data.asking import (
    PART_TIMEOUT_S,
    ROWS_MAX,
    Notes,
    ask_each,
    ask_offsets,
    led_partitions,
)
from moldau_cli.operations.partial import ask_groups, ask_transactions, describe_present, summarize_failures

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from moldau import Admin
    from moldau.admin import GroupDescription
    from moldau_cli.console.data.asking import Partition
    from moldau_cli.output import Json

LAGS_MAX = 100
"""Groups in a list whose lag is computed; the page of a group shows the others'."""


async def _committed(admin: Admin, group_id: str) -> dict[Partition, int]:
    found = await admin.list_group_offsets(group_id)
    return {(each.topic, each.partition): committed.offset for each, committed in found.items()}


async def _ends(admin: Admin, partitions: set[Partition], notes: Notes) -> dict[Partition, int]:
    """Returns the high watermarks of partitions that still exist."""
    listed = {topic.name for topic in await admin.list_topics(include_internal=True)}
    names = sorted({topic for topic, _ in partitions} & listed)
    led = led_partitions(await describe_present(admin, names))
    asked = {leader: kept for leader, all_of in led.items() if (kept := [one for one in all_of if one in partitions])}
    return await ask_offsets(admin, asked, LATEST, notes)


def _lag(committed: Mapping[Partition, int], ends: Mapping[Partition, int]) -> int | None:
    known = [max(0, ends[place] - offset) for place, offset in committed.items() if place in ends]
    return sum(known) if len(known) == len(committed) else None


async def groups(admin: Admin, wanted: str = "") -> dict[str, Json]:
    """Returns the groups whose ids contain ``wanted``, with the sum of their lag."""
    notes = Notes()
    found, failures = await ask_groups(admin, within_s=PART_TIMEOUT_S)
    if failures:
        notes.add(f"Groups are missing: {summarize_failures(failures)}")
    listed = [each for each in found if wanted in each.group_id]

    def call(group_id: str) -> Callable[[], Awaitable[dict[Partition, int]]]:
        return lambda: _committed(admin, group_id)

    consuming = [each.group_id for each in listed if each.protocol_type in ("consumer", "")]
    committed = await ask_each([(name, call(name)) for name in consuming[:LAGS_MAX]], notes)
    ends = await _ends(admin, {place for each in committed.values() for place in each}, notes)
    if len(consuming) > LAGS_MAX:
        notes.add(f"the lag of the first {LAGS_MAX} groups is shown; open a group for its own")
    rows: list[Json] = [
        {
            "group": each.group_id,
            "state": each.state,
            "type": each.type,
            "protocol_type": each.protocol_type,
            "partitions": len(committed[each.group_id]) if each.group_id in committed else None,
            "lag": _lag(committed[each.group_id], ends) if each.group_id in committed else None,
        }
        for each in listed[:ROWS_MAX]
    ]
    return {"rows": rows, "total": len(listed), "notes": list(notes.texts)}


async def _check_type(admin: Admin, group_id: str) -> None:
    """Checks that a group is not of a type that has other members and offsets; such a group is described as dead.

    Raises:
        LookupError: it is; the error names the command that shows it.
    """
    listed, _ = await ask_groups(admin, within_s=PART_TIMEOUT_S)
    kind = next((each.type for each in listed if each.group_id == group_id), None)
    if kind in ("share", "streams"):
        raise LookupError(
            f"{group_id} is a {kind} group, which has no page here: moldau {kind}-groups describe {group_id} shows it"
        )


async def group(admin: Admin, group_id: str) -> dict[str, Json]:
    """Returns one group: members, and each partition with committed offset, lag and owner.

    Raises:
        KafkaError: the group may not be described.
        LookupError: there is no such group, or it is a share or streams group.
    """
    notes = Notes()
    found = (await admin.describe_groups([group_id]))[group_id]
    if found.state == "Dead":
        await _check_type(admin, group_id)
    committed = await _committed(admin, group_id)
    if found.state == "Dead" and not committed:
        raise LookupError(f"there is no group {group_id}")
    owners = {(each.topic, each.partition): member for member in found.members for each in member.assignment}
    ends = await _ends(admin, committed.keys() | owners.keys(), notes)
    rows: list[Json] = []
    for place in sorted(committed.keys() | owners.keys()):
        offset, end = committed.get(place), ends.get(place)
        owner = owners.get(place)
        rows.append(
            {
                "topic": place[0],
                "partition": place[1],
                "committed": offset,
                "end_offset": end,
                "lag": None if offset is None or end is None else max(0, end - offset),
                "member": None if owner is None else owner.member_id,
                "client": None if owner is None else owner.client_id,
            }
        )
    return {
        "group": group_id,
        "state": found.state,
        "type": found.type,
        "protocol": found.protocol,
        "coordinator": found.coordinator,
        "epoch": found.epoch if found.epoch >= 0 else None,
        "members": _members(found),
        "member_count": len(found.members),
        "lag": _lag(committed, ends),
        "rows": rows[:ROWS_MAX],
        "total": len(rows),
        "notes": list(notes.texts),
    }


def _members(found: GroupDescription) -> list[Json]:
    return [
        {
            "member": member.member_id,
            "instance": member.instance_id,
            "client": member.client_id,
            "host": member.client_host,
            "partitions": len(member.assignment),
        }
        for member in found.members[:ROWS_MAX]
    ]


async def transactions(admin: Admin, now_ms: float) -> dict[str, Json]:
    """Returns the transactional ids; those with an open transaction have its age and partitions, the oldest first."""
    notes = Notes()
    listed, failures = await ask_transactions(admin, within_s=PART_TIMEOUT_S)
    if failures:
        notes.add(f"Transactional ids are missing: {summarize_failures(failures)}")
    open_ids = [each.transactional_id for each in listed if each.state in ("Ongoing", "PrepareCommit", "PrepareAbort")]

    def call(name: str) -> Callable[[], Awaitable[dict[str, Json]]]:
        async def ask() -> dict[str, Json]:
            one = (await admin.describe_transactions([name]))[name]
            age = None if one.start_ms < 0 else max(0, round(now_ms - one.start_ms))
            partitions: list[Json] = [f"{each.topic}-{each.partition}" for each in one.partitions[:20]]
            return {"age_ms": age, "timeout_ms": one.timeout_ms, "partitions": partitions}

        return ask

    details = await ask_each([(name, call(name)) for name in open_ids[:LAGS_MAX]], notes)
    absent: dict[str, Json] = {"age_ms": None, "timeout_ms": None, "partitions": []}
    rows: list[dict[str, Json]] = [
        {
            "transactional_id": each.transactional_id,
            "state": each.state,
            "producer_id": each.producer_id,
            "coordinator": each.coordinator,
            **details.get(each.transactional_id, absent),
        }
        for each in listed
    ]
    rows.sort(key=lambda row: (-_age(row), str(row["transactional_id"])))
    return {"rows": list(rows[:ROWS_MAX]), "total": len(rows), "notes": list(notes.texts)}


def _age(row: Mapping[str, Json]) -> int:
    age = row["age_ms"]
    return age if isinstance(age, int) else -1
