"""Reads the URLs of HTTP services that configurations name. Pure.

The libraries that send requests do not check them all: one ends its thread over a wrong port, others fail at each
request.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

REGISTRY_FORM: Final = "must be the address of the registry, such as https://registry.example.com:8081/path"


def split_url(url: str) -> SplitResult:
    """Splits a URL whose host and port a library can use; either may be absent.

    Raises:
        ValueError: the host or port cannot be. The text says why, and does not show the URL, which may have a login.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("[ and ] enclose an IPv6 address") from None
    if any(each == "," or each.isspace() for each in parts.netloc.rpartition("@")[2]):
        raise ValueError("a host has no comma and no space; one URL stands here, not several")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("a port is a number up to 65535") from None
    try:
        (parts.hostname or "").encode("idna")
    except ValueError:
        raise ValueError("the parts of a host's name have 1 to 63 letters each") from None
    return parts


def registry_problem(url: str) -> str:
    """Returns what is wrong with the address of a schema registry; empty if nothing. The text does not show it."""
    if not url.startswith(("http://", "https://")):
        return "must begin with http:// or https://"
    if re.search(r"[/?#].*@", url.partition("://")[2], re.DOTALL):
        return "is no URL; a login in it has %2F for /, %3F for ?, %23 for # and %40 for @, and a path has %40, too"
    try:
        parts = split_url(url)
    except ValueError as error:
        return f"is no URL; {error}"
    return REGISTRY_FORM if not parts.hostname or parts.query or parts.fragment else ""


def split_login(url: str) -> tuple[str, str]:
    """Returns the address of a schema registry without its login, and the login, ``user:password`` or empty.

    Raises:
        ValueError: it is no such address. The text says why, and does not show it.
    """
    problem = registry_problem(url)
    if problem:
        raise ValueError(problem)
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=host)), unquote(login)


__all__ = ["REGISTRY_FORM", "registry_problem", "split_login", "split_url"]
