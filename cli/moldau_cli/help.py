"""Gives the help of all commands one plain form, whatever the installed release of typer prefers.

Values of options are named in capitals (``NUMBER``, ``TEXT``, or what the option says), and the list of a group's
commands shows whole summaries. Imports nothing, because each command pays for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The command-line library's own classes are not exported by typer.
    from typing import Any

    Command = Any
    Parameter = Any

ONE_OF = "One of:"
_CHOICES_MAX = 60
"""Characters of the words of an option that an 80-column line has room for."""
_ANYWHERE = "Also, anywhere in the command: --json, --command-config FILE, --profile NAME."
"""Options that ``moldau_cli.main`` takes out of the arguments before the library sees them."""


def plain_help(command: Command) -> None:
    """Sets how a command, and all commands below it, describe their arguments and their subcommands.

    A group that is called without a command raises the library's error that asks for its help.
    """
    command.help = (command.help or "").replace("``", "`")
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            _name_argument(parameter)
        elif parameter.metavar is None and not parameter.is_flag and not _shows_choices(parameter):
            parameter.metavar = _value_name(parameter)
    if not hasattr(command, "commands"):
        if any(parameter.name == "bootstrap_server" for parameter in command.params):
            command.epilog = _ANYWHERE
        return
    command.no_args_is_help = True
    for child in command.commands.values():
        # A list of commands shows a short help whole, and cuts a longer text at the edge of an 80-column line.
        child.short_help = child.short_help or _summary(child.help)
        plain_help(child)


def _shows_choices(parameter: Parameter) -> bool:
    """Returns whether an option takes one of a few words that fit into its column of the help.

    The words of others are added to the option's text.
    """
    words = [str(getattr(choice, "value", choice)) for choice in getattr(parameter.type, "choices", None) or ()]
    if len("|".join(words)) <= _CHOICES_MAX:
        return bool(words)
    parameter.help = f"{parameter.help or ''} {ONE_OF} {', '.join(words)}.".strip()
    return False


def _value_name(parameter: Parameter) -> str:
    if hasattr(parameter.type, "choices"):
        return str(parameter.name).rpartition("_")[2].upper()
    kind = parameter.type.name
    if kind.startswith(("int", "float")):
        return "NUMBER"
    return "PATH" if kind == "path" else "TEXT"


def _name_argument(parameter: Parameter) -> None:
    name = parameter.metavar
    if name is None:
        name = parameter.name.upper().replace("_", "-")
        if choices := getattr(parameter.type, "choices", None):
            name = "|".join(str(getattr(choice, "value", choice)) for choice in choices)
        if parameter.nargs != 1:
            name += "..."
    parameter.metavar = name

    def make_metavar(ctx: object = None, *, usage: bool = True) -> str:
        return f"[{name}]" if usage and not parameter.required else name

    parameter.make_metavar = make_metavar


def _summary(text: str | None) -> str:
    """Returns the first sentence of a help text as one line."""
    sentence, period, _ = " ".join((text or "").replace("``", "`").split()).partition(". ")
    return sentence + period.strip()
