"""Pure code of tiered storage: names of remote segments, which exist, which to copy and to delete, how to read one."""
