"""The environment of a client that names none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Environment


def environment_or_real(given: Environment | None) -> Environment:
    """Returns ``given``, or the environment of the operating system, whose modules are loaded only then."""
    if given is not None:
        return given
    from moldau.runtime.ports.real import real_environment

    return real_environment()
