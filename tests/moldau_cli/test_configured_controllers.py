"""Goal: `bootstrap.controllers` of a client's configuration file works as `--bootstrap-controller`, or is refused.

Method: commands of this process whose admin client is not opened: it notes where it would start.
"""

import pytest

from moldau_cli import endpoints
from moldau_cli.client import running
from moldau_cli.client.chosen import chosen
from moldau_cli.client.settings import command_config, use_command_config
from moldau_cli.errors import CommandError
from moldau_cli.main import main

CONTROLLERS = {"bootstrap.controllers": "c1:9093,c2:9093"}


@pytest.fixture
def started(monkeypatch, tmp_path, capsys):
    """Runs a command with a configuration file; returns where its client starts, the exit code and stderr."""
    places = []

    def run_admin(place, *_, **__):
        places.append({key: value for key, value in command_config("admin").items() if "bootstrap" in key})
        places[-1] |= place
        raise CommandError("not run")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "run_admin", run_admin)
    monkeypatch.setattr(endpoints, "run_admin", run_admin)

    def run(config, *arguments):
        (tmp_path / "c.properties").write_text("".join(f"{key}={value}\n" for key, value in config.items()))
        code = main([*arguments, "--command-config", "c.properties"])
        return places[-1] if places else None, code, capsys.readouterr().err

    yield run
    use_command_config(None)


def test_controllers_of_a_file_are_asked(started):
    """The default address of brokers was added, and the client refused both."""
    assert started(CONTROLLERS, "features", "describe")[0] == CONTROLLERS
    assert chosen.address_source == "bootstrap.controllers of --command-config"


@pytest.mark.parametrize("config", [CONTROLLERS, {**CONTROLLERS, "bootstrap.servers": "b:1"}], ids=["one", "both"])
def test_an_option_overrides_the_file(started, config):
    """As in Kafka's tools."""
    assert started(config, "quorum", "status", "-b", "b:9")[0] == {"bootstrap.servers": "b:9"}
    assert started(config, "quorum", "status", "--bootstrap-controller", "c:9")[0] == {"bootstrap.controllers": "c:9"}
    assert started(config, "topics", "list", "-b", "b:9")[0] == {"bootstrap.servers": "b:9"}


@pytest.mark.parametrize("command", [["topics", "list"], ["produce", "t"], ["consume", "t"], ["cluster", "status"]])
def test_commands_that_only_brokers_answer_refuse_controllers(started, command):
    place, code, text = started(CONTROLLERS, *command)
    assert (place, code) == (None, 2)
    assert text == (
        "moldau: this command asks brokers, not those of bootstrap.controllers of --command-config: give "
        "--bootstrap-server\n"
    )


@pytest.mark.parametrize("command", [["features", "describe"], ["topics", "list"]])
def test_both_kinds_of_addresses_are_refused(started, command):
    place, code, text = started({**CONTROLLERS, "bootstrap.servers": "b:1"}, *command)
    assert (place, code) == (None, 2)
    assert "bootstrap.controllers of --command-config: cannot be combined with bootstrap.servers" in text
