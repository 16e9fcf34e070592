"""The brokers of one machine as a group of processes: their supervisor."""
