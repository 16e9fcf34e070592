"""Value of the control record that ends a transaction in a partition (KIP-98)."""

from moldau.protocol import field
from moldau.protocol.schema import Data


class EndTxnMarker(Data, versions="0"):
    """Says under which epoch of its coordinator a transaction ended."""

    coordinator_epoch: int = field.int32("0+")
