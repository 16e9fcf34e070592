"""The text of the file of profiles. All modules are pure."""
