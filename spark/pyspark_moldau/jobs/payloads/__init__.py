"""Decoders of values: JSON, Avro and Protobuf become Arrow structs; values that do not fit are marked, never raised."""
