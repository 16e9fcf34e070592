"""Authentication with SASL: the broker's side as a gate in front of a connection's handler, the client's side."""
