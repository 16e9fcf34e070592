"""The library pysyncobj as an engine of the metadata log, with its holes closed from outside."""
