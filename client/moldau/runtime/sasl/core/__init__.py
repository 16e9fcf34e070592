"""The pure cores of SASL: mechanisms, the states of both sides, JAAS texts, principals. No clock, no I/O."""
