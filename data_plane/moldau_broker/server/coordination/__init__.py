"""The coordinators of a broker, and their connections to partitions and other brokers."""
