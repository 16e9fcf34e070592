"""Goal: shells complete commands, options, and names of the cluster. Method: the scripts' variables; a real bash."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moldau_cli.application import COMMANDS
from moldau_cli.completion import names
from support.client.socket_cluster import cluster
from support.commands import run_command
from support.pages import FENCE, ROOT

LIST_GROUPS = 16


@pytest.fixture(scope="module")
def broker():
    with cluster() as fake:
        fake.add_topic("flights")
        fake.add_topic("fleets")
        fake.add_topic("other")
        yield fake


def bash(line, **environment):
    """The completions of a line in bash, which divides words at colons and equals signs; the last word is typed."""
    words = [part for word in line.split(" ") for part in re.findall("[:=]+|[^:=]+", word) or [""]]
    given = {"_MOLDAU_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    return finished({**given, **environment}).split()


def fish(line, **environment):
    action = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": line}
    given = {"_MOLDAU_COMPLETE": "complete_fish", **action}
    return [each.split("\t")[0] for each in finished({**given, **environment}).splitlines()]


def zsh(line, **environment):
    return finished({"_MOLDAU_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line, **environment})


def finished(environment):
    done = run_command(environment=environment)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


def test_commands_are_completed():
    assert set(bash("moldau to")) == {"top", "topics", "tokens"}
    assert set(bash("moldau ")) == set(COMMANDS)
    assert bash("moldau topics desc") == ["describe"]
    assert set(fish("moldau profile ")) == {"add", "use", "list", "show", "remove"}
    assert '"describe"' in zsh("moldau groups des")


def test_options_and_choices_are_completed():
    assert bash("moldau consume --isol") == ["--isolation-level"]
    assert bash("moldau consume --isolation-level read_c") == ["read_committed"]
    assert bash("moldau consume --isolation-level=read_c") == ["read_committed"]
    assert set(bash("moldau produce -z ")) == {"none", "gzip", "snappy", "lz4", "zstd"}


def test_topics_are_completed(broker, tmp_path, monkeypatch):
    known = {"MOLDAU_BOOTSTRAP": broker.bootstrap}
    assert bash("moldau topics describe fl", **known) == ["fleets", "flights"]
    assert fish("moldau consume fli", **known) == ["flights"]
    assert zsh("moldau produce fli", **known) == "_arguments '*: :((\"flights\"))'\n"
    assert bash(f"moldau topics delete -b {broker.bootstrap} --json oth") == ["other"]
    before = f"moldau -b {broker.bootstrap}"  # commands take the address there too
    assert [bash(f"{before} {rest}") for rest in ("topics del", "topics delete oth")] == [
        ["delete", "delete-records"],
        ["other"],
    ]
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={broker.bootstrap}\n")
    assert bash(f"moldau topics describe --command-config {config} oth") == ["other"]
    monkeypatch.chdir(tmp_path)
    assert bash("moldau topics describe fl") == [], "no cluster is known"


def test_the_bound_of_names_counts_those_that_fit(broker, monkeypatch):
    """The last topics of a large cluster would else never be completed."""
    monkeypatch.setattr(names, "NAMES_MAX", 2)
    known = {"MOLDAU_BOOTSTRAP": broker.bootstrap}
    assert bash("moldau topics describe ot", **known) == ["other"]
    assert bash("moldau topics describe ", **known) == ["fleets", "flights"]


def test_groups_are_completed(broker):
    from moldau.protocol.messages.list_groups import ListedGroup, ListGroupsResponse

    broker.handlers[LIST_GROUPS] = lambda number, request: ListGroupsResponse(
        groups=[ListedGroup(group_id=name, protocol_type="consumer", group_state="Empty") for name in ("r1", "r2", "x")]
    )
    known = {"MOLDAU_BOOTSTRAP": broker.bootstrap}
    assert bash("moldau groups describe r", **known) == ["r1", "r2"]
    assert bash("moldau consume flights -g x", **known) == ["x"]


def test_profiles_are_completed(broker, tmp_path):
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    for name in ("prod", "private", "test"):
        run_command("profile", "add", name, "-b", broker.bootstrap, environment=home)
    assert bash("moldau profile use pr", **home) == ["private", "prod"]
    assert bash("moldau topics list --profile te", **home) == ["test"]
    assert bash("moldau topics list --profile=te", **home) == ["test"]
    assert bash("moldau topics describe --profile=test fli", **home) == ["flights"]
    assert zsh("moldau topics list --profile te", **home) == "_arguments '*: :((\"test\"))'\n"
    assert bash("moldau topics describe --profile test fli", **home) == ["flights"]
    assert bash("moldau topics describe --profile missing fli", **home) == []


def test_a_silent_cluster_completes_nothing_soon(broker, monkeypatch):
    """A port that accepts connections without an answer costs the time limit, once."""
    import socket

    monkeypatch.setattr(names, "ANSWER_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        assert bash("moldau topics describe fl", MOLDAU_BOOTSTRAP=address) == []
        assert time.monotonic() - began < 30
    assert bash("moldau topics describe fl", MOLDAU_BOOTSTRAP="127.0.0.1:1") == []
    assert bash("moldau topics describe fl", MOLDAU_BOOTSTRAP="nonsense") == []


def test_completing_commands_loads_no_command():
    code = (
        "import os, sys; os.environ.update(_MOLDAU_COMPLETE='complete_bash', COMP_WORDS='moldau t', COMP_CWORD='1')\n"
        "from moldau_cli.main import main\n"
        "main([])\n"
        "print(sorted(name for name in sys.modules if name.startswith(('moldau_cli.commands.', 'trio'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash was found")
def test_a_real_bash_completes(tmp_path):
    """The printed script defines a function that bash calls with the words of the line."""
    script = run_command("completion", "bash").stdout
    command = tmp_path / "moldau"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m moldau_cli "$@"\n')
    command.chmod(0o755)
    program = f"""
{script}
PATH={tmp_path}:$PATH
COMP_WORDS=(moldau topics desc); COMP_CWORD=2
_moldau_completion moldau
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("describe\n", 0), done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_printed_and_installed(shell, tmp_path, monkeypatch):
    printed = run_command("completion", shell)
    assert "_MOLDAU_COMPLETE" in printed.stdout
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    done = run_command("completion", shell, "--install")
    assert done.returncode == 0
    assert str(tmp_path) in done.stdout
    assert any("_MOLDAU_COMPLETE" in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_a_script_that_cannot_be_installed_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "home").write_text("")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    done = run_command("completion", "bash", "--install")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("moldau: cannot install the script: ")
    assert done.stderr.count("\n") == 1


def test_commands_of_the_guide_work_in_an_empty_home(tmp_path, monkeypatch):
    """The guide wrote to folders that a new user does not have, and from which zsh loads nothing by itself."""
    text = (ROOT / "docs" / "guides" / "command-line.md").read_text(encoding="utf-8")
    (block,) = [code for _, language, code in FENCE.findall(text) if language == "sh" and "completion" in code]
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for line in block.splitlines():
        assert run_command(*line.split()[1:]).returncode == 0, line
    assert {"_moldau", "moldau.fish", "moldau.sh"} <= {path.name for path in tmp_path.rglob("*")}
    assert "fpath+=~/.zfunc" in (tmp_path / ".zshrc").read_text()
