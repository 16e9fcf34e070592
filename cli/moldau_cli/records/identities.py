"""Client keys that name an application: a command takes such a name from its own options alone.

The properties of an application may serve as ``--command-config`` or as a profile. A command that took its group would
commit offsets in its place, and one that took its transactional id would fence it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau_cli.client.settings import command_config
from moldau_cli.errors import UsageError
from moldau_cli.words import parse_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS: Final = {"group.id": "--group", "transactional.id": "--transactional-id"}
"""The option that stands for the key of a name."""
_ADDRESS: Final = {"bootstrap.servers": "--bootstrap-server"}
"""Login and profile are chosen by the address of the option: ``-X`` would send them elsewhere, or be passed over."""
NAMES: Final = frozenset({*OPTIONS, "group.instance.id"})
"""The keys that do not count in a file or a profile."""


def given_settings(kind: str, pairs: Sequence[str], address: str) -> dict[str, str]:
    """Returns the keys of ``--command-config``, ``address`` and ``-X`` for a client of this kind, without names.

    Raises:
        UsageError: ``-X`` has a key for which there is an option, or a word that is no setting.
    """
    chosen = parse_settings(list(pairs), "-X")
    for key, option in (OPTIONS | _ADDRESS).items():
        if key in chosen:
            raise UsageError(f"-X {key}: give {option} instead")
    configured = {key: value for key, value in command_config(kind).items() if key not in NAMES}
    return {**configured, "bootstrap.servers": address, **chosen}
