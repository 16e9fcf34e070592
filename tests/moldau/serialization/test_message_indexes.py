"""Goal: a Protobuf message is found by its name where another version of its file has it at another place.

Method: a file with more messages than that of the class, as descriptor and as ``.proto`` text, without a network.
"""

import base64

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from moldau.serialization import ProtobufSerde, SerializationContext, SerializationError
from moldau.serialization.core.message_indexes import messages_of_text
from moldau.serialization.core.registry_requests import RegisteredSchema, Schema
from moldau.serialization.core.wire_format import frame

CONTEXT = SerializationContext("flights", "value")
TEXT = """
syntax = "proto3"; // message Comment { }
/* message Comment { */
option note = "message Text { \\" ";
message Older { map<string, int32> by_name = 1; }
package air;
enum Kind { message = 0; }
message Flight {
  oneof way { string message = 1; }
  message Stop { enum Kind { NONE = 0; } message Gate { } }
  message Leg{ string code = 1; }
}
service Flights { rpc Find(Flight) returns (Flight) { option idempotent = true; } }
message Last {}
"""


def file_of(*names):
    file = descriptor_pb2.FileDescriptorProto(name="air/flight.proto", package="air", syntax="proto3")
    for name in names:
        nested = file.message_type.add(name=name)
        nested.nested_type.add(name="Leg").field.add(name="code", number=1, type=9, label=1)
    return file


def class_of(name, file):
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


class OneSchema:
    """A registry whose only schema, of id 5, is the latest of each subject."""

    def __init__(self, text):
        self.found = RegisteredSchema(5, Schema(text, "PROTOBUF"), "flights-value", 2)

    def known(self, need):
        return self.found


NEWER = [base64.b64encode(file_of("Older", "Flight").SerializeToString()).decode(), TEXT.replace("Stop", "Stop2")]


def test_the_messages_of_a_text_are_found():
    assert messages_of_text(TEXT) == {
        "air.Older": (0,),
        "air.Flight": (1,),
        "air.Flight.Stop": (1, 0),
        "air.Flight.Stop.Gate": (1, 0, 0),
        "air.Flight.Leg": (1, 1),
        "air.Last": (2,),
    }
    assert messages_of_text("message A { message B {} } }} message C {}") == {"A": (0,), "A.B": (0, 0), "C": (1,)}
    assert messages_of_text("") == {}


@pytest.mark.parametrize(("text", "indexes"), [(NEWER[0], b"\4\2\0"), (NEWER[1], b"\4\2\2")])
def test_the_latest_file_says_where_a_message_is(text, indexes):
    """With the indexes of its own file, a reader would take the message for the one that came in front of it."""
    leg = class_of("air.Flight.Leg", file_of("Flight"))
    latest = ProtobufSerde(OneSchema(text), leg, config={"use.latest.version": True})
    data = latest.serialize(leg(code="1"), CONTEXT)
    assert data == frame(5) + indexes + b"\n\x011"
    assert ProtobufSerde(OneSchema(text), leg).deserialize(data, CONTEXT) == leg(code="1")


def test_a_message_that_the_latest_file_lacks_is_not_written():
    leg = class_of("air.Gone.Leg", file_of("Gone"))
    serde = ProtobufSerde(OneSchema(TEXT), leg, config={"use.latest.version": True})
    with pytest.raises(SerializationError, match=r"the latest schema has no message air\.Gone\.Leg") as caught:
        serde.serialize(leg(), CONTEXT)
    assert (caught.value.subject, caught.value.schema_id) == ("flights-value", 5)


def test_another_message_of_the_writers_file_is_refused():
    flight = class_of("air.Flight", file_of("Flight"))
    with pytest.raises(SerializationError, match=r"message indexes \[2\]: air.Flight has \[0\]"):
        ProtobufSerde(OneSchema(TEXT), flight).deserialize(frame(5) + b"\2\4", CONTEXT)


def test_a_serde_that_forgets_its_files_writes_on(monkeypatch):
    """Another thread may make it forget between any two steps, as the cache that forgets at once does."""

    class Forgetful(dict):
        def __setitem__(self, key, value):
            pass

    leg = class_of("air.Flight.Leg", file_of("Flight"))
    serde = ProtobufSerde(OneSchema(NEWER[0]), leg, config={"use.latest.version": True})
    monkeypatch.setattr(serde, "_messages", Forgetful())
    assert serde.serialize(leg(code="1"), CONTEXT) == frame(5) + b"\4\2\0\n\x011"
