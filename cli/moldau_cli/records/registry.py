"""The schema registry of a command."""

from __future__ import annotations

from typing import Any

from moldau.serialization.registry import SchemaRegistry
from moldau_cli.quorum_watch import noting_a_wait


class WatchedRegistry(SchemaRegistry):
    """A schema registry that says on stderr that the command waits for it, if a request takes long."""

    async def request(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - a JSON document
        """Sends a request as ``SchemaRegistry`` does.

        Raises:
            RegistryError: the registry refuses the request, or no address answers.
        """
        ask = super().request
        text = f"the schema registry does not answer yet ({self.addresses}); the command waits, and Ctrl-C ends it"
        return await noting_a_wait(lambda: ask(method, path, body), text)
