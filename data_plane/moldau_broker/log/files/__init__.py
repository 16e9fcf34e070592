"""The files of a log directory: segments, indexes, checkpoints, and their formats."""
