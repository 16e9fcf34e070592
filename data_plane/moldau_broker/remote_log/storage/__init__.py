"""Object stores of remote segments: a directory, and S3-compatible services."""
