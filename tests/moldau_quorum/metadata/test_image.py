"""Records, image, delta and snapshots: decoding inverts encoding, and every replay gives the same image.

The property tests drive random requests through the pure controller and compare three ways to the same image: step by
step, replayed from encoded commands, and restored from a snapshot with a tail.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau_quorum.metadata import records as r
from moldau_quorum.metadata.image import MetadataImage, delta_between
from moldau_quorum.metadata.persistent_map import MapEditor, PersistentMap
from moldau_quorum.metadata.snapshot import SnapshotReader, snapshot_pieces
from support.controller.model import ModelController, check_partition
from support.proof import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC_ID = UUID(int=77)


def command(*records: r.MetadataRecord, epoch: int = 1, sequence: int = 0) -> r.Command:
    return r.Command(controller_epoch=epoch, sequence=sequence, records=records)


def a_value(hint: object) -> object:
    """Some value of an annotated type of record fields."""
    text = str(hint)
    samples = {
        "int": 7,
        "str": "text",
        "bool": True,
        "bytes": b"\x00\xff",
        "UUID": TOPIC_ID,
        "float | None": 2.5,
        "str | None": "text",
        "int | None": 3,
        "bool | None": False,
        "BrokerId": 9,
        "LeaderEpoch": 11,
        "tuple[BrokerId, ...]": (1, 2),
        "tuple[BrokerId, ...] | None": (3,),
        "tuple[UUID, ...]": (TOPIC_ID,),
        "tuple[UUID, ...] | None": (TOPIC_ID,),
        "tuple[str, ...]": ("text",),
        "tuple[Endpoint, ...]": (r.Endpoint(name="P", host="h", port=1, security_protocol=2),),
        "tuple[tuple[str, int, int], ...]": (("f", 1, 2),),
        "tuple[tuple[str, str | None], ...]": (("user", None), ("client-id", "x")),
    }
    return samples[text]


@pytest.mark.parametrize("record_class", r.RECORD_CLASSES, ids=lambda cls: cls.__name__)
def test_every_record_survives_its_encoding(record_class: type[r.MetadataRecord]) -> None:
    record = record_class(**{field.name: a_value(field.type) for field in dataclasses.fields(record_class)})
    encoded = r.encode_command(command(record))
    assert r.decode_command(memoryview(encoded)).records == (record,)


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7), cut=st.integers(0, 200))
@settings(max_examples=examples(200), deadline=None)
def test_damaged_commands_are_refused(position: int, bit: int, cut: int) -> None:
    encoded = bytearray(r.encode_command(command(r.TopicRecord(name="t", topic_id=TOPIC_ID))))
    cut_short = encoded[: min(cut, len(encoded) - 1)]
    with pytest.raises(r.MetadataCorruptError):
        r.decode_command(cut_short)
    encoded[position % len(encoded)] ^= 1 << bit
    with pytest.raises(r.MetadataCorruptError):
        r.decode_command(encoded)


def test_newer_and_ill_typed_records_are_refused_by_name() -> None:
    """The decoder refuses records of newer versions and ill-typed ones, and names them."""
    import msgpack
    import xxhash

    def encoded(*plain: object) -> bytes:
        payload = msgpack.packb((1, 1, 0, [plain]))
        return bytes(xxhash.xxh3_64_digest(payload) + payload)

    assert r.decode_command(encoded(1, 0, 101, 5)).records
    for plain, text in (
        ((99, 0), "type 99 is unknown"),
        ((1, 3, 101, 5), "version 3"),
        ((1, 0, 101), "has 1 fields"),
        ((1, 0, 101, 5, 6), "has 3 fields"),
        ((1, 0, 101, "5"), "epoch is of type str"),
        ((1, 0, 101, True), "epoch is of type bool"),
        ((), "not a list"),
    ):
        with pytest.raises(r.MetadataCorruptError, match=text):
            r.decode_command(encoded(*plain))


def test_commands_after_a_lost_or_deposed_one_are_ignored() -> None:
    """Commands of a deposed controller are ignored, and so are all commands after a lost one."""

    def topic(number: int) -> r.TopicRecord:
        return r.TopicRecord(name=f"t{number}", topic_id=UUID(int=number))

    image = MetadataImage(offset=0)
    steps = [
        (command(topic(1), epoch=0), False),  # no controller is active yet
        (command(r.ControllerChangeRecord(controller_id=101, epoch=3), epoch=3), True),
        (command(topic(2), epoch=3, sequence=1), True),
        (command(topic(3), epoch=2, sequence=2), False),
        (command(topic(4), epoch=3, sequence=3), False),  # sequence 2 was lost
        (command(topic(5), epoch=3, sequence=1), False),
        (command(r.ControllerChangeRecord(controller_id=102, epoch=3), epoch=3), False),
        (command(r.ControllerChangeRecord(controller_id=102, epoch=4), epoch=4), True),
        (command(topic(6), epoch=3, sequence=2), False),
        (command(topic(7), epoch=4, sequence=1), True),
    ]
    for offset, (step, accepted) in enumerate(steps, start=1):
        delta = image.apply_command(step, offset=offset, epoch=9)
        assert delta.accepted == accepted, step
        image = delta.image
        assert image.offset == offset
    assert sorted(image.topics_by_name) == ["t2", "t7"]
    assert (image.controller_id, image.controller_epoch) == (102, 4)


def test_records_that_do_not_fit_are_damage() -> None:
    image = MetadataImage(offset=0)
    change = r.PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, partition_epoch=1)
    topic = r.TopicRecord(name="t", topic_id=TOPIC_ID)
    for records in (
        [change],
        [topic, change],
        [topic, topic],
        [
            topic,
            r.PartitionRecord(topic_id=TOPIC_ID, partition_id=0, replicas=(1,), isr=(1,), leader=1, partition_epoch=5),
            change,
        ],
        [r.RemoveTopicRecord(topic_id=TOPIC_ID)],
        [r.UnregisterBrokerRecord(broker_id=1, broker_epoch=1)],
        [r.ClusterRecord(cluster_id="a"), r.ClusterRecord(cluster_id="b")],
        [r.SnapshotFooterRecord(record_count=0)],
    ):
        with pytest.raises(r.MetadataCorruptError):
            image.apply(records, offset=1, epoch=1)


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_command_may_change_a_topic_and_delete_it(is_created_again: bool) -> None:
    """Nothing of it is left, also where another topic takes its name in the same command."""
    partition = {"partition_id": 0, "replicas": (1,), "isr": (1,), "leader": 1}
    created = [r.TopicRecord(name="t", topic_id=TOPIC_ID), r.PartitionRecord(topic_id=TOPIC_ID, **partition)]
    image = MetadataImage(offset=0).apply(created, offset=1, epoch=1).image
    records: list[r.MetadataRecord] = [
        r.PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, partition_epoch=1, leader=r.NO_LEADER),
        r.RemoveTopicRecord(topic_id=TOPIC_ID),
    ]
    other = UUID(int=78)
    if is_created_again:
        records += [r.TopicRecord(name="t", topic_id=other), r.PartitionRecord(topic_id=other, **partition)]
    after = image.apply(records, offset=2, epoch=1).image
    assert list(after.topics_by_id) == ([other] if is_created_again else [])
    assert [topic.topic_id for topic in after.topics_by_name.values()] == list(after.topics_by_id)


@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["set", "remove"]), st.integers(0, 300), st.integers()), max_size=400
    ),
    chunk=st.integers(1, 50),
)
@settings(max_examples=examples(60), deadline=None)
def test_the_persistent_map_is_a_dictionary_whose_versions_stay(operations: list, chunk: int) -> None:
    model: dict[int, int] = {}
    current: PersistentMap[int, int] = PersistentMap()
    versions = [(current, dict(model))]
    for first in range(0, len(operations), chunk):
        editor = current.edit()
        for kind, key, value in operations[first : first + chunk]:
            if kind == "set":
                editor.set(key, value)
                model[key] = value
            elif key in model:
                editor.remove(key)
                del model[key]
            else:
                with pytest.raises(KeyError):
                    editor.remove(key)
        following = editor.finish()
        changed = set(current.changed_keys(following))
        before = versions[-1][1]
        assert changed == {key for key in {**before, **model} if before.get(key) != model.get(key)}
        assert (current == following) is (before == model) is (current == model)
        current = following
        versions.append((current, dict(model)))
    for version, expected in versions:
        assert dict(version) == expected
        assert len(version) == len(expected)


@pytest.mark.parametrize("size", [3, 100])
def test_a_version_stays_as_it_is_while_its_editor_goes_on(size: int) -> None:
    """A lowered level of metadata changes topics after the editor has handed a version out."""
    editor: MapEditor[int, str] = PersistentMap[int, str]().edit()
    for number in range(size):
        editor.set(number, "old")
    version = editor.finish()
    editor.set(0, "new")
    editor.remove(1)
    following = editor.finish()
    assert dict(version) == dict.fromkeys(range(size), "old")
    assert (following[0], len(following), 1 in following) == ("new", size - 1, False)


def test_a_change_of_a_partition_looks_at_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find the topic that has changed, a broker compared all partitions of both versions: 5 ms for 10,000."""
    partitions = [
        r.PartitionRecord(topic_id=TOPIC_ID, partition_id=number, replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=1)
        for number in range(1_000)
    ]
    topic = r.TopicRecord(name="t", topic_id=TOPIC_ID)
    before = MetadataImage().apply([topic, *partitions], offset=1, epoch=1).image
    looks = 0

    def counted(version: PersistentMap[object, object]) -> Iterator[object]:
        nonlocal looks
        looks += len(version)
        return (key for bucket in version._buckets for key in bucket)

    monkeypatch.setattr(PersistentMap, "__iter__", counted)
    shrunk = r.PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=7, partition_epoch=1, isr=(1,))
    delta = before.apply([shrunk], offset=2, epoch=1)
    assert [change.partition_id for change in delta.changed_partitions] == [7]
    assert looks < 10


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(0, 4), st.integers(1, 6)),
        st.tuples(st.just("delete"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("grow"), st.integers(0, 4), st.integers(1, 9)),
        st.tuples(st.just("fence"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("join"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("lose"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("config"), st.integers(0, 4), st.integers(1, 3)),
        st.tuples(st.just("elect"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


def play(controller: ModelController, steps: list) -> None:
    controller.join(1, 2, 3, 4)
    for kind, number, value in steps:
        name = f"topic-{number}"
        if kind == "create":
            controller.create(name, partitions=value, factor=3)
        elif kind == "delete":
            controller.handle(DeleteTopicsRequest(topic_names=[name]))
        elif kind == "grow":
            controller.handle(
                CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=value, assignments=None)])
            )
        elif kind == "fence":
            controller.fence(number)
        elif kind == "join":
            controller.join(number)
        elif kind == "lose":
            controller.unclean_restart(number)
        elif kind == "config":
            resource = AlterConfigsResource(
                resource_type=2,
                resource_name=name,
                configs=[AlterableConfig(name="min.insync.replicas", config_operation=0, value=str(value))],
            )
            controller.handle(IncrementalAlterConfigsRequest(resources=[resource]))
        else:
            controller.handle(ElectLeadersRequest(election_type=0, topic_partitions=None))


def restored(image: MetadataImage, *, records_per_piece: int = 500) -> MetadataImage:
    reader = SnapshotReader()
    for piece in snapshot_pieces(image, records_per_piece=records_per_piece):
        reader.feed(piece)
    return reader.finish()


@given(steps=STEPS, snapshot_at=st.integers(0, 40), piece=st.integers(2, 9))
@settings(max_examples=examples(60), deadline=None)
def test_replay_snapshot_and_delta_all_lead_to_the_same_image(steps: list, snapshot_at: int, piece: int) -> None:
    controller = ModelController()
    play(controller, steps)
    image = MetadataImage(offset=0)
    from_snapshot = None
    brokers_view: dict = {}
    for offset, records in enumerate(controller.commands, start=1):
        if offset == snapshot_at:
            from_snapshot = restored(image, records_per_piece=piece)
            assert from_snapshot == image
        decoded = r.decode_records(r.encode_records(records))
        delta = image.apply(decoded, offset=offset, epoch=1)
        # The delta names exactly the differences.
        for change in delta.changed_partitions:
            key = (change.topic_id, change.partition_id)
            assert brokers_view.get(key) == change.before
            if change.after is None:
                del brokers_view[key]
            else:
                brokers_view[key] = change.after
        image = delta.image
        if from_snapshot is not None:
            from_snapshot = from_snapshot.apply(records, offset=offset, epoch=1).image
    assert image == controller.image
    if from_snapshot is not None:
        assert from_snapshot == image
    whole = {
        (topic.topic_id, number): partition
        for topic in image.topics_by_id.values()
        for number, partition in topic.partitions.items()
    }
    assert whole == brokers_view
    assert {name: topic.topic_id for name, topic in image.topics_by_name.items()} == {
        topic.name: topic_id for topic_id, topic in image.topics_by_id.items()
    }
    for partition in whole.values():
        check_partition(partition)
    jump = delta_between(MetadataImage(), image)
    assert len(jump.changed_partitions) == len(whole)
    assert b"".join(snapshot_pieces(restored(image))) == b"".join(snapshot_pieces(image)), "equal images, equal bytes"


def test_incomplete_and_mixed_up_snapshots_are_refused() -> None:
    controller = ModelController()
    controller.join(1, 2, 3)
    controller.create("t", partitions=20)
    pieces = list(snapshot_pieces(controller.image, records_per_piece=5))
    assert len(pieces) > 4

    def read(chosen: list[bytes]) -> MetadataImage:
        reader = SnapshotReader()
        for piece in chosen:
            reader.feed(piece)
        return reader.finish()

    assert read(pieces) == controller.image
    for wrong in (pieces[:-1], pieces[1:], [*pieces, pieces[-1]], [*pieces[:2], *pieces[3:]], []):
        with pytest.raises(r.MetadataCorruptError):
            read(wrong)
