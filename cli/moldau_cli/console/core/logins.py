"""Client settings of users who sign in to the console. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
CREDENTIALS: Final = (
    "sasl.username",
    "sasl.password",
    "sasl.jaas.config",
    "sasl.oauthbearer.token",
    "sasl.oauthbearer.token.endpoint.url",
)
"""Keys that name a user; one of them in the settings of the console means that it has an identity of its own."""
MECHANISMS: Final = {"SCRAM-SHA-256": SCRAM_MODULE, "SCRAM-SHA-512": SCRAM_MODULE, "PLAIN": PLAIN_MODULE}


def login_settings(settings: Mapping[str, str], user: str, password: str, mechanism: str) -> dict[str, str]:
    """Returns the connection settings of a user.

    Raises:
        ValueError: the mechanism is unknown, the name is empty, or a text is none that a login can hold.
    """
    if mechanism not in MECHANISMS:
        raise ValueError(f"unknown mechanism {mechanism!r:.40}; known are {', '.join(MECHANISMS)}")
    if not user:
        raise ValueError("the user name is empty")
    for what, given in (("user name", user), ("password", password)):
        # JSON may carry half of a surrogate pair, which has no UTF-8; PLAIN has zeros between its parts.
        if "\0" in given or any("\ud800" <= char <= "\udfff" for char in given):
            raise ValueError(f"the {what} has a character that no login can hold")
    name, secret = (text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for text in (user, password))
    protocol = "SASL_SSL" if "SSL" in _protocol(settings) else "SASL_PLAINTEXT"
    kept = {key: value for key, value in settings.items() if key not in CREDENTIALS}
    return {
        **kept,
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{MECHANISMS[mechanism]} required username="{name}" password="{secret}";',
    }


def offered_mechanisms(settings: Mapping[str, str]) -> list[str]:
    """Returns the mechanisms that a user may choose from; the first one is that of the console's own settings."""
    wanted = settings.get("sasl.mechanism", "").upper()
    return sorted(MECHANISMS, key=lambda name: name != wanted)


def _protocol(settings: Mapping[str, str]) -> str:
    return settings.get("security.protocol", "").upper()


def needs_login(settings: Mapping[str, str]) -> bool:
    """Returns whether settings speak SASL and name no user, so that each person signs in."""
    return _protocol(settings).startswith("SASL") and not settings.keys() & set(CREDENTIALS)


def with_any_login(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns settings that can be checked although their users sign in later."""
    return login_settings(settings, "anyone", "anything", "SCRAM-SHA-256") if needs_login(settings) else dict(settings)
