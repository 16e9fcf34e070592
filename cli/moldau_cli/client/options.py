"""Options that most commands have: the brokers to ask, and keys of their clients."""

from __future__ import annotations

from typing import Annotated

import typer

BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,...",
        help="Brokers to ask. Default: MOLDAU_BOOTSTRAP, the profile in use, the cluster in ./moldau-cluster, or "
        "127.0.0.1:9092.",
    ),
]
ClientSettings = Annotated[
    list[str] | None, typer.Option("--set", "-X", metavar="KEY=VALUE", help="Client configuration key (Kafka's names).")
]
