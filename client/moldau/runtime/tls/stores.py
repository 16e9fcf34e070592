"""PKCS#12 stores (RFC 7292), as keytool and openssl write them, turned into the PEM texts that TLS contexts take.

The library ``cryptography`` reads them (extra ``keystores``). Stores of type JKS are not read: no maintained library
does it, and ``keytool -importkeystore -deststoretype pkcs12`` converts them.
"""

from __future__ import annotations

from typing import NamedTuple

from moldau.runtime.config.declaration import ConfigError


class StoreTexts(NamedTuple):
    """The content of a store, as PEM texts."""

    certificate_and_key: str | None
    """The private key and its certificate chain; None if the store has no key."""
    certificates: str
    """All certificates, the key's own first."""


def read_pkcs12(content: bytes, password: str | None, key: str) -> StoreTexts:
    """Returns the texts of a store; ``key`` is the configuration key of its location, for messages.

    Raises:
        ConfigError: the content is no PKCS#12 store, the password does not open it, or the library is missing.
    """
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
        from cryptography.x509.oid import PublicKeyAlgorithmOID
    except ImportError as error:
        raise ConfigError([f"{key}: stores of type PKCS12 need a library; pip install 'moldau[keystores]'"]) from error
    try:
        store = load_pkcs12(content, None if password is None else password.encode())
    except (ValueError, TypeError) as error:
        raise ConfigError(
            [f"{key}: is no PKCS12 store, or {key.removesuffix('location')}password does not open it"]
        ) from error
    if store.cert is not None and store.cert.certificate.public_key_algorithm_oid == PublicKeyAlgorithmOID.RSASSA_PSS:
        raise ConfigError(
            [
                f"{key}: the certificate's key is of the kind RSASSA-PSS, which cannot be read from a PKCS12 store; "
                "openssl pkcs12 -nodes -in STORE -out PEM converts it, for ssl.keystore.type=PEM"
            ]
        )
    held = ([] if store.cert is None else [store.cert]) + store.additional_certs
    certificates = "".join(each.certificate.public_bytes(Encoding.PEM).decode() for each in held)
    if store.key is None or store.cert is None:
        return StoreTexts(None, certificates)
    private = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return StoreTexts(certificates + private, certificates)
