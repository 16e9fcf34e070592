"""``moldau top``: a live view of a cluster in the terminal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.errors import UsageError
from moldau_cli.signals import ends_at_signal
from moldau_cli.words import a_number

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau import Admin
    from moldau_cli.live.collecting import Collector
    from moldau_cli.live.core.samples import Sample, View


def top(
    once: Annotated[bool, typer.Option("--once", help="Show rates of one interval, and end.")] = False,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="End after this many views; the first has no rates. Default: never."),
    ] = None,
    interval_s: Annotated[
        float,
        typer.Option("--interval", "-d", min=0.1, callback=a_number, metavar="SECONDS", help="Time between two looks."),
    ] = 2.0,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows of each table, where there is no terminal.")] = 20,
    requests: Annotated[
        int, typer.Option("--requests-per-second", min=1, help="Requests that the cluster gets at most, on average.")
    ] = 50,
    groups: Annotated[
        int, typer.Option("--groups", min=0, help="Groups that one look asks for; more take turns. 0: none.")
    ] = 50,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Show rates, lag and problems of a cluster, and refresh them.

    On a terminal the view fills the screen until Ctrl-C; elsewhere each view is written as plain text, or as one JSON
    document a line with --json. Rates of records are those of log end offsets; bytes are those of log directories.
    While no broker answers, the last view stays, and its first line says how old it is.
    """
    import trio

    if once and count is not None:
        raise UsageError("--once and --count exclude each other")
    views = 2 if once else count
    has_screen = _is_screen() and not output.wants_json() and views is None
    looks = trio.CancelScope()

    async def work(admin: Admin) -> None:
        from moldau_cli.live.collecting import Collector

        collector = Collector(admin, requests_per_s=requests, groups_max=max(1, groups), with_groups=groups > 0)

        async def show() -> None:
            first = await collector.look()
            looks.cancel()  # the views say from here on that no broker answers, and a note would fall into the screen
            if has_screen:
                await _on_screen(collector, first, interval_s)
            else:
                await _watch(collector, first, interval_s, views, lambda view: _write(view, rows), 1 if once else 0)

        await _until_signal(show)

    with_admin(bootstrap_server, work, looks=looks)


def _is_screen() -> bool:
    """Returns whether stdout is a terminal whose screen can be filled; rich shows a live view in no other."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


async def _watch(
    collector: Collector,
    first: Sample,
    interval_s: float,
    views: int | None,
    show: Callable[[View], None],
    skipped: int = 0,
) -> None:
    """Shows ``views`` views, or views until it is cancelled, without the first ``skipped``.

    ``first`` is the first look. While no broker answers, the last view is shown as one of the past.

    Raises:
        KafkaError: a look had no answer where views are skipped: that is one of a script.
    """
    import trio

    from moldau.protocol.errors import KafkaError
    from moldau_cli.live.core.samples import Views

    maker, made = Views(), 0
    view = last = maker.view(first)
    seen = began = trio.current_time()
    while True:
        made += 1
        if made > skipped:
            show(view)
        if views is not None and made >= views:
            return
        await trio.sleep_until(began + interval_s)
        began = trio.current_time()
        try:
            view = last = maker.view(await collector.look())
            seen = began
        except KafkaError as error:
            if skipped:
                raise
            view = last.after_silence(trio.current_time() - seen, error.message)


def _write(view: View, rows: int) -> None:
    from moldau_cli.live.screen import text

    output.answer(view.document(), text(view, rows_max=rows) + "\n")


async def _on_screen(collector: Collector, first: Sample, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from moldau_cli.live.screen import screen

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show(view: View) -> None:
            live.update(screen(view, height=console.height), refresh=True)

        await _watch(collector, first, interval_s, None, show)


async def _until_signal(work: Callable[[], Awaitable[None]]) -> None:
    """Runs work until it ends, or Ctrl-C or SIGTERM ends it.

    Raises:
        KeyboardInterrupt: a signal ended it.
    """
    if await ends_at_signal(work):
        raise KeyboardInterrupt
