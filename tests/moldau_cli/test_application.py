"""Goal: the list of commands is right and cheap. Method: it is compared with the commands, and imports are counted."""

import re
import subprocess
import sys
from contextlib import suppress

import pytest
import typer

from moldau_cli.application import COMMANDS, MEANT, application


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_is_the_help_of_the_command(name):
    """The list of commands quotes the first sentence of each command's help, without loading the command."""
    text = " ".join(application.commands[name].help.split())
    assert f"{text} ".startswith(f"{COMMANDS[name].summary} ")


def test_the_list_of_commands_loads_no_command():
    code = (
        "import sys; from moldau_cli.main import main; main(['--help']); "
        "print(sorted(name for name in sys.modules if name.startswith(('moldau_cli.commands.', 'moldau.', 'trio'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert "moldau_cli.commands" not in loaded
    assert "trio" not in loaded
    assert "moldau.protocol" not in loaded


def test_words_of_other_tools_stand_for_commands():
    """Each is no command itself, and what it stands for is one, with its subcommand."""
    for word, meant in MEANT.items():
        name, *rest = meant.split()
        assert word not in COMMANDS
        assert name in COMMANDS
        assert all(one in application.commands[name].commands for one in rest), meant


def commands_of(group, path=()):
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands_of(command, (*path, name))


def test_help_names_values_plainly_and_cuts_no_sentence(monkeypatch):
    """Each option and argument has a name in capitals or choices; each list has the whole first sentence."""
    monkeypatch.setenv("COLUMNS", "80")
    for path, command in commands_of(application):
        if path == ("server",):
            continue  # prints a text of its own
        context = command.context_class(command, info_name=path[-1], help_option_names=["-h", "--help"])
        lines = command.get_help(context).splitlines()
        assert max(map(len, lines)) <= 80, (path, "choices of some options took 112 columns")
        shown = " ".join(" ".join(lines).split())
        assert not re.search(r"<(str|int|float|path)\b|[─│]|``", shown), path
        assert "{" not in command.get_usage(context), path
        assert ("--command-config FILE, --profile NAME" in shown) == ("--bootstrap-server" in shown), path
        if hasattr(command, "commands"):
            for child in command.commands.values():
                assert " ".join(child.help.split()).partition(". ")[0] in shown, path


def loaded_by(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


HEAVY = ("trio", "moldau_jepsen", "moldau_broker", "moldau_quorum", "moldau.consumer", "moldau.producer", "pyarrow")


def test_no_option_takes_nan():
    """No range leaves NaN out: waits ended in tracebacks, and ``cluster stop`` killed nodes at once."""
    checked_later = {"duration", "window", "hours"}
    taken = []
    for path, command in commands_of(application):
        for param in command.params:
            if "float" in param.type.name and param.name not in checked_later:
                with suppress(typer.BadParameter):
                    param.process_value(typer.Context(command), "nan")
                    taken.append((*path, param.name))
    assert taken == []


def test_help_of_commands_loads_no_client():
    """Help and completion of a command need its module; all modules together load less than one client does."""
    code = (
        "import importlib; from moldau_cli.application import COMMANDS; "
        "[importlib.import_module(f'moldau_cli.commands.{each.module}') for each in COMMANDS.values()]"
    )
    loaded = loaded_by(code)
    assert "moldau_cli.commands.administration.quotas" in loaded
    assert loaded.isdisjoint(HEAVY)
    assert len([name for name in loaded if name.startswith("moldau")]) <= 117


def test_a_call_loads_its_own_subject():
    """``moldau topics list`` spent half of its CPU time on loading the consumer and the calls of other subjects."""
    code = (
        "from moldau_cli.application import application; application.commands['topics']; import moldau_cli.main; "
        "from moldau import Admin; Admin({'bootstrap.servers': 'localhost:1'})._calls.topics; "
        "import moldau.runtime.ports.real"
    )
    loaded = loaded_by(code)
    assert "moldau.admin.calls.topics" in loaded
    assert loaded.isdisjoint({*HEAVY, "moldau.admin.calls.groups", "moldau_cli.commands.cluster"} - {"trio"})
    assert len([name for name in loaded if name.startswith("moldau")]) <= 126, "124 when this was written, 205 once"


def test_a_description_of_groups_loads_no_consumer():
    loaded = loaded_by("from moldau import Admin; Admin({'bootstrap.servers': 'localhost:1'})._calls.groups")
    assert "moldau.admin.calls.groups" in loaded
    assert loaded.isdisjoint({"moldau.consumer", "moldau.producer"})
