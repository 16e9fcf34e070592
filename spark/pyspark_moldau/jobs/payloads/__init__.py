"""Decoders of values: JSON, Avro and Protobuf become Arrow structs; what does not fit is told apart, never raised."""
