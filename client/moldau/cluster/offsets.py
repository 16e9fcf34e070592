"""ListOffsets for many partitions: requests to their leaders, retried until a deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.cluster.background import exits_unwrapped
from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.cluster.metadata import TopicPartition
from moldau.cluster.troubles import InvalidTopicError, check_topic_names
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.runtime.net.served_versions import NeededVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau.cluster.client import ClusterClient


_NEEDED: Final = {
    -3: NeededVersion(7, "the offset of the greatest timestamp (KIP-734, Kafka 3.0)"),
    -4: NeededVersion(8, "the first offset on the leader's disk (KIP-405, Kafka 3.6)"),
    -5: NeededVersion(9, "the last offset in the object store (KIP-1005, Kafka 3.9)"),
}
"""The versions that some timestamps need: in older ones, brokers look for a record that is not older than that."""
_UNKNOWN_PARTITION_MS: Final = 1_000.0
"""How long a call that reports single failures waits for a partition that its topic lacks, which may be new."""


async def list_offsets(
    client: ClusterClient,
    wanted: Mapping[TopicPartition, int],
    timeout_ms: float,
    isolation_level: int = 0,
    failures: dict[TopicPartition, KafkaError] | None = None,
) -> dict[TopicPartition, tuple[int, int]]:
    """Returns (offset, timestamp) for each partition and timestamp; (-1, -1) if no record is that late.

    The timestamp -1 means the end, -2 the start, -3 the greatest timestamp. All leaders are asked at the same time.
    With ``failures`` an error of a partition ends nothing: it is added there, and the result has the other offsets. A
    partition that its topic lacks is such an error; without ``failures`` the call waits for it.

    Raises:
        KafkaError: a partition is unknown, or the client is not authorized; not with ``failures``.
        trio.TooSlowError: offsets are missing after ``timeout_ms``; not with ``failures``.
    """
    deadline_ms = client.now_ms + timeout_ms
    search = _Search(client, wanted, isolation_level, raises=failures is None)
    attempts, clusters_left = 0, client.clusters_left
    while True:
        if clusters_left != client.clusters_left:  # what was found means other records now
            clusters_left = client.clusters_left
            search = _Search(client, wanted, isolation_level, raises=failures is None)
        left_ms = deadline_ms - client.now_ms
        with trio.move_on_after(max(left_ms, 0) / 1000) as scope:
            await search.ask_leaders()
        if scope.cancelled_caught and left_ms > 0:
            search.timed_out()
        if failures is None:
            for error in search.failures.values():
                raise error
        else:
            if client.now_ms - deadline_ms + timeout_ms >= _UNKNOWN_PARTITION_MS:
                search.refuse_absent()
        missing = search.missing()
        if not missing:
            break
        attempts += 1
        if client.bootstrap_error is not None:
            raise client.bootstrap_error
        if client.now_ms >= deadline_ms:
            late = f"within {timeout_ms:g} ms"
            if failures is None:
                names = ", ".join(map(str, missing))
                raise trio.TooSlowError(f"no offsets of {names} {late} ({search.cause(missing[0])})")
            for each in missing:
                text = f"no offsets of {each} {late} ({search.cause(each)})"
                search.failures[each] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, text)
            break
        client.request_update()
        await client.backoff(attempts)
    if failures is not None:
        failures.update({each: search.failures[each] for each in wanted if each in search.failures})
    return search.found


class _Search:
    """One call's partitions. Invariant: ``found`` and ``failures`` have none in common; both are final."""

    def __init__(
        self, client: ClusterClient, wanted: Mapping[TopicPartition, int], isolation_level: int, *, raises: bool
    ) -> None:
        """``raises``: an error is raised by itself, and must name its partition."""
        self._client = client
        self._raises = raises
        self._wanted = wanted
        self._isolation_level = isolation_level
        self._before = {topic: client.cluster_metadata.topics.get(topic) for topic, _ in wanted}
        self.found: dict[TopicPartition, tuple[int, int]] = {}
        self.failures: dict[TopicPartition, KafkaError] = {}
        for topic in self._before:
            try:
                check_topic_names([topic])
            except InvalidTopicError as error:
                self.failures |= {each: error for each in wanted if each.topic == topic}
            else:
                client.add_topic(topic, until_absent=True)
        self._reasons: dict[TopicPartition, str] = {}
        """Why the last request for a partition gave no outcome; leaders are not known for the others."""
        self._unanswered: dict[TopicPartition, int] = {}

    def cause(self, missing: TopicPartition) -> str:
        """Returns why the partition has no outcome, as far as it is known."""
        if absence := self._absence(missing):
            return absence
        if self._client.cluster_metadata.topics.get(missing.topic) is None:
            return f"no metadata of topic {missing.topic} arrived"
        return self._reasons.get(missing, ErrorCode.LEADER_NOT_AVAILABLE.name)

    def _absence(self, partition: TopicPartition) -> str:
        """Returns which partitions the topic has if the given one is none of them, else an empty text."""
        info = self._client.cluster_metadata.topics.get(partition.topic)
        if info is None or not 0 < len(info.partitions) <= partition.partition:
            return ""
        return f"topic {partition.topic} has partitions 0 to {len(info.partitions) - 1}"

    def refuse_absent(self) -> None:
        """Fails the partitions that their topics lack."""
        for each in self.missing():
            if absence := self._absence(each):
                text = f"{absence}, not {each.partition}"
                self.failures[each] = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)

    def timed_out(self) -> None:
        """Takes note that the requests of ``ask_leaders`` were given up."""
        for partition, node_id in self._unanswered.items():
            self._reasons[partition] = self._silent(node_id)

    def _silent(self, node_id: int) -> str:
        return f"{self._client.cluster_metadata.broker_name(node_id)} does not answer"

    def missing(self) -> list[TopicPartition]:
        """Returns the partitions without an outcome."""
        return [each for each in self._wanted if each not in self.found and each not in self.failures]

    async def ask_leaders(self) -> None:
        """Asks the known leaders once; a topic that was refused since the call began fails."""
        metadata = self._client.cluster_metadata
        by_node: dict[tuple[int, NeededVersion | None], list[TopicPartition]] = {}
        self._unanswered.clear()
        for partition in self.missing():
            leader = metadata.leader(partition)
            if leader is not None:
                by_node.setdefault((leader[0], _NEEDED.get(self._wanted[partition])), []).append(partition)
                self._unanswered[partition] = leader[0]
                continue
            self._reasons.pop(partition, None)
            self._client.add_topic(partition.topic, until_absent=True)
            try:
                metadata.check_topic(partition.topic, self._before[partition.topic])
            except KafkaError as error:
                self.failures[partition] = error
        with exits_unwrapped():
            async with trio.open_nursery() as nursery:
                for (node_id, needed), partitions in by_node.items():
                    nursery.start_soon(self._ask, node_id, partitions, needed)

    async def _ask(self, node_id: int, partitions: Sequence[TopicPartition], needed: NeededVersion | None) -> None:
        request = self._request(partitions)
        try:
            response = await self._client.request(node_id, ListOffsetsResponse, request, needed=needed)
        except TRANSPORT_ERRORS as error:
            self._client.logger.info("list-offsets-unanswered", node=node_id, error=error)
            late = isinstance(error, trio.TooSlowError)
            self._unfinished(partitions, self._silent(node_id) if late else ErrorCode.NETWORK_EXCEPTION.name)
            return
        except KafkaError as error:  # the leader serves no version that the request needs
            self.failures.update(dict.fromkeys(partitions, error))
            return
        self._unfinished(partitions, f"the answer of broker {node_id} has neither an offset nor an error")
        asked = dict.fromkeys(partitions)
        for topic in response.topics:
            for answer in topic.partitions:
                partition = TopicPartition(topic.name, answer.partition_index)
                if partition in asked:
                    self._take(partition, ErrorCode.of(answer.error_code), answer)

    def _unfinished(self, partitions: Iterable[TopicPartition], reason: str) -> None:
        for each in partitions:
            self._reasons[each] = reason
            self._unanswered.pop(each, None)

    def _request(self, partitions: Iterable[TopicPartition]) -> ListOffsetsRequest:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for partition in partitions:
            leader = self._client.cluster_metadata.leader(partition)
            topics.setdefault(partition.topic, []).append(
                ListOffsetsPartition(
                    partition_index=partition.partition,
                    current_leader_epoch=-1 if leader is None else leader[1],
                    timestamp=self._wanted[partition],
                )
            )
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self._isolation_level,
            topics=[ListOffsetsTopic(name=topic, partitions=parts) for topic, parts in topics.items()],
            timeout_ms=self._client.request_timeout_ms,
        )

    def _take(self, partition: TopicPartition, code: ErrorCode, answer: ListOffsetsPartitionResponse) -> None:
        if code is ErrorCode.NONE:
            self.found[partition] = (answer.offset, answer.timestamp)
        elif code.retriable:
            self._reasons[partition] = code.name
        else:
            self.failures[partition] = KafkaError(code, f"{partition}: {code.message}" if self._raises else None)
