"""Typed values of the ``ssl.`` keys.

They exist for each listener of a node (with its ``listener.name.<listener>.`` keys on top), for the node's own
connections to others, and for clients. Pure: ``moldau.runtime.tls.context`` reads the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.cipher_suites import protocols_of, suite_problems
from moldau.runtime.config.listeners import key_of_listener

if TYPE_CHECKING:
    from moldau.runtime.config.declaration import Config, Value


CA_LOCATION: Final = "ssl.ca.location"
CLIENT_AUTH: Final = "ssl.client.auth"
_STORES: Final = (
    (
        "ssl.keystore.location",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.type",
        "ssl.keystore.password",
    ),
    ("ssl.truststore.location", "ssl.truststore.certificates", "ssl.truststore.type", "ssl.truststore.password"),
)
"""The keys of each store; any of them names the whole store."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TlsSettings:
    """The TLS settings of one end. For each store either a path or PEM texts are set, or neither."""

    keystore_location: str | None  # certificate chain in a PEM file, with its key unless ``key_location`` is set
    certificate_chain: str | None
    key: str | None
    key_password: str | None
    truststore_location: str | None
    trusted_certificates: str | None
    client_auth: str  # none, requested, required; of servers
    checks_host_name: bool  # of clients
    protocols: tuple[str, ...]
    prefix: str  # of the keys, for messages
    keystore_type: str = "PEM"  # or PKCS12, of the file
    keystore_password: str | None = None  # of a PKCS12 store
    truststore_type: str = "PEM"
    truststore_password: str | None = None
    protocol: str = "TLSv1.3"  # the newest that this end offers as a client; TLS stands for TLSv1.3
    cipher_suites: tuple[str, ...] = ()  # empty: those of OpenSSL
    truststore_key: str = "ssl.truststore.location"  # that gives ``truststore_location``, for messages
    key_location: str | None = None  # private key in a PEM file of its own

    def negotiable(self, *, is_server: bool) -> tuple[str, ...]:
        """Returns the TLS versions that this end can agree on.

        As in Kafka, ``ssl.protocol`` bounds what a client offers, and a listener serves all that
        ``ssl.enabled.protocols`` names. A version without a cipher suite in ``ssl.cipher.suites`` is out.
        """
        allowed = self.protocols
        if self.protocol == "TLSv1.2" and not is_server:
            allowed = tuple(name for name in allowed if name != "TLSv1.3")
        if self.cipher_suites:
            having_suites = protocols_of(self.cipher_suites)
            allowed = tuple(name for name in allowed if name in having_suites)
        return allowed

    @property
    def has_certificate(self) -> bool:
        """Whether this end has a certificate."""
        return self.keystore_location is not None or self.certificate_chain is not None

    @property
    def has_trust(self) -> bool:
        """Whether the trusted certificates are named, and are not those of the system."""
        return self.truststore_location is not None or self.trusted_certificates is not None


def leaves_clients_to_sasl(config: Config, listener_name: str | None) -> bool:
    """Returns whether the node's own ``ssl.client.auth`` does not count: at clients, and at listeners with SASL.

    These have it by their own key alone (KIP-684): a node often has listeners for either kind of client.
    """
    if listener_name is None:
        return True
    if key_of_listener(listener_name, CLIENT_AUTH) in config:
        return False
    protocols = {"".join(entry.upper().split()) for entry in config.get_list("listener.security.protocol.map")}
    return f"{listener_name.upper()}:SASL_SSL" in protocols


def tls_settings(config: Config, listener_name: str | None = None) -> TlsSettings:
    """Returns the settings of a listener, or of a client where ``listener_name`` is None.

    A listener's own store replaces the node's store completely, so one may be a file and the other PEM texts.
    """
    prefix = "" if listener_name is None else key_of_listener(listener_name, "")
    own_stores = [store for store in _STORES if any(prefix + key in config for key in store)] if prefix else []

    def value(key: str) -> Value:
        if prefix + key in config:
            return config.get(prefix + key)
        if any(key in store for store in own_stores):
            return None
        return config.get(key)

    def text(key: str) -> str | None:
        found = value(key)
        return found if isinstance(found, str) and found else None

    truststore, truststore_key = text("ssl.truststore.location"), "ssl.truststore.location"
    if truststore is None and CA_LOCATION in config:
        truststore, truststore_key = text(CA_LOCATION), CA_LOCATION
    protocols, cipher_suites = value("ssl.enabled.protocols"), value("ssl.cipher.suites")
    assert isinstance(protocols, tuple), "ssl.enabled.protocols is a list"
    assert isinstance(cipher_suites, tuple), "ssl.cipher.suites is a list"
    return TlsSettings(
        keystore_location=text("ssl.keystore.location"),
        certificate_chain=text("ssl.keystore.certificate.chain"),
        key=text("ssl.keystore.key"),
        key_password=text("ssl.key.password"),
        truststore_location=truststore,
        truststore_key=truststore_key,
        trusted_certificates=text("ssl.truststore.certificates"),
        client_auth="none" if leaves_clients_to_sasl(config, listener_name) else text(CLIENT_AUTH) or "none",
        checks_host_name=text("ssl.endpoint.identification.algorithm") == "https",
        protocols=protocols,
        keystore_type=text("ssl.keystore.type") or "PEM",
        keystore_password=text("ssl.keystore.password"),
        truststore_type=text("ssl.truststore.type") or "PEM",
        truststore_password=text("ssl.truststore.password"),
        protocol=text("ssl.protocol") or "TLSv1.3",
        cipher_suites=cipher_suites,
        prefix=prefix if any(name.startswith(prefix + "ssl.") for name in config.explicit()) else "",
    )


def tls_problems(settings: TlsSettings, *, server: str | None = None) -> list[str]:
    """Returns the problems of ``settings``, without reading files; ``server`` names the listener of a server."""
    at = settings.prefix
    problems: list[str] = []
    if settings.keystore_location is not None and (settings.certificate_chain is not None or settings.key is not None):
        problems.append(f"{at}ssl.keystore.location: cannot be combined with certificate chain and key as texts")
    elif (settings.certificate_chain is None) != (settings.key is None):
        problems.append(f"{at}ssl.keystore.certificate.chain and {at}ssl.keystore.key: one needs the other")
    if settings.truststore_location is not None and settings.trusted_certificates is not None:
        problems.append(f"{at}ssl.truststore.location: cannot be combined with {at}ssl.truststore.certificates")
    for store, kind, location in (
        ("keystore", settings.keystore_type, settings.keystore_location),
        ("truststore", settings.truststore_type, settings.truststore_location),
    ):
        if kind != "PEM" and location is None:
            problems.append(f"{at}ssl.{store}.type = {kind}: needs {at}ssl.{store}.location")
    if not settings.protocols:
        problems.append(f"{at}ssl.enabled.protocols: must name TLSv1.2, TLSv1.3 or both")
    problems += _version_problems(settings)
    if server is None or problems:
        return problems
    if not settings.has_certificate:
        problems.append(
            f"{at}ssl.keystore.location: listener {server} speaks TLS and needs a key with its certificate chain: "
            f"a PEM file, or PEM texts in {at}ssl.keystore.key and {at}ssl.keystore.certificate.chain"
        )
    if settings.client_auth != "none" and not settings.has_trust:
        # Kafka would use the Java runtime's list, and so accept a certificate of any public authority.
        problems.append(
            f"{at}ssl.client.auth = {settings.client_auth}: needs {at}ssl.truststore.location or "
            f"{at}ssl.truststore.certificates, the certificates that clients' are signed by"
        )
    return problems


def _version_problems(settings: TlsSettings) -> list[str]:
    at = settings.prefix
    # A node is a client of other nodes with the keys of its listeners, so a listener's keys must suit both ends.
    problems = suite_problems(f"{at}ssl.cipher.suites", settings.cipher_suites, settings.negotiable(is_server=True))
    if not problems and settings.protocols and not settings.negotiable(is_server=False):
        problems.append(
            f"{at}ssl.protocol = {settings.protocol}, {at}ssl.enabled.protocols = {','.join(settings.protocols)}, "
            f"{at}ssl.cipher.suites = {','.join(settings.cipher_suites) or 'empty'}: they leave no version of TLS"
        )
    return problems
