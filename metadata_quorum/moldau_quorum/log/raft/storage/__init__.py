"""Files of a voter: the write-ahead log and snapshots, over the Disk port."""
