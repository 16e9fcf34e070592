"""Cipher suites of TLS 1.2 and 1.3: the names that Kafka's configuration uses (IANA's), and those of OpenSSL. Pure.

The suites of TLS 1.2 are those with forward secrecy and without SHA-1 that OpenSSL offers by default. A list may hold
names of both kinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.runtime.config.nearest import nearest_names

if TYPE_CHECKING:
    from collections.abc import Sequence

TLS_1_3: Final = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""The suites of TLS 1.3; both kinds of names are the same."""

TLS_1_2: Final = {
    "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256": "DHE-RSA-AES128-SHA256",
    "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256": "DHE-RSA-AES128-GCM-SHA256",
    "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256": "DHE-RSA-AES256-SHA256",
    "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384": "DHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384": "ECDHE-ECDSA-AES256-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384": "ECDHE-RSA-AES256-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
"""OpenSSL's name of each suite of TLS 1.2."""

_OPENSSL: Final = frozenset(TLS_1_2.values())


def openssl_names(suites: Sequence[str]) -> tuple[str, ...]:
    """Returns OpenSSL's names of the suites of TLS 1.2 in ``suites``, in their order."""
    return tuple(TLS_1_2.get(name, name) for name in suites if name not in TLS_1_3)


def protocols_of(suites: Sequence[str]) -> tuple[str, ...]:
    """Returns the TLS versions for which ``suites`` has a suite."""
    found = {"TLSv1.3" if name in TLS_1_3 else "TLSv1.2" for name in suites}
    return tuple(sorted(found))


def suite_problems(key: str, suites: Sequence[str], protocols: Sequence[str]) -> list[str]:
    """Returns the problems of the value of ``key``, whose end may negotiate ``protocols``."""
    known = (*TLS_1_3, *TLS_1_2)
    problems = []
    for name in suites:
        if name not in known and name not in _OPENSSL:
            nearest = nearest_names((*known, *sorted(_OPENSSL))).find(name)
            hint = f"; did you mean {nearest}?" if nearest else ""
            problems.append(f"{key} = {name!r}: must be a list of {', '.join(known)}, or OpenSSL's names of them{hint}")
    if problems:
        return problems
    missing = [name for name in TLS_1_3 if name not in suites]
    if "TLSv1.3" in protocols and 0 < len(missing) < len(TLS_1_3):
        problems.append(
            f"{key}: Python's ssl module enables the suites of TLS 1.3 together; add {', '.join(missing)}, or "
            "name none of them, which disables TLS 1.3"
        )
    return problems


__all__ = ["TLS_1_2", "TLS_1_3", "openssl_names", "protocols_of", "suite_problems"]
