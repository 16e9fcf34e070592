"""Records of a mirror's internal topics, in the formats of MirrorMaker 2 and Connect. Pure.

Texts are an int16 length and UTF-8; numbers are big-endian::

    offset sync   key: topic, partition int32           value: upstream offset int64, downstream offset int64
    checkpoint    key: group, topic, partition int32    value: version int16 (0), upstream int64, downstream int64,
                                                               metadata text
    heartbeat     key: source alias, target alias       value: version int16 (0), time in Unix ms int64

A position is JSON, as Connect writes the offsets of ``MirrorSourceConnector``: the key is
``["MirrorSourceConnector",{"cluster":...,"partition":...,"topic":...}]``, and ``offset`` in the value is that of the
last record that was mirrored. ``topicId`` and ``leaderEpoch`` are additions, which MirrorMaker ignores.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from moldau.cluster.metadata import TopicPartition
from moldau.values import ZERO_UUID

if TYPE_CHECKING:
    from moldau.values import Buffer

_CONNECTOR: Final = "MirrorSourceConnector"
_VERSION: Final = 0
_TEXT_BYTES_MAX: Final = 2**15 - 1


class FormatError(ValueError):
    """A record of an internal topic does not have the format of its topic."""


class _Reader:
    """Reads fields one after the other."""

    def __init__(self, data: Buffer | None) -> None:
        if data is None:
            raise FormatError("the field is null")
        self._data = bytes(data)
        self._at = 0

    def number(self, form: str) -> int:
        try:
            (value,) = struct.unpack_from(form, self._data, self._at)
        except struct.error as error:
            raise FormatError(f"{len(self._data)} bytes are too few") from error
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        length = self.number(">h")
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise FormatError(f"a text of {length} bytes does not fit")
        try:
            value = self._data[self._at : end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"a text is not UTF-8: {error}") from error
        self._at = end
        return value

    def version(self) -> None:
        found = self.number(">h")
        if found != _VERSION:
            raise FormatError(f"version {found} is not known")


def _text(value: str) -> bytes:
    data = value.encode("utf-8")
    if len(data) > _TEXT_BYTES_MAX:
        raise FormatError(f"a text of {len(data)} bytes is longer than {_TEXT_BYTES_MAX}")
    return struct.pack(">h", len(data)) + data


@dataclass(frozen=True, slots=True)
class OffsetSync:
    """A record of the source (``upstream`` offset) and its copy in the target (``downstream`` offset).

    ``partition`` is that of the source.
    """

    partition: TopicPartition
    upstream: int
    downstream: int

    def key(self) -> bytes:
        """Returns the key of the record."""
        return _text(self.partition.topic) + struct.pack(">i", self.partition.partition)

    def value(self) -> bytes:
        """Returns the value of the record."""
        return struct.pack(">qq", self.upstream, self.downstream)

    @staticmethod
    def parse(key: Buffer | None, value: Buffer | None) -> OffsetSync:
        """Reads a record.

        Raises:
            FormatError: it has another format.
        """
        keys, values = _Reader(key), _Reader(value)
        partition = TopicPartition(keys.text(), keys.number(">i"))
        return OffsetSync(partition, values.number(">q"), values.number(">q"))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A group's committed offset in the source (``upstream``) and its translation (``downstream``).

    ``partition`` is that of the target.
    """

    group: str
    partition: TopicPartition
    upstream: int
    downstream: int
    metadata: str = ""

    def key(self) -> bytes:
        """Returns the key of the record."""
        return _text(self.group) + _text(self.partition.topic) + struct.pack(">i", self.partition.partition)

    def value(self) -> bytes:
        """Returns the value of the record."""
        return struct.pack(">hqq", _VERSION, self.upstream, self.downstream) + _text(self.metadata)

    @staticmethod
    def parse(key: Buffer | None, value: Buffer | None) -> Checkpoint:
        """Reads a record.

        Raises:
            FormatError: it has another format.
        """
        keys, values = _Reader(key), _Reader(value)
        group, topic, number = keys.text(), keys.text(), keys.number(">i")
        values.version()
        upstream, downstream = values.number(">q"), values.number(">q")
        return Checkpoint(group, TopicPartition(topic, number), upstream, downstream, values.text())


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Says that the mirror from ``source`` to ``target`` ran at ``timestamp`` (Unix milliseconds)."""

    source: str
    target: str
    timestamp: int

    def key(self) -> bytes:
        """Returns the key of the record."""
        return _text(self.source) + _text(self.target)

    def value(self) -> bytes:
        """Returns the value of the record."""
        return struct.pack(">hq", _VERSION, self.timestamp)

    @staticmethod
    def parse(key: Buffer | None, value: Buffer | None) -> Heartbeat:
        """Reads a record.

        Raises:
            FormatError: it has another format.
        """
        keys, values = _Reader(key), _Reader(value)
        source, target = keys.text(), keys.text()
        values.version()
        return Heartbeat(source, target, values.number(">q"))


@dataclass(frozen=True, slots=True)
class Position:
    """Where mirroring a partition continues: the offset of the next record to mirror, in the topic with this id.

    ``topic_id`` is zero and ``leader_epoch`` -1 where they are not known.
    """

    offset: int
    topic_id: UUID = ZERO_UUID
    leader_epoch: int = -1


def position_key(alias: str, partition: TopicPartition) -> bytes:
    """Returns the key under which the position of a source's partition is stored."""
    source = {"cluster": alias, "partition": partition.partition, "topic": partition.topic}
    return json.dumps([_CONNECTOR, source], separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def position_value(position: Position) -> bytes:
    """Returns the value under which a position is stored; MirrorMaker takes that of position 0 for none."""
    document: dict[str, object] = {"offset": position.offset - 1}
    if position.topic_id != ZERO_UUID:
        document["topicId"] = str(position.topic_id)
    if position.leader_epoch >= 0:
        document["leaderEpoch"] = position.leader_epoch
    return json.dumps(document, separators=(",", ":")).encode("utf-8")


def parse_position(
    alias: str, key: Buffer | None, value: Buffer | None
) -> tuple[TopicPartition, Position | None] | None:
    """Reads a stored position of a source; None for a record of another source or another connector.

    The position is None where the record removes it.

    Raises:
        FormatError: the record has another format.
    """
    document = _json(key)
    if not (isinstance(document, list) and len(document) == 2 and isinstance(document[1], dict)):
        raise FormatError("the key is no pair of a connector and a partition")
    name, source = document
    if name != _CONNECTOR or source.get("cluster") != alias:
        return None
    topic, number = source.get("topic"), source.get("partition")
    if not isinstance(topic, str) or not isinstance(number, int):
        raise FormatError("the key names no partition")
    partition = TopicPartition(topic, number)
    stored = None if value is None else _json(value)
    if stored is None:
        return partition, None
    if not isinstance(stored, dict) or not isinstance(stored.get("offset"), int):
        raise FormatError("the value holds no offset")
    epoch = stored.get("leaderEpoch", -1)
    return partition, Position(stored["offset"] + 1, _topic_id(stored), epoch if isinstance(epoch, int) else -1)


def _topic_id(stored: dict[str, object]) -> UUID:
    found = stored.get("topicId")
    try:
        return ZERO_UUID if found is None else UUID(str(found))
    except ValueError as error:
        raise FormatError(f"{found!r} is no topic id") from error


def _json(data: Buffer | None) -> object:
    if data is None:
        raise FormatError("the field is null")
    try:
        return json.loads(bytes(data))
    except ValueError as error:
        raise FormatError(f"the field is not JSON: {error}") from error
