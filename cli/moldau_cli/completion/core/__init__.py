"""The words of an unfinished command line. All modules are pure."""
