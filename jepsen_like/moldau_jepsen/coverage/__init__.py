"""Coverage of a run: which messages were sent and which transitions occurred."""
