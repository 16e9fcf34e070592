"""The pure cores of the share consumer: membership, share sessions, and the records it has not acknowledged."""
