"""Pure code of share groups: the states of a share-partition's records, and share sessions."""
