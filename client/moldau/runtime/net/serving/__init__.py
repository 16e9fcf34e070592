"""The serving side of connections: listeners, the loop of one connection, answers and their bounds."""
