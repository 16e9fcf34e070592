"""Share groups (KIP-932) on the leader of a partition: delivery and acknowledgement of records."""
