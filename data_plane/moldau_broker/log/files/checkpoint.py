"""The small files of a log directory.

They are offset checkpoints, leader epochs, partition metadata, meta.properties and the clean-shutdown marker. All are
replaced as a whole: the new content goes to ``<name>.tmp``, is synced, renamed over the old and made durable
with the directory. A crash at any step leaves the old or the new content. The text formats are Kafka's:

    0                       version
    2                       number of lines that follow
    topic 3 4711            offset checkpoint: topic, partition, offset
    7 4200                  leader epoch checkpoint: epoch, start offset

Only the file with the topic id has a line more than Kafka's, its checksum.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.records.checksum import crc32c
from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.names import TEMPORARY_SUFFIX
from moldau_broker.log.values import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau.runtime.ports.environment import Disk

_VERSION = 0
_CHECKSUM_PREFIX = b"crc32c: "
_META_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEntry:
    """A leader epoch and the first offset written in it."""

    leader_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """Identity of a log directory (``meta.properties`` version 1, KIP-858)."""

    cluster_id: str
    node_id: int
    directory_id: uuid.UUID


def parent_of(path: str) -> str:
    """Returns the directory that holds ``path``."""
    return path.rpartition("/")[0] or "/"


def write_temporary(disk: Disk, path: str, content: bytes, *, durable: bool = True) -> None:
    """Writes a file that will be renamed, in place of one that an interrupted write has left; its name is not synced.

    Raises:
        OSError: The file could not be written.
    """
    if disk.exists(path):
        disk.remove(path)
    file = disk.open(path, OpenMode.CREATE)
    try:
        file.append([content])
        if durable:
            file.sync()
    finally:
        file.close()


def write_atomically(disk: Disk, path: str, content: bytes, *, durable: bool = True) -> None:
    """Replaces the file by ``content``; durable on return unless ``durable`` is false.

    Raises:
        OSError: The file could not be written.
    """
    temporary = path + TEMPORARY_SUFFIX
    write_temporary(disk, temporary, content, durable=durable)
    disk.rename(temporary, path)
    if durable:
        disk.sync_directory(parent_of(path))


def sync_file(disk: Disk, path: str) -> None:
    """Makes a file's content durable if the file still exists; blocks.

    Raises:
        OSError: The sync failed.
    """
    if not disk.exists(path):
        return
    file = disk.open(path, OpenMode.WRITE)
    try:
        file.sync()
    finally:
        file.close()


def read_file(disk: Disk, path: str) -> bytes:
    """Returns the whole content of a small file.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    file = disk.open(path, OpenMode.READ)
    try:
        return file.read(0, file.size)
    finally:
        file.close()


def uuid_to_text(value: uuid.UUID) -> str:
    """Returns Kafka's text form of a UUID: URL-safe base64 of its 16 bytes without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def uuid_from_text(text: str) -> uuid.UUID:
    """Parses the text form of ``uuid_to_text``.

    Raises:
        ValueError: The text is not in this form.
    """
    try:
        return uuid.UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))
    except binascii.Error as error:
        raise ValueError(f"{text!r} is no base64 UUID") from error


def _encode_lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in (str(_VERSION), str(len(lines)), *lines)).encode()


def _decode_lines(path: str, content: bytes, columns: int) -> list[tuple[int, list[str]]]:
    """Returns the rows of a checkpoint file, each with its position.

    Raises:
        CorruptLogFileError: A byte violates the format; the error has the position of the first one.
    """
    if content and not content.endswith(b"\n"):
        raise CorruptLogFileError(path, len(content), "the last line has no end")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptLogFileError(path, error.start, "not UTF-8") from error
    rows: list[tuple[int, list[str]]] = []
    position = 0
    expected = -1
    for number, line in enumerate(text.split("\n")[:-1]):
        if number < 2 and not (line.isascii() and line.isdigit()):
            raise CorruptLogFileError(path, position, f"expected a number, found {line!r}")
        if number == 0 and int(line) != _VERSION:
            raise CorruptLogFileError(path, position, f"version {line} is unknown, expected {_VERSION}")
        if number == 1:
            expected = int(line)
        if number >= 2:
            fields = line.split(" ")
            if len(fields) != columns:
                raise CorruptLogFileError(path, position, f"expected {columns} columns, found {line!r}")
            rows.append((position, fields))
        position += len(line.encode()) + 1
    if expected != len(rows):
        raise CorruptLogFileError(path, position, f"expected {expected} lines, found {len(rows)}")
    return rows


def _number(path: str, position: int, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise CorruptLogFileError(path, position, f"expected a number, found {text!r}")
    return int(text)


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Returns the content of an offset checkpoint, sorted so that equal maps give equal bytes."""
    return _encode_lines([f"{key.topic} {key.partition} {offsets[key]}" for key in sorted(offsets)])


def decode_offsets(path: str, content: bytes) -> dict[TopicPartition, int]:
    """Parses an offset checkpoint.

    Raises:
        CorruptLogFileError: The file is damaged.
    """
    offsets: dict[TopicPartition, int] = {}
    for position, (topic, partition, offset) in _decode_lines(path, content, 3):
        value = _number(path, position, offset)
        if value < 0:
            raise CorruptLogFileError(path, position, f"offset {value} of {topic}-{partition} is negative")
        offsets[TopicPartition(topic, _number(path, position, partition))] = value
    return offsets


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Reads an offset checkpoint file; a missing one is empty.

    Raises:
        CorruptLogFileError: The file is damaged.
        OSError: The file could not be read.
    """
    if not disk.exists(path):
        return {}
    return decode_offsets(path, read_file(disk, path))


def encode_epochs(entries: Iterable[EpochEntry]) -> bytes:
    """Returns the content of a leader epoch checkpoint."""
    return _encode_lines([f"{entry.leader_epoch} {entry.start_offset}" for entry in entries])


def decode_epochs(path: str, content: bytes) -> list[EpochEntry]:
    """Parses a leader epoch checkpoint.

    Raises:
        CorruptLogFileError: The file is damaged, or its epochs or offsets do not rise.
    """
    entries: list[EpochEntry] = []
    for position, (epoch_text, offset_text) in _decode_lines(path, content, 2):
        entry = EpochEntry(
            leader_epoch=_number(path, position, epoch_text), start_offset=_number(path, position, offset_text)
        )
        if entry.leader_epoch < 0 or entry.start_offset < 0:
            raise CorruptLogFileError(path, position, f"negative entry {entry}")
        if entries and (
            entry.leader_epoch <= entries[-1].leader_epoch or entry.start_offset <= entries[-1].start_offset
        ):
            raise CorruptLogFileError(path, position, f"{entry} does not rise above {entries[-1]}")
        entries.append(entry)
    return entries


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """Returns the content of ``partition.metadata``: Kafka's two lines, and one with their checksum (CRC-32C, hex).

    Without it a changed bit would look like the id of another topic. Kafka reads no line after the second.
    """
    content = f"version: {_VERSION}\ntopic_id: {uuid_to_text(topic_id)}\n".encode()
    return content + b"%s%08x\n" % (_CHECKSUM_PREFIX, crc32c(content))


def decode_partition_metadata(path: str, content: bytes) -> uuid.UUID:
    """Parses ``partition.metadata``; one without a checksum is Kafka's, or older.

    Raises:
        CorruptLogFileError: The file is damaged.
    """
    lines = content.decode("utf-8", "replace").split("\n")
    if lines[0] != f"version: {_VERSION}":
        raise CorruptLogFileError(path, 0, f"expected 'version: {_VERSION}', found {lines[0]!r}")
    prefix = "topic_id: "
    if len(lines) < 2 or not lines[1].startswith(prefix):
        raise CorruptLogFileError(path, len(lines[0]) + 1, "expected 'topic_id: ...'")
    checked = len(lines[0]) + len(lines[1]) + 2
    if content[checked:] not in (b"", b"%s%08x\n" % (_CHECKSUM_PREFIX, crc32c(content[:checked]))):
        raise CorruptLogFileError(path, checked, "the checksum is not that of the lines before it")
    try:
        return uuid_from_text(lines[1].removeprefix(prefix))
    except ValueError as error:
        raise CorruptLogFileError(path, len(lines[0]) + 1 + len(prefix), str(error)) from error


def encode_meta_properties(properties: MetaProperties) -> bytes:
    """Returns the content of ``meta.properties``."""
    return (
        f"#\ncluster.id={properties.cluster_id}\ndirectory.id={uuid_to_text(properties.directory_id)}\n"
        f"node.id={properties.node_id}\nversion={_META_VERSION}\n"
    ).encode()


def decode_meta_properties(path: str, content: bytes) -> MetaProperties:
    """Parses ``meta.properties``.

    Raises:
        CorruptLogFileError: The file is damaged; the error names a missing property.
    """
    values: dict[str, str] = {}
    for line in content.decode("utf-8", "replace").splitlines():
        if line and not line.startswith(("#", "!")):
            key, _, value = line.partition("=")
            values[key.strip()] = value.strip()
    if values.get("version") != str(_META_VERSION):
        raise CorruptLogFileError(path, 0, f"expected version={_META_VERSION}, found {values.get('version')!r}")
    try:
        return MetaProperties(
            cluster_id=values["cluster.id"],
            node_id=int(values["node.id"]),
            directory_id=uuid_from_text(values["directory.id"]),
        )
    except (KeyError, ValueError) as error:
        raise CorruptLogFileError(path, 0, f"missing or bad value: {error}") from error


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """Returns the content of the clean-shutdown marker.

    The broker epoch shows the controller which run ended cleanly (KIP-966).
    """
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode_clean_shutdown(path: str, content: bytes) -> int:
    """Returns the broker epoch of the marker, -1 if it has none (older format).

    Raises:
        CorruptLogFileError: The file is damaged.
    """
    if not content:
        return -1
    try:
        value = json.loads(content)
        return int(value["brokerEpoch"]) if isinstance(value, dict) else -1
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptLogFileError(path, 0, f"not a clean-shutdown marker: {error}") from error
