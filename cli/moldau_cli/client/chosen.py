"""State of a command: what the user has chosen for the clients of this process.

``moldau_cli.client.settings`` and ``moldau_cli.client.address`` change it; errors name the sources that it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Chosen:
    """Client configuration keys and addresses, with their sources.

    Invariant: each key of ``keys`` is in ``origins``.
    """

    keys: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """The source of each key, as errors name it."""
    file: str = ""
    """The path given by ``--command-config``; empty if there was none."""
    controllers: str | None = None
    """``bootstrap.controllers`` of ``--command-config``."""
    profile: str | None = None
    """The name given by ``--profile``."""
    address_source: str = "--bootstrap-server"

    def reset(self, file: str) -> None:
        """Forgets everything but the path of ``--command-config``."""
        self.keys.clear()
        self.origins.clear()
        self.file = file
        self.controllers, self.profile, self.address_source = None, None, "--bootstrap-server"


chosen = Chosen()
"""The choices of this process: a command runs once in it, and tests begin with ``use_command_config``."""
