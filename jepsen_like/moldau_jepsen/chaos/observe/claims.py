"""Collects the nodes' own claims to lead, with their epochs, by direct requests past proxies and cuts.

A broker is asked twice: for its Metadata, of which only what it says of itself counts, and with the epochs that it
named (ListOffsets, KIP-320), which only the leader of that epoch answers. A controller is asked to describe the quorum,
which only an active one does. ``checkers.split_brain`` judges what is gathered over a run.

Topics whose names are given again are not asked for: answers name no ids, and another topic begins its epochs again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.runtime.config import ADMIN_CONFIG, parse_address
from moldau.runtime.tls.context import client_tls
from moldau_jepsen.history import Evidence, Lead, TopicPartition
from moldau_jepsen.launcher import probe
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.launcher.spec import Door

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence

    from moldau.protocol.messages.describe_quorum import DescribeQuorumResponse
    from moldau.protocol.messages.list_offsets import ListOffsetsResponse
    from moldau.protocol.messages.metadata import MetadataResponse
    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.launcher import LocalCluster

ANSWER_TIMEOUT_MS = 300.0
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
QUORUM = TopicPartition(probe.METADATA_TOPIC, 0)

_FROM_LEADERS = (ErrorCode.NONE, ErrorCode.OFFSET_NOT_AVAILABLE)
"""Of ListOffsets: a leader that does not know yet what is committed is a leader (KIP-207)."""


def claimed(broker_id: int, answer: MetadataResponse) -> list[Lead]:
    """Returns the claims of a broker's Metadata about that broker."""
    return [
        Lead(TopicPartition(topic.name or "", part.partition_index), part.leader_epoch, broker_id, Evidence.CLAIMED)
        for topic in answer.topics
        for part in topic.partitions
        if part.leader_id == broker_id and part.leader_epoch >= 0
    ]


def epochs(claims: Sequence[Lead]) -> dict[tuple[str, int], int]:
    """The epochs that were claimed, by topic and number: other brokers do not say where the log ends."""
    return {(lead.partition.topic, lead.partition.partition): lead.epoch for lead in claims}


def served(claims: Sequence[Lead], answer: ListOffsetsResponse) -> list[Lead]:
    """Returns the claims that the broker confirmed by its response to a request with their ``epochs``."""
    led = {
        TopicPartition(topic.name, part.partition_index)
        for topic in answer.topics
        for part in topic.partitions
        if ErrorCode.of(part.error_code) in _FROM_LEADERS
    }
    return [lead._replace(evidence=Evidence.SERVED) for lead in claims if lead.partition in led]


def claimed_quorum(controller_id: int, answer: DescribeQuorumResponse) -> list[Lead]:
    """Returns the claim of a controller's quorum description about that controller."""
    if answer.error_code:
        return []
    return [
        Lead(QUORUM, part.leader_epoch, controller_id, Evidence.CLAIMED)
        for topic in answer.topics
        for part in topic.partitions
        if not part.error_code and part.leader_id == controller_id
    ]


def question_tls(environment: Environment, connection: Mapping[str, object]) -> ssl.SSLContext | None:
    """Returns the TLS settings for questions to the nodes, from the clients' own keys; None without TLS.

    Raises:
        ConfigError: The configuration is not valid.
    """
    tls = client_tls(environment.disk, ADMIN_CONFIG.parse({"bootstrap.servers": "127.0.0.1:1", **connection}))
    return None if tls is None else tls.current()


class ClaimSampler:
    """Asks the nodes of a run. Blocks; not for use by several threads at once."""

    def __init__(
        self,
        topics: Sequence[str],
        cluster: LocalCluster | None,
        bootstrap: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Without ``cluster`` the brokers are those that a broker of ``bootstrap`` names, and no controller is asked.

        These are asked over ``tls``, if it is given.
        Nothing was asked yet.
        """
        self._topics = [*topics, *INTERNAL_TOPICS]
        self._cluster = cluster
        self._tls = tls
        self._bootstrap = [Door(*parse_address(each.strip()), tls=tls) for each in bootstrap.split(",")]

    def sample(self) -> list[Lead]:
        """Returns the present view of the nodes that answer."""
        found: list[Lead] = []
        for broker_id, door in self._brokers().items():
            metadata = probe.fetch_metadata(door, self._topics, ANSWER_TIMEOUT_MS)
            claims = [] if metadata is None else claimed(broker_id, metadata)
            if not claims:
                continue
            found += claims
            answer = probe.fetch_ends(door, epochs(claims), ANSWER_TIMEOUT_MS)
            found += [] if answer is None else served(claims, answer)
        for node in () if self._cluster is None else self._cluster.controllers:
            if self._runs(node.node_id):
                quorum = probe.fetch_quorum(node.door, ANSWER_TIMEOUT_MS)
                found += [] if quorum is None else claimed_quorum(node.node_id, quorum)
        return found

    def _brokers(self) -> Mapping[int, Door]:
        if self._cluster is not None:
            return {node.node_id: node.door for node in self._cluster.brokers if self._runs(node.node_id)}
        for door in self._bootstrap:
            metadata = probe.fetch_metadata(door, [], ANSWER_TIMEOUT_MS)
            if metadata is not None:
                return {broker.node_id: Door(broker.host, broker.port, tls=self._tls) for broker in metadata.brokers}
        return {}

    def _runs(self, node_id: int) -> bool:
        return self._cluster is not None and self._cluster.state(node_id) is ProcessState.RUNNING
