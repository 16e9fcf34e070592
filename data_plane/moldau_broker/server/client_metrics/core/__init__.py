"""Pure code of client telemetry: subscriptions, client instances and their series."""
