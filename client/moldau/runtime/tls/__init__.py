"""TLS: the connection over any port, and contexts made from configuration."""
