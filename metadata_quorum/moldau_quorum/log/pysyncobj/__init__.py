"""The library pysyncobj as an engine of the metadata log, with its defects closed from outside."""
