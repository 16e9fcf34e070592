"""Chooses where commands connect to: option, environment, profile, the cluster nearby, or Kafka's usual address.

The first of these that is there counts: ``--bootstrap-server``; ``bootstrap.servers`` of ``--command-config``;
``--profile``; MOLDAU_BOOTSTRAP; the profile of MOLDAU_PROFILE; the profile in use; ``./moldau-cluster``; the default.

The settings of a profile go only to its own addresses, or some of them, unless the user names the profile for this
command (``--profile`` or MOLDAU_PROFILE). So a login of one cluster is never sent to another by accident.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.values import list_elements
from moldau_cli.errors import UsageError
from moldau_cli.profiles.store import load_profiles, profiles_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau_cli.profiles.core.document import Profile

BOOTSTRAP_VARIABLE: Final = "MOLDAU_BOOTSTRAP"
PROFILE_VARIABLE: Final = "MOLDAU_PROFILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An address with its source, for error texts, and the profile whose settings apply.

    ``address`` is None where neither option, environment nor profile names one.
    """

    address: str | None
    source: str = ""
    profile: Profile | None = None


def origin_of(profile: Profile) -> str:
    """Returns the words that name a profile in error texts."""
    return f"profile {profile.name} in {profiles_file()}"


def choose(given: str | None, *, config_address: str | None, named: str | None, environ: Mapping[str, str]) -> Choice:
    """Returns the address to use.

    ``given`` is the value of ``--bootstrap-server``, ``config_address`` that of ``--command-config``, ``named`` the
    profile of ``--profile``. An empty MOLDAU_PROFILE turns the profile in use off.

    Raises:
        UsageError: a profile does not exist, the file of profiles cannot be used, or ``given`` is empty.
    """
    variable = environ.get(PROFILE_VARIABLE)
    explicit = named or variable or None
    profile = None
    if given is not None and not given.strip():  # such as that of an unset variable: another cluster would be changed
        raise UsageError("--bootstrap-server is empty: give HOST:PORT, or leave the option out")
    if explicit is not None:
        profile = load_profiles().get(explicit, "--profile" if named else PROFILE_VARIABLE)
    if given:
        profile = profile or (_with_address(given) if variable is None else None)
        return Choice(address=given, source="--bootstrap-server", profile=profile)
    if config_address:
        return Choice(address=config_address, source="bootstrap.servers of --command-config", profile=profile)
    inherited = environ.get(BOOTSTRAP_VARIABLE)
    if inherited and not named:
        profile = profile or (_with_address(inherited) if variable is None else None)
        return Choice(address=inherited, source=BOOTSTRAP_VARIABLE, profile=profile)
    if profile is None and variable is None:
        known = load_profiles()
        profile = known.by_name.get(known.current)
    if profile is None:
        return Choice(address=None)
    return Choice(address=profile.bootstrap, source=origin_of(profile), profile=profile)


def _with_address(given: str) -> Profile | None:
    """Returns the profile in use if all the given addresses are among its own; else None.

    A file of profiles that cannot be used is no error here: the address was given.
    """
    try:
        known = load_profiles()
    except UsageError:
        return None
    profile = known.by_name.get(known.current)
    if profile is None or not set(list_elements(given)) <= set(list_elements(profile.bootstrap)):
        return None
    return profile


def other_choice(address: str, environ: Mapping[str, str]) -> str | None:
    """Returns source and addresses of the cluster that commands without an option use in place of that of ``address``.

    None if they use that one, or the cluster nearby.

    Raises:
        UsageError: a profile does not exist, or the file of profiles cannot be used.
    """
    choice = choose(None, config_address=None, named=None, environ=environ)
    if choice.address is None or choice.address == address:
        return None
    return f"{choice.source} ({choice.address})"
