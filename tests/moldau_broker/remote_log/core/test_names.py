"""Names of remote segments: what a listing says of the segments of a partition."""

from uuid import UUID

import pytest

from moldau.runtime.ports.objects import StoredObject
from moldau_broker.remote_log.core.names import (
    AUXILIARY,
    LOG,
    DeletionProof,
    RemoteSegment,
    is_written_by_brokers,
    partition_folder,
    segments_of,
    topic_folder,
    topic_of,
)

TOPIC = UUID(int=77 << 64, version=4)
FOLDER = partition_folder("cluster-1", TOPIC, 3)


def segment(base: int, *, last: int = 0, timestamp: int = 5, aborted: bool = False) -> RemoteSegment:
    return RemoteSegment(base, last or base + 9, 4, timestamp, aborted, UUID(int=base + 1), 100)


def objects(*segments: RemoteSegment, suffixes: tuple[str, ...] = (AUXILIARY, LOG)) -> list[StoredObject]:
    return [
        StoredObject(f"{FOLDER}{item.name}{suffix}", item.size_bytes, 0) for item in segments for suffix in suffixes
    ]


@pytest.mark.parametrize(
    "known",
    [
        segment(0),
        segment(2**63 - 100, timestamp=2**63 - 1),
        segment(10, timestamp=-1),
        segment(10, aborted=True),
        segment(10, last=10),
    ],
)
def test_a_name_gives_its_segment_back(known: RemoteSegment) -> None:
    listing = segments_of(objects(known))
    assert listing.segments == [known]
    assert listing.unfinished == []
    assert listing.stored_ms == ({known.segment_id: 0} if known.max_timestamp_ms < 0 else {})


def test_segments_are_listed_by_base_offset() -> None:
    listing = segments_of(objects(segment(1000), segment(20), segment(300)))
    assert [item.base_offset for item in listing.segments] == [20, 300, 1000]


@pytest.mark.parametrize("suffix", [AUXILIARY, LOG])
def test_a_segment_with_one_object_does_not_exist(suffix: str) -> None:
    half = objects(segment(0), suffixes=(suffix,))
    listing = segments_of(half + objects(segment(10)))
    assert [item.base_offset for item in listing.segments] == [10]
    assert listing.unfinished == half


@pytest.mark.parametrize("name", ["notes.txt", "1_2_3.log", segment(0).name, segment(0).name + ".log.tmp"])
def test_objects_of_other_names_are_left_alone(name: str) -> None:
    listing = segments_of([StoredObject(FOLDER + name, 1, 0)])
    assert listing == ([], [], [], {})
    assert not is_written_by_brokers(FOLDER + name)
    assert all(is_written_by_brokers(item.name) for item in objects(segment(0)))


def test_a_folder_names_its_topic() -> None:
    folder = topic_folder("cluster-1", TOPIC)
    assert topic_of(folder.split("/")[1]) == TOPIC
    assert topic_of("notes") is None
    assert folder + "3/" == FOLDER


def test_proofs_of_deletions_are_listed_by_offset() -> None:
    proofs = [DeletionProof(500, 7), DeletionProof(20, 3)]
    listing = segments_of([StoredObject(FOLDER + proof.name, 0, 0) for proof in proofs])
    assert listing == ([], [], proofs[::-1], {})
    assert all(is_written_by_brokers(FOLDER + proof.name) for proof in proofs)
