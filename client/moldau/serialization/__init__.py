"""Serializers: texts, numbers, JSON, msgpack and models; Avro, Protobuf and JSON Schema with a schema registry.

    from moldau.serialization import AvroSerde, SchemaRegistry, StringSerde

    registry = SchemaRegistry({"schema.registry.url": "http://127.0.0.1:8081"})
    flights = AvroSerde(registry, schema)
    Producer(config, key_serializer=StringSerde(), value_serializer=flights)
    Consumer(config, key_deserializer=StringSerde(), value_deserializer=flights)

A serde works both ways. Importing the package loads no library; each format loads its own at its first use.
``core`` holds the pure parts, without I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.lazy import lazy_names

if TYPE_CHECKING:
    from moldau.serialization.avro import AvroSerde
    from moldau.serialization.core.plain import (
        BytesSerde,
        DoubleSerde,
        IntegerSerde,
        JsonSerde,
        LongSerde,
        MsgpackSerde,
        ShortSerde,
        StringSerde,
        UUIDSerde,
    )
    from moldau.serialization.core.registry_requests import RegisteredSchema, Schema, SchemaReference
    from moldau.serialization.core.values import (
        Deserializer,
        RecordDeserializationError,
        RegistryError,
        SerializationContext,
        SerializationError,
        Serializer,
    )
    from moldau.serialization.json_schema import JsonSchemaSerde
    from moldau.serialization.models import ModelSerde
    from moldau.serialization.protobuf import ProtobufSerde
    from moldau.serialization.registry import SchemaRegistry

__all__ = [
    "AvroSerde",
    "BytesSerde",
    "Deserializer",
    "DoubleSerde",
    "IntegerSerde",
    "JsonSchemaSerde",
    "JsonSerde",
    "LongSerde",
    "ModelSerde",
    "MsgpackSerde",
    "ProtobufSerde",
    "RecordDeserializationError",
    "RegisteredSchema",
    "RegistryError",
    "Schema",
    "SchemaReference",
    "SchemaRegistry",
    "SerializationContext",
    "SerializationError",
    "Serializer",
    "ShortSerde",
    "StringSerde",
    "UUIDSerde",
]

_HOMES = dict.fromkeys(__all__, "core.plain") | {
    "AvroSerde": "avro",
    "JsonSchemaSerde": "json_schema",
    "ModelSerde": "models",
    "ProtobufSerde": "protobuf",
    "SchemaRegistry": "registry",
    "RegisteredSchema": "core.registry_requests",
    "RegistryError": "core.values",
    "Schema": "core.registry_requests",
    "SchemaReference": "core.registry_requests",
    "Deserializer": "core.values",
    "RecordDeserializationError": "core.values",
    "SerializationContext": "core.values",
    "SerializationError": "core.values",
    "Serializer": "core.values",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
