"""Client configuration keys of this process: of ``--command-config``, of a profile, or of a login nearby."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from moldau_cli.client.chosen import chosen
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NOT_SHARED = ("bootstrap.servers", "client.id")


def use_command_config(path: str | None) -> None:
    """Makes the commands of this process use the client configuration keys of a properties or TOML file.

    Raises:
        UsageError: the file cannot be read, or no client knows a key.
    """
    chosen.reset(path or "")
    if path is not None:
        add_config_file(path, "--command-config")
    # Only clients that ask controllers may have it, and options override it.
    chosen.controllers = chosen.keys.pop("bootstrap.controllers", None)


def add_config_file(path: str, origin: str) -> None:
    """Adds the client configuration keys of a file."""
    from moldau.runtime.config import ConfigError, parse_config_text

    try:
        given = parse_config_text(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{origin}: cannot read {path}: {reason}") from error
    except ConfigError as error:
        raise UsageError(f"{origin}: {path}: {'; '.join(error.problems)}") from error
    add_client_keys(given, f"{origin}: {path}")


def add_client_keys(given: Mapping[str, object], origin: str) -> None:
    """Adds client configuration keys for the commands of this process; ``origin`` names their source in errors.

    Raises:
        UsageError: no client knows a key, or a reference in a value cannot be resolved.
    """
    from moldau.runtime.config import ADMIN_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG, ConfigError
    from moldau.runtime.config.providers import resolve

    try:
        resolved = resolve(given, os.environ)
    except ConfigError as error:
        raise UsageError(f"{origin}: {'; '.join(error.problems)}") from error
    for key in resolved:
        if not any(key in schema.keys for schema in (ADMIN_CONFIG, PRODUCER_CONFIG, CONSUMER_CONFIG)):
            raise UsageError(f"{origin}: {ADMIN_CONFIG.unknown(key)}")
    for key, value in resolved.items():
        chosen.keys[key] = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        chosen.origins[key] = origin


def command_config(kind: str) -> dict[str, str]:
    """Returns the keys of ``--command-config`` that a client of this kind (admin, producer, consumer) knows."""
    from moldau.runtime.config import ADMIN_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG

    schema = {"admin": ADMIN_CONFIG, "producer": PRODUCER_CONFIG, "consumer": CONSUMER_CONFIG}[kind]
    return {key: value for key, value in chosen.keys.items() if key in schema.keys}


def whole_command_config() -> dict[str, str]:
    """Returns all keys of ``--command-config``, for what runs clients of several kinds."""
    return dict(chosen.keys)


def connection_config() -> dict[str, str]:
    """Returns the keys of ``--command-config`` that all kinds of clients know: those about the connection."""
    shared = command_config("producer").keys() & command_config("consumer").keys()
    return {key: value for key, value in command_config("admin").items() if key in shared and key not in _NOT_SHARED}


def own_config(kind: str) -> dict[str, str]:
    """Returns the keys of ``--command-config`` that only this kind of client knows.

    Keys of a single client instance (``_NOT_SHARED``) are left out.
    """
    elsewhere = {*connection_config(), *_NOT_SHARED}
    return {key: value for key, value in command_config(kind).items() if key not in elsewhere}


def command_config_file() -> str:
    """Returns the path given by ``--command-config``; empty if there was none."""
    return chosen.file


def drop_addresses() -> None:
    """Removes the addresses from the keys: a profile or an option has others."""
    for key in ("bootstrap.servers", "bootstrap.controllers"):
        chosen.keys.pop(key, None)
