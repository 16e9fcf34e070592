"""Snapshots of metadata whose records hold long texts.

A piece of a snapshot has a bounded size. A piece that is larger could be written by no controller and read by no
follower, and would end each controller at every attempt to take a snapshot.
"""

from __future__ import annotations

from moldau_quorum.log.raft.core.messages import SNAPSHOT_PIECE_BYTES_MAX
from moldau_quorum.metadata.image import RESOURCE_GROUP, MetadataImage
from moldau_quorum.metadata.records import (
    METADATA_LEVEL_LATEST,
    METADATA_VERSION,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
)
from moldau_quorum.metadata.snapshot import SnapshotReader, snapshot_pieces

LONGEST = 32_767
"""Bytes of the longest string on the wire."""


def check_snapshot(image: MetadataImage) -> int:
    """Checks that an image survives a snapshot with pieces of legal size; returns the number of pieces."""
    reader = SnapshotReader()
    count = 0
    for piece in snapshot_pieces(image):
        assert len(piece) <= SNAPSHOT_PIECE_BYTES_MAX
        reader.feed(piece)
        count += 1
    assert reader.finish() == image
    return count


def test_long_configurations_fit_into_a_snapshot() -> None:
    """Values of the greatest length, in characters of one byte and of three."""
    for text in ("x" * LONGEST, "\u20ac" * (LONGEST // 3)):
        records = [
            ConfigRecord(resource_type=RESOURCE_GROUP, resource_name=f"g{number}", name="key", value=text)
            for number in range(600)
        ]
        check_snapshot(MetadataImage().apply(records, offset=1, epoch=1).image)


def test_tokens_with_many_renewers_fit_into_a_snapshot() -> None:
    """Any client may create such tokens for itself."""
    tokens = [
        DelegationTokenRecord(
            token_id=f"t{number}",
            owner="User:a",
            requester="User:a",
            renewers=tuple(f"User:{renewer:05}{'x' * 9_000}" for renewer in range(100)),
            issue_ms=1,
            max_ms=2,
            expiry_ms=2,
        )
        for number in range(12)
    ]
    level = FeatureLevelRecord(name=METADATA_VERSION, level=METADATA_LEVEL_LATEST)
    check_snapshot(MetadataImage().apply([level, *tokens], offset=1, epoch=1).image)


def test_short_records_share_the_pieces_of_a_snapshot() -> None:
    records = [
        ConfigRecord(resource_type=RESOURCE_GROUP, resource_name=f"g{number}", name="key", value="1")
        for number in range(1_200)
    ]
    assert check_snapshot(MetadataImage().apply(records, offset=1, epoch=1).image) == 3
