"""The certificate with which the console serves HTTPS. Its files are read again when they change, as on listeners."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.tls import TlsSettings
from moldau.runtime.ports.real import real_environment
from moldau.runtime.tls.context import server_context
from moldau.runtime.tls.reloading import ReloadingContext

if TYPE_CHECKING:
    import ssl

    from moldau.runtime.ports.environment import Clock, Disk
    from moldau.runtime.tls.context import DatedContext

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
APPLICATION_PROTOCOLS: Final = ("http/1.1",)
PREFIX: Final = "console."
"""Of the keys that messages name."""


_WITHOUT_CERTIFICATE: Final = TlsSettings(
    keystore_location=None,
    certificate_chain=None,
    key=None,
    key_password=None,
    truststore_location=None,
    trusted_certificates=None,
    client_auth="none",
    checks_host_name=False,
    protocols=PROTOCOLS,
    prefix=PREFIX,
)


def stored(
    location: str, *, kind: str = "PEM", password: str | None = None, key_password: str | None = None
) -> TlsSettings:
    """Returns the settings for a file with the private key and its certificate chain.

    ``kind`` is PEM or PKCS12, ``password`` that of a PKCS12 store, ``key_password`` that of a key in a PEM file.
    """
    return replace(
        _WITHOUT_CERTIFICATE,
        keystore_location=location,
        keystore_type=kind,
        keystore_password=password,
        key_password=key_password,
    )


def paired(certificate_chain: str, key: str) -> TlsSettings:
    """Returns the settings for the PEM files of a certificate chain and of its private key."""
    return replace(_WITHOUT_CERTIFICATE, keystore_location=certificate_chain, key_location=key)


def context_following(settings: TlsSettings, disk: Disk, clock: Clock) -> ssl.SSLContext:
    """Returns a context for a web server that takes one only; each handshake uses the newest certificate.

    Raises:
        ConfigError: a file cannot be used, or key and certificate do not match.
    """
    reloading = ReloadingContext(_make, settings, disk, clock)

    def take_newest(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        connection.context = reloading.current()

    context = reloading.current()
    context.sni_callback = take_newest
    return context


def check(settings: TlsSettings) -> None:
    """Reads the files.

    Raises:
        ConfigError: a file cannot be used, or key and certificate do not match.
    """
    _make(settings, real_environment().disk)


def _make(settings: TlsSettings, disk: Disk) -> DatedContext:
    context = server_context(settings, disk)
    context.set_alpn_protocols(APPLICATION_PROTOCOLS)
    return context
