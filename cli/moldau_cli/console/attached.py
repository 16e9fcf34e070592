"""The console of a node: ``python -m moldau_cli.console.attached``, started by ``moldau_cli.nodes.console``.

It reads one line of JSON with its settings from standard input, and serves until that ends: the node holds the other
end. It runs at a lower priority than the node.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Final

import trio

from moldau_cli.console.certificate import stored
from moldau_cli.console.serving import Options, run_console
from moldau_cli.errors import EXIT_DONE, EXIT_FAILED, CommandError

if TYPE_CHECKING:
    from moldau_cli.output import Json

NICENESS: Final = 5


def options_of(document: dict[str, Json]) -> Options:
    """Returns the options for the settings that a node sends."""
    settings, port, token, tls, names = (document[name] for name in ("settings", "port", "token", "tls", "names"))
    assert isinstance(settings, dict)
    assert isinstance(port, int)
    assert isinstance(names, list)
    assert isinstance(tls, dict | None)
    return Options(
        bootstrap=str(document["bootstrap"]),
        settings={name: str(value) for name, value in settings.items()},
        host=str(document["host"]),
        port=port,
        token=None if token is None else str(token),
        login=bool(document["login"]),
        read_only=bool(document["read_only"]),
        allowed_hosts=frozenset(str(name).lower() for name in names),
        tls=None if tls is None else stored(**{name: str(value) for name, value in tls.items()}),
    )


def _ignore_url(url: str) -> None:
    """Announces nothing: the node knows the address."""


async def serve_attached(options: Options, descriptor: int) -> None:
    """Serves until a signal comes, or until ``descriptor`` has no more input.

    Raises:
        CommandError: the address cannot be used.
    """
    async with trio.open_nursery() as nursery:

        async def end_with_the_node() -> None:
            while True:
                await trio.lowlevel.wait_readable(descriptor)
                if not os.read(descriptor, 4096):
                    nursery.cancel_scope.cancel()
                    return

        nursery.start_soon(end_with_the_node)
        await run_console(options, _ignore_url)
        nursery.cancel_scope.cancel()


def main() -> int:
    """Runs the console; returns the exit code."""
    from moldau.runtime.tasks.exceptions import leaves

    os.nice(NICENESS)
    options = options_of(json.loads(sys.stdin.buffer.readline()))
    try:
        trio.run(serve_attached, options, sys.stdin.fileno(), strict_exception_groups=True)
    except ExceptionGroup as group:
        if group.split(CommandError)[1] is not None:
            raise
        sys.stderr.write(f"{'; '.join(str(error) for error in leaves(group))}\n")
        return EXIT_FAILED
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
