"""Asks for things of many partitions and brokers, of which some do not answer: the others are shown.

One leader or coordinator that hangs would otherwise hide all that the other brokers know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from moldau.admin import AdminError
from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from moldau import Admin, TopicPartition
    from moldau.admin import (
        ApiVersion,
        ConfigEntry,
        ConfigResource,
        GroupListing,
        LogDirDescription,
        TopicDescription,
        TransactionListing,
    )

C = TypeVar("C", dict[Any, Any], list[Any])
K = TypeVar("K")
V = TypeVar("V")

OFFSETS_S: Final = 10.0
"""How long leaders may take to tell offsets, and brokers to describe their log directories or APIs."""
LISTING_S: Final = 15.0
"""How long brokers may take to list what they coordinate. A coordinator that has just started loads its logs first."""
NAMED_MAX: Final = 5
"""Failures that a message names; it counts the others."""


class Offsets(NamedTuple):
    """Offsets with their timestamps, and the errors of the partitions without one, by name."""

    found: Mapping[TopicPartition, tuple[int, int]]
    failures: Mapping[str, KafkaError]


def results_of(error: AdminError, kind: type[C]) -> C:
    """Returns what a call that failed for some of its elements has returned for the others, of the ``kind`` it is."""
    return error.results if isinstance(error.results, kind) else kind()


async def ask_offsets(
    admin: Admin, wanted: Mapping[TopicPartition, int], *, within_s: float = OFFSETS_S, isolation_level: int = 0
) -> Offsets:
    """Returns the offsets of the partitions whose leaders answer in time.

    Raises:
        KafkaError: the login was refused, or no broker can be used.
    """
    if not wanted:
        return Offsets({}, {})
    asked: dict[tuple[str, int], int] = dict(wanted.items())
    try:
        bounded = admin.within(round(within_s * 1000))
        return Offsets(await bounded.list_offsets(asked, isolation_level=isolation_level), {})
    except AdminError as error:
        return Offsets(results_of(error, dict), error.failures)


async def ask_log_dirs(
    admin: Admin, brokers: Sequence[int], *, partitions: Iterable[tuple[str, int]] | None = None
) -> tuple[dict[int, list[LogDirDescription]], Mapping[str, KafkaError]]:
    """Returns the log directories of the brokers that answer in time, and the errors of the others."""
    bounded = admin.within(round(OFFSETS_S * 1000))
    try:
        return await bounded.describe_log_dirs(brokers, partitions=partitions), {}
    except AdminError as error:
        return results_of(error, dict), {name: _of_directories(each) for name, each in error.failures.items()}
    except KafkaError as error:
        if len(brokers) != 1:
            raise
        return {}, {f"broker {brokers[0]}": _of_directories(error)}


def _of_directories(error: KafkaError) -> KafkaError:
    """Adds to the error of a broker that is not there what its directories may have to do with it."""
    if error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
        return error
    text = "a broker ends when the last of its log directories has failed, and its own log then names the cause"
    return KafkaError(error.code, f"{error.message}; {text}")


async def ask_api_versions(
    admin: Admin, brokers: Sequence[int] = ()
) -> tuple[dict[int, list[ApiVersion]], Mapping[str, KafkaError]]:
    """Returns the APIs of the brokers that answer in time, by id, and the errors of the others.

    Without ``brokers``, all in service are asked.

    Raises:
        KafkaError: none of them answered, the login was refused, or no broker can be used.
    """
    bounded = admin.within(round(OFFSETS_S * 1000))
    try:
        wanted = brokers or [one.node_id for one in (await bounded.describe_cluster()).brokers]
        return await bounded.describe_api_versions(wanted), {}
    except AdminError as error:
        found = results_of(error, dict)
        if not found:
            raise
        return found, error.failures


async def ask_groups(
    admin: Admin, *, states: Sequence[str] = (), types: Sequence[str] = (), within_s: float = LISTING_S
) -> tuple[list[GroupListing], Mapping[str, KafkaError]]:
    """Returns the groups of the brokers that answer in time, by id, and the errors of the others.

    Raises:
        KafkaError: no broker did.
    """
    try:
        return await admin.within(round(within_s * 1000)).list_groups(states=states, types=types), {}
    except AdminError as error:
        return results_of(error, list), error.failures


async def ask_transactions(
    admin: Admin,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    min_duration_ms: int = -1,
    id_pattern: str | None = None,
    within_s: float = LISTING_S,
) -> tuple[list[TransactionListing], Mapping[str, KafkaError]]:
    """Returns the transactional ids of the brokers that answer in time, sorted, and the errors of the others.

    Raises:
        KafkaError: no broker did.
    """
    bounded = admin.within(round(within_s * 1000))
    try:
        listed = await bounded.list_transactions(
            states=states, producer_ids=producer_ids, min_duration_ms=min_duration_ms, id_pattern=id_pattern
        )
    except AdminError as error:
        return results_of(error, list), error.failures
    return listed, {}


async def describe_present(admin: Admin, names: Iterable[str]) -> dict[str, TopicDescription]:
    """Returns the topics that still exist, of those that were listed a moment before.

    Raises:
        KafkaError: another topic cannot be described.
    """
    return await _of_present(admin.describe_topics, names)


def is_of_gone_topics(error: AdminError) -> bool:
    """Returns whether a call failed only for topics that do not exist."""
    gone = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
    return all(each.code in gone for each in error.failures.values())


async def configs_of_present(
    admin: Admin, topics: Iterable[ConfigResource]
) -> Mapping[ConfigResource, Mapping[str, ConfigEntry]]:
    """Returns the configurations of those topics that still exist.

    Raises:
        KafkaError: another configuration cannot be described.
    """
    return await _of_present(admin.describe_configs, topics)


async def _of_present(describe: Callable[[list[K]], Awaitable[dict[K, V]]], topics: Iterable[K]) -> dict[K, V]:
    """Returns what a call says of those topics that still exist."""
    wanted = list(topics)
    try:
        return await describe(wanted) if wanted else {}
    except AdminError as error:
        if not is_of_gone_topics(error):
            raise
        return results_of(error, dict)


async def describe_present_configs(
    admin: Admin, resources: Iterable[ConfigResource]
) -> Mapping[ConfigResource, Mapping[str, ConfigEntry]]:
    """Returns the configurations of those that exist, that answer and that this user may describe.

    Raises:
        KafkaError: no broker can be used.
    """
    wanted = list(resources)
    try:
        return await admin.describe_configs(wanted) if wanted else {}
    except AdminError as error:
        return results_of(error, dict)


def summarize_failures(failures: Mapping[str, KafkaError]) -> str:
    """Returns the failures as one line: names, reasons and codes of the first, and how many more there are."""
    shown = [f"{name}: {error.message} ({error.code.name})" for name, error in list(failures.items())[:NAMED_MAX]]
    more = len(failures) - len(shown)
    return "; ".join([*shown, f"and {more} more"] if more else shown)
