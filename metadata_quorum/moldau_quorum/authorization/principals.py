"""Principal and address of a forwarded request, in the bytes of an Envelope (KIP-590)."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from moldau.protocol.codec import DecodeError, decode, encode
from moldau.protocol.messages.internal.default_principal import DefaultPrincipalData
from moldau.runtime.sasl.core.identity import Identity
from moldau_quorum.authorization.rules import parse_address

if TYPE_CHECKING:
    from moldau.values import Buffer

_VERSION: Final = b"\0\0"


def principal_bytes(identity: Identity) -> bytes:
    """Returns the principal of a peer."""
    kind, _, name = identity.principal.partition(":")
    return _VERSION + encode(DefaultPrincipalData(type=kind, name=name, token_authenticated=identity.by_token), 0)


def address_bytes(identity: Identity) -> bytes:
    """Returns the address of a peer; nothing for a name."""
    address = parse_address(identity.host)
    return b"" if address is None else address.packed


def forwarded_identity(principal: Buffer, address: Buffer, via: Identity) -> Identity:
    """Returns the identity of a forwarded request; ``via`` is the broker's.

    Raises:
        DecodeError: the bytes are not a principal and an address.
    """
    data = bytes(principal)
    if data[:2] != _VERSION:
        raise DecodeError(f"principals of version {data[:2].hex()} are not known")
    read = decode(DefaultPrincipalData, 0, data, 2)
    return Identity(
        principal=f"{read.type}:{read.name}",
        mechanism="forwarded",
        host=_host(bytes(address)),
        listener_name=via.listener_name,
        security_protocol=via.security_protocol,
        by_token=read.token_authenticated,
    )


def _host(address: bytes) -> str:
    if not address:
        return ""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError as error:
        raise DecodeError(f"{len(address)} bytes are not an address") from error
