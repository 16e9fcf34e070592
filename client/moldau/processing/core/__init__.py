"""The pure parts of record processing: retry topics, and the order of commits."""
