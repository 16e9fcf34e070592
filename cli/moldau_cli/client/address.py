"""Addresses that commands connect to, from options, environment, profiles, or the cluster in ./moldau-cluster.

``moldau_cli.profiles.selection`` has the order. An address brings the login that belongs to it: that of the profile, or
of the administrator of the cluster nearby.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.values import list_elements
from moldau_cli.client.chosen import chosen
from moldau_cli.client.settings import add_client_keys, add_config_file, drop_addresses
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau_cli.profiles.core.document import Profile

CLUSTER_FILE = Path("moldau-cluster/cluster.json")
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CONTROLLERS_SOURCE = "bootstrap.controllers of --command-config"
DEFAULT_SOURCE = "the default address"


def use_profile(name: str | None) -> None:
    """Makes the commands of this process use a profile, with its settings unless ``--command-config`` is given.

    Raises:
        UsageError: there is no such profile, or its settings cannot be used.
    """
    chosen.profile = name
    if name is not None:
        from moldau_cli.profiles.store import load_profiles

        _apply(load_profiles().get(name, "--profile"))


def _apply(profile: Profile) -> None:
    """Adds the settings of a profile, unless ``--command-config`` gives others."""
    from moldau_cli.profiles.selection import origin_of

    if chosen.keys:
        return
    if profile.command_config:
        add_config_file(profile.command_config, origin_of(profile))
    if profile.settings:
        add_client_keys(profile.settings, origin_of(profile))
    drop_addresses()  # the profile has an address of its own


def bootstrap_of(given: str | None) -> str:
    """Returns the bootstrap addresses.

    These are the given ones (also by ``--command-config``), else those of MOLDAU_BOOTSTRAP or a profile
    (``moldau_cli.profiles.selection`` has the order), else those of the cluster in ./moldau-cluster, else Kafka's usual
    address. The commands of this process use the settings of the chosen profile. If the addresses are those of the
    cluster in ./moldau-cluster, and it is secured, they use its administrator's login, unless ``--command-config``
    names another.

    Raises:
        UsageError: a profile or ./moldau-cluster cannot be used, or ``--command-config`` names controllers.
    """
    from moldau_cli.profiles.selection import choose

    if not given and configured_controllers() is not None:
        raise UsageError(f"this command asks brokers, not those of {CONTROLLERS_SOURCE}: give --bootstrap-server")
    configured = chosen.keys.get("bootstrap.servers")
    choice = choose(given, config_address=configured, named=chosen.profile, environ=os.environ)
    if choice.profile is not None:
        _apply(choice.profile)
    if choice.address is not None:
        chosen.address_source = choice.source
        if choice.profile is None:
            _use_login_nearby(choice.address)
        return choice.address
    return _address_nearby()


def named_address(given: str | None = None) -> str | None:
    """Returns the addresses that an option, the environment or a profile names, without their settings; None if none.

    Raises:
        UsageError: the profile cannot be used.
    """
    from moldau_cli.profiles.selection import choose

    configured = configured_controllers() or chosen.keys.get("bootstrap.servers")
    return choose(given, config_address=configured, named=chosen.profile, environ=os.environ).address


def _address_nearby() -> str:
    """Returns the address of the cluster in ./moldau-cluster, or Kafka's usual one."""
    chosen.address_source = str(CLUSTER_FILE)
    try:
        document = _cluster_nearby()
    except FileNotFoundError:
        chosen.address_source = DEFAULT_SOURCE
        return DEFAULT_BOOTSTRAP
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {CLUSTER_FILE}: {error}; give --bootstrap-server") from error
    found = document.get("bootstrap")
    if not isinstance(found, str):
        raise UsageError(f"{CLUSTER_FILE} names no bootstrap addresses; give --bootstrap-server")
    _use_login_of(document)
    return found


def _cluster_nearby() -> Mapping[str, object]:
    """Returns what ``cluster.json`` of ./moldau-cluster says; nothing if it is no table.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    document = json.loads(CLUSTER_FILE.read_text(encoding="utf-8"))
    return document if isinstance(document, dict) else {}


def configured_controllers() -> str | None:
    """Returns ``bootstrap.controllers`` of ``--command-config``; None if it has none.

    Raises:
        UsageError: it has ``bootstrap.servers`` too.
    """
    if chosen.controllers and "bootstrap.servers" in chosen.keys:
        raise UsageError(f"{CONTROLLERS_SOURCE}: cannot be combined with bootstrap.servers; give one of them")
    return chosen.controllers or None


def use_controllers(address: str, source: str = "--bootstrap-controller") -> None:
    """Makes commands ask controllers at ``address``, which ``source`` names, with the login of a cluster nearby."""
    chosen.address_source = source
    _use_login_nearby(address, "controllers")
    drop_addresses()


def _use_login_nearby(address: str, kind: str = "bootstrap") -> None:
    """Uses the administrator's login of the cluster in ./moldau-cluster if the addresses are of its brokers.

    ``kind`` is the key of ``cluster.json`` with their addresses.
    """
    if chosen.keys:
        return
    try:
        bootstrap = (document := _cluster_nearby()).get(kind)
    except (OSError, ValueError):
        return  # no cluster is needed there: the address was given
    wanted = set(list_elements(address))
    if isinstance(bootstrap, str) and wanted <= set(bootstrap.split(",")):
        _use_login_of(document)
        drop_addresses()  # the user has named some of these addresses


def _use_login_of(document: Mapping[str, object]) -> None:
    login = document.get("client_config")
    if isinstance(login, str):
        use_login(login)


def use_login(path: str) -> None:
    """Uses the login of a local cluster, which its ``cluster.json`` names, unless ``--command-config`` gives another.

    Raises:
        UsageError: the file cannot be read, or no client knows a key.
    """
    if not chosen.keys:
        add_config_file(path, str(CLUSTER_FILE))
