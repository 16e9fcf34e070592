"""Goal: ``moldau console`` refuses unsafe or impossible options in one line. Method: the command in this process."""

import importlib.util
import os
import socket

import pytest
import trio

from moldau.runtime.config import parse_server_config
from moldau_cli.commands import console
from moldau_cli.console import serving
from moldau_cli.console.certificate import paired
from moldau_cli.console.serving import Options, listen, url_of
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.main import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "needs a token: set moldau_console_token"),
        (["--host", "192.0.2.1"], "can be reached from other machines"),
        (["--token", "short"], "--token: 5 characters, at least 16"),
        (["--tls-key", "{tmp}"], "--tls-key needs --tls-certificate"),
        (["--tls-key", "{tmp}/k", "--tls-certificate", "{tmp}/c"], "--tls-certificate: cannot read"),
        (["--tls-certificate", "{tmp}/text"], "no private key with its certificate chain in pem form"),
        (["--dir", "{tmp}"], "no cluster in"),
        (["--dir", "{tmp}", "-b", "127.0.0.1:9092"], "exclude each other"),
        (["--port", "0"], "--port"),
        (["--registry", "ftp://r:1", "-b", "127.0.0.1:1"], "--registry: must begin with http://"),
        (["--registry", "http://r,http://s", "-b", "127.0.0.1:1"], "--registry: is no url; "),
        (["--registry", "", "-b", "127.0.0.1:1"], "--registry: must begin with http://"),
        (["-X", "novalue", "-b", "127.0.0.1:9092"], "expected key=value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_one_line(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no certificate")
    monkeypatch.delenv("MOLDAU_CONSOLE_TOKEN", raising=False)
    assert main(["console", *[argument.format(tmp=tmp_path) for argument in arguments]]) == 2
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.count("\n") == 1
    assert words in reported.err.lower()


def test_a_missing_extra_is_named(monkeypatch, capsys):
    find = importlib.util.find_spec
    absent = {"starlette", "hypercorn"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in absent else find(name, *more))
    assert main(["console"]) == 2
    assert "starlette and hypercorn not installed; run: pip install 'moldau[console]'" in capsys.readouterr().err


def test_avro_names_its_extra(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "fastavro" else find(name, *more)
    )
    assert main(["console", "-b", "127.0.0.1:1", "--registry", "http://127.0.0.1:1"]) == 2
    assert "pip install 'moldau[jobs]'" in capsys.readouterr().err


def test_a_cluster_that_is_down_is_named(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["console", "-b", address, "--no-browser"]) == 1
    assert "is the cluster running?" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--login"]])
def test_users_who_sign_in_need_no_mechanism_before(more, capsys):
    """The guide's command for a cluster with SASL was refused, because it names no mechanism."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["console", "-b", address, "-X", "security.protocol=SASL_SSL", *more, "--no-browser"]) == 1
    assert "is the cluster running?" in capsys.readouterr().err


def test_a_taken_port_is_named_and_a_default_gives_way():
    with listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        assert first.getsockname()[1] != second.getsockname()[1]
        with pytest.raises(CommandError, match="cannot listen on 127"):
            listen("127.0.0.1", first.getsockname()[1])
    with pytest.raises(UsageError, match="--host"):
        listen("no such host", None)


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, "http://127.0.0.1:9080/"),
        ({"host": "0.0.0.0", "token": "t" * 16}, f"http://127.0.0.1:9080/#token={'t' * 16}"),
        ({"token": "q+7&b%41/c="}, "http://127.0.0.1:9080/#token=q%2B7%26b%2541/c="),
        ({"host": "::1"}, "http://[::1]:9080/"),
        ({"tls": paired("c", "k")}, "https://127.0.0.1:9080/"),
    ],
)
def test_the_printed_address_can_be_opened(options, url):
    """The page decodes what stands behind ``#``: a plus sign of base64 became a blank, and the token was wrong."""
    assert url_of(Options(bootstrap="", settings={}, **options), 9080) == url


def test_the_token_is_not_handed_to_nodes(monkeypatch, capsys):
    """Started nodes inherit the environment: the token leaves it, and a node that sees one does not refuse it."""
    monkeypatch.setenv("MOLDAU_CONSOLE_TOKEN", "short")
    assert main(["console", "-b", "127.0.0.1:1"]) == 2
    assert "--token: 5 characters" in capsys.readouterr().err
    assert "MOLDAU_CONSOLE_TOKEN" not in os.environ
    text = "process.roles=controller\nnode.id=101\ncontroller.quorum.voters=101@127.0.0.1:9093\n"
    text += "controller.listener.names=CONTROLLER\nlisteners=CONTROLLER://127.0.0.1:9093\nlog.dirs=/nowhere\n"
    parse_server_config(text, "server.properties", {"MOLDAU_CONSOLE_TOKEN": "a token for the tests"})


def test_the_profile_in_use_brings_its_settings(tmp_path, monkeypatch):
    seen = []

    async def run_console(options, announce):
        seen.append(options)

    monkeypatch.setattr(serving, "run_console", run_console)
    monkeypatch.setattr(console, "run", lambda work, address: trio.run(work))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("MOLDAU_PROFILE", raising=False)
    assert main(["profile", "add", "prod", "-b", "b1:9092", "-X", "security.protocol=SSL"]) == 0
    assert main(["console", "--no-browser"]) == 0
    (options,) = seen
    assert (options.bootstrap, options.settings) == ("b1:9092", {"security.protocol": "SSL"})


def test_an_allowed_host_may_be_given_as_browsers_send_it(monkeypatch):
    """The refusal names the header with its port, and the option with that text allowed nothing."""
    seen = []

    async def run_console(options, announce):
        seen.append(options)

    monkeypatch.setattr(serving, "run_console", run_console)
    monkeypatch.setattr(console, "run", lambda work, address: trio.run(work))
    given = ["--allowed-host", "Console.example:8443", "--allowed-host", "other.example"]
    assert main(["console", "--no-browser", "-b", "b1:9092", *given]) == 0
    assert seen[0].allowed_hosts == {"console.example", "other.example"}
