"""Goal: values without a schema have the bytes of Kafka's serializers, and the wire format is read as it is written.

Method: Hypothesis round trips; confluent-kafka's serializers as the oracle; tables of what is refused.
"""

import contextlib
import dataclasses
import uuid
from functools import partial

import confluent_kafka.serialization as oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from moldau.cluster.metadata import TopicPartition
from moldau.records import Record
from moldau.serialization import (
    BytesSerde,
    DoubleSerde,
    IntegerSerde,
    JsonSerde,
    LongSerde,
    ModelSerde,
    MsgpackSerde,
    RecordDeserializationError,
    SerializationContext,
    SerializationError,
    ShortSerde,
    StringSerde,
    UUIDSerde,
)
from moldau.serialization.core.records import RecordDecoder, RecordEncoder
from moldau.serialization.core.wire_format import (
    INDEXES_MAX,
    WireFormatError,
    frame,
    read_indexes,
    split_frame,
    write_indexes,
)

CONTEXT = SerializationContext("t", "value")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def both_ways(serde, value):
    return serde.deserialize(bytes(serde.serialize(value, CONTEXT)), CONTEXT)


@given(st.data())
def test_values_return_as_they_were(data):
    for serde, values in (
        (StringSerde(), st.text()),
        (StringSerde("utf-16"), st.text()),
        (BytesSerde(), st.binary()),
        (ShortSerde(), st.integers(-(2**15), 2**15 - 1)),
        (IntegerSerde(), st.integers(-(2**31), 2**31 - 1)),
        (LongSerde(), st.integers(-(2**63), 2**63 - 1)),
        (DoubleSerde(), st.floats(allow_nan=False)),
        (UUIDSerde(), st.uuids()),
        (JsonSerde(), JSON),
        (MsgpackSerde(), st.dictionaries(st.text() | st.integers(0, 9), st.binary() | st.integers(0, 2**63))),
    ):
        value = data.draw(values)
        assert both_ways(serde, value) == value


@pytest.mark.parametrize("text", [b'{"item":"\\ud800","n":"\\ufffd"}', b'["\\udfff\\ud83d"]', b'{"\\ud800":1}'])
def test_half_of_a_surrogate_pair_is_written_as_it_was_read(text):
    """JSON may hold it as an escape. A processor writes such a record again, into its retry topic."""
    value = JsonSerde().deserialize(text, CONTEXT)
    assert JsonSerde().serialize(value, CONTEXT) == text
    assert JsonSerde(default=str).serialize({"at": CONTEXT, "item": "\ud800"}, CONTEXT).endswith(b'"\\ud800"}')


@given(st.text(), st.integers(-(2**31), 2**31 - 1), st.floats(allow_nan=False))
def test_bytes_are_those_of_kafkas_serializers(text, number, real):
    assert StringSerde().serialize(text, CONTEXT) == oracle.StringSerializer("utf-8")(text)
    assert IntegerSerde().serialize(number, CONTEXT) == oracle.IntegerSerializer()(number)
    assert DoubleSerde().serialize(real, CONTEXT) == oracle.DoubleSerializer()(real)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=20))
def test_frames_are_split_as_written(schema_id, body):
    assert split_frame(frame(schema_id) + body) == (schema_id, body)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=INDEXES_MAX), st.binary(max_size=4))
def test_indexes_are_read_as_written(indexes, rest):
    head = write_indexes(indexes)
    assert read_indexes(head + rest) == (tuple(indexes), len(head))
    assert head == b"\0" or indexes != [0]


@given(st.binary(max_size=12))
def test_damaged_frames_raise_one_error_only(data):
    for read in (split_frame, read_indexes):
        with contextlib.suppress(WireFormatError):
            head = read(data)[1]
            assert head == data[5:] if isinstance(head, bytes) else head <= len(data)


@pytest.mark.parametrize(
    ("serde", "value", "text"),
    [
        (StringSerde(), b"x", "must be a str, not bytes"),
        (IntegerSerde(), 2**31, r"2147483648 is no integer: it lies outside -2\*\*31"),
        (LongSerde(), True, "must be an int, not bool"),
        (DoubleSerde(), "1", "must be a float, not str"),
        (UUIDSerde(), "1", "must be a UUID"),
        (JsonSerde(), float("nan"), "not JSON compliant"),
        (JsonSerde(), {1, 2}, "not JSON serializable"),
        (ModelSerde(int), "x", "valid integer"),
        (lambda value: value.encode(), 5, "AttributeError"),
    ],
)
def test_refused_values_name_topic_and_field(serde, value, text):
    encoder = RecordEncoder.of(None, serde)
    with pytest.raises(SerializationError, match=text) as caught:
        encoder.encode("flights", b"k", value, ())
    assert str(caught.value).startswith("flights: the value ")
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("serde", "data", "text"),
    [
        (StringSerde(), b"\xff", "UnicodeDecodeError"),
        (IntegerSerde(), b"12345", "5 bytes are no integer, which has 4"),
        (UUIDSerde(), b"no", "badly formed"),
        (JsonSerde(), b"NaN", "NaN is no JSON number"),
        (JsonSerde(), b'{"delay": -1e400}', "-1e400 is too large for a float"),
        (MsgpackSerde(), b"\xc1", "FormatError"),
        (ModelSerde(dict[str, int]), b'{"a": "b"}', "valid integer"),
    ],
)
def test_poison_names_its_place(serde, data, text):
    decoder = RecordDecoder.of(serde, None)
    record = Record(41, 7, data, b"v", [("h", b"1")])
    with pytest.raises(RecordDeserializationError, match=text) as caught:
        decoder.decode(TopicPartition("flights", 3), record)
    error = caught.value
    assert "flights-3 at offset 41: the key cannot be deserialized" in str(error)
    assert (error.topic_partition, error.offset, error.timestamp, error.field) == (("flights", 3), 41, 7, "key")
    assert (error.key, error.value, error.headers) == (data, b"v", (("h", b"1"),))


def test_nulls_reach_no_serializer():
    def fail(value):
        raise AssertionError(value)

    assert RecordEncoder.of(fail, fail).encode("t", None, None, ()) == (None, None)
    decoded = RecordDecoder.of(fail, fail).decode(TopicPartition("t", 0), Record(0, 0, None, None))
    assert decoded == (None, None)


class Awaited:
    """An object with coroutine functions in the place of those that a client calls."""

    async def serialize(self, value, context):
        return value

    deserialize = serialize
    __call__ = serialize


@pytest.mark.parametrize("wrong", [5, StringSerde, Awaited(), Awaited().serialize, partial(Awaited().serialize, 1)])
def test_an_invalid_serializer_is_refused(wrong):
    with pytest.raises(TypeError, match="value_serializer"):
        RecordEncoder.of(None, wrong)
    with pytest.raises(TypeError, match="key_deserializer"):
        RecordDecoder.of(wrong, None)


def test_fields_with_an_alias_are_read_as_written():
    """Pydantic reads a field by its alias, and by default writes its name."""

    class Leg(BaseModel):
        origin: str = Field(alias="from")

    leg = Leg(**{"from": "JFK"})
    serde = ModelSerde(Leg)
    assert serde.serialize(leg, CONTEXT) == b'{"from":"JFK"}'
    assert both_ways(serde, leg) == leg


@dataclasses.dataclass
class Stop:
    place: str
    minutes: float


class Gate(BaseModel):
    number: int = Field(gt=0)


@pytest.mark.parametrize(
    ("model", "value", "text"),
    [
        (Stop, Stop("JFK", None), "valid number"),
        (Stop, Stop(5, 1.5), "valid string"),
        (Stop, Stop("JFK", float("nan")), "valid number"),
        (list[float], [1.0, float("inf")], "valid number"),
        (Gate, Gate.model_construct(number=0), "greater than 0"),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_an_object_that_its_model_refuses_is_not_written(model, value, text):
    """Pydantic takes each object of a model and writes NaN as null; each consumer would refuse such a record."""
    with pytest.raises(SerializationError, match=text):
        RecordEncoder.of(None, ModelSerde(model)).encode("flights", None, value, ())


def test_a_model_may_write_for_other_readers():
    class Leg(BaseModel):
        origin: str = Field(serialization_alias="from")
        note: str = Field(exclude=True)

    assert ModelSerde(Leg).serialize(Leg(origin="JFK", note="x"), CONTEXT) == b'{"from":"JFK"}'


def test_models_are_validated_both_ways():
    serde = ModelSerde(dict[str, uuid.UUID])
    number = uuid.UUID(int=5)
    assert both_ways(serde, {"a": number}) == {"a": number}
