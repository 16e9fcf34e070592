"""Which TLS certificates belong to controllers.

Where a controller listener demands certificates (``ssl.client.auth=required``), that of an ordinary client must not be
enough to take part in the quorum. A certificate is a controller's if its distinguished name fits one of the patterns in
``controller.quorum.node.principals``, or, where there are none, if it names the host at which the membership has the
node that it speaks for.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from moldau.runtime.config import Config, ConfigError
from moldau.runtime.config.tls import tls_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PRINCIPALS: Final = "controller.quorum.node.principals"

_SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}


class NodePrincipals:
    """Judges certificates as ``ssl.SSLObject.getpeercert`` gives them."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """``patterns`` are those of distinguished names; without any the certificate must name the node's host."""
        self._patterns = tuple(patterns)

    def refusal(self, certificate: Mapping[str, object] | None, host: str) -> str | None:
        """Returns why the owner of a certificate cannot be the controller at ``host``; None if it can."""
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


def node_principals(config: Config, listener_name: str, *, uses_tls: bool) -> NodePrincipals | None:
    """Returns what judges the certificates on a controller listener; None where it does not demand any.

    Raises:
        ConfigError: hosts are not checked on this node, and no pattern says which certificates are controllers'.
    """
    settings = tls_settings(config, listener_name) if uses_tls else None
    if settings is None or settings.client_auth != "required":
        return None
    patterns = parse_patterns(config.get_str(PRINCIPALS))
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


def distinguished_name(certificate: Mapping[str, object]) -> str:
    """Returns the subject as Kafka writes it (RFC 2253): ``CN=...,OU=...``, the most specific part first."""
    subject = certificate.get("subject", ())
    parts = [
        "+".join(f"{_SHORT_NAMES.get(key, key)}={value}" for key, value in attributes)
        for attributes in (subject if isinstance(subject, tuple) else ())
    ]
    return ",".join(reversed(parts))


def _alternative_names(certificate: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    names = certificate.get("subjectAltName", ())
    if isinstance(names, tuple):
        yield from names


def _names(kind: str, value: str, host: str) -> bool:
    """Whether an alternative name stands for a host: RFC 6125, a wildcard for one whole label on the left."""
    if kind == "IP Address":
        return value.strip().lower() == host.lower()
    if kind != "DNS":
        return False
    name, host = value.lower().rstrip("."), host.lower().rstrip(".")
    if name.startswith("*."):
        return "." in host and host.partition(".")[2] == name[2:]
    return name == host
