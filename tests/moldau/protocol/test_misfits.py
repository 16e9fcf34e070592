"""Goal: a number that its field cannot hold is named with its field, its owner and the range that is allowed.

Method: each integer field of each message, at its latest version, gets a number beyond its range; the encoder's error
must name that field and both bounds.
"""

from collections.abc import Iterator

import pytest

from moldau.protocol.codec import EncodeError, encode
from moldau.protocol.field import FieldSpec
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.misfits import misfit
from moldau.protocol.schema import Message, Struct
from support.protocol_samples import all_messages

BEYOND = {"int8": 2**7, "int16": 2**15, "uint16": 2**16, "int32": 2**31, "uint32": 2**32, "int64": 2**63}


def with_one_beyond(struct: type[Struct], version: int) -> Iterator[tuple[str, int, Struct]]:
    """Samples of a struct, each with one number beyond the range of its field, which is returned too."""
    for key, spec in struct.__fields__.items():
        if version not in spec.versions:
            continue
        for found, number, value in values_beyond(key, spec, version):
            sample = struct()
            for name, each in struct.__fields__.items():  # parts that are null by default, but not at this version
                if getattr(sample, name) is None and version not in each.nullable:
                    setattr(sample, name, b"" if each.kind == "bytes" else () if each.is_array else "")
            setattr(sample, key, (value,) if spec.is_array else value)
            yield found, number, sample


def values_beyond(key: str, spec: FieldSpec, version: int) -> Iterator[tuple[str, int, object]]:
    if spec.struct is not None:
        yield from with_one_beyond(spec.struct, version)
    elif spec.kind in BEYOND:
        number = BEYOND[spec.kind]
        yield key, number, number


def test_each_number_beyond_its_field_is_named() -> None:
    seen = 0
    latest: dict[type[Message], int] = {}
    for cls, version in all_messages():
        latest[cls] = max(version, latest.get(cls, version))
    for cls, version in latest.items():
        for key, number, sample in with_one_beyond(cls, version):
            assert isinstance(sample, Message)
            with pytest.raises(EncodeError) as raised:
                encode(sample, version)
            text = str(raised.value)
            assert text.startswith(f"{cls.__name__} v{version}: {key}"), text
            assert f" is {number}; it must be between " in text, text
            assert text.endswith(f" and {number - 1}"), text
            seen += 1
    assert seen > 600


def test_the_entries_around_a_value_are_named() -> None:
    topic = CreatableTopic(name="flights", num_partitions=2**31)
    request = CreateTopicsRequest(topics=[CreatableTopic(name="a", num_partitions=1), topic])
    assert misfit(request, 7) == (
        "num_partitions of topics 'flights' is 2147483648; it must be between -2147483648 and 2147483647"
    )
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=-(2**63) - 1, committed_metadata="")
    commit = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=[part])])
    assert misfit(commit, 8).startswith("committed_offset of partitions[0] of topics 't' is -9223372036854775809;")


def test_values_of_other_types_are_named() -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(name="a", num_partitions=1.5)])  # type: ignore[arg-type]
    assert misfit(request, 7) == "num_partitions of topics 'a' is 1.5, which is no integer"
    surrogate = CreateTopicsRequest(topics=[CreatableTopic(name="\ud800")])
    assert "which is not valid Unicode" in misfit(surrogate, 7)
    assert misfit(CreateTopicsRequest(topics=[CreatableTopic(name="a")]), 7) == ""
