"""The voters of the quorum: adding and removing them, their addresses and features, and handing over leadership."""
