"""The group coordinator (consumer groups and their committed offsets) and the transaction coordinator.

Both keep their state in the partitions of an internal topic. The leader of such a partition is the coordinator of its
groups or transactional ids. A coordinator has a pure core, which decides what to write and what to answer, and a thin
shell (`group.coordinator`, `transaction.coordinator`), which appends to the log, waits for the commit and completes
each request exactly once.
"""
