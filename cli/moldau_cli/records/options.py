"""Options of ``moldau produce`` and ``moldau consume``, most of which both have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moldau_cli.records.formats import DataFormat

KeyFormat = Annotated[DataFormat, typer.Option("--key-format", help="Format of keys.")]
ValueFormat = Annotated[DataFormat, typer.Option("--value-format", help="Format of values.")]
KeySchema = Annotated[
    Path | None, typer.Option("--key-schema", metavar="FILE", help="Schema of keys: Avro, JSON Schema, descriptor set.")
]
ValueSchema = Annotated[
    Path | None,
    typer.Option("--value-schema", metavar="FILE", help="Schema of values: Avro, JSON Schema, descriptor set."),
]
KeyMessage = Annotated[str | None, typer.Option("--key-message", metavar="NAME", help="Protobuf message of keys.")]
ValueMessage = Annotated[
    str | None, typer.Option("--value-message", metavar="NAME", help="Protobuf message of values.")
]
Registry = Annotated[
    str | None,
    typer.Option("--registry", "-r", metavar="URL", help="Schema registry: Confluent's wire format instead of bare."),
]
RegistryConfig = Annotated[
    Path | None,
    typer.Option("--registry-config", metavar="FILE", help="Configuration keys of the registry's client."),
]
IdleTime = Annotated[
    int | None,
    typer.Option(
        "--timeout-ms",
        min=1,
        help="End when no record came for so long, from when all start positions are known. Brokers that do not tell "
        "these in that time, and in at least 3 s (15 s with --group), are an error. So are leaders that do not confirm "
        "the end within 3 s, and records that are there and do not come. Default: never.",
    ),
]
