"""Goal: each option of the commands that run clusters reaches what they run, and the verdict decides the exit code.

Method: the functions that run clusters are replaced by ones that note their arguments; nothing else starts.
"""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest

from moldau.runtime.config import BROKER_CONFIG
from moldau_cli import output
from moldau_cli.commands import cluster as cluster_commands
from moldau_cli.errors import CommandError
from moldau_cli.main import main
from moldau_jepsen import launcher, simulation
from moldau_jepsen.chaos import campaign as chaos_campaign
from moldau_jepsen.chaos import run as chaos_run
from moldau_jepsen.chaos.clients import Workload
from moldau_jepsen.chaos.controls import CONTROLS
from moldau_jepsen.chaos.network import panel
from moldau_jepsen.chaos.spark import workload as spark
from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.launcher.spec import FILE_NAME, ClusterSpec, plan_nodes, to_json
from moldau_jepsen.reports.controls import ControlRow
from moldau_jepsen.simulation.campaign import case, corpus, runner, shrink
from moldau_jepsen.simulation.campaign import controls as sim_controls
from moldau_jepsen.simulation.campaign.seed import kit_failed
from moldau_jepsen.simulation.mutants import mutants
from support.kit.small_run import SMALL_RUN

PLANTED = "acknowledged-at-once"
CLEAN = replace(kit_failed(3, LookupError()), violations=(), timeline=("an event",))


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    output.use_json(False)


class Asked(Exception):
    """The call of a replaced function."""


def asked(monkeypatch, place, name, words):
    """Returns the arguments with which a command calls a function."""

    def call(*given, **more):
        raise Asked(given, more)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, call)
        with pytest.raises(Asked) as raised:
            main(words)
    return raised.value.args


@pytest.mark.parametrize(
    ("words", "seeds", "more"),
    [
        ([], [*range(1, 11)], {"processes": None, "mutant": "", "kind": ""}),
        (["--from", "7", "--seeds", "2"], [7, 8], {"processes": None, "mutant": "", "kind": ""}),
        (["--first", "0", "--seeds", "1"], [0], {"processes": None, "mutant": "", "kind": ""}),
        (["--jobs", "3", "--mutant", PLANTED], [*range(1, 11)], {"processes": 3, "mutant": PLANTED, "kind": ""}),
        (["--processes", "2", "--kind", "bank"], [*range(1, 11)], {"processes": 2, "mutant": "", "kind": "bank"}),
        (["--hours", "1"], [*range(1, 31)], {"processes": None, "mutant": "", "kind": ""}),
    ],
)
def test_a_campaign_runs_the_seeds_that_are_asked_for(monkeypatch, words, seeds, more):
    (numbers,), given = asked(monkeypatch, simulation, "run_seeds", ["sim", "run", *words])
    assert [*islice(numbers, 30)] == seeds
    assert given == more


def test_a_guided_campaign_has_its_seeds_and_processes(monkeypatch):
    words = ["sim", "run", "--guided", "--seeds", "2", "--first", "5", "--jobs", "3"]
    (guide,), given = asked(monkeypatch, simulation, "run_guided", words)
    assert [task.seed for task in guide.tasks()] == [5, 6]
    assert given == {"processes": 3}


@pytest.mark.parametrize("words", [["run", "--seed", "4"], ["replay", "4"]])
def test_one_seed_is_run_as_it_is_asked_for(monkeypatch, capsys, words):
    chosen = ["--mutant", PLANTED, "--kind", "bank"]
    assert asked(monkeypatch, simulation, "examine", ["sim", *words, *chosen]) == (
        (4,),
        {"mutant": PLANTED, "kind": "bank"},
    )
    monkeypatch.setattr(simulation, "examine", lambda *_, **__: CLEAN)
    assert main(["sim", *words]) == 0
    assert ("an event" in capsys.readouterr().out) is (words[0] == "replay")


def test_controls_have_the_processes_of_the_campaign(monkeypatch):
    monkeypatch.setattr(simulation, "run_seeds", lambda *_, **__: (one for one in [CLEAN]))
    assert asked(monkeypatch, sim_controls, "run_controls", ["sim", "run", "--jobs", "3"]) == ((), {"processes": 3})


def test_shrinking_takes_the_run_and_its_attempts(monkeypatch):
    words = ["sim", "shrink", "4", "--mutant", PLANTED, "--kind", "bank", "--attempts", "7"]
    given = []
    monkeypatch.setattr(runner, "options_of", lambda *words: given.append(words) or SMALL_RUN)
    monkeypatch.setattr(shrink, "shrink_seed", lambda *words, **more: given.append((words, more["attempts_max"])))
    assert main(words) == 1
    assert given == [(4, PLANTED, "bank"), ((4, SMALL_RUN), 7)]


def test_a_hunt_takes_names_seeds_and_processes(monkeypatch):
    words = ["sim", "mutants", "--name", PLANTED, "--name", PLANTED, "--seeds", "3", "--jobs", "2"]
    assert asked(monkeypatch, mutants, "run_mutants", words) == (
        ([PLANTED],),
        {"rules": [], "seeds_max": 3, "processes": 2},
    )


def test_kept_runs_have_their_processes(monkeypatch):
    case.write_case(case.Case(name="c", why="nothing", seeds=(1,)), Path("corpus"))
    (cases,), more = asked(
        monkeypatch, corpus, "run_corpus", ["sim", "corpus", "run", "--dir", "corpus", "--jobs", "2"]
    )
    assert ([each.name for each in cases], more) == (["c"], {"processes": 2})


def test_a_run_under_faults_has_all_of_its_options(monkeypatch):
    words = "chaos run --dir d --workload bank --faults kill,pause --duration 9 --seed 5 --window 7 --churn --brokers 4"
    words += " --controllers 2 --partitions 6 --config retention.ms=1 --set log.retention.ms=2 --producer linger.ms=3"
    words += " --consumer fetch.min.bytes=4 --keep-data"
    (options, controls, _), _ = asked(monkeypatch, chaos_campaign, "run_campaign", words.split())
    assert controls == chaos_campaign.choose_controls(options)
    assert (options.directory, options.duration_s, options.seed, options.window_s) == (Path("d"), 9, 5, 7)
    assert (options.kinds, options.churn, options.keep_data) == ((FaultKind.KILL, FaultKind.PAUSE), True, True)
    assert (options.brokers, options.controllers, options.bootstrap, [*options.nodes]) == (4, 2, None, [])
    assert (options.topic_configs, options.settings) == ({"retention.ms": "1"}, {"log.retention.ms": "2"})
    clients = options.clients
    assert (clients.workload, clients.queue.partitions) == (Workload.BANK, 6)
    assert (clients.queue.producer, clients.queue.consumer) == ({"linger.ms": "3"}, {"fetch.min.bytes": "4"})


def test_a_run_against_nodes_of_the_user_may_end_them(monkeypatch):
    words = ["chaos", "run", "--bootstrap", "h:1", "--node", "1=run a", "--node", "2=run b", "--no-controls"]
    (options, controls, _), _ = asked(monkeypatch, chaos_campaign, "run_campaign", words)
    assert controls == ()
    assert [(node.node_id, node.command) for node in options.nodes] == [(1, ("run", "a")), (2, ("run", "b"))]
    assert FaultKind.KILL in options.kinds
    assert options.bootstrap == "h:1"
    alone = asked(monkeypatch, chaos_campaign, "run_campaign", ["chaos", "run", "--bootstrap", "h:1"])[0][0]
    assert FaultKind.KILL not in alone.kinds
    assert alone.directory.name == f"moldau-chaos-{alone.seed}"


@pytest.mark.parametrize("acquitted", ["", "read-uncommitted"])
@pytest.mark.parametrize("where", [[], ["--bootstrap", "h:1", "--brokers", "5"]], ids=["fresh", "running"])
def test_controls_run_alone_and_one_acquittal_fails(monkeypatch, capsys, acquitted, where):
    """Each has a folder of its own; on a running cluster those that need only clients run."""
    made = []

    def run_chaos(options, report):
        made.append(options)
        control = options.control
        found = () if control.name == acquitted else ((control.convicted_by[0].value, 1),)
        row = ControlRow(control.name, control.text, tuple(kind.value for kind in control.convicted_by), found)
        return SimpleNamespace(control=row, report=options.directory / "report.html")

    monkeypatch.setattr(chaos_run, "run_chaos", run_chaos)
    monkeypatch.setattr(spark, "refusal", lambda: "no Java")
    code = main(["chaos", "run", "--control", "all", "--dir", "d", "--seed", "5", "--keep-data", *where, "--json"])
    shown = capsys.readouterr()
    expected = [
        one for one in CONTROLS.values() if one.workload is not Workload.SPARK and (not where or one.clients_only)
    ]
    rows = json.loads(shown.out)["controls"]
    assert [row["control"] for row in rows] == [one.name for one in expected]
    assert [options.directory for options in made] == [Path("d") / one.name for one in expected]
    assert {(options.seed, options.keep_data, options.brokers) for options in made} == {(5, True, 5 if where else 3)}
    notes, *documents = shown.err.splitlines()
    assert notes == "left out the controls with Spark: no Java"
    assert code == (1 if acquitted else 0)
    assert [json.loads(one)["error"] for one in documents] == ([f"not convicted: {acquitted}"] if acquitted else [])


def test_one_control_has_the_folder_that_is_given(monkeypatch):
    words = ["chaos", "run", "--control", "acks-1", "--dir", "d"]
    (options, _), _ = asked(monkeypatch, chaos_run, "run_chaos", words)
    assert (options.directory, options.control.name, options.keep_data) == (Path("d"), "acks-1", False)


def test_a_new_cluster_has_the_shape_that_is_asked_for(monkeypatch):
    words = "cluster start --dir d --brokers 4 --controllers 2 --base-port 2000 --secure --set a=1 --timeout 7"
    (directory, spec), more = asked(monkeypatch, launcher, "start_cluster", words.split())
    assert (directory, spec.brokers, spec.controllers, spec.base_port, spec.secure) == (Path("d"), 4, 2, 2000, True)
    assert spec.settings == {"node.watchdog.ms": str(BROKER_CONFIG.key("node.watchdog.ms").default), "a": "1"}
    assert more == {"ready_timeout_ms": 7000, "tied_to_parent": False}
    own = asked(monkeypatch, launcher, "start_cluster", ["cluster", "start", "--set", "node.watchdog.ms=0"])[0][1]
    assert own.settings == {"node.watchdog.ms": "0"}
    assert (own.brokers, own.controllers, own.secure, own.ports) == (3, 3, False, ())


def test_a_cluster_with_links_serves_at_the_ports_of_its_proxies(monkeypatch):
    proxies = []
    stopped = []
    monkeypatch.setattr(panel, "start_links", lambda *given: proxies.append(given))
    monkeypatch.setattr(panel, "stop_links", stopped.append)
    words = "cluster start --dir d --brokers 2 --controllers 1 --links --secure --set a=1 --timeout 7"
    (directory, spec), more = asked(monkeypatch, launcher, "start_cluster", words.split())
    ((beside, own, advertised),) = proxies
    assert directory.absolute() == beside == stopped[0]
    assert list(own) == list(advertised) == [1, 2, 101]
    assert (spec.ports, spec.advertised_ports) == (tuple(own.values()), tuple(advertised.values()))
    assert not set(spec.ports) & set(spec.advertised_ports)
    assert (spec.secure, spec.settings["a"], more["ready_timeout_ms"]) == (True, "1", 7000)


@pytest.fixture
def stopped():
    """The directory of a cluster whose nodes do not run."""
    directory = Path("c")
    directory.mkdir()
    (directory / FILE_NAME).write_text(to_json(plan_nodes(ClusterSpec(brokers=1, controllers=1), directory, (1, 2))))
    return directory


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "a=1"], "--set and --base-port are for a new one"),
        (["--base-port", "2000"], "--set and --base-port are for a new one"),
        (["--links"], "holds a cluster without --links"),
        (["--secure"], "holds a cluster without --secure"),
        (["--brokers", "3"], "holds a cluster of 1 broker and 1 controller; for another shape"),
        (["--controllers", "2"], "holds a cluster of 1 broker and 1 controller; for another shape"),
        (["--brokers", "1", "--controllers", "1", "--timeout", "7"], ""),
        ([], ""),
    ],
    ids=" ".join,
)
def test_a_known_cluster_keeps_its_shape(stopped, monkeypatch, capsys, words, said):
    """`cluster start --brokers 5` started the three brokers that were there, and said nothing."""
    waited = []
    monkeypatch.setattr(cluster_commands, "_start_again", lambda _, timeout_s: waited.append(timeout_s) or [])
    code = main(["cluster", "start", "--dir", str(stopped), *words])
    assert (code, waited) == ((2, []) if said else (0, [7.0 if words else 120.0]))
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "call", "given", "answer"),
    [
        ("kill 1", "kill", ((1,), {}), {"node": 1, "state": "stopped"}),
        ("pause 1", "pause", ((1,), {}), {"node": 1, "state": "paused", "watchdog_ms": None}),
        ("resume 1", "resume", ((1,), {}), {"node": 1, "state": "running"}),
        (
            "restart 1 --timeout 7",
            "restart",
            ((1,), {"ready_timeout_ms": 7000}),
            {"node": 1, "state": "running", "pid": 0},
        ),
        ("stop --timeout 7", "stop_all", ((), {"timeout_ms": 7000}), {"stopped": 0, "killed": [1, 101]}),
    ],
)
def test_a_node_gets_what_is_asked_for(stopped, monkeypatch, capsys, words, call, given, answer):
    """Nodes that had to be killed make ``stop`` fail, after its answer."""
    made = []

    def note(_, *words, **more):
        made.append((words, more))
        return (1, 101)

    monkeypatch.setattr(launcher.LocalCluster, call, note)
    monkeypatch.setattr("moldau_cli.nodes.server.check_file", made.append)
    code = main(["cluster", *words.split(), "--dir", str(stopped), "--json"])
    shown = capsys.readouterr()
    assert made[-1] == given
    assert json.loads(shown.out) == answer
    assert code == (1 if call == "stop_all" else 0)
    assert "node 1, 101 did not stop within 7 s and was killed" in shown.err or code == 0


def test_a_node_with_a_wrong_file_is_not_stopped(stopped, monkeypatch, capsys):
    def check_file(path):
        raise CommandError(f"wrong: {Path(path).name}")

    monkeypatch.setattr("moldau_cli.nodes.server.check_file", check_file)
    monkeypatch.setattr(launcher.LocalCluster, "restart", None)
    assert main(["cluster", "restart", "1", "--dir", str(stopped)]) == 1
    assert capsys.readouterr().err.startswith("moldau: wrong: ")


@pytest.mark.parametrize("state", [*ProcessState, "cut"])
def test_the_status_of_a_node_out_of_service_is_a_failure(stopped, monkeypatch, capsys, state):
    is_cut = state == "cut"

    def status(opened):
        process = ProcessState.RUNNING if is_cut else state
        return [
            launcher.cluster.NodeStatus(
                node_id=node.node_id,
                role=node.role,
                address="a",
                pid=1,
                state=process,
                fenced=False,
                rss_bytes=1_500_000,
            )
            for node in opened.nodes
        ]

    monkeypatch.setattr(launcher.LocalCluster, "status", status)
    monkeypatch.setattr(launcher.LocalCluster, "quorum", lambda _: SimpleNamespace(leader_id=101, leader_epoch=4))
    monkeypatch.setattr(panel, "cut_nodes", lambda _: (1,) if is_cut else None)
    code = main(["cluster", "status", "--dir", str(stopped), "--json"])
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["quorum_leader"], document["quorum_epoch"]) == (101, 4)
    assert [(row["node"], row["leader"], row["rss_mb"]) for row in document["nodes"]] == [
        (1, None, 1.5),
        (101, True, 1.5),
    ]
    assert code == (0 if state is ProcessState.RUNNING else 1)
    name = "cut" if is_cut else state.value
    failing = "1 (cut)" if is_cut else f"1 ({name}), 101 ({name})"
    assert shown.err == (f'{{"error": "not in service: node {failing}", "exit_code": 1}}\n' if code else "")
