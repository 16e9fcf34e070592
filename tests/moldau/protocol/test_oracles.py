"""Goal: our bytes are Kafka's bytes, for every API, class and version that an independent library knows too.

Method: encode a sample, let the library decode and encode it again, and compare byte by byte; then decode its bytes
with our codec and compare with the sample. That checks both directions at once. kio knows nearly everything;
kafka-python is a second opinion that shares no code with it. The libraries only ever see valid input (kio aborts the
process on some hostile input).
"""

import importlib
import importlib.util
import io
import itertools
import re
import warnings
from pathlib import Path
from uuid import UUID

import pytest

from moldau.protocol.api import APIS
from moldau.protocol.codec import decode, encode
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.internal.share_group import (
    ShareGroupStatePartitionMetadataValue,
    TopicInfo,
    TopicPartitionsInfo,
)
from moldau.protocol.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from moldau.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from moldau.protocol.schema import Message
from support.protocol_samples import all_messages, internal_classes, samples, versions_of


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


KIO = Path(importlib.util.find_spec("kio").origin).parent
"""kio's folder. Collecting tests looks for files only: its modules take longer to load than all others together."""


def kio_module(cls: type[Message], version: int) -> str | None:
    """The name of kio's module with the same message and version, if there is one."""
    name = cls.__name__
    kind = "request" if name.endswith("Request") else "response" if name.endswith("Response") else "data"
    base = snake(name.removesuffix("Request").removesuffix("Response"))
    found = (KIO / "schema" / base / f"v{version}" / f"{kind}.py").is_file()
    return f"kio.schema.{base}.v{version}.{kind}" if found else None


def kio_class(cls: type[Message], version: int) -> type:
    """kio's class of a message in ``WITH_KIO``."""
    found = getattr(importlib.import_module(kio_module(cls, version)), cls.__name__)
    assert isinstance(found, type)
    return found


def kafka_python_classes() -> dict[str, type]:
    """kafka-python's message classes by name. It reads its tables by a function that Python has deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for part in ("admin", "consumer", "metadata", "producer", "sasl"):
            importlib.import_module(f"kafka.protocol.{part}")
        message_base = importlib.import_module("kafka.protocol.api_message").ApiMessage
    found: dict[str, type] = {}
    pending = [message_base]
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        found.setdefault(cls.__name__, cls)
    return found


KAFKA_PYTHON = kafka_python_classes()
WITH_KIO = [(cls, version) for cls, version in all_messages() if kio_module(cls, version) is not None]
WITH_KAFKA_PYTHON = [
    (cls, version)
    for cls, version in all_messages()
    if cls.__name__ in KAFKA_PYTHON and version <= KAFKA_PYTHON[cls.__name__].max_version
]


def by_class(cases: list[tuple[type[Message], int]]) -> list[object]:
    """Values for ``parametrize``: a class with all its versions. One test for each would take longer."""
    versions: dict[type[Message], list[int]] = {}
    for cls, version in cases:
        versions.setdefault(cls, []).append(version)
    return [pytest.param(cls, known, id=cls.__name__) for cls, known in versions.items()]


def expect_same(cls: type[Message], version: int, sample: Message, theirs: bytes, ours: bytes) -> None:
    assert theirs == ours, f"version {version}"
    assert decode(cls, version, theirs) == sample, f"version {version}"


@pytest.mark.parametrize(("cls", "versions"), by_class(WITH_KIO))
def test_agrees_with_kio(cls: type[Message], versions: list[int]) -> None:
    from kio.serial import entity_reader, entity_writer

    for version in versions:
        entity = kio_class(cls, version)
        read, write = entity_reader(entity), entity_writer(entity)
        for sample in samples(cls, version, 6):
            ours = encode(sample, version)
            value = read(ours, 0)
            value = value[0] if isinstance(value, tuple) else value
            out = io.BytesIO()
            write(out, value)
            expect_same(cls, version, sample, out.getvalue(), ours)


@pytest.mark.parametrize(("cls", "versions"), by_class(WITH_KAFKA_PYTHON))
def test_agrees_with_kafka_python(cls: type[Message], versions: list[int]) -> None:
    entity = KAFKA_PYTHON[cls.__name__]
    for version, extremes in itertools.product(versions, (False, True)):
        for sample in samples(cls, version, 4, extremes=extremes):
            if isinstance(sample, ApiVersionsResponse):
                sample.error_code = 0  # with an error kafka-python reads version 0, whatever was asked for
            ours = encode(sample, version)
            value = entity.decode(ours, version=version)
            value._header = None  # encode() looks at it, decode() without a header leaves it unset
            theirs = value.encode()
            expect_same(cls, version, sample, bytes(theirs), ours)


STREAMS = {f"StreamsGroup{name}{kind}" for name in ("Heartbeat", "Describe") for kind in ("Request", "Response")}
"""kio knows version 0; the next test compares version 1 with bytes written down by hand from Kafka's schemas."""


def test_streams_groups_version_1_by_hand() -> None:
    beat = StreamsGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=3, topology=None, user_endpoint=None)
    assert encode(beat, 1) == encode(beat, 0)
    answer = StreamsGroupHeartbeatResponse(
        throttle_time_ms=1, error_code=2, member_id="m", member_epoch=3, heartbeat_interval_ms=4,
        task_offset_interval_ms=5, acceptable_recovery_lag=6, status=None, topology_description_required=True,
        endpoint_information_epoch=7,
    )  # fmt: skip
    golden = "00000001 0002 00 026d 00000003 00000004 00000005 0000000000000006 00 00 00 00 01 00000007 00 00"
    assert bytes(encode(answer, 1)) == bytes.fromhex(golden)
    ask = StreamsGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False)
    ask.include_topology_description = True
    assert bytes(encode(ask, 1)) == bytes.fromhex("02 0267 00 01 00")
    group = DescribedGroup(group_id="g", group_state="Empty", group_epoch=1, assignment_epoch=2, topology=None)
    group.members, group.topology_description, group.topology_description_status = [], None, 1
    described = StreamsGroupDescribeResponse(throttle_time_ms=9, groups=[group])
    golden = "00000009 02 0000 00 0267 06456d707479 00000001 00000002 ff 01 80000000 ff 01 00 00 00"
    assert bytes(encode(described, 1)) == bytes.fromhex(golden)


NEWEST = {
    (f"{name}{kind}", version)
    for name, version in (("ApiVersions", 5), ("DeleteGroups", 3), ("TxnOffsetCommit", 6))
    for kind in ("Request", "Response")
}
"""Versions of Kafka 4.4 that no library knows; the next test compares them with bytes from Kafka's schemas."""


def test_newest_versions_by_hand() -> None:
    asked = ApiVersionsRequest(client_software_name="n", client_software_version="1", cluster_id="c", node_id=2)
    assert bytes(encode(asked, 5)) == bytes.fromhex("026e 0231 0263 00000002 00")
    nameless = ApiVersionsRequest(client_software_name="n", client_software_version="1")
    assert bytes(encode(nameless, 5)) == bytes.fromhex("026e 0231 00 ffffffff 00")
    assert encode(ApiVersionsResponse(error_code=129), 5) == encode(ApiVersionsResponse(error_code=129), 4)
    assert encode(DeleteGroupsRequest(groups_names=["g"]), 3) == encode(DeleteGroupsRequest(groups_names=["g"]), 2)
    refused = DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=68, error_message="m")])
    assert bytes(encode(refused, 3)) == bytes.fromhex("00000000 02 0267 0044 026d 00 00")
    part = TxnOffsetCommitRequestPartition(partition_index=1, committed_offset=2, committed_metadata=None)
    topic = TxnOffsetCommitRequestTopic(topic_id=UUID(int=3), partitions=[part])
    commit = TxnOffsetCommitRequest(transactional_id="x", group_id="g", producer_id=4, producer_epoch=5, topics=[topic])
    golden = "0278 0267 0000000000000004 0005 ffffffff 01 00 02 00000000000000000000000000000003"
    golden += "02 00000001 0000000000000002 ffffffff 00 00 00 00"
    assert bytes(encode(commit, 6)) == bytes.fromhex(golden)
    done = TxnOffsetCommitResponsePartition(partition_index=1, error_code=100)
    answer = TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(topic_id=UUID(int=3), partitions=[done])])
    golden = "00000000 02 00000000000000000000000000000003 02 00000001 0064 00 00 00"
    assert bytes(encode(answer, 6)) == bytes.fromhex(golden)


def test_states_of_share_groups_have_kafkas_bytes() -> None:
    """The record that no library knows; Kafka's dump tool decodes it in tests/interop/test_kafka_dump.py."""
    topic = TopicPartitionsInfo(topic_id=UUID(int=1), topic_name="t", partitions=[0, 1])
    value = ShareGroupStatePartitionMetadataValue(initializing_topics=[], initialized_topics=[topic])
    value.deleting_topics = [TopicInfo(topic_id=UUID(int=2), topic_name="u")]
    golden = "01 02 00000000000000000000000000000001 0274 03 00000000 00000001 00"
    golden += "02 00000000000000000000000000000002 0275 00 00"
    assert bytes(encode(value, 0)) == bytes.fromhex(golden)


def test_every_version_has_an_oracle() -> None:
    """No API escapes comparison: what neither library knows is listed here by name, and is checked by golden bytes."""
    known = {case[0] for case in WITH_KIO} | {case[0] for case in WITH_KAFKA_PYTHON}
    for api in APIS.values():
        assert api.request in known
        assert api.response in known
    both = set(WITH_KIO) | set(WITH_KAFKA_PYTHON)
    missing = [(cls.__name__, version) for cls, version in all_messages() if (cls, version) not in both]
    without = {cls.__name__ for cls in internal_classes()} - {
        "ConsumerProtocolAssignment",
        "ConsumerProtocolSubscription",
        "EndTxnMarker",
    }
    by_hand = {(name, 1) for name in STREAMS} | NEWEST
    assert {name for name, version in missing if (name, version) not in by_hand} <= without
    assert by_hand <= set(missing)
    assert all(list(versions_of(api.request)) == list(versions_of(api.response)) for api in APIS.values())
