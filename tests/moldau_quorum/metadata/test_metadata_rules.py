"""Goal: bounds of commands, what counts as a change, and which credentials listeners see, case by case.

Method: the pure parts alone. Each test states one rule that a node or an operator depends on.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.runtime.sasl.core.scram import ScramKeys
from moldau_quorum.metadata import records as r
from moldau_quorum.metadata.delta import MetadataDelta
from moldau_quorum.metadata.image import MetadataImage, TopicImage
from moldau_quorum.metadata.persistent_map import MapEditor, PersistentMap
from moldau_quorum.metadata.scram_credentials import ImageCredentials, bootstrap_records
from support.controller.model import ModelController

TOPIC_ID = UUID(int=7)
SCRAM_SHA_256 = 1


def test_a_partition_is_found_by_the_id_of_its_topic() -> None:
    controller = ModelController()
    controller.join(1)
    controller.create("t", partitions=2, factor=1)
    topic = controller.image.topics_by_name["t"]
    assert controller.image.partition(topic.topic_id, 1) is topic.partitions[1]
    assert controller.image.partition(topic.topic_id, 2) is None
    assert controller.image.partition(UUID(int=1), 0) is None


TOPIC = TopicImage(topic_id=TOPIC_ID, name="t", partitions=PersistentMap())


@pytest.mark.parametrize(
    "change",
    [
        {"created_topics": (TOPIC,)},
        {"deleted_topics": (TOPIC,)},
        {"changed_brokers": (1,)},
        {"changed_configs": ((2, "t"),)},
        {"changed_quotas": ((("user", "u"),),)},
        {"changed_scram_credentials": (("u", 1),)},
        {"features_changed": True},
        {"acls_changed": True},
        {"tokens_changed": True},
        {"controllers_changed": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_change_alone_makes_a_delta(change: dict[str, Any]) -> None:
    """A broker passes over an empty delta."""
    image = MetadataImage(offset=1)
    assert MetadataDelta(previous=image, image=image).empty
    assert not MetadataDelta(previous=image, image=image, **change).empty


def test_what_is_encoded_can_be_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends have the same bound; a longer command would be in the log, and stop every node that reads it."""

    def command(size: int) -> r.Command:
        record = r.ConfigRecord(resource_type=2, resource_name="t", name="n", value="v" * size)
        return r.Command(controller_epoch=1, sequence=0, records=(record,))

    longest = len(r.encode_command(command(1_000)))
    monkeypatch.setattr(r, "COMMAND_BYTES_MAX", longest)
    assert r.decode_command(r.encode_command(command(1_000))) == command(1_000)
    with pytest.raises(r.CommandTooLargeError):
        r.encode_command(command(1_001))


@pytest.mark.parametrize("key", [1.5, b"bytes", frozenset(), ("a", 1.5)])
def test_a_map_refuses_keys_without_a_place(key: object) -> None:
    """The places of keys must not depend on ``hash``, or two nodes would iterate differently."""
    editor: MapEditor[Any, int] = PersistentMap[Any, int]().edit()
    for number in range(20):
        editor.set(number, number)
    with pytest.raises(TypeError, match="a persistent map cannot have the key"):
        editor.set(key, 1)


def test_a_raised_version_keeps_the_delegation_tokens() -> None:
    token = r.DelegationTokenRecord(
        token_id="id", owner="User:a", requester="User:a", renewers=(), issue_ms=1, max_ms=3, expiry_ms=2
    )
    image = MetadataImage()
    for records in (
        [r.FeatureLevelRecord(name="metadata.version", level=r.METADATA_LEVEL_TOKENS)],
        [token],
        [r.FeatureLevelRecord(name="metadata.version", level=r.METADATA_LEVEL_LATEST)],
        [r.FeatureLevelRecord(name="group.version", level=1)],
    ):
        image = image.apply(records, offset=image.offset + 1, epoch=1).image
    assert list(image.delegation_tokens) == ["id"]
    lowered = [r.FeatureLevelRecord(name="metadata.version", level=r.METADATA_LEVEL_TOKENS - 1)]
    assert not image.apply(lowered, offset=image.offset + 1, epoch=1).image.delegation_tokens


def test_bootstrap_credentials_count_until_the_image_has_its_own() -> None:
    """A node that starts must log in before it knows the cluster's credentials; later it must not trust its own."""
    keys = {("admin", SCRAM_SHA_256): ScramKeys(salt=b"s", iterations=4096, stored_key=b"k", server_key=b"v")}
    images = [MetadataImage()]
    credentials = ImageCredentials(lambda: images[-1], keys)
    assert credentials.keys("admin", SCRAM_SHA_256) == keys["admin", SCRAM_SHA_256]
    assert ImageCredentials(lambda: images[-1]).keys("admin", SCRAM_SHA_256) is None
    images.append(images[-1].apply([r.ClusterRecord(cluster_id="c")], offset=1, epoch=1).image)
    assert credentials.keys("admin", SCRAM_SHA_256) is None
    images.append(images[-1].apply(bootstrap_records(keys), offset=2, epoch=1).image)
    assert credentials.keys("admin", SCRAM_SHA_256) == keys["admin", SCRAM_SHA_256]
    assert credentials.keys("admin", SCRAM_SHA_256 + 1) is None


def test_a_delta_names_topics_that_came_and_went() -> None:
    """A topic that was deleted and created again under its name is both, with two ids."""
    controller = ModelController()
    controller.join(1)
    controller.create("again", partitions=1, factor=1)
    before = controller.image
    old = before.topics_by_name["again"]
    new, other = UUID(int=71), UUID(int=72)
    records = [
        r.RemoveTopicRecord(topic_id=old.topic_id),
        r.TopicRecord(topic_id=new, name="again"),
        r.TopicRecord(topic_id=other, name="other"),
    ]
    delta = before.apply(records, offset=before.offset + 1, epoch=1)
    assert [topic.topic_id for topic in delta.deleted_topics] == [old.topic_id]
    assert {(topic.name, topic.topic_id) for topic in delta.created_topics} == {("again", new), ("other", other)}
    later = delta.image.apply([], offset=before.offset + 2, epoch=1)
    assert (later.created_topics, later.deleted_topics) == ((), ())
