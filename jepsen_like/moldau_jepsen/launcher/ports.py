"""Free ports for local listeners.

Ports come from below the range the kernel gives to outgoing connections (32768 and up on Linux), so that a node that
was killed finds its port free when it is restarted.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

from moldau_jepsen.launcher.spec import HOST, LauncherError, LauncherUsageError

PORT_FIRST = 10_000
PORT_END = 32_000
BASE_PORT_USUAL = 9092
ATTEMPTS_MAX = 2_000


def take_free_ports(count: int) -> list[int]:
    """Returns ``count`` ports that nobody listens on now. Another process may take one before it is used."""
    ports: list[int] = []
    chooser = random.SystemRandom()
    with ExitStack() as held:
        for _ in range(ATTEMPTS_MAX):
            if len(ports) == count:
                return ports
            port = chooser.randrange(PORT_FIRST, PORT_END)
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            ports.append(port)
    raise LauncherError(f"no {count} free ports between {PORT_FIRST} and {PORT_END} on {HOST}")


def port_in_use(port: int) -> bool:
    """Whether a listener could not bind ``port`` now (the check a restarting listener makes: SO_REUSEADDR)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def choose_ports(count: int, base_port: int | None) -> list[int]:
    """Ports for ``count`` nodes: from ``base_port`` on, or any free ones.

    Raises ``LauncherUsageError`` when one of the ports that were asked for is taken.
    """
    if base_port is None:
        return take_free_ports(count)
    ports = list(range(base_port, base_port + count))
    taken = [port for port in ports if port_in_use(port)]
    if taken:
        names = ", ".join(str(port) for port in taken)
        raise LauncherUsageError(f"port {names} of {HOST} is in use; give another --base-port")
    return ports


def usual_base_port(count: int) -> int | None:
    """9092 if it and the ports behind it are free, otherwise None (any free ports)."""
    usual = range(BASE_PORT_USUAL, BASE_PORT_USUAL + count)
    return None if any(port_in_use(port) for port in usual) else BASE_PORT_USUAL
