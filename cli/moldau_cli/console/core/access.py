"""Decides whether an HTTP request may be served. Pure.

A browser attaches cookies to requests that other pages send, and a page of another site may point its own name at this
machine (DNS rebinding). So each request must name an expected host, and each request that changes something must carry
the session's token in a header, which no other site can read or set.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

CSRF_HEADER: Final = "x-moldau-csrf"
TOKEN_LENGTH_MIN: Final = 16
SECURITY_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_ABSOLUTE: Final = re.compile(r"https?://([^/?]*)", re.IGNORECASE)
_SAFE_METHODS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is refused, with the HTTP status."""

    status: int
    reason: str


def is_loopback(host: str) -> bool:
    """Returns whether a listening address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """Returns the host of a Host header in lower case, without the port and without brackets."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if ":" in text else text


def origin_form(path: str) -> tuple[str | None, str]:
    """Divides the path of a request into the host with the port, None if it names none, and the path itself.

    A target in absolute form (``http://host:port/path``) comes from a proxy or a test of one. A server must accept it,
    and its host counts in place of the Host header (RFC 9112, 3.2.2).
    """
    absolute = _ABSOLUTE.match(path)
    return (None, path) if absolute is None else (absolute[1], path[absolute.end() :] or "/")


def is_expected_host(header: str, allowed: Collection[str]) -> bool:
    """Returns whether a Host header names this console.

    IP addresses are accepted, because DNS rebinding needs a name.
    """
    host = host_of(header)
    if host == "localhost" or host in allowed:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def same_secret(given: str, expected: str) -> bool:
    """Compares two secrets in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode(), expected.encode())


def refuse_foreign(method: str, path: str, headers: Mapping[str, str], allowed: Collection[str]) -> Refusal | None:
    """Returns why a request may come from another site; None if it comes from a page of this console, or a program.

    ``headers`` has lower-case names.
    """
    host = headers.get("host", "")
    if not is_expected_host(host, allowed):
        return Refusal(
            status=421,
            reason=f"unexpected Host header {host!r:.80}; start the console with --allowed-host to accept it, "
            "or name it in a node's advertised.listeners or console.listener",
        )
    is_navigation = method in _SAFE_METHODS and not path.startswith("/api/")  # a link to the console is harmless
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") and not is_navigation:
        return Refusal(status=403, reason="the request comes from another site")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return Refusal(status=403, reason="the request comes from another site")
    return None


def refuse_change(method: str, headers: Mapping[str, str], csrf: str, *, read_only: bool) -> Refusal | None:
    """Returns why a request of a known session may not change anything; None if it may, or changes nothing."""
    if method in _SAFE_METHODS:
        return None
    if not same_secret(headers.get(CSRF_HEADER, ""), csrf):
        return Refusal(status=403, reason=f"the header {CSRF_HEADER} is missing or wrong; reload the page")
    if read_only:
        return Refusal(status=403, reason="the console is read-only")
    return None
