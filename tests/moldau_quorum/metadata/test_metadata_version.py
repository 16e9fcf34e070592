"""Levels of ``metadata.version``: the records of each level, upgrades and downgrades, and records of older versions.

``golden/metadata-version-1.json`` holds commands and a snapshot as the version before level 2 wrote them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau_quorum.controller.cluster.features import (
    SUPPORTED_FEATURES,
    forgotten_at,
    initial_features,
    update_features,
)
from moldau_quorum.log.port import CommittedEntry
from moldau_quorum.metadata import records as r
from moldau_quorum.metadata.directory_ids import MIGRATING
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.snapshot import SnapshotReader, snapshot_pieces
from moldau_quorum.node.state_machine import MetadataStateMachine
from support.controller.directories import assign, cluster, join, one, two
from support.controller.model import ModelController, offered

GOLDEN = json.loads((Path(__file__).parent / "golden" / "metadata-version-1.json").read_text())
UP, SAFE, UNSAFE = 1, 2, 3
OLD = {**SUPPORTED_FEATURES, r.METADATA_VERSION: (1, 1)}


def golden_image() -> MetadataImage:
    image = MetadataImage(offset=0)
    for offset, data in enumerate(GOLDEN["commands"], 1):
        image = image.apply_command(r.decode_command(bytes.fromhex(data)), offset=offset, epoch=1).image
    return image


def restored(pieces) -> MetadataImage:
    reader = SnapshotReader()
    for piece in pieces:
        reader.feed(piece)
    return reader.finish()


def level(controller: ModelController, wanted: int, kind: int = UP, **context):
    update = FeatureUpdateKey(feature=r.METADATA_VERSION, max_version_level=wanted, upgrade_type=kind)
    request = UpdateFeaturesRequest(feature_updates=[update])
    result = update_features(request, controller.image, replace(controller.context(), **context))
    controller.apply(result.records)
    return result.response


def test_level_one_records_are_read_and_written_byte_by_byte() -> None:
    """Records that the first level wrote are read, and are written again with the same bytes."""
    image = golden_image()
    assert image.metadata_level == 1
    assert not image.records_directories
    assert restored(bytes.fromhex(piece) for piece in GOLDEN["snapshot"]) == image
    assert [piece.hex() for piece in snapshot_pieces(image)] == GOLDEN["snapshot"]
    for data in GOLDEN["commands"]:
        command = r.decode_command(bytes.fromhex(data))
        assert r.encode_command(command, 1).hex() == data
    partition = image.topics_by_name["orders"].partitions[0]
    assert [partition.directory(b) for b in partition.replicas] == [MIGRATING] * 3
    assert all(image.replica_online(partition, b) for b in partition.replicas)


def test_an_old_log_goes_up_a_level_and_on() -> None:
    controller = ModelController()
    controller.image = golden_image()
    assert level(controller, 2).error_code == ErrorCode.INVALID_UPDATE_VERSION, "its brokers are of the old version"
    for broker_id in (1, 2, 3, 4):
        controller.sessions.remove(broker_id)
        known = controller.image.brokers[broker_id]
        answer = controller.register(
            broker_id,
            incarnation=known.incarnation_id.int % 1000 + 1,
            previous_epoch=known.broker_epoch,
            log_dirs=[one(broker_id), two(broker_id)],
            features=offered(metadata_version=2),
        )
        assert answer.error_code == 0
        assert not controller.beat(broker_id).is_fenced
    assert level(controller, 2).error_code == 0
    holder = controller.partition("orders").replicas[0]
    assert assign(controller, holder, "orders", 0, two(holder)) == 0
    assert controller.partition("orders").directories == (two(holder), MIGRATING, MIGRATING)
    image = controller.image
    assert restored(snapshot_pieces(image)) == replace(image, controller_epoch=image.controller_epoch)


def test_records_of_a_level_are_not_written_below_it() -> None:
    record = r.PartitionRecord(
        topic_id=UUID(int=7), partition_id=0, replicas=(1,), isr=(1,), leader=1, directories=(one(1),)
    )
    command = r.Command(controller_epoch=1, sequence=0, records=(record,))
    with pytest.raises(AssertionError, match=r"PartitionRecord.directories cannot be written at metadata.version 1"):
        r.encode_command(command, 1)
    assert r.decode_command(r.encode_command(command, 2)).records == (record,)
    plain = replace(record, directories=())
    old = r.encode_command(r.Command(controller_epoch=1, sequence=0, records=(plain,)), 1)
    assert r.decode_command(old).records == (plain,)
    assert len(old) < len(r.encode_command(r.Command(controller_epoch=1, sequence=0, records=(plain,)), 2))


def test_level_one_neither_records_nor_uses_directories() -> None:
    """At level 1 the controller neither records directories nor acts on them."""
    controller = cluster()
    assert level(controller, 1, SAFE).error_code == 0, "nothing is recorded yet"
    controller.create("t")
    assert controller.partition("t").directories == ()
    assert assign(controller, 1, "t", 0, one(1)) == ErrorCode.UNSUPPORTED_VERSION
    before = controller.partition("t")
    controller.beat(1, offline_log_dirs=[one(1)])
    assert controller.partition("t") == before
    assert controller.image.brokers[1].log_dirs == (one(1), two(1))


def test_a_safe_downgrade_is_refused_if_it_loses_metadata() -> None:
    """A safe downgrade is refused if the lower level cannot represent recorded metadata."""
    controller = cluster()
    controller.create("t")
    assert assign(controller, 2, "t", 0, two(2)) == 0
    assert level(controller, 1, UP).error_code == ErrorCode.INVALID_UPDATE_VERSION
    refused = level(controller, 1, SAFE)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "broker 2 holds t-0" in refused.error_message
    assert controller.image.metadata_level == r.METADATA_LEVEL_LATEST
    assert level(controller, 1, UNSAFE).error_code == 0
    assert controller.image.metadata_level == 1
    assert controller.partition("t").directories == ()
    assert [record for piece in snapshot_pieces(controller.image) for record in r.decode_records(piece)]
    assert restored(snapshot_pieces(controller.image)) == controller.image
    assert level(controller, 2).error_code == 0
    assert controller.partition("t").directory(2) == MIGRATING
    assert assign(controller, 2, "t", 0, two(2)) == 0


def test_a_lower_level_forgets_what_its_own_command_has_written() -> None:
    """Each node replays the whole command, so the directories of all topics are gone, changed before or not."""
    controller = cluster()
    for name in ("t", "u"):
        controller.create(name)
        assert assign(controller, 2, name, 0, two(2)) == 0
    topic = controller.image.topics_by_name["t"]
    partition = topic.partitions[0]
    change = r.PartitionChangeRecord(
        topic_id=topic.topic_id,
        partition_id=0,
        partition_epoch=partition.partition_epoch + 1,
        directories=tuple(one(replica) for replica in partition.replicas),
    )
    controller.apply([change, r.FeatureLevelRecord(name=r.METADATA_VERSION, level=1)])
    assert [controller.partition(name).directories for name in ("t", "u")] == [(), ()]
    assert restored(snapshot_pieces(controller.image)) == controller.image


def test_tokens_are_not_lost_by_a_safe_downgrade() -> None:
    """Below level 3 there are no delegation tokens: they are neither forgotten unasked, nor written."""
    controller = cluster()
    token = r.DelegationTokenRecord(
        token_id="id", owner="User:a", requester="User:a", renewers=(), issue_ms=1, max_ms=3, expiry_ms=2
    )
    controller.apply((token,))
    assert restored(snapshot_pieces(controller.image)) == controller.image
    assert "1 delegation tokens" in level(controller, 2, SAFE).error_message
    assert level(controller, 2, UNSAFE).error_code == 0
    assert not len(controller.image.delegation_tokens)
    with pytest.raises(AssertionError, match="DelegationTokenRecord cannot be written at metadata"):
        r.encode_command(r.Command(controller_epoch=1, sequence=0, records=(token,)), 2)


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("allowed", [False, True])
def test_only_an_unsafe_downgrade_forgets_metadata(allowed: bool, kind: int) -> None:
    """However a client asks: a request of version 0 has the flag ``allow_downgrade``, and no kind of change."""
    for wanted in range(r.METADATA_LEVEL_FIRST, r.METADATA_LEVEL_LATEST + 1):
        controller = cluster()
        controller.create("t")
        assert assign(controller, 2, "t", 0, two(2)) == 0
        token = r.DelegationTokenRecord(
            token_id="id", owner="User:a", requester="User:a", renewers=(), issue_ms=1, max_ms=3, expiry_ms=2
        )
        controller.apply((token,))
        before = controller.image
        update = FeatureUpdateKey(
            feature=r.METADATA_VERSION, max_version_level=wanted, upgrade_type=kind, allow_downgrade=allowed
        )
        result = update_features(UpdateFeaturesRequest(feature_updates=[update]), before, controller.context())
        controller.apply(result.records)
        keeps_all = forgotten_at(wanted, before) is None
        if kind != UNSAFE and not keeps_all:
            assert result.response.error_code == ErrorCode.INVALID_UPDATE_VERSION, f"level {wanted}"
        if kind != UNSAFE or keeps_all:
            assert controller.image.delegation_tokens == before.delegation_tokens
            assert controller.partition("t").directories == before.topics_by_name["t"].partitions[0].directories
        else:
            assert controller.image.metadata_level == wanted


def test_going_down_is_safe_where_each_broker_has_one_directory() -> None:
    controller = cluster(directories=1)
    controller.create("t", partitions=3)
    assert controller.partition("t").directory(1) == one(1)
    assert level(controller, 1, SAFE).error_code == 0
    assert controller.partition("t").directories == ()


def test_a_failed_directory_makes_going_down_unsafe() -> None:
    controller = cluster(directories=1)
    join(controller, 1, one(1), two(1))
    join(controller, 1, one(1))
    controller.create("t", factor=3)
    join(controller, 1, two(1))
    refused = level(controller, 1, SAFE)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "broker 1 holds t-0" in refused.error_message


def test_a_level_needs_the_support_of_every_controller() -> None:
    """A level is not raised while a controller does not support it, or did not report its levels."""
    controller = cluster()
    assert level(controller, 1, SAFE).error_code == 0
    for ranges, text in (
        ({102: {r.METADATA_VERSION: (1, 1)}}, "controller 102 supports levels 1..1"),
        ({102: {r.METADATA_VERSION: (1, 2)}, 103: None}, "controller 103 did not say"),
        ({102: {}}, "controller 102 supports levels 0..0"),
    ):
        refused = level(controller, 2, controller_features=ranges)
        assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert text in refused.error_message
    assert level(controller, 2, controller_features={102: {r.METADATA_VERSION: (1, 2)}}).error_code == 0


def test_a_node_stops_at_a_level_that_it_does_not_know() -> None:
    """A node that does not support the level of the log stops instead of reading it."""
    machine = MetadataStateMachine(1, OLD)
    commands = [
        (r.ControllerChangeRecord(controller_id=101, epoch=1),),
        (r.FeatureLevelRecord(name=r.METADATA_VERSION, level=1),),
        (r.FeatureLevelRecord(name=r.METADATA_VERSION, level=2),),
    ]
    for sequence, records in enumerate(commands):
        data = r.encode_command(r.Command(controller_epoch=1, sequence=sequence, records=records), 1)
        entry = CommittedEntry(index=sequence + 1, epoch=1, data=data)
        if sequence < 2:
            assert not machine.apply(entry)
        else:
            with pytest.raises(r.MetadataCorruptError, match=r"metadata.version 2, this node supports 1 to 1 only"):
                machine.apply(entry)


def test_a_new_cluster_has_the_level_of_its_first_controller() -> None:
    """A new cluster starts at the highest level that its first controller supports."""
    assert initial_features(SUPPORTED_FEATURES)[r.METADATA_VERSION] == r.METADATA_LEVEL_LATEST
    assert initial_features(OLD)[r.METADATA_VERSION] == 1


def test_an_old_broker_cannot_join_at_the_new_level() -> None:
    """A broker that supports only the old level cannot register at the new level."""
    controller = cluster()
    assert controller.register(9, features=offered(metadata_version=1)).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_downgrade_asks_for_a_snapshot() -> None:
    """A downgrade of any feature asks for a snapshot, so that the old version need not read the earlier records."""
    machine = MetadataStateMachine(1)
    asked = []
    for sequence, record in enumerate(
        (
            r.ControllerChangeRecord(controller_id=101, epoch=1),
            r.FeatureLevelRecord(name=r.METADATA_VERSION, level=2),
            r.FeatureLevelRecord(name=r.METADATA_VERSION, level=1),
            r.TopicRecord(name="t", topic_id=UUID(int=700)),
            r.FeatureLevelRecord(name=r.METADATA_VERSION, level=2),
            r.FeatureLevelRecord(name="share.version", level=1),
            r.FeatureLevelRecord(name="share.version", level=0),
            r.TopicRecord(name="u", topic_id=UUID(int=701)),
        )
    ):
        data = r.encode_command(r.Command(controller_epoch=1, sequence=sequence, records=(record,)))
        asked.append(machine.apply(CommittedEntry(index=sequence + 1, epoch=1, data=data)))
    assert asked == [False, False, True, False, False, False, True, False]
