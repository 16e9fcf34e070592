"""What commands that operate a cluster do with it: surveys, moves of replicas, restarts of its nodes."""
