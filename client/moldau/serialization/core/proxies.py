"""Chooses the HTTP proxy of a registry's address from the variables of the environment. Pure.

``httpx`` reads them too, but takes each entry of NO_PROXY for a part of a URL: a network such as ``fd00::/8`` or an
address in brackets makes it refuse all requests, also those without a proxy.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


def proxy_for(url: str, proxies: Mapping[str, str]) -> str | None:
    """Returns the proxy of a URL, None if it has none; ``proxies`` is as ``urllib.request.getproxies`` returns it."""
    parts = urlsplit(url)
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or any(_names(entry.strip(), parts.hostname or "", parts.port) for entry in _exceptions(proxies)):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _exceptions(proxies: Mapping[str, str]) -> list[str]:
    return proxies.get("no", "").lower().split(",")


def _names(entry: str, host: str, port: int | None) -> bool:
    """Returns whether an entry of NO_PROXY names a host: ``*``, a domain, an address, or a network; maybe a port."""
    if not entry or entry == "*":
        return bool(entry)
    entry = entry.rpartition("://")[2]
    name, colon, number = entry.rpartition(":")
    if colon and number.isdecimal() and (":" not in name or name.endswith("]")):
        if int(number) != port:
            return False
        entry = name
    entry = entry.removeprefix("[").removesuffix("]")
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        domain = entry.removeprefix("*").removeprefix(".")
        return bool(domain) and (host == domain or host.endswith(f".{domain}"))


__all__ = ["proxy_for"]
