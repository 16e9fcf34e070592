"""Goal: each option of ``moldau node init`` is in the file, and each finding decides the exit code.

Method: commands in this process; voters and the checks of the machine are replaced.
"""

import json

import pytest
import trio

from moldau.runtime.config import parse_server_config
from moldau_cli.nodes import checks
from moldau_quorum.node.voters.voter_address import QuorumView
from support.commands import run_command


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Runs ``init`` for a broker; returns what the command left, and the keys of the file."""
    found = []
    clusters = []

    async def check_node(*_):
        await trio.lowlevel.checkpoint()
        return found

    async def ask_voters(*_):
        await trio.lowlevel.checkpoint()
        views = {number: QuorumView(leader_id=-1, cluster_id=one, addresses={}) for number, one in enumerate(clusters)}
        return {**views, 99: "no answer"}

    monkeypatch.setattr(checks, "check_node", check_node)
    monkeypatch.setattr(checks, "ask_voters", ask_voters)

    def init(*more, answers=(), checked=(), code=0):
        clusters[:] = answers
        found[:] = [
            checks.Finding(check="port", subject=f"p{number}", state=state, detail="")
            for number, state in enumerate(checked)
        ]
        file = tmp_path / "etc" / "n.properties"
        words = ("--role", "broker", "--node-id", "7", "--voters", "101@c:9093")
        done = run_command("node", "init", str(file), *words, *more, "--json")
        assert done.returncode == code, done
        return done, parse_server_config(file.read_text(), "n", {}) if file.exists() else None

    return init


def test_each_option_is_in_the_file(node, tmp_path):
    words = ("--host", "b.example", "--port", "7000", "--rack", "r", "--metrics", "127.0.0.1:9644", "--cluster-id", "x")
    _, config = node(*words, "--dir", str(tmp_path / "a"), "--dir", str(tmp_path / "b"), "--set", "num.io.threads=3")
    assert config.get_int("node.id") == 7
    assert [*config.get_list("process.roles")] == ["broker"]
    assert "b.example:7000" in config.get_list("advertised.listeners")[0]
    assert config.get_str("broker.rack") == "r"
    assert config.get_str("metrics.listener") == "127.0.0.1:9644"
    assert config.get_str("cluster.id") == "x"
    assert [*config.get_list("log.dirs")] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert config.get_int("num.io.threads") == 3


def test_what_is_not_given_has_its_default(node, monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "here.example")
    _, config = node()
    assert "here.example:9092" in config.get_list("advertised.listeners")[0]
    assert [*config.get_list("log.dirs")] == ["/var/lib/moldau"]
    assert [config.get_str_or_none(key) for key in ("broker.rack", "metrics.listener", "cluster.id")] == [None] * 3


def test_the_voters_say_of_which_cluster_they_are(node):
    assert node(answers=("one", "", "one"))[1].get_str("cluster.id") == "one"
    done, config = node("--force", answers=("two", "one"), code=2)
    assert json.loads(done.stderr)["error"] == "--voters belong to different clusters: one, two"
    assert config.get_str("cluster.id") == "one", "the file of before"
    assert node("--force", "--cluster-id", "three", answers=("two", "one"))[1].get_str("cluster.id") == "three"


@pytest.mark.parametrize(
    ("checked", "error"),
    [
        ((checks.OK, checks.WARNING), None),
        ((checks.OK, checks.PROBLEM, checks.WARNING, checks.PROBLEM), "2 of 4 checks found a problem, first: p1"),
    ],
)
def test_only_problems_are_a_failure(node, checked, error):
    """The file is written and the findings are answered in any case."""
    done, config = node(checked=checked, code=1 if error else 0)
    assert config is not None
    assert [row["state"] for row in json.loads(done.stdout)["checks"]] == [*checked]
    assert (json.loads(done.stderr)["error"] if error else done.stderr or None) == error


def test_a_file_is_replaced_only_with_force(node):
    node("--rack", "a")
    done, config = node("--rack", "b", code=2)
    assert "exists; --force replaces it" in done.stderr
    assert config.get_str("broker.rack") == "a"
    assert node("--rack", "b", "--force")[1].get_str("broker.rack") == "b"


def test_a_drawn_id_is_no_option(monkeypatch):
    """An id that begins with a hyphen is drawn again."""
    drawn = iter(["-a", "-b", "c", "d"])
    monkeypatch.setattr("moldau_quorum.node.active_controller.draw_cluster_id", lambda _: next(drawn))
    assert run_command("node", "cluster-id").stdout == "c\n"
    assert json.loads(run_command("node", "cluster-id", "--json").stdout) == {"cluster_id": "d"}
