"""Coordinators: consumer groups with their committed offsets, and transactions.

Both keep their state in a partition of an internal topic and are led by the leader of that partition. A coordinator
is a pure core (what to write, what to answer) and a thin shell (`shell.GroupCoordinator`) that appends to the log,
waits for the commit and completes each request exactly once.
"""
