"""Keys of share consumers (KIP-932): some of the consumer's, and two of their own."""

from __future__ import annotations

from moldau.runtime.config.declare import string
from moldau.runtime.config.keys.client import CONSUMER_KEYS

_SHARED_WITH_CONSUMERS = (
    "group.id",
    "fetch.min.bytes",
    "fetch.max.wait.ms",
    "fetch.max.bytes",
    "max.poll.records",
    "max.poll.interval.ms",
    "check.crcs",
    "client.rack",
    "default.api.timeout.ms",
)
SHARE_CONSUMER_KEYS = (
    *(key for key in CONSUMER_KEYS if key.name in _SHARED_WITH_CONSUMERS),
    string(
        name="share.acknowledgement.mode",
        default="implicit",
        group="Share consumer",
        choices=("implicit", "explicit"),
        doc="Whether a poll accepts the records of the poll before, or the application acknowledges each record.",
    ),
    string(
        name="share.acquire.mode",
        default="batch_optimized",
        group="Share consumer",
        choices=("batch_optimized", "record_limit"),
        doc="Whether a fetch may exceed `max.poll.records` up to the end of a record batch (KIP-1206).",
    ),
)
