"""Snapshots of the metadata image, written and read in pieces so that a large one does not block the event loop.

A snapshot is a sequence of pieces, each encoded by ``records.encode_records`` (checksum and msgpack). The first record
is a ``SnapshotHeaderRecord``, the last a ``SnapshotFooterRecord`` with the number of records between. An image is
immutable, so the caller may pause ``snapshot_pieces`` while newer images are made. The order of records is canonical
(sorted), so that equal images give equal bytes.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from moldau.values import BrokerId
from moldau_quorum.metadata import records as r
from moldau_quorum.metadata.image import ImageEditor, MetadataImage, quota_sort_key
from moldau_quorum.metadata.image_parts import partition_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RECORDS_PER_PIECE: Final = 500
"""Number of records in a piece: some 50 kB and about a millisecond of work."""
RECORD_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of a record that a controller may write. A snapshot can join the parts of a broker's registration that
two records brought, and the log allows 4 MiB for a piece."""
PIECE_LENGTH_MAX: Final = 512 * 1024
"""Length of a piece of several records, in characters of texts. Each has four bytes at most, so such a piece stays
below the 4 MiB that the log allows."""
_CHARACTER_BYTES_MAX: Final = 4

_FIELDS: Final[dict[type[r.MetadataRecord], tuple[str, ...]]] = {
    record_class: tuple(field.name for field in fields(record_class))
    for record_class in r.RECORD_CLASSES
    if record_class not in (r.TopicRecord, r.PartitionRecord)
}
"""Fields by class of record. The two classes that are left out hold no long values, and most records are theirs."""


def _record_length(record: r.MetadataRecord) -> int:
    """Returns the length of all values in a record, that of texts in characters."""
    return sum(_length(getattr(record, name)) for name in _FIELDS.get(type(record), ()))


def _length(value: object) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, r.Endpoint):
        return len(value.name) + len(value.host)
    return sum(map(_length, value)) if isinstance(value, tuple) else 16  # a UUID


def snapshot_records(image: MetadataImage) -> Iterator[r.MetadataRecord]:
    """Yields the records that rebuild an image, without header and footer."""
    if image.cluster_id:
        yield r.ClusterRecord(cluster_id=image.cluster_id)
    for _, controller in sorted(image.controllers.items()):
        yield r.RegisterControllerRecord(
            controller_id=controller.controller_id,
            incarnation_id=controller.incarnation_id,
            endpoints=controller.endpoints,
        )
    for name, level in sorted(image.features.items()):
        yield r.FeatureLevelRecord(name=name, level=level)
    for _, broker in sorted(image.brokers.items()):
        yield r.RegisterBrokerRecord(
            broker_id=broker.broker_id,
            incarnation_id=broker.incarnation_id,
            broker_epoch=broker.broker_epoch,
            endpoints=broker.endpoints,
            features=broker.features,
            rack=broker.rack,
            fenced=broker.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown,
            log_dirs=broker.log_dirs,
            cordoned_log_dirs=broker.cordoned_log_dirs,
        )
    for topic_id in sorted(image.topics_by_id, key=lambda key: key.int):
        topic = image.topics_by_id[topic_id]
        yield r.TopicRecord(name=topic.name, topic_id=topic_id)
        for partition_id in range(len(topic.partitions)):
            yield partition_record(topic_id, partition_id, topic.partitions[partition_id])
    yield from _setting_records(image)


def _setting_records(image: MetadataImage) -> Iterator[r.MetadataRecord]:
    for resource_type, resource_name in sorted(image.configs):
        for name, value in sorted(image.configs[resource_type, resource_name].items()):
            yield r.ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)
    if image.next_producer_id:
        yield r.ProducerIdsRecord(broker_id=BrokerId(-1), broker_epoch=-1, next_producer_id=image.next_producer_id)
    for entity in sorted(image.quotas, key=quota_sort_key):
        for key, quota in sorted(image.quotas[entity].items()):
            yield r.ClientQuotaRecord(entity=entity, key=key, value=quota)
    for credential in sorted(image.scram_credentials):
        yield image.scram_credentials[credential]
    for acl_id in sorted(image.acls, key=lambda key: key.int):
        yield image.acls[acl_id]
    for token_id in sorted(image.delegation_tokens):
        yield image.delegation_tokens[token_id]


def check_records_fit(records: Iterable[r.MetadataRecord], level: int) -> None:
    """Checks that each record fits into a piece of a snapshot.

    Raises:
        CommandTooLargeError: a record exceeds ``RECORD_BYTES_MAX``.
    """
    for record in records:
        if _record_length(record) * _CHARACTER_BYTES_MAX <= RECORD_BYTES_MAX:
            continue
        size = len(r.encode_records((record,), level))
        if size > RECORD_BYTES_MAX:
            raise r.CommandTooLargeError(f"a {type(record).__name__} of {size} bytes exceeds {RECORD_BYTES_MAX}")


def snapshot_pieces(image: MetadataImage, *, records_per_piece: int = RECORDS_PER_PIECE) -> Iterator[bytes]:
    """Yields the pieces of a snapshot; each ``next`` does a bounded amount of work.

    Records are encoded in the versions of the image's own level of ``metadata.version``.
    """
    level = image.metadata_level
    batch: list[r.MetadataRecord] = [
        r.SnapshotHeaderRecord(
            offset=image.offset,
            epoch=image.epoch,
            controller_id=image.controller_id,
            controller_epoch=image.controller_epoch,
            controller_sequence=image.controller_sequence,
        )
    ]
    count = held = 0
    for record in snapshot_records(image):
        size = _record_length(record)
        if batch and held + size > PIECE_LENGTH_MAX:
            yield r.encode_records(batch, level)
            batch, held = [], 0
        count += 1
        batch.append(record)
        held += size
        if len(batch) >= records_per_piece:
            yield r.encode_records(batch, level)
            batch, held = [], 0
    batch.append(r.SnapshotFooterRecord(record_count=count))
    yield r.encode_records(batch, level)


class SnapshotReader:
    """Rebuilds an image from the pieces of a snapshot, in order."""

    def __init__(self) -> None:
        self._editor = ImageEditor(MetadataImage())
        self._header: r.SnapshotHeaderRecord | None = None
        self._complete = False
        self._count = 0

    def feed(self, piece: bytes | bytearray | memoryview) -> None:
        """Reads the next piece.

        Raises:
            MetadataCorruptError: the piece is damaged or does not fit.
        """
        for record in r.decode_records(piece):
            if self._complete:
                raise r.MetadataCorruptError("a metadata snapshot has records after its footer")
            if self._header is None:
                if not isinstance(record, r.SnapshotHeaderRecord):
                    raise r.MetadataCorruptError("a metadata snapshot does not start with its header")
                self._header = record
            elif isinstance(record, r.SnapshotFooterRecord):
                if record.record_count != self._count:
                    raise r.MetadataCorruptError(
                        f"a metadata snapshot has {self._count} records, its footer says {record.record_count}"
                    )
                self._complete = True
            else:
                self._editor.replay_all((record,))
                self._count += 1

    def finish(self) -> MetadataImage:
        """Returns the image.

        Raises:
            MetadataCorruptError: pieces are missing.
        """
        if self._header is None or not self._complete:
            raise r.MetadataCorruptError("a metadata snapshot ends before its footer")
        self._editor.restore_position(self._header)
        return self._editor.finish_image(offset=self._header.offset, epoch=self._header.epoch)
