"""The replicas of a broker: appends, fetchers, in-sync sets, directories."""
