"""What stands between pure protocol code and the world: environment ports, configuration, connections, supervision."""
