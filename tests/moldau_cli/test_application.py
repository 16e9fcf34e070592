"""Goal: the list of commands is right and cheap. Method: it is compared with the commands, and imports are counted."""

import subprocess
import sys

import pytest

from moldau_cli.application import COMMANDS, application


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
