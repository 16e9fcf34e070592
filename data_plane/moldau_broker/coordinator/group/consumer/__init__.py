"""Groups of the consumer protocol (KIP-848), whose assignments the coordinator computes."""
