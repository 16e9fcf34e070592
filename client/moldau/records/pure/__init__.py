"""The twins in Python of the compiled modules of records, under the same names and contract tests."""
