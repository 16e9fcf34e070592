"""Errors of clients as the command line reports them: one line, with the source of a wrong value or login."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_cli.client.chosen import chosen
from moldau_cli.errors import ADVICE, OF_USAGE, CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKEN_KEYS = ("sasl.oauthbearer.token", "sasl.oauthbearer.token.endpoint.url", "sasl.jaas.config")


def explained(problem: str) -> str:
    """Returns a problem of a configuration with the source of its value, if that is a file or a profile."""
    for key, origin in chosen.origins.items():
        shown = (chosen.keys.get(key, ""), "[hidden]")
        if problem.startswith((f"{key}:", f"{key} ")) and any(value and value in problem for value in shown):
            return f"{problem} ({origin})"
    return problem


def login_tried(settings: Mapping[str, str] | None, bootstrap: str) -> str:
    """Returns which login was refused, of which source, and where; never its password."""
    used = chosen.keys if settings is None else settings

    def source(key: str) -> str:
        is_given = settings is not None and settings.get(key) != chosen.keys.get(key)
        return f"{key} of {'-X' if is_given else chosen.origins.get(key, 'the configuration')}"

    if used.get("sasl.mechanism", "").upper() == "OAUTHBEARER":
        given = next((key for key in _TOKEN_KEYS if used.get(key)), _TOKEN_KEYS[0])
        return f"the login was by the token of {source(given)} at {bootstrap}"
    for key in ("sasl.username", "sasl.jaas.config"):
        user = _user_of(key, used.get(key, ""))
        if user is not None:
            return f"the login was that of user {user!r} ({source(key)}) at {bootstrap}"
    return f"the login at {bootstrap} named no user: set sasl.username or sasl.jaas.config"


def _user_of(key: str, value: str) -> str | None:
    """Returns the user that a key names, None if it names none."""
    from moldau.runtime.sasl.core.jaas import parse_jaas

    if key == "sasl.username" or not value:
        return value or None
    try:
        return next((module.options["username"] for module in parse_jaas(value) if "username" in module.options), None)
    except ValueError:
        return None


def from_kafka(error: Exception) -> CommandError:
    """Returns the exception that reports an error of Kafka, with the way out if its code has one."""
    from moldau.protocol.errors import ErrorCode, KafkaError
    from moldau.runtime.net.served_versions import ControllerPeerError

    assert isinstance(error, KafkaError), "called for Kafka's errors only"
    failures = getattr(error, "failures", None)  # an AdminError lists the failures by name
    reported = str(error)
    if isinstance(failures, dict):
        # The default of all brokers has no name.
        named = {f"{name}: " if name else "": one for name, one in failures.items()}
        reported = "; ".join(f"{name}{one.message} ({one.code.name})" for name, one in named.items())
    if (advice := ADVICE.get(error.code.name)) is not None:
        reported = f"{reported.rstrip('.')}; {advice}"
    # In a call of the admin client, the user has given the offset.
    is_wrong_offset = isinstance(failures, dict) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    is_usage = error.code.name in OF_USAGE or is_wrong_offset or isinstance(error, ControllerPeerError)
    return UsageError(reported) if is_usage else CommandError(reported)
