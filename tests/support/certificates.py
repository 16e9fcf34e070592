"""Certificates for tests, made by trustme. The keys are RSA: their signatures all have one length, so that the size of
a handshake does not vary from run to run.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import trustme
from cryptography.hazmat.primitives import serialization

from moldau.runtime.config.tls import TlsSettings

if TYPE_CHECKING:
    import datetime

BOTH = ("TLSv1.2", "TLSv1.3")


class Authority:
    """A certificate authority; ``trust`` is its certificate as PEM text."""

    def __init__(self) -> None:
        self._authority = trustme.CA(key_type=trustme.KeyType.RSA)
        self.trust = self._authority.cert_pem.bytes().decode()

    @functools.cache  # noqa: B019 - lives as long as the tests of a module
    def issue(
        self, *names: str, not_before: datetime.datetime | None = None, not_after: datetime.datetime | None = None
    ) -> tuple[str, str]:
        """A certificate chain and its key as PEM texts, for host names or addresses."""
        issued = self._authority.issue_cert(
            *names, key_type=trustme.KeyType.RSA, not_before=not_before, not_after=not_after
        )
        chain = b"".join(piece.bytes() for piece in issued.cert_chain_pems).decode()
        return chain, issued.private_key_pem.bytes().decode()

    def named(self, common_name: str) -> str:
        """A key in the format that Java reads, and the chain of a client's certificate with this common name."""
        issued = self._authority.issue_cert("client.example", common_name=common_name, key_type=trustme.KeyType.RSA)
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return b"".join((key, *(piece.bytes() for piece in issued.cert_chain_pems))).decode()

    def keys(self, *names: str, **more: str) -> dict[str, str]:
        """Configuration keys of a node or client that has a certificate for ``names`` and trusts this authority."""
        chain, key = self.issue(*names)
        return {
            "ssl.keystore.certificate.chain": chain,
            "ssl.keystore.key": key,
            "ssl.truststore.certificates": self.trust,
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def settings(self, *names: str, **changes: object) -> TlsSettings:
        """Settings with a certificate for ``names``, or without one; this authority is trusted."""
        chain, key = self.issue(*names) if names else (None, None)
        given: dict[str, Any] = {
            "keystore_location": None,
            "certificate_chain": chain,
            "key": key,
            "key_password": None,
            "truststore_location": None,
            "trusted_certificates": self.trust,
            "client_auth": "none",
            "checks_host_name": True,
            "protocols": BOTH,
            "prefix": "",
        }
        return TlsSettings(**{**given, **changes})


_authorities: dict[int, Authority] = {}


def authority(number: int = 0) -> Authority:
    """The authorities of this process, made when they are first asked for."""
    if number not in _authorities:
        _authorities[number] = Authority()
    return _authorities[number]
