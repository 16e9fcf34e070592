"""The last phases of a run: progress of clients, and the reads of whole topics."""
