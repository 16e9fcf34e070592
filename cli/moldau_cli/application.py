"""The typer application with all commands.

At import, a command module loads only the standard library, typer and a few light modules.
"""

from __future__ import annotations

import typer

from moldau_cli.commands import (
    acls,
    chaos,
    cluster,
    configs,
    console,
    consume,
    demo,
    features,
    groups,
    log,
    node,
    pipeline,
    produce,
    quorum,
    quotas,
    replicas,
    tokens,
    topics,
    txns,
    users,
)
from moldau_cli.commands.sim import runs as sim

application = typer.Typer(
    name="moldau",
    help=(
        "A Kafka-compatible replicated log. Add --json anywhere for machine-readable output, and --command-config FILE "
        "for client configuration keys such as security.protocol."
    ),
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
application.add_typer(chaos.commands, name="chaos")
application.add_typer(cluster.commands, name="cluster")
application.add_typer(topics.commands, name="topics")
application.add_typer(configs.commands, name="configs")
application.add_typer(groups.commands, name="groups")
application.add_typer(quorum.commands, name="quorum")
application.add_typer(features.commands, name="features")
application.add_typer(replicas.reassign, name="reassign")
application.add_typer(replicas.logdirs, name="logdirs")
application.command("elect")(replicas.elect)
application.add_typer(log.commands, name="log")
application.add_typer(node.commands, name="node")
application.add_typer(sim.commands, name="sim")
application.add_typer(pipeline.commands, name="pipeline")
application.add_typer(txns.commands, name="txns")
application.add_typer(users.commands, name="users")
application.add_typer(tokens.commands, name="tokens")
application.add_typer(acls.commands, name="acls")
application.add_typer(quotas.commands, name="quotas")
application.command("produce")(produce.produce)
application.command("consume")(consume.consume)
application.command("demo")(demo.demo)
application.command("console")(console.console)


@application.command("server")
def server_help(config: str) -> None:
    """Run one node from a properties or TOML file (roles broker, controller, or both)."""
    raise AssertionError(f"server {config} is handled before the command-line library is loaded")


@application.command("version")
def version() -> None:
    """Print Moldau's version."""
    from moldau.version import VERSION
    from moldau_cli import output

    output.answer({"version": VERSION}, VERSION)
