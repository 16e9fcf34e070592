"""A short check that a broker, or another node, answers at all, before a client asks it."""

from __future__ import annotations

import os
import socket

from moldau.runtime.tasks.exceptions import leaves
from moldau.values import list_elements
from moldau_cli.client.address import DEFAULT_SOURCE
from moldau_cli.client.chosen import chosen
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.words import address_of

PROBE_TIMEOUT_S = 10.0


async def check_reachable(bootstrap: str, node: str) -> None:
    """Fails within seconds, instead of after a client's long retries, if no broker, or other node, listens.

    An address that is silent for a moment holds up none of the others, and all together have ``PROBE_TIMEOUT_S``.
    """
    import trio

    parsed = {address: address_of(address, f"{chosen.address_source}: ") for address in list_elements(bootstrap)}
    if not parsed:
        raise UsageError(f"{chosen.address_source}: no address given")
    reasons = {address: f"{address} is silent" for address in parsed}

    async def probe(address: str, ended: trio.Event) -> None:
        try:
            stream = await trio.open_tcp_stream(*parsed[address])
        except OSError as error:
            reasons[address] = f"{address}: {_plain(error)}"
        else:
            await stream.aclose()
            del reasons[address]
            attempts.cancel_scope.cancel()
        ended.set()

    with trio.move_on_after(PROBE_TIMEOUT_S):
        async with trio.open_nursery() as attempts:
            for address in parsed:
                attempts.start_soon(probe, address, ended := trio.Event())
                with trio.move_on_after(min(1.0, PROBE_TIMEOUT_S / 2 / len(parsed))):
                    await ended.wait()
    if len(reasons) < len(parsed):
        return
    silent = f"no {node} answers ({'; '.join(reasons.values())})"
    if chosen.address_source == DEFAULT_SOURCE:
        raise CommandError(
            f"{silent}, the default address; name another with --bootstrap-server, or run moldau cluster start"
        )
    source = "" if chosen.address_source.startswith("--bootstrap-") else f", the address of {chosen.address_source}"
    raise CommandError(f"{silent}{source}; is the cluster running?")


def _plain(error: OSError) -> str:
    """Returns the system's message (such as ``Connection refused``) from the errors that trio wraps around it."""
    for cause in (error.__cause__, error.__context__, error):
        for one in leaves(cause) if cause is not None else ():
            if isinstance(one, socket.gaierror):
                return str(one.strerror)  # its numbers are those of the resolver
            if isinstance(one, OSError) and one.errno:
                return os.strerror(one.errno)
    return str(error)
