"""Plans that even out replicas, bytes, racks and leaders over the brokers of a cluster, and their execution."""
