"""Counts the messages on a run's network and the transitions of its state machines.

Production code contains no counters. A meter at each end of a virtual connection follows the frames and reads only
their headers. To see transitions, a property replaces the attribute that holds a state during a run, as planted bugs
replace functions. Changes of partitions are read at the end from the committed states that the judge saw.

Tables list the reachable messages and transitions; the important figure is what a campaign never reached.
"""

from __future__ import annotations

import contextlib
import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.protocol.api import APIS, ApiKey
from moldau_broker.coordinator.group.core import group
from moldau_broker.coordinator.transaction.core import state as transaction_state
from moldau_broker.replication import follower, replica
from moldau_broker.server.handlers.apis import BASE_APIS
from moldau_jepsen.coverage.situations import Situation, situations_watched
from moldau_jepsen.world.network.hosts import EPHEMERAL_PORTS
from moldau_quorum.broker_side.metadata_fetch import METADATA_FETCH_KEY
from moldau_quorum.log.port import QUORUM_MESSAGE_KEY
from moldau_quorum.log.raft.core import progress, ready
from moldau_quorum.log.raft.core import raft_core as core
from moldau_quorum.metadata import image, records
from moldau_quorum.node.serving.apis import SERVED_APIS
from moldau_quorum.node.voters.leadership_transfer import LEADERSHIP_TRANSFER_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from moldau_jepsen.simulation.judge.invariants import ClusterInvariants, PartitionState
    from moldau_jepsen.world.network.connection import VirtualConnection

START = "(start)"
"""The state before the first."""
ISR = "partition"
RECORDS = "metadata records"
SITUATIONS = "rare situations"
_REQUEST_START_BYTES = 12  # size, API key, version, correlation id
_RESPONSE_START_BYTES = 8  # size, correlation id


class MessageKind(NamedTuple):
    """One kind of message on the wire."""

    api_key: int
    version: int
    is_request: bool
    sender: str
    """``client``, ``broker`` or ``controller``; so the receiver."""
    receiver: str


class Transition(NamedTuple):
    """One change of state of one kind of machine."""

    machine: str
    before: str
    after: str


@dataclass(slots=True)
class Coverage:
    """The counts of messages and transitions. Coverages of runs can be added up."""

    messages: Counter[MessageKind] = field(default_factory=Counter)
    transitions: Counter[Transition] = field(default_factory=Counter)

    def add(self, other: Coverage) -> None:
        """Takes in what another run has reached."""
        self.messages.update(other.messages)
        self.transitions.update(other.transitions)


_SNAPSHOT_ENDS = (records.SnapshotHeaderRecord, records.SnapshotFooterRecord)  # never in a command

# --- messages


class _Stream:
    """The frames of one direction of one connection."""

    __slots__ = ("collected", "end", "is_request", "kinds", "left", "pending", "receiver", "sender")

    def __init__(self, end: VirtualConnection, pending: dict[int, tuple[int, int]]) -> None:
        self.left = 0  # bytes of the present frame that are still to come
        self.end = end
        self.collected = b""  # of a header that came in parts
        self.pending = pending  # API key and version by correlation id
        self.is_request = end.local_address[1] in EPHEMERAL_PORTS
        self.kinds: dict[tuple[int, int], MessageKind] = {}  # by API key and version
        self.sender = _role(end.host.name)
        self.receiver = _role(end.peer_end.host.name)


def _role(host: str) -> str:
    name = host.partition("-")[0]
    return name if name in ("broker", "controller") else "client"


_KEEP_SESSIONS = (ApiKey.BROKER_HEARTBEAT, ApiKey.BROKER_REGISTRATION)


class MessageMeter:
    """The tap of a network. It reads plain text: what is encrypted would be counted as what it happens to look like."""

    def __init__(
        self,
        coverage: Coverage,
        violated: Callable[[str, str], None] | None = None,
        heard: Callable[[str], None] | None = None,
        sent: Callable[[VirtualConnection, MessageKind], None] | None = None,
    ) -> None:
        """Counts into ``coverage``.

        ``violated`` is called with a rule and a text for each answer without a request, because every delayed operation
        completes once. ``heard`` is called with the host of a broker whose registration or heartbeat a controller
        answers. ``sent`` is called with each message and the end that is about to send it.
        """
        self._sent = sent
        self._counts = coverage.messages
        self._violated = violated
        self._heard = heard
        self._streams: dict[tuple[int, bool], _Stream] = {}
        self._pending: dict[int, dict[int, tuple[int, int]]] = {}

    def __call__(self, end: VirtualConnection, data: bytes) -> None:
        """``end`` sends ``data``."""
        key = (end.number, end.local_address[1] in EPHEMERAL_PORTS)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream(end, self._pending.setdefault(end.number, {}))
        position = stream.left
        if stream.collected:
            data, position, stream.collected = stream.collected + data, 0, b""
        size = len(data)
        needed = _REQUEST_START_BYTES if stream.is_request else _RESPONSE_START_BYTES
        while size - position >= needed:
            self._count(stream, data[position : position + needed])
            position += 4 + int.from_bytes(data[position : position + 4], "big")
        if position < size:
            stream.collected, stream.left = data[position:], 0
        else:
            stream.left = position - size

    def _count(self, stream: _Stream, header: bytes) -> None:
        if stream.is_request:
            api = int.from_bytes(header[4:6], "big"), int.from_bytes(header[6:8], "big")
            if api[0] != QUORUM_MESSAGE_KEY:  # those go one way
                stream.pending[int.from_bytes(header[8:12], "big")] = api
        else:
            correlation_id = int.from_bytes(header[4:8], "big")
            found = stream.pending.pop(correlation_id, None)
            if found is None:
                if self._violated is not None:
                    text = f"a {stream.sender} answers a {stream.receiver} with correlation id {correlation_id}"
                    self._violated("answered-once", f"{text}, which does not wait for it (any more)")
                return
            api = found
            if self._heard is not None and api[0] in _KEEP_SESSIONS:
                self._heard(stream.end.peer_end.host.name)
        kind = stream.kinds.get(api)
        if kind is None:
            kind = stream.kinds[api] = MessageKind(*api, stream.is_request, stream.sender, stream.receiver)
        self._counts[kind] += 1
        if self._sent is not None:
            self._sent(stream.end, kind)


# --- transitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A kind of state machine whose states are the values of an enumeration, held in an attribute."""

    name: str
    owner: type
    attribute: str
    states: type[enum.Enum]
    table: Mapping[Any, Sequence[enum.Enum]] | None = None
    """The legal transitions, where the production code has a table of them."""


MACHINES = (
    Machine(name="quorum member", owner=core.RaftCore, attribute="role", states=ready.Role),
    Machine(
        name="quorum follower, to its leader",
        owner=progress.Progress,
        attribute="state",
        states=progress.ProgressState,
    ),
    Machine(name="replica", owner=replica.Replica, attribute="role", states=replica.Role),
    Machine(name="follower fetch", owner=follower.Followed, attribute="state", states=follower.FollowState),
    Machine(
        name="consumer group", owner=group.Group, attribute="state", states=group.GroupState, table=group.TRANSITIONS
    ),
)
TRANSACTION = "transaction"


@contextlib.contextmanager
def watched(coverage: Coverage) -> Iterator[None]:
    """Counts transitions during the block."""
    counts = coverage.transitions
    with contextlib.ExitStack() as stack:
        for machine in MACHINES:
            stack.enter_context(_replaced(machine.owner, machine.attribute, _property(machine, counts)))
        moved = transaction_state.Transaction.moved
        replay = image.ImageEditor.replay_command

        def counting_moved(
            before: transaction_state.Transaction,
            status: transaction_state.TransactionStatus,
            wall_ms: int,
            **changes: object,
        ) -> transaction_state.Transaction:
            after = moved(before, status, wall_ms, **changes)
            counts[Transition(TRANSACTION, before.status.label, status.label)] += 1
            return after

        def counting_replay(editor: image.ImageEditor, command: records.Command) -> bool:
            accepted = replay(editor, command)
            for record in command.records if accepted else ():
                counts[Transition(RECORDS, START, type(record).__name__)] += 1
            return accepted

        situations: Counter[Situation] = Counter()
        stack.callback(lambda: count_situations(situations, coverage))
        stack.enter_context(situations_watched(situations))
        stack.enter_context(_replaced(transaction_state.Transaction, "moved", counting_moved))
        stack.enter_context(_replaced(image.ImageEditor, "replay_command", counting_replay))
        yield


def _property(machine: Machine, counts: Counter[Transition]) -> property:
    """A property in place of a state's attribute that counts changes; a slot keeps its value where it was."""
    name = machine.attribute
    slot = vars(machine.owner).get(name)
    read: Callable[[object], enum.Enum]
    write: Callable[[object, enum.Enum], None]
    if slot is not None and hasattr(slot, "__set__"):
        read, write = slot.__get__, slot.__set__
    else:

        def read(instance: object) -> enum.Enum:
            value: enum.Enum = vars(instance)[name]
            return value

        def write(instance: object, value: enum.Enum) -> None:
            vars(instance)[name] = value

    def change(instance: object, value: enum.Enum) -> None:
        try:
            before = read(instance)
        except (AttributeError, KeyError):
            counts[Transition(machine.name, START, value.value)] += 1
        else:
            if before is not value:
                counts[Transition(machine.name, before.value, value.value)] += 1
        write(instance, value)

    return property(read, change)


@contextlib.contextmanager
def _replaced(owner: type, name: str, replacement: object) -> Iterator[None]:
    original = vars(owner).get(name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


# --- partitions


class PartitionChange(enum.Enum):
    """The changes of a partition in committed metadata; one record may be several of them."""

    CREATED = "created"
    SHRUNK = "in-sync set shrinks"
    GROWN = "in-sync set grows"
    ELECTED = "in-sync replica elected"
    ELECTED_ELIGIBLE = "eligible replica elected (KIP-966)"
    ELECTED_LAST = "last known leader elected (KIP-966)"
    ELECTED_UNCLEAN = "other replica elected (unclean)"
    RENEWED = "same leader, new epoch"
    LEADERLESS = "loses its leader"
    ELIGIBLE_GROWS = "eligible replicas grow (KIP-966)"
    ELIGIBLE_SHRINKS = "eligible replicas shrink (KIP-966)"
    REPLICAS = "replicas change"


def partition_changes(before: PartitionState | None, after: PartitionState, last_leader: int) -> list[PartitionChange]:
    """Returns what a change of committed metadata does to a partition; ``last_leader`` led it last (-1: none yet)."""
    if before is None:
        return [PartitionChange.CREATED]
    found: list[PartitionChange] = []
    if set(before.isr) - set(after.isr):
        found.append(PartitionChange.SHRUNK)
    if set(after.isr) - set(before.isr):
        found.append(PartitionChange.GROWN)
    if set(after.elr) - set(before.elr):
        found.append(PartitionChange.ELIGIBLE_GROWS)
    if set(before.elr) - set(after.elr):
        found.append(PartitionChange.ELIGIBLE_SHRINKS)
    if set(before.replicas) != set(after.replicas):
        found.append(PartitionChange.REPLICAS)
    if after.leader != before.leader:
        if after.leader < 0:
            found.append(PartitionChange.LEADERLESS)
        elif after.leader in before.isr:
            found.append(PartitionChange.ELECTED)
        elif after.leader in before.elr:
            found.append(PartitionChange.ELECTED_ELIGIBLE)
        elif not before.isr and not before.elr and after.leader == last_leader:
            found.append(PartitionChange.ELECTED_LAST)
        else:
            found.append(PartitionChange.ELECTED_UNCLEAN)
    elif after.leader_epoch != before.leader_epoch:
        found.append(PartitionChange.RENEWED)
    return found


def count_partition_changes(judge: ClusterInvariants, coverage: Coverage) -> None:
    """Counts the changes of all partitions that the judge saw committed."""
    for record in judge.partitions.values():
        before: PartitionState | None = None
        last_leader = last_epoch = -1
        for epoch, after in sorted(record.states.items()):
            # Brokers apply several changes at once: the states in between are unknown.
            if epoch == last_epoch + 1:
                for change in partition_changes(before, after, last_leader):
                    coverage.transitions[Transition(ISR, START, change.value)] += 1
            before, last_epoch = after, epoch
            last_leader = after.leader if after.leader >= 0 else last_leader


def count_situations(situations: Mapping[Situation, int], coverage: Coverage) -> None:
    """Adds the counts of rare situations."""
    for situation, count in situations.items():
        coverage.transitions[Transition(SITUATIONS, START, situation.value)] += count


# --- what could be reached


PRIVATE_MESSAGES = {
    QUORUM_MESSAGE_KEY: "quorum message",
    METADATA_FETCH_KEY: "metadata fetch",
    LEADERSHIP_TRANSFER_KEY: "leadership transfer",
}
"""Moldau's own messages on controller listeners, beside Kafka's."""


def message_name(api_key: int) -> str:
    """Returns the name of an API, as Kafka writes it."""
    private = PRIVATE_MESSAGES.get(api_key)
    if private is not None:
        return private
    return APIS[api_key].name if api_key in APIS else f"unknown key {api_key}"


def reachable_messages() -> dict[tuple[int, str], range]:
    """Versions of each API that a kind of server answers, by API key and kind of server."""
    found: dict[tuple[int, str], range] = {}
    for served in BASE_APIS:
        found[int(served.key), "broker"] = range(served.first_version, served.last_version + 1)
    for key in SERVED_APIS:
        versions = APIS[key].versions
        found[int(key), "controller"] = range(versions.first, versions.last + 1)
    for key in PRIVATE_MESSAGES:
        found[key, "controller"] = range(1, 2)
    return found


def reachable_transitions() -> list[Transition]:
    """Returns the transitions of the tables in production code; without a table, the entry of each state."""
    found: list[Transition] = []
    for machine in MACHINES:
        if machine.table is None:
            found += [Transition(machine.name, "", state.value) for state in machine.states]
        else:
            found += [
                Transition(machine.name, before.value, after.value)
                for before, targets in machine.table.items()
                for after in targets
            ]
    found += [
        Transition(TRANSACTION, before.label, after.label)
        for before, targets in transaction_state.TRANSITIONS.items()
        for after in targets
    ]
    found += [Transition(ISR, "", change.value) for change in PartitionChange]
    found += [Transition(SITUATIONS, "", situation.value) for situation in Situation]
    found += [
        Transition(RECORDS, "", record.__name__) for record in records.RECORD_CLASSES if record not in _SNAPSHOT_ENDS
    ]
    return found
