"""Controllers and bare brokers in a simulated world."""
