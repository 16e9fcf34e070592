"""An administrator of share groups (KIP-932), beside members that come and go."""
