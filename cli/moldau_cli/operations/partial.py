"""Asks for things of many partitions and brokers, of which some do not answer: the others are shown.

One leader or coordinator that hangs would otherwise hide all that the other brokers know.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from moldau.admin import AdminError
from moldau.admin.admin import Admin
from moldau.admin.calls.subjects import Calls
from moldau.admin.requester import Requester
from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from moldau import TopicPartition
    from moldau.admin import GroupListing, LogDirDescription, TopicDescription, TransactionListing
    from moldau.protocol.schema import Request, Response
    from moldau.runtime.net.served_versions import NeededVersion

    R = TypeVar("R", bound=Response)

T = TypeVar("T")

OFFSETS_S: Final = 10.0
"""How long leaders may take to tell offsets, and brokers to describe their log directories."""
LISTING_S: Final = 15.0
"""How long a broker may take to list what it coordinates. A coordinator that has just started loads its logs first."""
NAMED_MAX: Final = 5
"""Failures that a message names; it counts the others."""


class Offsets(NamedTuple):
    """Offsets with their timestamps, and the errors of the partitions without one, by name."""

    found: Mapping[TopicPartition, tuple[int, int]]
    failures: Mapping[str, KafkaError]


def results_of(error: AdminError) -> dict[Any, Any]:
    """Returns what a call that failed for some of its elements has returned for the others."""
    return error.results if isinstance(error.results, dict) else {}


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
        return Offsets(results_of(error), error.failures)


async def ask_log_dirs(
    admin: Admin, brokers: Sequence[int], *, partitions: Iterable[tuple[str, int]] | None = None
) -> tuple[dict[int, list[LogDirDescription]], Mapping[str, KafkaError]]:
    """Returns the log directories of the brokers that answer in time, and the errors of the others."""
    bounded = admin.within(round(OFFSETS_S * 1000))
    try:
        return await bounded.describe_log_dirs(brokers, partitions=partitions), {}
    except AdminError as error:
        return results_of(error), error.failures
    except KafkaError as error:
        if len(brokers) != 1:
            raise
        return {}, {f"broker {brokers[0]}": error}


async def describe_present(admin: Admin, names: Iterable[str]) -> dict[str, TopicDescription]:
    """Returns the topics that still exist, of those that were listed a moment before.

    Raises:
        KafkaError: another topic cannot be described.
    """
    wanted = list(names)
    try:
        return await admin.describe_topics(wanted) if wanted else {}
    except AdminError as error:
        gone = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
        if not isinstance(error.results, dict) or any(each.code not in gone for each in error.failures.values()):
            raise
        return error.results


def summary(failures: Mapping[str, KafkaError]) -> str:
    """Returns the failures as one line: names, reasons and codes of the first, and how many more there are."""
    shown = [f"{name}: {error.message} ({error.code.name})" for name, error in list(failures.items())[:NAMED_MAX]]
    more = len(failures) - len(shown)
    return "; ".join([*shown, f"and {more} more"] if more else shown)


class Listed(NamedTuple):
    """Groups by id, and the errors of the brokers that did not list theirs, by broker."""

    groups: list[GroupListing]
    failures: Mapping[str, KafkaError]


class ListedTransactions(NamedTuple):
    """Transactional ids, and the errors of the brokers that did not list theirs, by broker."""

    transactions: list[TransactionListing]
    failures: Mapping[str, KafkaError]


class ListingAdmin(Admin):
    """The admin client of commands. Its lists have what the brokers that answer know."""

    async def groups_of_each(
        self, *, states: Sequence[str] = (), types: Sequence[str] = (), within_s: float = LISTING_S
    ) -> Listed:
        """Returns the groups of all coordinators that answer in time.

        Raises:
            KafkaError: none did, or all refused.
        """

        async def ask(requester: Requester) -> list[GroupListing]:
            return await Calls(requester, ()).groups.list_groups(states=states, types=types)

        found, failures = await self._of_each(ask, within_s)
        groups = {one.group_id: one for each in found for one in each}
        return Listed([groups[group_id] for group_id in sorted(groups)], failures)

    async def transactions_of_each(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        min_duration_ms: int = -1,
        id_pattern: str | None = None,
        within_s: float = LISTING_S,
    ) -> ListedTransactions:
        """Returns the transactional ids of all coordinators that answer in time.

        Raises:
            KafkaError: none did, or all refused.
        """

        async def ask(requester: Requester) -> list[TransactionListing]:
            return await Calls(requester, ()).transactions.list_transactions(
                states=states, producer_ids=producer_ids, min_duration_ms=min_duration_ms, id_pattern=id_pattern
            )

        found, failures = await self._of_each(ask, within_s)
        ids = {one.transactional_id: one for each in found for one in each}
        return ListedTransactions([ids[name] for name in sorted(ids)], failures)

    async def _of_each(
        self, ask: Callable[[Requester], Awaitable[list[T]]], within_s: float
    ) -> tuple[list[list[T]], dict[str, KafkaError]]:
        """Asks all brokers at the same time; if one has just left, others have taken its part over, and are asked."""
        bounded = self._requester.within(round(within_s * 1000))
        while True:
            brokers = await bounded.fetch_brokers()
            found, failures = await bounded.at_once({each: partial(ask, _OneBroker(bounded, each)) for each in brokers})
            gone = [node for node, error in failures.items() if error.code is ErrorCode.BROKER_NOT_AVAILABLE]
            if gone and bounded.timeout_ms:
                await bounded.client.backoff(1)
                continue
            if failures and not found:
                raise next(iter(failures.values()))
            known = bounded.client.cluster_metadata.brokers
            return list(found.values()), {f"broker {known.get(node, node)}": one for node, one in failures.items()}


class _OneBroker(Requester):
    """Sends what is meant for each broker to a single one."""

    __slots__ = ("_node_id",)

    def __init__(self, bounded: Requester, node_id: int) -> None:
        super().__init__(bounded._caller, timeout_ms=bounded.timeout_ms, retries=bounded._retries)
        self._deadline_ms = bounded._deadline_ms
        self.cluster_client = bounded.cluster_client
        self._node_id = node_id

    async def ask_each(
        self,
        response_class: type[R],
        request: Request,
        *,
        code_of: Callable[[R], ErrorCode | None],
        needed: NeededVersion | None = None,
    ) -> list[tuple[int, R]]:
        """See ``Requester.ask_each``."""
        answer = await self.ask(response_class, request, node_id=self._node_id, code_of=code_of, needed=needed)
        return [(self._node_id, answer)]
