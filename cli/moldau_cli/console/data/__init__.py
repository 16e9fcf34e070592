"""What the console's pages show: functions from an admin client to JSON values."""
