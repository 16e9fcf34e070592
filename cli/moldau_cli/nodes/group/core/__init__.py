"""The pure core of the supervisor: when a process starts, restarts, stops, and when the group fails."""
