"""Goal: a record that was added is in snapshots, and in the rules for lower levels of ``metadata.version``.

Method: one image in which every field is set, so that a new field fails here until ``SAMPLE`` sets it too.
"""

import dataclasses
from uuid import UUID

import pytest

from moldau_quorum.controller.cluster.features import forgotten_at
from moldau_quorum.metadata import records as r
from moldau_quorum.metadata.image import RESOURCE_TOPIC, MetadataImage, delta_between
from moldau_quorum.metadata.snapshot import SnapshotReader, snapshot_pieces

FIELDS = [field.name for field in dataclasses.fields(MetadataImage)]
POSITION = ("offset", "epoch", "controller_epoch", "controller_sequence", "topics_by_name")
"""The fields that say where an image stands, and a second index of the topics."""
TOPIC, ONE, TWO = UUID(int=77), UUID(int=201), UUID(int=202)
ENDPOINTS = (r.Endpoint(name="PLAINTEXT", host="h", port=9092),)
SAMPLE = (
    r.ControllerChangeRecord(controller_id=101, epoch=1),
    r.ClusterRecord(cluster_id="c"),
    r.FeatureLevelRecord(name=r.METADATA_VERSION, level=r.METADATA_LEVEL_LATEST),
    r.RegisterControllerRecord(controller_id=101, incarnation_id=UUID(int=5), endpoints=ENDPOINTS),
    r.RegisterBrokerRecord(
        broker_id=1,
        broker_epoch=7,
        incarnation_id=UUID(int=6),
        endpoints=ENDPOINTS,
        rack="a",
        log_dirs=(ONE, TWO),
        cordoned_log_dirs=(TWO,),
        features=((r.METADATA_VERSION, 1, r.METADATA_LEVEL_LATEST),),
    ),
    r.TopicRecord(name="t", topic_id=TOPIC),
    r.PartitionRecord(topic_id=TOPIC, partition_id=0, replicas=(1,), isr=(1,), leader=1, directories=(TWO,)),
    r.ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name="t", name="retention.ms", value="1"),
    r.ProducerIdsRecord(broker_id=1, broker_epoch=7, next_producer_id=1_000),
    r.ClientQuotaRecord(entity=(("user", None),), key="producer_byte_rate", value=2.5),
    r.UserScramCredentialRecord(user="u", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096),
    r.AccessControlEntryRecord(
        acl_id=UUID(int=8),
        resource_type=2,
        resource_name="t",
        pattern_type=3,
        principal="User:u",
        host="*",
        operation=3,
        permission_type=3,
    ),
    r.DelegationTokenRecord(
        token_id="id", owner="User:u", requester="User:u", renewers=(), issue_ms=1, max_ms=3, expiry_ms=2
    ),
)


def sample_image():
    """Returns the image of ``SAMPLE`` after the next command of the same controller."""
    image = MetadataImage()
    for sequence, records in enumerate((SAMPLE, ())):
        command = r.Command(controller_epoch=1, sequence=sequence, records=records)
        image = image.apply_command(command, offset=sequence + 5, epoch=1).image
    return image


def restored(image):
    reader = SnapshotReader()
    for piece in snapshot_pieces(image):
        reader.feed(piece)
    return reader.finish()


@pytest.mark.parametrize("name", FIELDS)
def test_a_snapshot_holds_every_field_of_an_image(name):
    image = sample_image()
    value = getattr(image, name)
    assert value != getattr(MetadataImage(), name), "set it in SAMPLE"
    assert getattr(restored(image), name) == value


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in POSITION])
def test_a_delta_names_every_part_that_comes_or_goes(name):
    """Brokers act on what a delta names, whether a command or a snapshot brought it."""
    image = sample_image()
    without = dataclasses.replace(image, **{name: getattr(MetadataImage(), name)})
    for before, after in ((image, without), (without, image)):
        assert not delta_between(before, after).empty
    assert delta_between(image, dataclasses.replace(restored(image), offset=99)).empty


def test_the_sample_sets_fields_of_later_versions():
    """Otherwise the levels below would not be tried with them."""
    later = [
        (record, field) for record in SAMPLE for field in dataclasses.fields(record) if field.metadata.get("since")
    ]
    assert later
    for record, field in later:
        assert getattr(record, field.name) != field.default, f"set {type(record).__name__}.{field.name} in SAMPLE"


@pytest.mark.parametrize("level", range(r.METADATA_LEVEL_FIRST, r.METADATA_LEVEL_LATEST + 1))
def test_what_a_lower_level_loses_is_forgotten_and_refused(level):
    """A lower level deletes the records that it cannot represent, and a safe downgrade names them before."""
    image = sample_image()
    downgrade = r.FeatureLevelRecord(name=r.METADATA_VERSION, level=level)
    lowered = image.apply((downgrade,), offset=image.offset, epoch=1).image
    assert restored(lowered) == lowered
    is_lossless = dataclasses.replace(lowered, features=image.features) == image
    assert (forgotten_at(level, image) is None) == is_lossless
