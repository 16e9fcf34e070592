"""Client quotas: which limit holds for a client, and how much of it is used. Pure."""
