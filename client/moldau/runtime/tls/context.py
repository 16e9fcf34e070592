"""TLS from configuration: contexts made of PEM texts or PKCS#12 stores, and the network of a node's connections.

Files are read through the ``Disk`` port, so that a simulated node has its certificates on its virtual disk. OpenSSL
takes a private key from a file only: texts reach it through an anonymous file in memory, and never touch a disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.cipher_suites import openssl_names
from moldau.runtime.config.declaration import ConfigError
from moldau.runtime.config.listeners import (
    SecurityProtocol,
    key_of_listener,
)
from moldau.runtime.config.tls import CLIENT_AUTH, leaves_clients_to_sasl, tls_problems, tls_settings
from moldau.runtime.ports.environment import SYSTEM_BUFFERS, OpenMode
from moldau.runtime.ports.system_calls import private_file
from moldau.runtime.telemetry.log import EventLogger
from moldau.runtime.tls.connection import CIPHERTEXT_BYTES, TlsConnection
from moldau.runtime.tls.errors import TlsHandshakeError
from moldau.runtime.tls.expiry import validity_s
from moldau.runtime.tls.reloading import ReloadingContext
from moldau.runtime.tls.stores import read_pkcs12

if TYPE_CHECKING:
    from moldau.runtime.config.declaration import Config
    from moldau.runtime.config.tls import TlsSettings
    from moldau.runtime.ports.environment import (
        Arrivals,
        Clock,
        Connection,
        Disk,
        Environment,
        Listener,
        Network,
        SocketBuffers,
    )

STORE_BYTES_MAX: Final = 16 << 20
_logger = EventLogger("moldau.tls")
_PEM_BLOCK: Final = re.compile(r"(-----BEGIN [^-]+-----)([A-Za-z0-9+/=\s]+)(-----END [^-]+-----)")
"""Boundaries and base64; not a private key of the old form with headers, which needs its line ends."""
_JAVA_STORES: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""First bytes of stores of the types JKS and JCEKS."""
_MIXED: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's reasons for a key that belongs to another certificate than the first one, or to none."""
_WEAK: Final = ("EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK")
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class DatedContext(ssl.SSLContext):
    """A context that knows since when its own chain is valid, and when the first certificate of it expires."""

    valid_since_s: float | None = None
    expires_s: float | None = None
    """In seconds since 1970; None without a certificate of its own."""


def server_context(settings: TlsSettings, disk: Disk) -> DatedContext:
    """Returns the context of a listener.

    Raises:
        ConfigError: a file or text is no PEM, or key and certificate do not match.
    """
    context = DatedContext(ssl.PROTOCOL_TLS_SERVER)
    # Kafka's connections live long, and its clients do not resume sessions; tickets would cost each connection two
    # encryptions and some 500 bytes for nothing.
    context.num_tickets = 0
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    chain = _configure(context, settings, disk, is_server=True)
    if chain and settings.cipher_suites and "TLSv1.3" not in settings.negotiable(is_server=True):
        _check_suites(context, settings)
    context.valid_since_s, context.expires_s = validity_s(chain)
    return context


def client_context(settings: TlsSettings, disk: Disk) -> DatedContext:
    """Returns the context of outgoing connections.

    Without named certificates it trusts those of the system.

    Raises:
        ConfigError: a file or text is no PEM, or key and certificate do not match.
    """
    context = DatedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_host_name
    if not settings.has_trust:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    chain = _configure(context, settings, disk, is_server=False)
    context.valid_since_s, context.expires_s = validity_s(chain)
    return context


def _configure(context: ssl.SSLContext, settings: TlsSettings, disk: Disk, *, is_server: bool) -> str:
    """Returns the text that holds the context's own certificates; empty without."""
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # an end without close_notify is a cut: see ``tls``
    context.options |= ssl.OP_NO_RENEGOTIATION  # of TLS 1.2: a peer could have keys computed without end
    versions = [_VERSIONS[protocol] for protocol in settings.negotiable(is_server=is_server)]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    suites = openssl_names(settings.cipher_suites)
    if suites:  # those of TLS 1.3 stay enabled; ``negotiable`` rules that version out where none of them is named
        context.set_ciphers(":".join(suites))
    if is_server and any(name.startswith("DHE-") for name in suites):
        from moldau.runtime.tls.groups import FFDHE_3072

        with private_file(FFDHE_3072) as path:
            context.load_dh_params(path)
    _load_trust(context, settings, disk)
    return _load_certificate(context, settings, disk)


def _check_suites(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Begins a handshake with a client that has the named suites: in TLS 1.2 a suite is for one kind of key.

    Raises:
        ConfigError: no suite is for the key, so each handshake would fail.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.set_ciphers(":".join(openssl_names(settings.cipher_suites)))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        for end in (
            client.wrap_bio(to_client, to_server),
            context.wrap_bio(to_server, to_client, server_side=True),
        ):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLError as error:
        raise ConfigError(
            [
                f"{settings.prefix}ssl.cipher.suites: none is for the key of the certificate ({_reason(error)}); name "
                "suites with its kind (RSA or ECDSA), or allow TLSv1.3 with its suites"
            ]
        ) from error


def _load_trust(context: ssl.SSLContext, settings: TlsSettings, disk: Disk) -> None:
    key = f"{settings.prefix}ssl.truststore." + ("certificates" if settings.truststore_location is None else "location")
    text, named = settings.trusted_certificates, key
    if settings.truststore_location is not None:
        named = settings.prefix + settings.truststore_key
    if settings.truststore_location is not None and settings.truststore_type == "PKCS12":
        content = _read(disk, named, settings.truststore_location)
        text = read_pkcs12(content, settings.truststore_password, key).certificates
    elif settings.truststore_location is not None:
        text = _read_pem(disk, named, settings.truststore_location)
    if text is None:
        return
    # Each named certificate is trusted, also that of an authority which another one has signed: as in Java.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    text = _in_lines(text).encode("ascii", "replace").decode()  # remarks are no part of PEM
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError([f"{named}: holds no certificates in PEM form ({_reason(error)})"]) from error


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings, disk: Disk) -> str:
    key = f"{settings.prefix}ssl.keystore." + ("key" if settings.keystore_location is None else "location")
    password = settings.key_password or ""
    if settings.keystore_location is not None and settings.keystore_type == "PKCS12":
        content = _read(disk, key, settings.keystore_location)
        found = read_pkcs12(content, settings.keystore_password, key).certificate_and_key
        if found is None:
            raise ConfigError([f"{key} = {settings.keystore_location!r}: holds no private key"])
        text, password = found, ""
    elif settings.keystore_location is not None:
        text = _read_pem(disk, key, settings.keystore_location)
        if settings.key_location is not None:
            text += f"\n{_read_pem(disk, key, settings.key_location)}"
    elif settings.certificate_chain is not None and settings.key is not None:
        text = f"{settings.certificate_chain}\n{settings.key}\n"
    else:
        return ""
    text = _in_lines(text)
    try:
        with private_file(text) as path:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(path, password=password)
    except (ssl.SSLError, ValueError, OSError) as error:
        if _reason(error) in _MIXED:
            raise ConfigError(
                [
                    f"{key}: the first certificate is not that of the private key ({_reason(error)}); the chain "
                    "begins with the key's own"
                ]
            ) from error
        if _reason(error) in _WEAK:
            raise ConfigError(
                [
                    f"{key}: OpenSSL on this machine refuses a key or signature of the chain as too weak "
                    f"({_reason(error)}); make a new certificate"
                ]
            ) from error
        raise ConfigError(
            [
                f"{key}: no private key with its certificate chain in PEM form, or {settings.prefix}ssl.key.password "
                f"does not open it ({_reason(error)})"
            ]
        ) from error
    return text


def _in_lines(text: str) -> str:
    """Returns PEM text with line ends where OpenSSL needs them.

    A value of a configuration may be one line, with blanks in place of line ends: Kafka takes any (KIP-651).
    """

    def lines(block: re.Match[str]) -> str:
        content = "".join(block[2].split())
        wrapped = (content[at : at + 64] for at in range(0, len(content), 64))
        return "\n".join(["", block[1], *wrapped, block[3], ""])

    return _PEM_BLOCK.sub(lines, text)


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)


def _read(disk: Disk, key: str, location: str) -> bytes:
    try:
        file = disk.open(os.path.abspath(location), OpenMode.READ)
        try:
            content = bytes(file.read(0, STORE_BYTES_MAX + 1))
        finally:
            file.close()
    except OSError as error:
        raise ConfigError([f"{key} = {location!r}: cannot be read: {error.strerror or error}"]) from error
    if content.startswith(_JAVA_STORES):
        raise ConfigError(
            [
                f"{key} = {location!r}: is a store of Java's own format (JKS); keytool -importkeystore -srckeystore "
                "OLD -destkeystore NEW -deststoretype pkcs12 converts it"
            ]
        )
    if len(content) > STORE_BYTES_MAX:
        raise ConfigError([f"{key} = {location!r}: has more than {STORE_BYTES_MAX} bytes"])
    return content


def _read_pem(disk: Disk, key: str, location: str) -> str:
    content = _read(disk, key, location)
    if not content.isascii() and b"-----BEGIN " not in content:
        kind = key.removesuffix("location").replace("ssl.ca.", "ssl.truststore.") + "type"
        raise ConfigError([f"{key} = {location!r}: is no PEM file; a PKCS12 store needs {kind}=PKCS12"])
    return content.decode("utf-8", "replace")


def certified_name(host: str) -> str:
    """Returns a host as certificates name it: without the dot of a complete name, or the zone of an IPv6 address."""
    return host.partition("%")[0] if ":" in host else host.removesuffix(".") or host


class TlsNetwork:
    """The ``Network`` port of a node whose outgoing connections use TLS.

    ``connect`` returns them ready for use. Listeners are unchanged; their TLS comes from ``serve``, which bounds
    handshakes.
    """

    def __init__(self, network: Network, context: ssl.SSLContext | ReloadingContext) -> None:
        """Opens connections through ``network``; a ``ReloadingContext`` follows its files."""
        self.plain: Final = network
        self._context = context
        self._scratch = bytearray(CIPHERTEXT_BYTES)

    async def listen(
        self, host: str, port: int, *, backlog: int = 1024, buffers: SocketBuffers = SYSTEM_BUFFERS
    ) -> Listener:
        """See ``Network.listen``."""
        return await self.plain.listen(host, port, backlog=backlog, buffers=buffers)

    def arrivals(self) -> Arrivals | None:
        """See ``Network.arrivals``."""
        return self.plain.arrivals()

    def take(self, settings: TlsSettings) -> None:
        """Takes changed settings.

        Raises:
            ConfigError: they or a file cannot be used; nothing has changed then.
        """
        if not isinstance(self._context, ReloadingContext):
            return
        problems = tls_problems(settings)
        if problems:
            raise ConfigError(problems)
        self._context.take(settings)

    async def connect(self, host: str, port: int) -> TlsConnection:
        """See ``Network.connect``.

        Raises:
            TlsHandshakeError: the handshake failed.
        """
        connection = await self.plain.connect(host, port)
        try:
            try:
                context = self._context
                secured = TlsConnection(
                    connection,
                    context.current() if isinstance(context, ReloadingContext) else context,
                    server_side=False,
                    server_hostname=certified_name(host),
                    scratch=self._scratch,
                )
            except ValueError as error:
                raise TlsHandshakeError(errno.EINVAL, f"{host!r} cannot be in a certificate: {error}") from error
            await secured.handshake()
        except BaseException:
            connection.close()
            raise
        return secured


def outgoing_environment(
    environment: Environment, config: Config, listener_name: str, protocol: SecurityProtocol
) -> Environment:
    """Returns the environment for a node's connections to a listener of other nodes, with TLS where that speaks TLS.

    The keys are those of the node's own listener of that name, and they serve both ends, as in Kafka.
    ``tls.outgoing`` adds the node's login.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    if not protocol.uses_tls:
        return environment
    settings = tls_settings(config, listener_name)
    problems = tls_problems(settings)
    if problems:
        raise ConfigError(problems)
    context = ReloadingContext(client_context, settings, environment.disk, environment.clock)
    return replace(environment, network=TlsNetwork(environment.network, context))


class _NoClock:
    """A clock that stands still."""

    def monotonic_ms(self) -> float:
        """See ``Clock.monotonic_ms``."""
        return 0.0

    def wall_ms(self) -> int:
        """See ``Clock.wall_ms``."""
        return 0

    def wall_ns(self) -> int:
        """See ``Clock.wall_ns``."""
        return self.wall_ms() * 1_000_000


class ListenerTls:
    """Secures the accepted connections of one listener; the argument ``secure`` of ``serve``."""

    def __init__(self, settings: TlsSettings, disk: Disk, clock: Clock | None = None) -> None:
        """Reads certificates and keys, and again when their files have changed if there is a ``clock``.

        Raises:
            ConfigError: as ``server_context``.
        """
        self._scratch = bytearray(CIPHERTEXT_BYTES)
        self._context = ReloadingContext(server_context, settings, disk, _NoClock() if clock is None else clock)

    def __call__(self, connection: Connection) -> TlsConnection:
        """Wraps an accepted connection."""
        return TlsConnection(connection, self._context.current(), server_side=True, scratch=self._scratch)

    def valid_since_s(self) -> float | None:
        """Returns since when the chain in use is valid, in seconds since 1970."""
        return self._context.current().valid_since_s

    def expires_s(self) -> float | None:
        """Returns when the first certificate of the chain in use expires, in seconds since 1970."""
        return self._context.current().expires_s

    def reload(self, config: Config, listener_name: str) -> None:
        """Takes changed settings of the listener; open connections keep their certificates.

        Raises:
            ConfigError: as ``server_context``; nothing has changed then.
        """
        settings = tls_settings(config, listener_name)
        problems = tls_problems(settings, server=listener_name)
        if problems:
            raise ConfigError(problems)
        self._context.take(settings)


def listener_tls(
    environment: Environment, config: Config, listener_name: str, protocol: SecurityProtocol
) -> ListenerTls | None:
    """Returns the TLS of a listener of this node, None for a listener without TLS.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    if not protocol.uses_tls:
        return None
    settings = tls_settings(config, listener_name)
    problems = tls_problems(settings, server=listener_name)
    if problems:
        raise ConfigError(problems)
    node_wide = config.get_str(CLIENT_AUTH)
    if node_wide != "none" and leaves_clients_to_sasl(config, listener_name):
        _logger.warning(
            "client-auth-without-effect",
            listener=listener_name,
            why=f"{CLIENT_AUTH} of a node does not count where clients log in by SASL (KIP-684)",
            remedy=f"set {key_of_listener(listener_name, CLIENT_AUTH)}={node_wide} to demand certificates too",
        )
    return ListenerTls(settings, environment.disk, environment.clock)


def client_tls(disk: Disk, config: Config, clock: Clock | None = None) -> ReloadingContext | None:
    """Returns the TLS of a client with this ``security.protocol``, None without TLS.

    It follows its files if there is a ``clock``.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    if not SecurityProtocol[config.get_str("security.protocol")].uses_tls:
        return None
    return ReloadingContext(client_context, tls_settings(config), disk, _NoClock() if clock is None else clock)


__all__ = [
    "ListenerTls",
    "TlsNetwork",
    "client_context",
    "client_tls",
    "listener_tls",
    "outgoing_environment",
    "server_context",
]
