"""Share groups (KIP-932): groups whose members read the same partitions together."""
