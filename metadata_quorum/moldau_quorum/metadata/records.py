"""Metadata records: the commands that the quorum orders, and their bytes.

The durable state of a cluster is a sequence of records, named and split as in KRaft (KIP-500, KIP-631). One entry of
the metadata log stores one *command*: records that take effect together or not at all, under a header that names the
controller that decided them.

    command  = checksum (8 bytes, big-endian xxh3_64 of the payload) + payload
    payload  = msgpack [format, controller_epoch, sequence, [record, ...]]
    record   = msgpack [type, version, field, field, ...]       fields in the order of the class
    uuid     = msgpack extension 1, 16 bytes
    endpoint = msgpack extension 2, msgpack [name, host, port, security_protocol]

Evolution: new fields are only added at the end, with a default and a higher version of the record. The cluster's
feature level ``metadata.version`` decides which version is written (``LEVELS``), so that a node that knows only lower
levels can read every record while the level is low. A reader accepts records of older versions and refuses newer ones;
the error names the record. The decoder checks type and arity of each field and never unpickles bytes.

    level 1   the first level
    level 2   partitions name the log directories of their replicas (KIP-858)
    level 3   delegation tokens (KIP-48)
    level 4   brokers report cordoned log directories (KIP-1066)

Fencing: ``controller_epoch`` is the Raft epoch in which the deciding controller was active, and ``sequence`` counts its
commands without gaps, from 0 for the command that holds its ``ControllerChangeRecord``.
``MetadataImage.apply_command`` ignores, identically on every node, a command that is not the next one of the active
controller. The controller may therefore decide against the projection of earlier commands that are not committed yet:
if one of those is lost, every later command is ignored too.
"""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, dataclass, field, fields
from typing import ClassVar, Final
from uuid import UUID

import msgpack
import xxhash

from moldau.values import BrokerId, LeaderEpoch

if typing.TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NO_LEADER: Final = BrokerId(-1)
"""``leader`` of a partition without a leader."""

NO_LEADER_CHANGE: Final = BrokerId(-2)
"""``PartitionChangeRecord.leader`` if the leader, and so the leader epoch, stays."""

METADATA_VERSION: Final = "metadata.version"
"""The feature whose level decides which versions of records are written."""
METADATA_LEVEL_FIRST: Final = 1
METADATA_LEVEL_DIRECTORIES: Final = 2
"""From this level on, partitions name the log directories of their replicas."""
METADATA_LEVEL_TOKENS: Final = 3
"""From this level on, there may be delegation tokens."""
METADATA_LEVEL_CORDONS: Final = 4
"""From this level on, registrations of brokers name their cordoned log directories."""
METADATA_LEVEL_TIERED: Final = 4
"""From this level on, topics may be tiered. A broker that does not know it hides what only the object store has."""
METADATA_LEVEL_LATEST: Final = 4

COMMAND_FORMAT: Final = 1
COMMAND_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum size of an encoded command; the controller splits larger decisions."""

_CHECKSUM_BYTES: Final = 8
_UUID_EXTENSION: Final = 1
_ENDPOINT_EXTENSION: Final = 2


class MetadataCorruptError(Exception):
    """Metadata bytes are damaged, or have a format that this version does not know."""


class CommandTooLargeError(Exception):
    """A command exceeds ``COMMAND_BYTES_MAX``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of one listener of a node."""

    name: str
    """Name of the listener, such as ``PLAINTEXT``."""
    host: str
    port: int
    security_protocol: int = 0
    """Kafka's number: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRecord:
    """Base of all records. ``TYPE`` is stored and never reused."""

    TYPE: ClassVar[int] = -1
    LEVELS: ClassVar[tuple[int, ...]] = (METADATA_LEVEL_FIRST,)
    """For each version of the record, from 0 on, the lowest ``metadata.version`` at which it is written; ascending. A
    field that a later version added names that version in its metadata (``since``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerChangeRecord(MetadataRecord):
    """The first record of a controller epoch."""

    TYPE: ClassVar[int] = 1
    controller_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord(MetadataRecord):
    """Identity of the cluster, written once by its first active controller."""

    TYPE: ClassVar[int] = 2
    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterControllerRecord(MetadataRecord):
    """The registration of a controller with its listeners (KIP-919)."""

    TYPE: ClassVar[int] = 3
    controller_id: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord(MetadataRecord):
    """The registration of a broker's new incarnation. It replaces every earlier registration of the id."""

    TYPE: ClassVar[int] = 4
    LEVELS: ClassVar[tuple[int, ...]] = (METADATA_LEVEL_FIRST, METADATA_LEVEL_CORDONS)
    broker_id: BrokerId
    incarnation_id: UUID
    broker_epoch: int
    """The offset at which the registration was decided; it grows with each registration in the cluster."""
    endpoints: tuple[Endpoint, ...]
    features: tuple[tuple[str, int, int], ...] = ()
    """Name, lowest and highest level that the broker supports."""
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[UUID, ...] = ()
    cordoned_log_dirs: tuple[UUID, ...] = field(default=(), metadata={"since": 1})
    """Directories that take no new replicas, as the broker reported last; not all of them need to work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord(MetadataRecord):
    """Removes a broker's registration."""

    TYPE: ClassVar[int] = 5
    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord(MetadataRecord):
    """Changes one incarnation: fenced or not, in controlled shutdown or not, or its log directories."""

    TYPE: ClassVar[int] = 6
    LEVELS: ClassVar[tuple[int, ...]] = (METADATA_LEVEL_FIRST, METADATA_LEVEL_CORDONS)
    broker_id: BrokerId
    broker_epoch: int
    fenced: bool | None = None
    """None leaves it as it was."""
    in_controlled_shutdown: bool | None = None
    """None leaves it as it was."""
    log_dirs: tuple[UUID, ...] | None = None
    """None leaves them as they were."""
    cordoned_log_dirs: tuple[UUID, ...] | None = field(default=None, metadata={"since": 1})
    """None leaves them as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord(MetadataRecord):
    """Creates a topic; its partitions follow in the same command."""

    TYPE: ClassVar[int] = 7
    name: str
    topic_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord(MetadataRecord):
    """Removes a topic, its partitions and its configuration."""

    TYPE: ClassVar[int] = 8
    topic_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord(MetadataRecord):
    """The whole state of a partition."""

    TYPE: ClassVar[int] = 9
    LEVELS: ClassVar[tuple[int, ...]] = (METADATA_LEVEL_FIRST, METADATA_LEVEL_DIRECTORIES)
    topic_id: UUID
    partition_id: int
    replicas: tuple[BrokerId, ...]
    """Broker ids in order of preference."""
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    partition_epoch: int = 0
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()
    elr: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()
    leader_recovery_state: int = 0
    """0 recovered, 1 recovering after an unclean election (KIP-704)."""
    directories: tuple[UUID, ...] = field(default=(), metadata={"since": 1})
    """Log directory of each replica, in the order of ``replicas``; empty if none is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord(MetadataRecord):
    """Changes one partition. None leaves a field as it was."""

    TYPE: ClassVar[int] = 10
    LEVELS: ClassVar[tuple[int, ...]] = (METADATA_LEVEL_FIRST, METADATA_LEVEL_DIRECTORIES)
    topic_id: UUID
    partition_id: int
    partition_epoch: int
    """The epoch after the change; the change applies to exactly the epoch before it."""
    leader: BrokerId = NO_LEADER_CHANGE
    """The new leader; any value but ``NO_LEADER_CHANGE`` raises the leader epoch by one."""
    isr: tuple[BrokerId, ...] | None = None
    replicas: tuple[BrokerId, ...] | None = None
    adding_replicas: tuple[BrokerId, ...] | None = None
    removing_replicas: tuple[BrokerId, ...] | None = None
    elr: tuple[BrokerId, ...] | None = None
    last_known_elr: tuple[BrokerId, ...] | None = None
    leader_recovery_state: int | None = None
    directories: tuple[UUID, ...] | None = field(default=None, metadata={"since": 1})
    """In the order of the replicas after the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord(MetadataRecord):
    """Sets one configuration value, or removes it."""

    TYPE: ClassVar[int] = 11
    resource_type: int
    """Kafka's number: 2 topic, 4 broker, 16 client metrics, 32 group."""
    resource_name: str
    """Topic name, broker id, or the empty string for the default of all brokers."""
    name: str
    value: str | None
    """None removes the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord(MetadataRecord):
    """The finalised level of a feature (KIP-584); level 0 turns the feature off."""

    TYPE: ClassVar[int] = 12
    name: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord(MetadataRecord):
    """Allocates a block of producer ids to a broker."""

    TYPE: ClassVar[int] = 13
    broker_id: BrokerId
    broker_epoch: int
    next_producer_id: int
    """The first id that is not allocated yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaRecord(MetadataRecord):
    """Sets one quota of an entity, or removes it (KIP-546)."""

    TYPE: ClassVar[int] = 14
    entity: tuple[tuple[str, str | None], ...]
    """Pairs of entity type (``user``, ``client-id``, ``ip``) and name, sorted by type; name None is the default
    entity."""
    key: str
    value: float | None
    """None removes the quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredentialRecord(MetadataRecord):
    """A SCRAM credential (KIP-554); the password itself is never stored."""

    TYPE: ClassVar[int] = 15
    user: str
    mechanism: int
    """1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramCredentialRecord(MetadataRecord):
    """Removes a SCRAM credential."""

    TYPE: ClassVar[int] = 16
    user: str
    mechanism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntryRecord(MetadataRecord):
    """Adds an access control entry; the type numbers are Kafka's (KIP-290)."""

    TYPE: ClassVar[int] = 17
    acl_id: UUID
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAccessControlEntryRecord(MetadataRecord):
    """Removes an access control entry."""

    TYPE: ClassVar[int] = 18
    acl_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationTokenRecord(MetadataRecord):
    """A delegation token (KIP-48), or its new expiry; the secret of a token is derived from its id and never stored.

    Principals have the form ``User:name``. Times are of the Unix epoch.
    """

    TYPE: ClassVar[int] = 21
    LEVELS: ClassVar[tuple[int, ...]] = (METADATA_LEVEL_TOKENS,)
    token_id: str
    owner: str
    requester: str
    """The principal that created it, for itself or for ``owner`` (KIP-373)."""
    renewers: tuple[str, ...]
    issue_ms: int
    max_ms: int
    """No renewal extends the token's life beyond."""
    expiry_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveDelegationTokenRecord(MetadataRecord):
    """Removes a delegation token."""

    TYPE: ClassVar[int] = 22
    LEVELS: ClassVar[tuple[int, ...]] = (METADATA_LEVEL_TOKENS,)
    token_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeaderRecord(MetadataRecord):
    """Opens a snapshot and names the position in the log that the snapshot represents."""

    TYPE: ClassVar[int] = 19
    offset: int
    """Last log offset that the snapshot contains."""
    epoch: int
    controller_id: int
    controller_epoch: int
    controller_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFooterRecord(MetadataRecord):
    """Closes a snapshot; a snapshot without a footer is incomplete."""

    TYPE: ClassVar[int] = 20
    record_count: int
    """Number of records between header and footer."""


RECORD_CLASSES: Final[tuple[type[MetadataRecord], ...]] = (
    ControllerChangeRecord,
    ClusterRecord,
    RegisterControllerRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
    BrokerRegistrationChangeRecord,
    TopicRecord,
    RemoveTopicRecord,
    PartitionRecord,
    PartitionChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
    ClientQuotaRecord,
    UserScramCredentialRecord,
    RemoveUserScramCredentialRecord,
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    SnapshotHeaderRecord,
    SnapshotFooterRecord,
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The contents of one entry of the metadata log."""

    controller_epoch: int
    sequence: int
    records: tuple[MetadataRecord, ...]


class _Schema:
    """The fields, types and versions of one record class, for encoding and decoding."""

    __slots__ = ("allowed", "counts", "defaults", "levels", "names", "record_class", "required")

    def __init__(self, record_class: type[MetadataRecord]) -> None:
        hints = typing.get_type_hints(record_class)
        own = fields(record_class)
        since = [int(one.metadata.get("since", 0)) for one in own]
        self.record_class = record_class
        self.levels = record_class.LEVELS
        assert sorted(since) == since, f"newer fields of {record_class.__name__} do not come last"
        assert since[-1] < len(self.levels), f"a field of {record_class.__name__} has no level"
        self.counts = tuple(sum(1 for first in since if first <= version) for version in range(len(self.levels)))
        self.names = tuple(one.name for one in own)
        self.defaults = tuple(one.default for one in own)
        self.allowed = tuple(_allowed_types(hints[name]) for name in self.names)
        self.required = sum(1 for one in own if one.default is MISSING)

    def version_at(self, level: int) -> int:
        """Returns the version that is written at a level of ``metadata.version``."""
        return max(0, sum(1 for first in self.levels if first <= level) - 1)


def _allowed_types(hint: object) -> frozenset[type]:
    origin = typing.get_origin(hint)
    if origin is types.UnionType or origin is typing.Union:
        return frozenset().union(*(_allowed_types(part) for part in typing.get_args(hint)))
    if origin is tuple:
        return frozenset((tuple,))
    if isinstance(hint, typing.NewType):
        return _allowed_types(hint.__supertype__)
    if hint is float:
        return frozenset((float, int))
    assert isinstance(hint, type), hint
    return frozenset((hint,))


_SCHEMA_BY_TYPE: Final = {record_class.TYPE: _Schema(record_class) for record_class in RECORD_CLASSES}
assert len(_SCHEMA_BY_TYPE) == len(RECORD_CLASSES), "two record classes share a type number"


def _pack_special(value: object) -> msgpack.ExtType:
    if type(value) is UUID:
        return msgpack.ExtType(_UUID_EXTENSION, value.bytes)
    if type(value) is Endpoint:
        packed = msgpack.packb((value.name, value.host, value.port, value.security_protocol))
        return msgpack.ExtType(_ENDPOINT_EXTENSION, packed)
    raise TypeError(f"a metadata record cannot hold {value!r}")


def _unpack_special(code: int, data: bytes) -> object:
    if code == _UUID_EXTENSION and len(data) == 16:
        return UUID(bytes=bytes(data))
    if code == _ENDPOINT_EXTENSION:
        parts = msgpack.unpackb(data, use_list=False)
        if isinstance(parts, tuple) and [type(part) for part in parts] == [str, str, int, int]:
            return Endpoint(name=parts[0], host=parts[1], port=parts[2], security_protocol=parts[3])
    raise MetadataCorruptError(f"extension {code} of {len(data)} bytes is not a metadata value")


def _to_plain(record: MetadataRecord, level: int) -> tuple[object, ...]:
    schema = _SCHEMA_BY_TYPE[record.TYPE]
    assert level >= schema.levels[0], f"{type(record).__name__} cannot be written at {METADATA_VERSION} {level}"
    version = schema.version_at(level)
    count = schema.counts[version]
    for name, default in zip(schema.names[count:], schema.defaults[count:], strict=True):
        assert getattr(record, name) == default, (
            f"{type(record).__name__}.{name} cannot be written at {METADATA_VERSION} {level}"
        )
    return (record.TYPE, version, *[getattr(record, name) for name in schema.names[:count]])


def _from_plain(plain: object) -> MetadataRecord:
    if type(plain) is not tuple or len(plain) < 2:
        raise MetadataCorruptError("a metadata record is not a list of type, version and fields")
    schema = _SCHEMA_BY_TYPE.get(plain[0])
    if schema is None:
        raise MetadataCorruptError(
            f"metadata record type {plain[0]!r} is unknown: it was written by a newer version of Moldau"
        )
    values = plain[2:]
    name = schema.record_class.__name__
    version = plain[1]
    if type(version) is not int or not 0 <= version < len(schema.counts):
        raise MetadataCorruptError(f"{name} has version {version!r}, the highest known one is {len(schema.counts) - 1}")
    count = schema.counts[version]
    if not schema.required <= len(values) <= count:
        raise MetadataCorruptError(f"{name} has {len(values)} fields, expected {schema.required}..{count}")
    for value, allowed, field_name in zip(values, schema.allowed, schema.names, strict=False):
        if type(value) not in allowed:
            raise MetadataCorruptError(f"{name}.{field_name} is of type {type(value).__name__}")
    return schema.record_class(**dict(zip(schema.names, values, strict=False)))


def encode_command(command: Command, level: int = METADATA_LEVEL_LATEST) -> bytes:
    """Encodes a command with its checksum, with the record versions of a level of ``metadata.version``.

    Asserts that the level can represent every record.

    Raises:
        CommandTooLargeError: the result exceeds ``COMMAND_BYTES_MAX``.
        MetadataCorruptError: a field holds what the encoding cannot express.
    """
    plain = [_to_plain(record, level) for record in command.records]
    try:
        payload = msgpack.packb(
            (COMMAND_FORMAT, command.controller_epoch, command.sequence, plain), default=_pack_special
        )
    except (OverflowError, TypeError, ValueError) as error:
        raise MetadataCorruptError(f"a metadata command cannot be encoded: {error}") from error
    if len(payload) + _CHECKSUM_BYTES > COMMAND_BYTES_MAX:
        raise CommandTooLargeError(f"a metadata command of {len(payload)} bytes exceeds {COMMAND_BYTES_MAX}")
    return bytes(xxhash.xxh3_64_digest(payload) + payload)


def decode_command(buffer: bytes | bytearray | memoryview) -> Command:
    """Decodes the bytes of ``encode_command``; ``buffer`` is borrowed for the call.

    Raises:
        MetadataCorruptError: wrong checksum, unknown format, record type or version, ill-typed field.
    """
    view = memoryview(buffer)
    if not _CHECKSUM_BYTES < len(view) <= COMMAND_BYTES_MAX:
        raise MetadataCorruptError(f"a metadata command cannot have {len(view)} bytes")
    payload = view[_CHECKSUM_BYTES:]
    if xxhash.xxh3_64_digest(payload) != bytes(view[:_CHECKSUM_BYTES]):
        raise MetadataCorruptError("a metadata command does not match its checksum")
    try:
        plain = msgpack.unpackb(payload, use_list=False, ext_hook=_unpack_special, strict_map_key=True)
    except (ValueError, RecursionError) as error:
        raise MetadataCorruptError("a metadata command is not valid msgpack") from error
    if type(plain) is not tuple or len(plain) != 4 or plain[0] != COMMAND_FORMAT:
        raise MetadataCorruptError("a metadata command has an unknown format")
    _, controller_epoch, sequence, records = plain
    if type(controller_epoch) is not int or type(sequence) is not int or type(records) is not tuple:
        raise MetadataCorruptError("the header of a metadata command is ill-typed")
    return Command(
        controller_epoch=controller_epoch, sequence=sequence, records=tuple(_from_plain(record) for record in records)
    )


def encode_records(records: Iterable[MetadataRecord], level: int = METADATA_LEVEL_LATEST) -> bytes:
    """Encodes records outside the log (a piece of a snapshot), with a checksum."""
    return encode_command(Command(controller_epoch=0, sequence=0, records=tuple(records)), level)


def decode_records(buffer: bytes | bytearray | memoryview) -> Sequence[MetadataRecord]:
    """Decodes the bytes of ``encode_records``.

    Raises:
        MetadataCorruptError: the bytes are damaged or of an unknown format.
    """
    return decode_command(buffer).records
