"""Share consumers (KIP-932): ``ShareConsumer`` for trio, with its values; ``core`` holds its pure cores."""

from moldau.share.consumer import ShareConsumer
from moldau.share.core.values import AcknowledgeType, ShareRecord

__all__ = ["AcknowledgeType", "ShareConsumer", "ShareRecord"]
