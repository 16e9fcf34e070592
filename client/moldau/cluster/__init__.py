"""The base of producer, consumer and admin client: cluster metadata (pure) and connections to brokers."""
