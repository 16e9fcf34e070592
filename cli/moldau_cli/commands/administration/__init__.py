"""Commands that change or show what the metadata log holds: identities, limits, configuration, replicas, quorum."""
