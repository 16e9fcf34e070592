"""Goal: with ``--json``, each command that fails says why in one document, and only there.

Method: every command runs in this process, once with an option that it does not have, and once with an address
where nothing listens, or with a name, file or directory that does not exist.
"""

import io
import json
import shlex
import sys

import pytest

from moldau_cli import main as entry
from moldau_cli import output
from moldau_cli.application import application
from moldau_cli.errors import AnsweredError
from moldau_cli.main import main

NOTHING = ("-b", "127.0.0.1:1")
"""Port 1 needs rights that no test has; a connection is refused at once."""
ASKING = [
    "cluster roll --restart-command x",
    "cluster roll --restart-command x --dry-run",
    "cluster status",
    "console --port 1024",
    "topics create t",
    "topics list",
    "topics describe",
    "topics alter t --partitions 2",
    "topics delete t",
    "topics delete-records t --before end",
    "produce t",
    "consume t",
    "offsets",
    "groups list",
    "groups describe g",
    "groups reset g --topic t --to latest",
    "groups delete-offsets g --topic t",
    "groups delete g",
    "top --once",
    "share-groups list",
    "share-groups describe g",
    "share-groups delete g",
    "share-groups offsets describe g",
    "share-groups offsets reset g --topic t --to latest",
    "share-groups offsets delete g --topic t",
    "streams-groups list",
    "streams-groups describe g",
    "streams-groups offsets g",
    "streams-groups reset g --topic t",
    "streams-groups delete g",
    "configs describe --entity-name t",
    "configs alter --entity-name t --add-config retention.ms=1",
    "txns list",
    "txns describe i",
    "txns producers t 0",
    "txns find-hanging",
    "txns terminate i",
    "txns abort t 0 --producer-id 1",
    "reassign start t 0 1",
    "reassign cancel t 0",
    "reassign status",
    "reassign plan --brokers 1",
    "reassign execute {plan}",
    "reassign verify {plan}",
    "elect",
    "balance plan",
    "balance execute {plan}",
    "balance leaders",
    "brokers list",
    "brokers api-versions",
    "brokers drain 1",
    "brokers unregister 1",
    "logdirs describe",
    "logdirs move t --broker 1 --to /d",
    "logdirs cordon 1",
    "logdirs uncordon 1",
    "logdirs drain 1 /d",
    "quorum status",
    "quorum add-voter 1 h:1",
    "quorum remove-voter 1",
    "quorum transfer",
    "features describe",
    "features upgrade --feature metadata.version=1",
    "features downgrade --feature metadata.version=1",
    "users list",
    "users add u < pw",
    "users alter u < pw",
    "users remove u",
    "tokens create",
    "tokens renew --hmac aaaa",
    "tokens expire --hmac aaaa",
    "tokens describe",
    "acls list",
    "acls add --allow-principal User:a --topic t",
    "acls remove --topic t",
    "quotas describe",
    "quotas alter --user u --add-config consumer_byte_rate=1",
    "quotas delete --user u",
]
"""Calls that ask a cluster, at least one of each command that has ``--bootstrap-server``; the word behind ``<`` is
their input."""
WITH_NOTHING = [
    "cluster stop",
    "cluster kill 1",
    "cluster pause 1",
    "cluster resume 1",
    "cluster cut 1",
    "cluster heal 1",
    "cluster restart 1",
    "cluster start --brokers 0",
    "cluster roll",
    "cluster status --dir no",
    "demo --dir {file}",
    "server no",
    "server no --check",
    "server",
    "node init {file} --role broker --node-id 1 --voters 2@h:1",
    "node check no",
    "node format no",
    "node cluster-id no",
    "mirror run no",
    "mirror check no",
    "mirror status no",
    "mirror offsets no --group g",
    "pipeline load no",
    "pipeline export no",
    "pipeline aggregate no",
    "pipeline sessions no",
    "pipeline join no",
    "pipeline package no/no",
    "pipeline views build no",
    "pipeline views follow no",
    "pipeline views list no",
    "pipeline views compare no 1 2",
    "pipeline views switch no 1",
    "pipeline views rollback no",
    "sim run --seeds 0",
    "sim replay",
    "sim shrink -1",
    "sim mutants no",
    "sim corpus list --dir no",
    "sim corpus run --dir no",
    "sim corpus add no --name n --why w",
    "chaos run --control no",
    "chaos report no",
    "log dump no",
    "profile add n -b h",
    "profile use no",
    "profile show no",
    "profile remove no",
    "profile list no",
    "completion no",
    "version no",
    "--version no",
    "--command-config",
    "--command-config no topics list",
    "--profile no topics list",
    "no",
    "cluster",
]
"""Calls that name what does not exist, at least one of each other command."""


def commands_of(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands_of(application))


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("MOLDAU_BOOTSTRAP", "MOLDAU_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    yield
    output.use_json(False)


def refused(words, capsys):
    """Returns the text and the exit code of the document, the only line that a command without progress writes."""
    code = main([*words, "--json"])
    written = capsys.readouterr()
    assert written.out == ""
    *notes, last = written.err.splitlines()
    assert notes == [] or words[0] == "demo", "it shows how far it is"
    document = json.loads(last)
    assert document == {"error": document["error"], "exit_code": code}
    assert document["error"] == " ".join(document["error"].split())
    return document["error"], code


def test_each_command_has_a_call():
    called = [next(name for name in COMMANDS if f"{line} ".startswith(f"{name} ")) for line in ASKING]
    asking = [name for name, command in COMMANDS.items() if any("-b" in each.opts for each in command.params)]
    assert {*called} == {*asking} - {"profile add"}
    assert not [
        name for name in COMMANDS if not any(f"{line} ".startswith(f"{name} ") for line in ASKING + WITH_NOTHING)
    ]


@pytest.mark.parametrize("line", ASKING)
def test_a_cluster_that_does_not_answer_is_one_document(line, tmp_path, monkeypatch, capsys):
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}')
    words, _, given = line.format(plan=plan).partition(" < ")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    text, code = refused([*shlex.split(words), *NOTHING], capsys)
    assert (text, code) == ("no broker answers (127.0.0.1:1: Connection refused); is the cluster running?", 1)


@pytest.mark.parametrize("line", WITH_NOTHING)
def test_what_does_not_exist_is_one_document(line, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    assert refused(line.format(file=file).split(), capsys)[1] == 2


@pytest.mark.parametrize("name", [*COMMANDS])
def test_an_unknown_option_is_one_document(name, capsys):
    text, code = refused([*name.split(), "--no-such-option"], capsys)
    assert "--no-such-option" in text
    assert code == 2


@pytest.mark.parametrize("as_json", [False, True])
def test_people_read_in_the_answer_that_something_is_wrong(as_json, monkeypatch, capsys):
    def answers(**_):
        output.answer({"verdict": "bad"}, "bad")
        raise AnsweredError("it is bad", 3)

    monkeypatch.setattr(application, "main", answers)
    assert main(["version", *["--json"] * as_json]) == 3
    document = '{"error": "it is bad", "exit_code": 3}\n'
    assert capsys.readouterr() == (('{"verdict": "bad"}\n', document) if as_json else ("bad\n", ""))


@pytest.mark.parametrize("words", [["server", "f"], ["topics", "list"]])
def test_a_missing_package_is_one_document(words, monkeypatch, capsys):
    monkeypatch.setattr(entry, "REQUIREMENTS", dict.fromkeys(("server", "cli"), ("no_such_package",)))
    text, code = refused(words, capsys)
    assert text.startswith("no_such_package not installed; run: pip install 'moldau[")
    assert code == 2


def test_a_checked_file_is_answered_as_a_document(tmp_path, capsys):
    file = tmp_path / "node.properties"
    lines = ["node.id=7", "process.roles=controller", "controller.quorum.voters=7@127.0.0.1:19", f"log.dirs={tmp_path}"]
    lines += ["listeners=CONTROLLER://127.0.0.1:19", "controller.listener.names=CONTROLLER"]
    file.write_text("\n".join(lines))
    assert main(["server", str(file), "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(file), "nodes": [{"node": 7, "roles": ["controller"]}]}
