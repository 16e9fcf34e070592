"""Checks of topics and offsets before a producer or consumer of a command uses them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from moldau_cli.client.reachable import PROBE_TIMEOUT_S
from moldau_cli.client.settings import command_config
from moldau_cli.errors import UsageError
from moldau_cli.words import absent_partition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from moldau import Admin

R = TypeVar("R")


async def check_topic(
    topic: str, settings: Mapping[str, str], partition: int | None = None, within_s: float = math.inf
) -> None:
    """Checks that a broker knows the topic, because a client's metadata request might otherwise create it.

    ``settings`` are those of the client that will use the topic, so that the check connects in the same way. It asks
    all brokers, because only the one that answered CreateTopics knows a new topic at once; likewise for ``partition``.
    ``within_s`` as in ``first_answer``.

    Raises:
        UsageError: no broker knows the topic, or the partition.
    """
    import trio

    from moldau import Admin

    async with Admin(admin_settings(settings)) as admin:
        wanted = 1 if partition is None else partition + 1
        if (count := await first_answer(admin, lambda asked: _partition_count(asked, topic, None), within_s)) >= wanted:
            return
        for broker in (await admin.describe_cluster()).brokers:
            with trio.move_on_after(PROBE_TIMEOUT_S):
                if (count := max(count, await _partition_count(admin, topic, broker.node_id))) >= wanted:
                    return
        if count:
            raise UsageError(absent_partition(topic, range(count), wanted - 1))
        raise UsageError(f"topic {topic} does not exist; moldau topics create {topic}")


async def check_offset(topic: str, partition: int, offset: int, settings: Mapping[str, str]) -> None:
    """Checks that an offset is in the log or is its end; ``settings`` as in ``check_topic``.

    Raises:
        UsageError: the offset is out of range.
    """
    from moldau import Admin, TopicPartition
    from moldau.admin import EARLIEST, LATEST

    wanted = TopicPartition(topic, partition)
    async with Admin(admin_settings(settings)) as admin:
        begin, end = [(await admin.list_offsets({wanted: where}))[wanted][0] for where in (EARLIEST, LATEST)]
    if not begin <= offset <= end:
        held = f"holds offsets {begin} to {end - 1}" if end > begin else "is empty"
        raise UsageError(
            f"--offset {offset} is out of range: {topic}-{partition} {held}, and its next offset is {end}; "
            "-X auto.offset.reset=earliest or latest starts there instead"
        )


async def first_answer(admin: Admin, ask: Callable[[Admin], Awaitable[R]], within_s: float = math.inf) -> R:
    """Returns the answer to the first question of a command; a note says that no broker answers while that is so.

    Raises:
        KafkaError: REQUEST_TIMED_OUT if no broker has answered after ``ANSWER_S``, or ``within_s`` if that is less.
    """
    from moldau_cli.quorum_watch import ANSWER_S, FIRST_LOOK_S, SILENCE_S, SILENT, noting_a_wait

    bounded = admin.within(round(min(ANSWER_S, within_s) * 1000))
    return await noting_a_wait(lambda: ask(bounded), SILENT, after_s=FIRST_LOOK_S + SILENCE_S)


def admin_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the configuration of an admin client that connects in the same way as a client with ``settings``."""
    from moldau.runtime.config import ADMIN_CONFIG

    shared = {key: value for key, value in settings.items() if key in ADMIN_CONFIG.keys}
    return {**command_config("admin"), **shared}


async def _partition_count(admin: Admin, topic: str, node_id: int | None) -> int:
    """Returns how many partitions of the topic a broker knows; 0 if it does not know the topic."""
    from moldau.protocol.errors import ErrorCode, KafkaError

    try:
        return len((await admin.describe_topics([topic], node_id=node_id))[topic].partitions)
    except KafkaError as error:
        if error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.BROKER_NOT_AVAILABLE):
            return 0
        raise
