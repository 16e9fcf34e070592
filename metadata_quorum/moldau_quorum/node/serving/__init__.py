"""The APIs of a controller listener, who may call them, and the metadata that it sends to followers."""
