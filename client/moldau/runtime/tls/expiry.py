"""When certificates are valid: read from their DER form (RFC 5280, section 4.1); the end is a metric of a node."""

from __future__ import annotations

import datetime
import re
import ssl
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.runtime.telemetry.metrics import Registry
    from moldau.runtime.tls.context import ListenerTls

_CERTIFICATE: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME = 0xA0, 0x17
"""Tags: the explicit version field of a certificate, and a time with two digits for the year."""


def validity_s(pem: str) -> tuple[float | None, float | None]:
    """Returns since when all certificates in a text are valid, and when the first one expires, in seconds since 1970.

    Both are None without certificates. The certificates are well formed: OpenSSL has loaded them.
    """
    found = [_validity(ssl.PEM_cert_to_DER_cert(each)) for each in _CERTIFICATE.findall(pem)]
    return max((since for since, _ in found), default=None), min((end for _, end in found), default=None)


def _validity(der: bytes) -> tuple[float, float]:
    # Certificate = { TBSCertificate = { [version], serial, signature, issuer, validity = { notBefore, notAfter }, ...
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag, _, _ = _element(der, at)
    for _ in range(4 if tag == _VERSION else 3):
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)
    since, at = _time(der, at)
    return since, _time(der, at)[0]


def _time(der: bytes, at: int) -> tuple[float, int]:
    """Returns the time that begins at an offset, and the offset behind it."""
    tag, begin, end = _element(der, at)
    text = der[begin:end].decode("ascii")
    if tag == _UTC_TIME:  # years from 1950 to 2049
        text = ("19" if text >= "5" else "20") + text
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%S%z").timestamp(), end


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Returns the tag of the element that begins at an offset, and where its content begins and ends."""
    tag, length, at = der[at], der[at + 1], at + 2
    if length & 0x80:  # the number of bytes that hold the length
        size = length & 0x7F
        length = int.from_bytes(der[at : at + size], "big")
        at += size
    return tag, at, at + length


def register_expiry(registry: Registry, listeners: Mapping[str, ListenerTls]) -> None:
    """Shows when the certificates that listeners use expire."""
    expires = registry.gauge(
        "moldau_certificate_expires_seconds",
        "When the first certificate in the chain of a listener expires, in seconds since 1970.",
        "listener",
    )

    def update() -> None:
        for name, tls in listeners.items():
            found = tls.expires_s()
            if found is not None:
                expires.labels(name).set(found)

    registry.on_expose(update)
