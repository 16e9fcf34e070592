"""The content of the console's pages: functions from an admin client to JSON values."""
