"""Goal: a chaos run fails when a negative control is acquitted, its page and verdict name what convicted each, and both
say the same when the folder is judged again.

Method: runs whose folders are written by hand, in the place of clusters.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moldau_jepsen.chaos import campaign
from moldau_jepsen.chaos.campaign import ALL_FROM_S, choose_controls, control_options, run_campaign
from moldau_jepsen.chaos.controls import CONTROLS
from moldau_jepsen.chaos.folder import ControlFacts, RunFacts, judge, read_facts, write_facts
from moldau_jepsen.chaos.options import ChaosOptions, Network, once_more, refuse_impossible
from moldau_jepsen.chaos.run import Progress
from moldau_jepsen.checkers import CheckOptions
from moldau_jepsen.history import Kind, Operation, Poll, Send, Status, TopicPartition, write_history

P = TopicPartition("t", 0)


def history(*, lost: bool) -> list[Operation]:
    records = () if lost else ((0, 0),)
    return [
        Operation(
            index=0, process=0, kind=Kind.SEND, status=Status.OK, begun_ms=0, ended_ms=1, operations=(Send(P, 0, 0),)
        ),
        Operation(
            index=1,
            process=1,
            kind=Kind.POLL,
            status=Status.OK,
            begun_ms=2,
            ended_ms=3,
            final=True,
            operations=(Poll(((P, records),)),),
        ),
    ]


class Runs:
    """Stands for ``run_chaos``: writes the folder that a run would leave."""

    def __init__(self, *, lossy: tuple[str, ...]) -> None:
        self.lossy = lossy
        self.ran: list[str] = []

    def run(self, options: ChaosOptions, report):
        control = options.control
        name = "" if control is None else options.directory.name
        self.ran.append(name)
        report(Progress(phase="faults", elapsed_s=1, duration_s=2, acknowledged=1, polled=1, fault="kill"))
        options.directory.mkdir(parents=True)
        with (options.directory / "history").open("wb") as stream:
            write_history(stream, history(lost=name in self.lossy))
        facts = RunFacts(duration_s=5, settings={}, promised=CheckOptions(), faults=(), samples=())
        if control is not None:
            wanted = tuple(kind.value for kind in control.convicted_by)
            facts = replace(facts, control=ControlFacts(control.name, control.text, wanted))
        write_facts(options.directory, facts)
        assert read_facts(options.directory) == facts
        return judge(options.directory)


@pytest.fixture
def campaign_of(monkeypatch, tmp_path):
    def run(*lossy: str, controls: tuple[str, ...], ran: tuple[str, ...] | None = None):
        """``lossy``: folders of the runs that lose a record. ``ran``: folders that were made, if not one a control."""
        made = controls if ran is None else ran
        runs = Runs(lossy=lossy)
        monkeypatch.setattr(campaign, "run_chaos", runs.run)
        reported: list[Progress] = []
        options = ChaosOptions(directory=tmp_path / "run", seed=3)
        result = run_campaign(options, [CONTROLS[name] for name in controls], reported.append)
        assert runs.ran == ["", *made]
        assert [(one.phase, one.fault) for one in reported] == [
            ("faults", "kill"),
            *((f"control {name.removesuffix('-2').removesuffix('-3')}", "") for name in made),
        ]
        return result

    return run


def written(result):
    document = json.loads(result.report.with_name("verdict.json").read_text())
    assert document["valid"] is result.valid
    return document, result.report.read_text()


def assert_judged_alike(result) -> None:
    before = written(result)
    again = judge(result.report.parent)
    assert again == result
    assert written(again) == before


def test_a_run_passes_whose_controls_are_convicted(campaign_of) -> None:
    result = campaign_of("acks-1", "unclean-election", controls=("unclean-election", "acks-1"))
    assert result.valid
    assert [(row.name, row.convicted_by) for row in result.controls] == [
        ("acks-1", ("unseen",)),
        ("unclean-election", ("unseen",)),
    ]
    document, page = written(result)
    assert document["controls"][0] == {
        "name": "acks-1",
        "convicted": True,
        "convicted_by": ["unseen"],
        "found": {"unseen": 1},
        "runs": 1,
        "report": "controls/acks-1/report.html",
    }
    assert "Negative controls: acks-1 convicted by unseen; unclean-election convicted by unseen." in page
    assert 'href="controls/acks-1/report.html"' in page
    own = (result.report.parent / "controls/acks-1/report.html").read_text()
    assert "This is the negative control acks-1" in own
    assert "They were not run" not in own
    assert_judged_alike(result)


def test_an_acquitted_control_fails_a_run_without_an_anomaly(campaign_of) -> None:
    """Also one in which something else was found than what it is known for."""
    result = campaign_of(
        "acks-1",
        "read-uncommitted-3",
        controls=("acks-1", "no-idempotence", "read-uncommitted"),
        ran=(
            "acks-1",
            *("no-idempotence", "no-idempotence-2", "no-idempotence-3"),
            *("read-uncommitted", "read-uncommitted-2", "read-uncommitted-3"),
        ),
    )
    assert result.verdict.valid
    assert not result.deaths
    assert not result.valid
    document, page = written(result)
    assert {row["name"]: row["convicted"] for row in document["controls"]} == {
        "acks-1": True,
        "no-idempotence": False,
        "read-uncommitted": False,
    }
    assert "so the checkers prove nothing: no-idempotence, read-uncommitted" in page
    assert "ACQUITTED: found 1 unseen in run 3, and none of G1a" in page
    assert "ACQUITTED: found nothing in run 3, and none of duplicate" in page
    assert_judged_alike(result)


def test_a_control_in_which_nothing_went_wrong_is_run_again(campaign_of) -> None:
    ran = ("unclean-election", "unclean-election-2")
    result = campaign_of(ran[1], controls=("unclean-election",), ran=ran)
    assert result.valid
    document, page = written(result)
    assert [(row["runs"], row["convicted"]) for row in document["controls"]] == [(2, True)]
    assert "convicted by unseen in run 2" in page
    assert 'href="controls/unclean-election-2/report.html"' in page
    assert_judged_alike(result)


def test_convicted_controls_do_not_make_up_for_an_anomaly(campaign_of) -> None:
    result = campaign_of("", "acks-1", controls=("acks-1",))
    assert not result.valid
    assert result.controls[0].convicted
    assert_judged_alike(result)


def test_a_run_without_controls_says_so(campaign_of) -> None:
    result = campaign_of(controls=())
    assert result.valid
    assert "They were not run" in written(result)[1]
    assert_judged_alike(result)


def test_short_runs_take_turns_and_long_ones_get_all(tmp_path: Path) -> None:
    options = ChaosOptions(directory=tmp_path, duration_s=ALL_FROM_S - 1)
    turns = [choose_controls(replace(options, seed=seed)) for seed in range(8)]
    assert {len(one) for one in turns} == {1}
    known = [name for name in CONTROLS if name != "spark-at-least-once"]  # of one workload alone
    assert [one.name for (one,) in turns] == known * 2
    assert [one.name for one in choose_controls(replace(options, duration_s=ALL_FROM_S))] == known


def test_controls_on_a_cluster_started_elsewhere(tmp_path: Path) -> None:
    """A control that needs only clients runs on a cluster that was started elsewhere."""
    options = ChaosOptions(directory=tmp_path, kinds=(), bootstrap="127.0.0.1:1", brokers=1)
    for seed in range(4):
        (control,) = choose_controls(replace(options, seed=seed, duration_s=2 * ALL_FROM_S))
        assert control.name == "read-uncommitted"
    chosen = control_options(control, tmp_path / "c", 7, Network.PROXIES, bootstrap=options.bootstrap, brokers=1)
    assert (chosen.bootstrap, chosen.brokers, chosen.kinds, dict(chosen.settings)) == ("127.0.0.1:1", 1, (), {})
    refuse_impossible(chosen)
    assert once_more(chosen).endswith("--control read-uncommitted --seed 7 --bootstrap 127.0.0.1:1 --brokers 1")
    assert dict(chosen.clients.connection) == {}


def test_a_control_has_its_own_configuration_and_no_drawn_faults(tmp_path: Path) -> None:
    """A control runs with its own configuration and without drawn faults."""
    options = control_options(CONTROLS["unclean-election"], tmp_path, 7, Network.NAMESPACES, keep_data=True)
    assert options.kinds == ()
    assert options.settings["unclean.leader.election.enable"] == "true"
    assert (options.seed, options.network, options.keep_data) == (7, Network.NAMESPACES, True)
    weak = control_options(CONTROLS["acks-1"], tmp_path, 7, Network.PROXIES)
    assert weak.clients.queue.producer["acks"] == "1"
    assert not weak.clients.promised.idempotent
