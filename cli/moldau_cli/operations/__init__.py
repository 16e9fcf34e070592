"""Actions of the commands that operate a cluster: surveys, moves of replicas, restarts of its nodes."""
