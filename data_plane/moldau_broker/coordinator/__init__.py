"""The coordinators of groups (with their committed offsets), of transactions, and of share-partitions.

Each keeps its state in the partitions of an internal topic. The leader of such a partition is the coordinator of its
groups, transactional ids or share-partitions. A coordinator has a pure core, which decides what to write and what to
answer, and a thin shell (`group.coordinator`, `transaction.coordinator`, `share.coordinator`), which appends to the
log, waits for the commit and completes each request exactly once.
"""
