"""The Raft core. Pure: messages and time go in, messages and entries come out."""
