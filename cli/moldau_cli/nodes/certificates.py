"""Checks whether the certificate of a listener is for servers, and names the host under which others reach it.

OpenSSL decides, as it does for a peer: the certificate is presented in a handshake in memory, to a client that trusts
this certificate alone. So neither its signer nor its dates matter here.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Final

from moldau.runtime.config import advertised_listeners, controller_listener_names, quorum_voters
from moldau.runtime.config.processes import EVERY_INTERFACE
from moldau.runtime.config.tls import tls_settings
from moldau.runtime.tls.context import certified_name

if TYPE_CHECKING:
    from moldau.runtime.config import Config, ListenerEndpoint

ROUNDS: Final = 4
"""TLS 1.2 needs three flights from the client, TLS 1.3 two."""


def unnamed_host(server: ssl.SSLContext, config: Config, endpoint: ListenerEndpoint) -> str | None:
    """Returns the host of a listener that the certificate of its context does not name; None if it names the host.

    None too if the host is not known before the start, or if this node would not look at names either
    (``ssl.endpoint.identification.algorithm`` is empty). The context serves no clients afterwards: it asks for no
    certificates of theirs any more.
    """
    settings = tls_settings(config, endpoint.listener_name)
    host = _host(config, endpoint)
    if not settings.checks_host_name or not host:
        return None
    return host if "mismatch" in _refusal(server, host) else None


def is_for_servers(server: ssl.SSLContext) -> bool:
    """Returns whether the certificate of a context may be a server's: its extended key usage allows it.

    The context serves no clients afterwards, as after ``unnamed_host``.
    """
    return "purpose" not in _refusal(server, None)


def _refusal(server: ssl.SSLContext, host: str | None) -> str:
    """Returns OpenSSL's reason why a client refuses the certificate of a server; empty if it does not.

    Without a host the client does not look at names.
    """
    server.verify_mode = ssl.CERT_NONE
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    try:
        certificate = _handshake(server, anyone, host).getpeercert(binary_form=True)
        if certificate is None:
            return ""
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = host is not None
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        client.load_verify_locations(cadata=certificate)
        _handshake(server, client, None if host is None else certified_name(host))
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (ssl.SSLError, ValueError):  # no version in common, or a host that is no name: other checks report these
        return ""
    return ""


def _host(config: Config, endpoint: ListenerEndpoint) -> str:
    """Returns the host by which others know a listener; empty or a wildcard address if they do not know it yet."""
    if endpoint.listener_name in controller_listener_names(config):
        hosts = [voter.host for voter in quorum_voters(config) if voter.node_id == config.get_int("node.id")]
    else:
        hosts = [one.host for one in advertised_listeners(config) if one.listener_name == endpoint.listener_name]
    host = hosts[0] if hosts else ""
    return "" if host in EVERY_INTERFACE else host


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str | None) -> ssl.SSLObject:
    """Connects a client to a server in memory, as far as the client needs it.

    Raises:
        ssl.SSLError: the client refuses the server.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepted = server.wrap_bio(to_server, to_client, server_side=True)
    connected = client.wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(ROUNDS):
        for end in (connected, accepted):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return connected
