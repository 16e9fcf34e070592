"""Records observations of the cluster of a chaos run besides the clients' history."""
