"""The order of a rolling restart, and what keeps the next node from being restarted. Pure.

Controllers come before brokers, because controllers of a new version serve brokers of the old one, not the other way
round. The active controller comes last among them, so that leadership of the quorum moves once. A node is restarted
only when the loss of it is all that is lost: every voter has caught up, every broker is in service, and every replica
is in sync.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.runtime.config import join_address
from moldau_cli.health import is_silent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from moldau.admin import QuorumDescription, TopicDescription

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
ANSWER_DELAY_MS: Final = 100
"""An answer of a process that has ended may reach the active controller so much later."""

Replica = tuple[str, int, int]
"""Topic, partition and broker; ``NO_LEADER`` stands for the leader of a partition that has none."""
NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RollNode:
    """A process that is restarted."""

    node_id: int
    roles: tuple[str, ...]
    """Broker, controller, or both."""
    host: str
    port: int
    """Of the broker, or of the controller if it is none."""

    def __str__(self) -> str:
        return f"{' and '.join(self.roles)} {self.node_id} ({join_address(self.host, self.port)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The cluster's report at one time."""

    quorum: QuorumDescription
    live: frozenset[int]
    """Brokers in service."""
    topics: Mapping[str, TopicDescription]


def next_node(remaining: Collection[RollNode], leader_id: int) -> RollNode:
    """Returns the node to restart next; ``remaining`` is not empty."""

    def place(node: RollNode) -> tuple[int, int]:
        if CONTROLLER not in node.roles:
            return 2, node.node_id
        return int(node.node_id == leader_id), node.node_id

    return min(remaining, key=place)


def roll_nodes(brokers: Mapping[int, tuple[str, int]], controllers: Mapping[int, tuple[str, int]]) -> list[RollNode]:
    """Returns the nodes of a cluster, ascending; a node with both roles is one process."""
    found = []
    for node_id in sorted({*brokers, *controllers}):
        roles = ((CONTROLLER,) if node_id in controllers else ()) + ((BROKER,) if node_id in brokers else ())
        host, port = brokers.get(node_id) or controllers[node_id]
        found.append(RollNode(node_id=node_id, roles=roles, host=host, port=port))
    return found


def out_of_sync(topics: Mapping[str, TopicDescription]) -> frozenset[Replica]:
    """Returns the replicas that are not in sync, and the leaders that are missing."""
    return frozenset(
        (name, part.partition, node)
        for name, topic in topics.items()
        for part in topic.partitions
        for node in [*(set(part.replicas) - set(part.isr)), *([NO_LEADER] if part.leader < 0 else [])]
    )


def tolerated_after(
    tolerated: Collection[Replica], node_id: int, topics: Mapping[str, TopicDescription]
) -> frozenset[Replica]:
    """Returns what stays tolerated after a restart of a node.

    Missing leaders that it may be do not, nor do its replicas; but a replica whose partition stays without a leader
    cannot catch up.
    """
    may_lead = {
        (name, part.partition)
        for name, topic in topics.items()
        for part in topic.partitions
        if node_id in part.isr or node_id in part.elr
    }
    without_leader = {(topic, number) for topic, number, node in tolerated if node == NO_LEADER} - may_lead
    return frozenset(
        one for one in tolerated if (one[0], one[1]) in without_leader or one[2] not in (node_id, NO_LEADER)
    )


def absent(picture: Picture, nodes: Iterable[RollNode]) -> frozenset[int]:
    """Returns the nodes that are down: brokers out of service, and voters that the active controller does not hear."""
    return frozenset(one.node_id for one in nodes if obstacles(picture, [one], tolerated=out_of_sync(picture.topics)))


class Comeback:
    """Notices that a restarted voter answers the active controller again.

    A voter's last answer may come from the process that has ended. So an answer counts if it is later than the first
    look after the end of that process, by the clock of the active controller, which is another one after a change.
    """

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._leader_id = -1
        self._since_ms = 0

    def has_answered(self, quorum: QuorumDescription) -> bool:
        """Returns whether the voter has answered since; call it with each look after the end of the old process."""
        voters = {one.replica_id: one for one in quorum.voters}
        leader, own = voters.get(quorum.leader_id), voters.get(self._node_id)
        if leader is None or own is None:
            return False
        if leader.replica_id != self._leader_id:
            self._leader_id, self._since_ms = leader.replica_id, leader.last_fetch_ms
        return own.last_fetch_ms > self._since_ms + ANSWER_DELAY_MS


def obstacles(
    picture: Picture, nodes: Iterable[RollNode], *, tolerated: Collection[Replica] = (), log_end: int = 0
) -> list[str]:
    """Returns what must change before a node may be restarted, the most serious first; empty if nothing.

    Args:
        picture: The cluster now.
        nodes: The nodes that must be in service.
        tolerated: Replicas that were out of sync before the roll began, if the user accepts that.
        log_end: The end of the metadata log that every voter must have reached.
    """
    members = list(nodes)
    found = list(_of_quorum(picture.quorum, [one.node_id for one in members if CONTROLLER in one.roles], log_end))
    found += [
        f"broker {one.node_id} is not in service"
        for one in members
        if BROKER in one.roles and one.node_id not in picture.live
    ]
    lacking = sorted({(topic, number) for topic, number, _ in out_of_sync(picture.topics) - set(tolerated)})
    if lacking:
        topic, number = lacking[0]
        more = f" and {len(lacking) - 1} more partitions lack" if len(lacking) > 1 else " lacks"
        found.append(f"{topic}-{number}{more} a replica in sync")
    return found


def _of_quorum(quorum: QuorumDescription, expected: Iterable[int], log_end: int) -> Iterator[str]:
    leader = next((one for one in quorum.voters if one.replica_id == quorum.leader_id), None)
    if leader is None:
        yield "no controller is active"
        return
    voters = {one.replica_id: one for one in quorum.voters}
    for node_id in expected:
        voter = voters.get(node_id)
        if voter is None:
            yield f"controller {node_id} is not a voter"
        elif is_silent(voter, leader.last_fetch_ms):
            yield f"controller {node_id} does not answer the active one"
        elif voter.log_end_offset < log_end:
            yield f"controller {node_id} lacks {log_end - voter.log_end_offset} records of the metadata log"


def unserved_meanwhile(
    topics: Mapping[str, TopicDescription], min_isr: Mapping[str, int], restarted: Collection[int]
) -> list[tuple[str, str]]:
    """Returns partitions that would be offline, or refuse acks=all, while one of the brokers restarts, and why."""
    found = []
    for name, topic in sorted(topics.items()):
        for part in topic.partitions:
            count = len(part.replicas)
            least = min(min_isr.get(name, 1), count)
            if count - 1 < max(1, least) and not set(restarted).isdisjoint(part.replicas):
                reason = "1 replica" if count == 1 else f"{count} replicas, min.insync.replicas {least}"
                found.append((f"{name}-{part.partition}", reason))
    return found


def names(nodes: Sequence[RollNode]) -> str:
    """Returns the ids, as ``--nodes`` takes them."""
    return ",".join(str(one.node_id) for one in nodes)
