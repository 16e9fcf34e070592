"""The principal of a forwarded request, in an Envelope (KIP-590). The 16-bit version precedes it."""

from moldau.protocol import field
from moldau.protocol.schema import Data


class DefaultPrincipalData(Data, versions="0", flexible="0+"):
    """Type and name of a principal."""

    type: str = field.string("0+")
    name: str = field.string("0+")
    token_authenticated: bool = field.boolean("0+")
