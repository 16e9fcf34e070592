"""Which TLS certificates belong to controllers.

Where a controller listener demands certificates (``ssl.client.auth=required``), that of an ordinary client must not be
enough to take part in the quorum. A certificate is a controller's if its distinguished name fits one of the patterns in
``controller.quorum.node.principals``, or, where there are none, if it names the host at which the membership has the
node that it speaks for.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from moldau.runtime.config import Config, ConfigError
from moldau.runtime.config.sasl import controller_login
from moldau.runtime.config.tls import tls_settings
from moldau.runtime.sasl.core.principals import distinguished_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from moldau.runtime.config import SecurityProtocol
    from moldau.runtime.sasl.core.identity import Identity

PRINCIPALS: Final = "controller.quorum.node.principals"


class NodePrincipals:
    """Judges certificates as ``ssl.SSLObject.getpeercert`` gives them."""

    def __init__(self, patterns: Sequence[str], user: str | None = None) -> None:
        """``patterns`` are those of distinguished names; without any the certificate must name the node's host.

        On a listener with SASL they are those of user names, and ``user`` is the one that this node itself logs in as:
        without patterns the other controllers must be that user.
        """
        self._patterns = tuple(patterns)
        self._user = user

    def refusal(
        self, certificate: Mapping[str, object] | None, host: str, identity: Identity | None = None
    ) -> str | None:
        """Returns why the peer cannot be the controller at ``host``; None if it can."""
        if self._user is not None:
            return self._refusal_of_user("" if identity is None or identity.is_anonymous else identity.name)
        if not certificate:
            return "it shows no certificate"
        name = distinguished_name(certificate)
        if self._patterns:
            if any(fnmatchcase(name, pattern) for pattern in self._patterns):
                return None
            return f"no pattern of controller.quorum.node.principals fits its certificate of {name}"
        if any(_names(kind, value, host) for kind, value in _alternative_names(certificate)):
            return None
        return f"its certificate of {name} does not name the host {host}"

    def _refusal_of_user(self, name: str) -> str | None:
        if self._patterns:
            if any(fnmatchcase(name, pattern) for pattern in self._patterns):
                return None
            return f"no pattern of controller.quorum.node.principals fits its user {name!r}"
        return (
            None
            if name == self._user
            else f"it is user {name!r}, and the controllers of this quorum are {self._user!r}"
        )


def node_principals(config: Config, listener_name: str, protocol: SecurityProtocol) -> NodePrincipals | None:
    """Returns what judges the peers on a controller listener; None where it demands neither certificate nor login.

    Raises:
        ConfigError: hosts are not checked on this node, and no pattern says which certificates are controllers'.
    """
    patterns = parse_patterns(config.get_str(PRINCIPALS))
    if protocol.uses_sasl:
        login = controller_login(config)
        if not patterns and not login.user:
            raise ConfigError(
                [
                    f"{PRINCIPALS}: must name the users of the controllers, because the login of listener "
                    f"{listener_name} ({login.mechanism}) does not say this node's own"
                ]
            )
        return NodePrincipals(patterns, login.user)
    settings = tls_settings(config, listener_name) if protocol.uses_tls else None
    if settings is None or settings.client_auth != "required":
        return None
    if not patterns and not settings.checks_host_name:
        raise ConfigError(
            [
                f"{PRINCIPALS}: must name the certificates of the controllers, for example CN=controller-*, because "
                f"listener {listener_name} demands certificates and ssl.endpoint.identification.algorithm is empty"
            ]
        )
    return NodePrincipals(patterns)


def parse_patterns(text: str) -> list[str]:
    """Splits the value of ``controller.quorum.node.principals`` at semicolons, because names hold commas."""
    return [pattern.strip().removeprefix("User:") for pattern in text.split(";") if pattern.strip()]


def _alternative_names(certificate: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    names = certificate.get("subjectAltName", ())
    if isinstance(names, tuple):
        yield from names


def _names(kind: str, value: str, host: str) -> bool:
    """Returns whether an alternative name stands for a host: RFC 6125, a wildcard for one whole label on the left."""
    if kind == "IP Address":  # OpenSSL writes all groups of an IPv6 address, in capitals
        try:
            return ip_address(value.strip()) == ip_address(host)
        except ValueError:
            return False
    if kind != "DNS":
        return False
    name, host = value.lower().rstrip("."), host.lower().rstrip(".")
    if name.startswith("*."):
        return "." in host and host.partition(".")[2] == name[2:]
    return name == host
