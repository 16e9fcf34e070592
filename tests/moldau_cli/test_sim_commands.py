"""Goal: the simulation's commands run seeds, write a report, shrink, keep runs, and end with the right exit code.

Method: the command line in this process, with few and short runs; campaigns use one worker process.
"""

import errno
import json
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from moldau_cli.commands.sim import runs as sim
from moldau_cli.main import run
from moldau_jepsen import simulation
from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.simulation import run_seed, run_seeds
from moldau_jepsen.simulation.campaign import case, controls, corpus, runner, shrink
from moldau_jepsen.simulation.campaign.case import read_case
from moldau_jepsen.simulation.campaign.seed import kit_failed
from moldau_jepsen.simulation.mutants import mutants
from support.kit.small_run import SMALL_RUN
from support.kit.worker_tasks import hunt_shortly


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs a command line in an empty directory; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def made(*words):
        monkeypatch.setattr("sys.argv", ["moldau", *words])
        with pytest.raises(SystemExit) as ended:
            run()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return made


@pytest.fixture
def small_runs(monkeypatch):
    """Makes the runs of all seeds small ones; a planted bug that acknowledges at once is convicted in them too."""
    small = replace(SMALL_RUN, kinds=(FaultKind.SLOW,))
    monkeypatch.setattr(runner, "options_of", lambda *_: small)
    monkeypatch.setattr(simulation, "run_seeds", partial(run_seeds, options=small))  # for runs in worker processes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sim", "run", "--seed", "1", "--seeds", "2"], "--seed is for one seed"),
        (["sim", "run", "--hours", "1", "--seeds", "2"], "give either --seeds or --hours"),
        *((["sim", "run", "--hours", each], "--hours must be a number above 0") for each in ("0", "nan", "inf")),
        (["sim", "run", "--mutant", "gremlin"], "there is no mutant 'gremlin'"),
        (["sim", "shrink", "1", "--mutant", "gremlin"], "there is no mutant 'gremlin'"),
        (["sim", "run", "--kind", "gremlin"], "there is no kind of run 'gremlin'; there are administration, bank,"),
        (["sim", "shrink", "1", "--kind", "gremlin"], "there is no kind of run 'gremlin'"),
        (["sim", "replay", "1", "--kind", "gremlin"], "there is no kind of run 'gremlin'"),
        (["sim", "run", "--guided", "--seed", "1"], "leave out --seed, --mutant and --kind"),
        (["sim", "run", "--guided", "--kind", "bank"], "leave out --seed, --mutant and --kind"),
        (["sim", "replay", "--schedule", "absent.json", "--kind", "bank"], "names its own kind"),
        (["sim", "mutants", "--name", "gremlin"], "there is no mutant 'gremlin'"),
        (["sim", "replay"], "give a seed or --schedule"),
        (["sim", "replay", "1", "--schedule", "absent.json"], "give a seed or --schedule"),
        (["sim", "replay", "--schedule", "absent.json"], "absent.json"),
        (
            ["sim", "replay", "--schedule", "absent.json", "--mutant", "sequence-numbers-ignored"],
            "names its own mutant",
        ),
        (["sim", "corpus", "run"], "there are no cases in tests/simulation/corpus, which does not exist; --dir names"),
        (["sim", "corpus", "list", "--dir", "."], "there are no cases in .; --dir names another folder"),
        (["sim", "corpus", "add", "absent.json", "--name", "x", "--why", "y"], "absent.json"),
        (["sim", "corpus", "add", "absent.json", "--name", "a b", "--why", "y"], "is not a valid case name"),
    ],
)
def test_wrong_words_end_with_two_and_one_line(call, words, said):
    code, _, err = call(*words)
    assert code == 2
    assert said in err.strip().splitlines()[-1]


def test_one_seed_answers_with_its_trace_hash(call, small_runs):
    code, out, _ = call("sim", "run", "--seed", "7", "--json")
    answer = json.loads(out.strip().splitlines()[-1])
    assert (code, answer["passed"]) == (0, True)
    assert len(answer["trace_hash"]) == 32
    assert answer["seed"] == 7
    assert answer["replay"] == "moldau sim run --seed 7"


def test_a_failed_campaign_writes_page_document_and_folders(call, small_runs, tmp_path):
    """A failed campaign writes a page, a document, and a folder for each failed seed."""
    words = ("sim", "run", "--seeds", "2", "--first", "2", "--jobs", "1", "--mutant", "acknowledged-at-once")
    code, out, err = call(*words, "--no-controls", "--dir", "made", "--json")
    assert code == 1
    answer = json.loads(out.strip().splitlines()[-1])
    assert sorted(answer["failed"]) == [2, 3]
    assert answer["passed"] is False
    assert "again: moldau sim run --seed 2 --mutant acknowledged-at-once" in err
    assert "smaller: moldau sim shrink 2 --mutant acknowledged-at-once" in err
    document = json.loads((tmp_path / "made" / "campaign.json").read_text())
    assert document["failures"][0]["findings"][0]["kind"] == "acked-is-committed"
    assert "2 of 2 seeds failed." in (tmp_path / "made" / "campaign.html").read_text()
    timeline = (tmp_path / "made" / "seed-2-acknowledged-at-once" / "timeline.txt").read_text()
    assert "what each node knew at the end:" in timeline
    assert "is the active controller of epoch" in timeline


def test_an_acquitted_control_fails_the_campaign(call, monkeypatch):
    def acquit(**_):
        yield controls.ControlVerdict(
            name="acks-1", text="", convicted=False, seeds=1, convicted_by="", detail="nothing was found"
        )

    clean = run_seed(3, replace(SMALL_RUN, kinds=(FaultKind.SLOW,)))
    assert clean.passed
    monkeypatch.setattr(simulation, "run_seeds", lambda _, **__: (one for one in [clean]))
    monkeypatch.setattr(controls, "run_controls", lambda **_: iter(()))
    assert call("sim", "run")[0] == 0
    monkeypatch.setattr(controls, "run_controls", acquit)
    assert call("sim", "run", "--no-controls")[0] == 0
    code, out, err = call("sim", "run")
    assert code == 1
    assert "control acks-1: ACQUITTED (nothing was found)" in out
    assert "negative controls were not convicted" in err
    monkeypatch.setattr(controls, "run_controls", lambda **_: iter([SKIPPED]))
    code, out, _ = call("sim", "run")
    assert code == 0
    assert "control stock-pysyncobj: skipped: no harness" in out


def test_a_guided_campaign_tells_what_it_chose(call, monkeypatch, tmp_path):
    """The first seeds are spread over the profiles; a third draws its own. Each failed one can be run again."""

    def run_guided(guide, **_):
        for task in guide.tasks():
            result = replace(kit_failed(task.seed, ValueError("broken")), kind=task.kind)
            guide.add(result)
            yield result

    monkeypatch.setattr(simulation, "run_guided", run_guided)
    code, _, err = call("sim", "run", "--guided", "--seeds", "12", "--no-controls", "--dir", "made")
    assert code == 1
    document = json.loads((tmp_path / "made" / "campaign.json").read_text())
    assert sum(row["seeds"] for row in document["profiles"]) == 12
    assert 4 <= sum(row["chosen"] for row in document["profiles"]) < 12
    again = [failure["replay"] for failure in document["failures"]]
    chosen = next(each for each in again if "--kind" in each)
    seed, profile = chosen.split()[4], chosen.split()[-1]
    assert (tmp_path / "made" / f"seed-{seed}-{profile}" / "timeline.txt").is_file()
    assert chosen in err or "again: moldau sim run --seed 1" in err
    assert "<h2>Profiles</h2>" in (tmp_path / "made" / "campaign.html").read_text()


def test_a_campaign_tells_how_it_is_going(call, monkeypatch, tmp_path):
    clean = run_seed(3, replace(SMALL_RUN, kinds=(FaultKind.SLOW,)))
    pages = []

    def results(*_, **__):
        yield clean
        yield clean
        pages.append((tmp_path / "moldau-sim" / "campaign.html").read_text())

    monkeypatch.setattr(simulation, "run_seeds", results)
    monkeypatch.setattr(sim, "REPORT_EVERY_S", 0.0)
    assert call("sim", "run", "--no-controls")[0] == 0
    assert "The campaign is still running." in pages[0]
    assert "Still running. So far: 2 seeds, no violation" in pages[0]
    assert "still running" not in (tmp_path / "moldau-sim" / "campaign.html").read_text()


def test_hours_end_a_campaign_and_none_at_all_shows_nothing(call, tmp_path):
    code, out, err = call("sim", "run", "--hours", "1e-9", "--no-controls", "--jobs", "1", "--json")
    assert code == 1
    assert "no seed was run" in err
    answer = json.loads(out)
    assert (answer["seeds"], answer["passed"]) == (0, False)
    assert "No seed has ended" in (tmp_path / "moldau-sim" / "campaign.html").read_text()
    assert list(sim._until(iter(range(5)), 0.0, None)) == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("ended", "headline"), [(0, "No seed has ended"), (1, "1 seeds, no violation")])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_campaign_says_so_and_has_not_passed(call, monkeypatch, tmp_path, ended, headline, sent):
    clean = replace(kit_failed(3, LookupError()), violations=())

    def results(*_, **__):
        yield from [clean] * ended
        signal.raise_signal(sent)
        raise AssertionError("the signal did nothing")

    monkeypatch.setattr(simulation, "run_seeds", results)
    code, out, err = call("sim", "run", "--json")
    assert code == 130
    assert "interrupted; writing the report" in err
    answer = json.loads(out)
    assert (answer["seeds"], answer["passed"], answer["unfinished"]) == (ended, False, "interrupted")
    assert f"Interrupted. So far: {headline}" in (tmp_path / "moldau-sim" / "campaign.html").read_text()


def test_controls_judged_before_an_interrupt_are_reported(call, monkeypatch):
    def judge(**_):
        yield replace(SKIPPED, name="acks-1", skipped="", convicted=True)
        raise KeyboardInterrupt

    clean = replace(kit_failed(3, LookupError()), violations=())
    monkeypatch.setattr(simulation, "run_seeds", lambda _, **__: (one for one in [clean]))
    monkeypatch.setattr(controls, "run_controls", judge)
    code, out, _ = call("sim", "run", "--json")
    answer = json.loads(out)
    assert (code, answer["passed"]) == (130, False)
    assert [(row["name"], row["convicted"]) for row in answer["controls"]] == [("acks-1", True)]


@pytest.fixture
def two_seeds_fail(monkeypatch):
    """Of every campaign, for the kit's sake."""
    failed = [kit_failed(seed, LookupError("gremlin")) for seed in (4, 5)]
    monkeypatch.setattr(simulation, "run_seeds", lambda _, **__: (one for one in failed))


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_folders_that_cannot_be_written_hide_no_failed_seed(call, two_seeds_fail, monkeypatch, tmp_path):
    monkeypatch.setattr(simulation, "write_failure", full)
    code, out, err = call("sim", "run", "--no-controls", "--json")
    assert code == 1
    for seed in (4, 5):
        assert f"seed {seed}: FAILED: at the end: kit-failed" in err
    assert err.count("cannot write below moldau-sim: No space left on device") == 1
    assert json.loads(out)["failed"] == [4, 5]
    document = json.loads((tmp_path / "moldau-sim" / "campaign.json").read_text())
    assert [failure["folder"] for failure in document["failures"]] == ["", ""]
    assert document["notes"] == ["folders of failed seeds: cannot write below moldau-sim: No space left on device."]


def test_a_failed_seed_whose_folder_cannot_be_written_has_failed(call, monkeypatch):
    monkeypatch.setattr(runner, "run_seed", raises_planted)
    monkeypatch.setattr(simulation, "write_failure", full)
    code, _, err = call("sim", "run", "--seed", "6")
    assert code == 1
    assert "seed 6 failed; cannot write below moldau-sim: No space left on device; again: " in err


def test_a_page_that_cannot_be_written_leaves_the_one_before(call, two_seeds_fail, monkeypatch, tmp_path):
    assert call("sim", "run", "--no-controls")[0] == 1
    page = tmp_path / "moldau-sim" / "campaign.html"
    before = page.read_text()
    write = Path.write_text

    def half(path, text, **more):
        if not path.name.startswith("campaign.html"):
            return write(path, text, **more)
        write(path, text[: len(text) // 2], **more)
        return full()

    monkeypatch.setattr(Path, "write_text", half)
    monkeypatch.setattr(sim, "REPORT_EVERY_S", 0.0)
    code, _, err = call("sim", "run", "--no-controls")
    assert code == 1
    assert err.count("campaign.html: cannot write below moldau-sim: No space left on device\n") == 1, "reported once"
    assert "2 seeds failed" in err
    assert page.read_text() == before
    assert not list(page.parent.glob("*.draft"))
    clean = replace(kit_failed(3, LookupError()), violations=())
    monkeypatch.setattr(simulation, "run_seeds", lambda _, **__: (one for one in [clean]))
    code, _, err = call("sim", "run", "--no-controls")
    assert code == 1
    assert "no seed failed, but files are missing: campaign.html: cannot write below" in err
    assert json.loads(page.with_name("campaign.json").read_text())["seeds"] == 1


def test_an_unwritable_directory_is_reported_before_any_run(call, monkeypatch, tmp_path):
    """A directory that cannot be written to is reported before any seed runs."""
    monkeypatch.setattr(simulation, "run_seeds", raises_planted)
    (tmp_path / "file").write_text("")
    code, _, err = call("sim", "run", "--dir", "file")
    assert code == 2
    assert "cannot write below file: File exists" in err


def test_a_failing_seed_is_shrunk_kept_and_run_again(call, small_runs, tmp_path):
    words = ("sim", "shrink", "2", "--mutant", "acknowledged-at-once", "--attempts", "5")
    code, out, err = call(*words, "--dir", "made")
    assert code == 0
    assert "faults shrank to 0 in 2 runs, found by acked-is-committed" in out
    assert "run 2: it fails with 0 faults" in err
    schedule = "made/seed-2-acknowledged-at-once/schedule.json"
    code, out, err = call("sim", "replay", "--schedule", schedule)
    assert code == 1
    assert f"seed 2 of {schedule} failed" in err
    assert "what each node knew at the end:" in out
    assert (
        f"again: moldau sim replay --schedule {schedule}" in (tmp_path / schedule).with_name("timeline.txt").read_text()
    )
    kept = ("--name", "acks", "--why", "acknowledged by the leader alone", "--dir", "corpus")
    assert call("sim", "corpus", "add", schedule, *kept)[0] == 0
    assert call("sim", "corpus", "add", schedule, *kept)[0] == 2
    code, out, _ = call("sim", "corpus", "list", "--dir", "corpus", "--json")
    assert code == 0
    assert json.loads(out)["cases"][0]["kept_for"] == "acknowledged-at-once"
    case = json.loads((tmp_path / "corpus" / "acks.json").read_text())
    assert case["faults"] == []
    guilty = {**case, "name": "guilty", "convicted_by": ["one-leader"]}
    (tmp_path / "corpus" / "guilty.json").write_text(json.dumps(guilty))
    del case["mutant"], case["convicted_by"]
    (tmp_path / "corpus" / "innocent.json").write_text(json.dumps({**case, "name": "innocent"}))
    code, out, err = call("sim", "corpus", "run", "--dir", "corpus", "--jobs", "1", "--json")
    assert code == 1
    assert [(row["name"], row["as_it_must"]) for row in json.loads(out)["cases"]] == [
        ("acks", True),
        ("guilty", False),
        ("innocent", True),
    ]
    assert "1 cases did not end as they must: guilty" in err


def test_the_cases_that_are_named_are_run(call, monkeypatch, tmp_path):
    """Exit code 0 if they ended as they must."""
    ran = []

    def run_all(cases, **_):
        ran.extend(each.name for each in cases)
        yield from (
            case.CaseVerdict(case=each, kept=True, seeds=1, text="", seconds=0.0, result=None) for each in cases
        )

    monkeypatch.setattr(corpus, "run_corpus", run_all)
    for name in ("innocent", "other"):
        case.write_case(case.Case(name=name, why="nothing", seeds=(1,)), tmp_path / "corpus")
    assert call("sim", "corpus", "run", "--dir", "corpus", "--name", "innocent")[0] == 0
    assert ran == ["innocent"]


class PlantedError(Exception):
    """The error that a run raises if the kit is broken."""


def raises_planted(*_, **__):
    raise PlantedError("gremlin\nin the kit")


KIT_FAILED = "kit-failed: PlantedError: gremlin in the kit"


def last_line_without_traceback(err):
    assert "Traceback" not in err
    return err.strip().splitlines()[-1]


def test_a_kit_failure_in_the_last_shrinking_run_is_reported(call, small_runs, tmp_path, monkeypatch):
    """A failure of the kit in the last, detailed run of shrinking is reported like that of a run."""

    def in_detail_broken(seed, options, *, detailed=False):
        return raises_planted() if detailed else run_seed(seed, options)

    monkeypatch.setattr(runner, "run_seed", in_detail_broken)
    words = ("2", "--mutant", "acknowledged-at-once", "--dir", "made")
    code, out, err = call("sim", "shrink", *words, "--attempts", "5")
    folder = tmp_path / "made" / "seed-2-acknowledged-at-once"
    schedule = "made/seed-2-acknowledged-at-once/schedule.json"
    assert code == 1
    assert "faults shrank to 0 in 2 runs, found by acked-is-committed" in out
    line = last_line_without_traceback(err)
    assert f"seed 2: at the end: {KIT_FAILED}; see made/seed-2" in line
    assert line.endswith(f"again: moldau sim replay --schedule {schedule}")
    violations = json.loads((folder / "verdict.json").read_text())["violations"]
    assert "acked-is-committed" in violations[0]
    assert violations[-1] == f"at the end: {KIT_FAILED}"
    assert "PlantedError: gremlin" in (folder / "timeline.txt").read_text()
    code, out, err = call("sim", "replay", "--schedule", schedule)  # the replay runs without the planted error
    assert code == 1
    assert "acked-is-committed" in out
    code, out, err = call("sim", "run", "--seed", *words)
    assert code == 1
    assert "FAILED" in out
    assert "acked-is-committed" in out  # the output names the first run's finding; the folder holds the failure
    assert "seed 2 failed; see made/seed-2" in last_line_without_traceback(err)
    assert json.loads((folder / "verdict.json").read_text())["violations"][-1] == f"at the end: {KIT_FAILED}"


def test_a_seed_that_breaks_the_kit_is_shrunk_to_a_schedule(call, tmp_path, monkeypatch):
    """A seed that makes the kit fail can be shrunk, and its schedule makes the kit fail again."""
    for module in (shrink, runner, case):
        monkeypatch.setattr(module, "run_seed", raises_planted)
    code, out, err = call("sim", "shrink", "3", "--dir", "made", "--json")
    assert code == 1
    answer = json.loads(out)
    assert (answer["found_by"], answer["faults"]) == ("kit-failed", [])
    assert answer["violations"] == [f"at the end: {KIT_FAILED}"]
    assert KIT_FAILED in last_line_without_traceback(err)
    schedule = "made/seed-3/schedule.json"
    assert read_case(tmp_path / schedule).options(3) == replace(runner.options_of(3), faults=())
    code, out, err = call("sim", "replay", "--schedule", schedule)
    assert code == 1
    assert f"FAILED: at the end: {KIT_FAILED}" in out
    assert f"seed 3 of {schedule} failed" in last_line_without_traceback(err)
    for words in (("run", "--seed", "3"), ("replay", "3")):
        code, out, err = call("sim", *words, "--dir", "made")
        assert code == 1
        assert f"FAILED: at the end: {KIT_FAILED}" in out
        assert "seed 3 failed; see made/seed-3" in last_line_without_traceback(err)


def test_shrinking_that_cannot_start_is_a_failure_of_the_kit(call, tmp_path, monkeypatch):
    """If shrinking fails before its first run, it is reported as a failure of the kit."""
    monkeypatch.setattr(shrink, "planned_faults", raises_planted)
    code, out, err = call("sim", "shrink", "3", "--dir", "made")
    assert code == 1
    assert f"FAILED: at the end: {KIT_FAILED}" in out
    assert KIT_FAILED in last_line_without_traceback(err)
    assert json.loads((tmp_path / "made" / "seed-3" / "verdict.json").read_text())["passed"] is False


def test_a_seed_that_passes_cannot_be_shrunk(call, monkeypatch):
    monkeypatch.setattr(shrink, "shrink_seed", lambda *_, **__: None)
    code, _, err = call("sim", "shrink", "3", "--attempts", "1")
    assert code == 1
    assert "seed 3 does not fail" in err


@pytest.mark.proof
def test_a_hunt_writes_its_table_and_fails_for_survivors(call, tmp_path, monkeypatch):
    hunted = ("sim", "mutants", "--name", "watermark-without-isr", "--seeds", "2", "--jobs", "1")
    code, _, err = call(*hunted, "--write", str(tmp_path / "mutants.md"))
    assert code == 2  # the suites are not here
    assert "wants to run in a working copy" in err
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(mutants, "_hunt", hunt_shortly)
    code, out, err = call(*hunted, "--write", str(tmp_path / "mutants.md"), "--json")
    assert code == 0
    (verdict,) = json.loads(out)["mutants"]
    assert verdict["found"]
    assert verdict["found_by"]
    assert "| `watermark-without-isr` | replication |" in (tmp_path / "mutants.md").read_text()
    monkeypatch.setattr(mutants, "run_mutants", lambda *_, **__: iter([replace(SURVIVOR, name="gremlin")]))
    code, _, err = call(*hunted)
    assert code == 1
    assert "1 mutants survived: gremlin" in err


def test_rules_are_put_on_trial_alone(call, monkeypatch):
    code, _, err = call("sim", "mutants", "--rule", "no-rule")
    assert code == 2
    assert "there is no rule 'no-rule'" in err
    asked = []

    def hunt(names, *, rules, **_):
        asked.append((list(names), list(rules)))
        yield replace(SURVIVOR, name="gremlin", rule="one-leader")

    monkeypatch.setattr(mutants, "run_mutants", hunt)
    code, out, err = call("sim", "mutants", "--rule", "one-leader", "--json")
    assert code == 1
    assert asked == [([], ["one-leader"])]
    assert json.loads(out)["mutants"][0]["rule"] == "one-leader"
    assert "1 rules convicted no mutant alone: one-leader" in err
    assert "survived" not in err
    call("sim", "mutants")
    assert asked[1] == (list(mutants.MUTANTS), list(mutants.ALONE))


SURVIVOR = mutants.MutantVerdict(
    name="", area="log", text="bites", profile="swarm", found=False, seeds=2, found_by="", detail=""
)
SKIPPED = controls.ControlVerdict(
    name="stock-pysyncobj", text="", convicted=False, seeds=0, convicted_by="", detail="", skipped="no harness"
)
