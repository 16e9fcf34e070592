"""The APIs of a controller listener, the rights that they need, and the metadata that it sends to followers."""
