"""Moldau's own Raft: a core without I/O, a write-ahead log, snapshots, and a trio shell behind ``MetadataLog``."""
