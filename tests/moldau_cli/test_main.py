"""Goal: the command line keeps its contract: exit codes 0, 1, 2; wrong usage is one line on stderr; --json anywhere.
Method: whole commands in this process, and a real one where the interpreter matters.
"""

import json
import subprocess
import sys

import pytest

from moldau_cli.main import brokers_last, main, split_json_flag
from moldau_cli.output import table


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--json"], "missing command"),
        (["bogus"], "no such command 'bogus'"),
        (["topcs"], "did you mean 'topics'"),
        (["transactions"], "no such command 'transactions'. did you mean 'txns'?; see: moldau --help"),
        (["kafka-leader-election.sh"], "did you mean 'elect'"),
        (["kafka-topics.sh", "--list"], "did you mean 'topics'"),
        (["cluster", "--json"], "missing command"),
        (["cluster", "start", "--brokers", "x"], "--brokers"),
        (["cluster", "start", "--brokers", "0", "--dir", "{tmp}/c"], "number of brokers must be 1..99, not 0"),
        (["cluster", "start", "--set", "novalue", "--dir", "{tmp}/c"], "expected key=value, not 'novalue'"),
        (["cluster", "start", "--bogus"], "no such option: --bogus"),
        (["cluster", "kill"], "missing argument 'node'"),
        (["cluster", "kill", "1", "--dir", "{tmp}"], "no cluster in"),
        (["cluster", "status", "--dir", "{tmp}", "--json"], "no cluster in"),
        (["log", "dump", "{tmp}/" + 300 * "x"], "file name too long"),
        (["topics", "list", "--command-config", "{tmp}/no"], "/no: no such file or directory\n"),
        (["consume", "t", "--from", "noon"], "moldau: --from: expected a time such as"),
        (["consume", "t", "--to", "noon"], "moldau: --to: expected a time such as"),
        (["acls", "add", "--allow-principal", "al", "--topic", "t"], "--allow-principal: expected type:name"),
        (["acls", "remove", "--deny-principal", "User:", "--topic", "t"], "such as user:user, not 'user:'"),
        (["acls", "list", "--principal", "al"], "--principal: expected type:name, such as user:al, not 'al'"),
        (["server"], "configuration file missing"),
        (["server", "{tmp}/missing.properties"], "no such file or directory"),
        (["server", "a", "b"], "one configuration file expected, got a and b"),
        (["server", "a", "--bogus"], "unknown option --bogus"),
        (["server", "a", "--log-level", "loud"], "--log-level must be one of"),
        (["server", "a", "--log-format", "xml"], "--log-format must be one of text, json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, words, tmp_path, capsys):
    code = main([argument.format(tmp=tmp_path) for argument in arguments])
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    assert output.err.count("\n") == 1
    reported = output.err
    if "--json" in arguments:
        document = json.loads(reported)
        assert document["exit_code"] == 2
        reported = document["error"]
    else:
        assert reported.startswith("moldau: ")
    assert words in reported.lower()


@pytest.mark.parametrize("words", [[], ["topics"], ["pipeline", "views"]], ids=" ".join)
def test_a_group_without_a_command_shows_its_help(words, capsys):
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert main(words) == 2
    assert capsys.readouterr().err == shown


def test_an_unknown_configuration_key_names_the_nearest(tmp_path, capsys):
    path = tmp_path / "server.properties"
    path.write_text("process.roles=broker\nnode.idd=1\n")
    assert main(["server", str(path)]) == 2
    assert "node.idd: unknown broker configuration key; did you mean node.id?" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--json", "version"], ["version", "--json"]])
def test_json_may_stand_anywhere(arguments, capsys):
    assert main(arguments) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["version"]


def test_brokers_may_be_named_before_the_command():
    """kcat and rpk have them there; a value may stand alone or behind an equals sign."""
    assert brokers_last(["-b", "h:1", "topics", "list"]) == ["topics", "list", "-b", "h:1"]
    given = ["--bootstrap-server=h:1", "produce", "t", "--", "-x"]
    assert brokers_last(given) == ["produce", "t", "--bootstrap-server=h:1", "--", "-x"]
    for same in ([], ["-b"], ["-b", "h:1"], ["topics", "list", "-b", "h:1"]):
        assert brokers_last(same) == same


def test_json_behind_a_double_dash_is_an_ordinary_word():
    assert split_json_flag(["produce", "t", "--json", "--", "--json"]) == (True, ["produce", "t", "--", "--json"])
    assert split_json_flag(["produce", "--", "--json"]) == (False, ["produce", "--", "--json"])


@pytest.mark.parametrize("arguments", [["--help"], ["cluster", "--help"], ["cluster", "start", "-h"], ["server", "-h"]])
def test_help_goes_to_stdout(arguments, capsys):
    assert main(arguments) == 0
    assert "sage: moldau" in capsys.readouterr().out


def test_assertions_cannot_be_switched_off():
    run = subprocess.run(
        [sys.executable, "-O", "-m", "moldau_cli", "version"], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 2
    assert "python -O removes the assertions" in run.stderr


def test_a_server_loads_no_command_line_library():
    program = (
        "import sys; from moldau_cli.main import main; code = main(['server', '/missing']); "
        "heavy = {'typer', 'rich', 'pyarrow', 'pyspark', 'numpy', 'pandas'} & set(sys.modules); "
        "sys.exit(f'{code} {sorted(heavy)}')"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert run.stderr.splitlines()[-1] == "2 []"


def test_tables_are_aligned():
    assert (
        table(["node_id", "state"], [["1", "running"], ["101", "-"]]) == "NODE ID  STATE\n1        running\n101      -"
    )
