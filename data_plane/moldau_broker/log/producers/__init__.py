"""The state of a log's producers: sequences, open transactions, snapshots, end markers."""
