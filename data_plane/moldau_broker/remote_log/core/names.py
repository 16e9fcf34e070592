"""Names of the objects of remote segments.

    <cluster id>/<topic id>/<partition>/<segment>.aux    indexes, producer snapshot and leader epochs
    <cluster id>/<topic id>/<partition>/<segment>.log    the bytes of the segment's file
    <cluster id>/<topic id>/<partition>/<end offset>_<leader epoch>.deleted    empty, see ``DeletionProof``
    <cluster id>/probe/<broker id>                       for a moment, when a broker starts

with ``<segment>`` =

    <base offset>_<last offset>_<last leader epoch>_<largest timestamp>_<a or n>_<id>

Offsets and the timestamp (-1: none) have 20 digits, the epoch 10, the id 32 hexadecimal digits; ``a`` says that the
segment has aborted transactions. So a listing gives all that a broker must know of a partition's segments, in the order
of their base offsets.

A segment exists if and only if both of its objects do. ``.aux`` is written first and deleted last, so each of the two
ends of a segment's life is one atomic operation on ``.log``.
"""

from __future__ import annotations

import base64
import re
import uuid
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau.runtime.ports.objects import StoredObject

LOG = ".log"
AUXILIARY = ".aux"
DELETED = ".deleted"

_OBJECT = re.compile(
    r"(?P<base>\d{20})_(?P<last>\d{20})_(?P<epoch>\d{10})_(?P<timestamp>\d{20}|-\d{19})_(?P<aborted>[an])_"
    r"(?P<id>[0-9a-f]{32})(?P<suffix>\.log|\.aux)"
)
_PROOF = re.compile(r"(?P<end>\d{20})_(?P<epoch>\d{10})\.deleted")


class RemoteSegment(NamedTuple):
    """A segment in the object store, or one that is to be copied there."""

    base_offset: int
    last_offset: int
    """Inclusive; the segment that follows it in the log begins at the next offset."""
    last_epoch: int
    """The leader epoch of the log at ``last_offset``. By it and ``last_offset`` a log knows whether the segment holds
    its own records: two logs with the same epoch at an offset are equal up to there."""
    max_timestamp_ms: int
    """The largest timestamp of its records; -1 if they have none."""
    has_aborted: bool
    """Whether its transaction index has entries."""
    segment_id: uuid.UUID
    """Drawn for each copy, so that the copies of two leaders never share an object."""
    size_bytes: int
    """Bytes of ``.log``."""

    @property
    def end_offset(self) -> int:
        """Offset (exclusive) at which it ends."""
        return self.last_offset + 1

    @property
    def name(self) -> str:
        """The part of its objects' names between the folder of the partition and the suffix."""
        aborted = "a" if self.has_aborted else "n"
        return (
            f"{self.base_offset:020d}_{self.last_offset:020d}_{self.last_epoch:010d}_{self.max_timestamp_ms:020d}_"
            f"{aborted}_{self.segment_id.hex}"
        )


class DeletionProof(NamedTuple):
    """Proves that a leader has deleted all records below an offset on purpose, by retention or DeleteRecords.

    It is written before the first of them goes. Records that are missing without a proof are lost, or the store is not
    the one that had them: no log start offset moves behind them.
    """

    end_offset: int
    """Exclusive end of the deleted records."""
    last_epoch: int
    """The leader epoch of the log at ``end_offset - 1``. It shows whose records they were, as for a segment."""

    @property
    def name(self) -> str:
        """The part of its object's name behind the folder of the partition."""
        return f"{self.end_offset:020d}_{self.last_epoch:010d}{DELETED}"


def cluster_folder(cluster_id: str) -> str:
    """Returns the prefix of all objects of a cluster."""
    return f"{cluster_id}/"


def probe_name(cluster_id: str, broker_id: int) -> str:
    """Returns the name of the object by which a broker tries the store.

    No listing of a partition meets it, and no sweep, because ``probe`` is no topic id.
    """
    return f"{cluster_folder(cluster_id)}probe/{broker_id}"


def topic_folder(cluster_id: str, topic_id: uuid.UUID) -> str:
    """Returns the prefix of all objects of a topic; the topic id is written as Kafka writes it, in base64."""
    return f"{cluster_id}/{base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}/"


def topic_of(folder: str) -> uuid.UUID | None:
    """Returns the topic id that a part of a name is; None for a part that no broker writes."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{22}", folder):
        return None
    return uuid.UUID(bytes=base64.urlsafe_b64decode(folder + "=="))


def partition_folder(cluster_id: str, topic_id: uuid.UUID, partition: int) -> str:
    """Returns the prefix of all objects of a partition."""
    return f"{topic_folder(cluster_id, topic_id)}{partition}/"


def is_written_by_brokers(name: str) -> bool:
    """Returns whether an object has a name that brokers write; ``name`` may begin with folders."""
    last = name.rpartition("/")[2]
    return _OBJECT.fullmatch(last) is not None or _PROOF.fullmatch(last) is not None


class Listing(NamedTuple):
    """The objects of one partition as segments."""

    segments: list[RemoteSegment]
    """Those that exist, by base offset."""
    unfinished: list[StoredObject]
    """Objects whose segment lacks the other one: being copied, being deleted, or left by a broker that failed."""
    proofs: Sequence[DeletionProof] = ()
    """Proofs of deletions, by end offset."""
    stored_ms: Mapping[uuid.UUID, int] = MappingProxyType({})
    """When the store got segments without timestamps, by their ids."""


def segments_of(objects: Iterable[StoredObject]) -> Listing:
    """Sorts the objects of one partition's folder; leaves out objects that no broker names so."""
    found: dict[str, dict[str, StoredObject]] = {}
    proofs: list[DeletionProof] = []
    for item in objects:
        name = item.name.rpartition("/")[2]
        if _OBJECT.fullmatch(name):
            found.setdefault(name[:-4], {})[name[-4:]] = item
        elif (match := _PROOF.fullmatch(name)) is not None:
            proofs.append(DeletionProof(int(match["end"]), int(match["epoch"])))
    stored_ms: dict[uuid.UUID, int] = {}
    listing = Listing([], [], sorted(proofs), stored_ms)
    for name, parts in sorted(found.items()):
        if len(parts) == 2:
            segment = _segment(name, parts[LOG].size_bytes)
            listing.segments.append(segment)
            if segment.max_timestamp_ms < 0:
                stored_ms[segment.segment_id] = parts[LOG].modified_ms
        else:
            listing.unfinished.extend(parts.values())
    return listing


def _segment(name: str, size_bytes: int) -> RemoteSegment:
    match = _OBJECT.fullmatch(name + LOG)
    assert match is not None
    return RemoteSegment(
        base_offset=int(match["base"]),
        last_offset=int(match["last"]),
        last_epoch=int(match["epoch"]),
        max_timestamp_ms=int(match["timestamp"]),
        has_aborted=match["aborted"] == "a",
        segment_id=uuid.UUID(hex=match["id"]),
        size_bytes=size_bytes,
    )
