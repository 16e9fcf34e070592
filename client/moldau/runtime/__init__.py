"""The layer between pure protocol code and the outside: ports, configuration, connections, supervision."""
