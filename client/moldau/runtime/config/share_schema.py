"""The schema of share consumers; other clients do not load it."""

from __future__ import annotations

from moldau.runtime.config.client_schemas import check_client, check_client_security
from moldau.runtime.config.declaration import ConfigSchema
from moldau.runtime.config.keys.client import CLIENT_KEYS
from moldau.runtime.config.keys.groups.share_consumer import SHARE_CONSUMER_KEYS
from moldau.runtime.config.keys.sasl import CLIENT_SASL_KEYS

SHARE_CONSUMER_CONFIG = ConfigSchema.of(
    "share consumer",
    (*CLIENT_KEYS, *CLIENT_SASL_KEYS, *SHARE_CONSUMER_KEYS),
    (check_client, check_client_security),
)
