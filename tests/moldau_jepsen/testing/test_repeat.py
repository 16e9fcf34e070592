"""Goal: a simulated test whose runs of one seed differ is noticed and named, and no other test is.

Method: small tests in a file, run by a pytest of their own, once as a user runs them and once with a second run of
every seed; the parts are tested by themselves.
"""

import datetime
import logging
import random
import re
import sys
import threading
import uuid
from pathlib import Path

import pytest

from moldau_jepsen.testing import suspects
from moldau_jepsen.testing.plugin import repeat_of
from moldau_jepsen.testing.recording import CHUNK_EVENTS, Difference, Recording, first_difference
from moldau_jepsen.testing.suspects import Suspects
from moldau_jepsen.world.trace import Trace
from support.commands import Finished
from support.kit.own_pytest import GUIDE, examples, run_pytest

TESTS = """
import datetime
import logging
import random
import signal
import sys
import time
from uuid import uuid4 as new_id

import pytest
import trio

from moldau import Producer

pytestmark = pytest.mark.moldau(simulated=True, seeds=[5], brokers=1, controllers=1)
RUNS = []


async def send(cluster, text):
    await cluster.create_topic("orders")
    async with Producer({"bootstrap.servers": cluster.bootstrap}, environment=cluster.environment) as producer:
        await (await producer.send("orders", text.encode()))


async def test_passes_with_an_id(moldau_cluster):
    await send(moldau_cluster, str(new_id()))


async def test_passes_by_its_seed(moldau_cluster, moldau_history):
    drawn = random.Random(7)
    await trio.sleep(drawn.random())
    await send(moldau_cluster, str(moldau_cluster.environment.random.random()))
    random.seed(7)
    await send_again(moldau_cluster, str(random.random()))
    moldau_history.sent("orders", 0, None, "one")
    moldau_history.took_effect("one")
    moldau_history.check().raise_if_wrong()


async def send_again(cluster, text):
    async with Producer({"bootstrap.servers": cluster.bootstrap}, environment=cluster.environment) as producer:
        await (await producer.send("orders", text.encode()))


async def test_fails_each_time(moldau_cluster):
    print("printed once")
    logging.getLogger("mine").warning("logged once")
    time.monotonic()
    assert "this" == "that"


async def test_fails_by_the_time(moldau_cluster, tmp_path):
    print("printed once")
    logging.getLogger("mine").warning("logged once")
    before = datetime.datetime.now()
    await send(moldau_cluster, str(before))
    random.random()  # later than the first event that differs
    assert before is None


async def test_fails_the_first_time(moldau_cluster):
    RUNS.append("")
    assert len(RUNS) > 1


async def test_fails_by_outcome(moldau_cluster):
    RUNS.append("")
    pytest.fail(f"run {len(RUNS)}")


async def test_fails_in_a_task(moldau_cluster):
    async def fail():
        RUNS.append("")
        await trio.sleep(len(RUNS))
        pytest.fail("in a task")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)


@pytest.mark.xfail(strict=True)
async def test_is_expected_to_fail(moldau_cluster):
    sys.__stdout__.write("[expected to fail]")
    raise AssertionError


async def test_is_skipped(moldau_cluster):
    sys.__stdout__.write("[skipped]")
    pytest.skip("today")


@pytest.fixture
def limited():
    def strike(number, frame):
        pytest.fail("too late")

    before = signal.signal(signal.SIGALRM, strike)
    yield
    signal.signal(signal.SIGALRM, before)


async def test_has_a_time_limit(moldau_cluster, limited):
    sys.__stdout__.write("[lim" "ited]")
    signal.raise_signal(signal.SIGALRM)
"""


def sections(done: Finished) -> dict[str, str]:
    """The parts of pytest's output on failed tests, by their names."""
    parts = re.split(r"^_{3,} (\w+) _{3,}$", done.stdout.split("= short test summary")[0], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def outcomes(done: Finished) -> dict[str, str]:
    """Outcomes by the tests' names."""
    return {name: word for word, name in re.findall(r"^(\w+) test_some.py::(\w+)", done.stdout, re.MULTILINE)}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The session of a user who says nothing."""
    return session(tmp_path_factory.mktemp("usual"), "-rA", "-s")


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The session of a user who asks for a second run of each seed."""
    return session(tmp_path_factory.mktemp("captured"), "-rA", "--moldau-repeat", "always")


def session(directory: Path, *words: str) -> Finished:
    (directory / "test_some.py").write_text(TESTS)
    return run_pytest(directory, *words)


def test_a_failure_that_does_not_repeat_is_named(usual: Finished) -> None:
    said = sections(usual)["test_fails_by_the_time"]
    note, events = said.split("- moldau: the last events -")
    for text in (note.replace("\nE       ", "\n"), events):
        assert "not deterministic: a second run of seed 5 was another one\n" in text, said
        place = r"AssertionError at test_some.py:\d+"
        assert re.search(rf"outcome: {place}; of the second run: {place}\n", text), said
        pattern = r"^  (?:then in the first run: |in the second run:     ) ([\d.]+ send app .*)$"
        first, second = re.findall(pattern, text, re.MULTILINE)
        assert first != second, said
        assert re.search(r"^    datetime.datetime.now\(\) at \S+test_some.py:\d+$", text, re.MULTILINE), said
        assert "fixtures are set up once for all runs of a test: tmp_path" in text, said
    assert "random.random" not in events, said


def test_an_outcome_that_does_not_repeat_is_named(usual: Finished) -> None:
    said = sections(usual)["test_fails_the_first_time"]
    assert re.search(r"outcome: AssertionError at test_some.py:\d+; of the second run: passed\n", said), said
    assert re.search(r"all \d+ events are the same\n", said), said
    assert "look for state that outlives a run (a global variable, a file)" in said, said
    assert "then in the first run:  none" in sections(usual)["test_fails_in_a_task"]


def test_failures_that_repeat_are_reported_as_before(usual: Finished) -> None:
    for name in ("test_fails_each_time", "test_fails_by_outcome"):
        said = sections(usual)[name]
        assert "in the simulation, with seed 5: pytest test_some.py::" in said
        assert "not deterministic" not in said, said
    assert usual.stdout.count("printed once\n") == 2, "the second run has printed, too"
    assert usual.stdout.count("logged once\n") == 2, usual.stdout


def test_what_is_no_failure_is_not_repeated(usual: Finished) -> None:
    for word in ("[expected to fail]", "[skipped]", "[limited]"):
        assert usual.stdout.count(word) == 1, word
    assert re.search(r"^SKIPPED \[1\] test_some.py:\d+: today$", usual.stdout, re.MULTILINE), usual.stdout
    assert "not deterministic" not in sections(usual)["test_has_a_time_limit"]


def test_seeds_that_pass_are_repeated_on_demand(usual: Finished, captured: Finished) -> None:
    assert outcomes(usual)["test_passes_with_an_id"] == outcomes(usual)["test_passes_by_its_seed"] == "PASSED"
    assert outcomes(captured)["test_passes_by_its_seed"] == "PASSED", captured.stdout
    assert outcomes(captured)["test_passes_with_an_id"] == "FAILED", captured.stdout
    said = sections(captured)["test_passes_with_an_id"]
    assert said.startswith("\nnot deterministic: a second run of seed 5 was another one\n  outcome: passed;"), said
    assert re.search(r"^    uuid.uuid4\(\) at \S+test_some.py:\d+$", said, re.MULTILINE), said
    assert "in the simulation, with seed 5: pytest test_some.py::test_passes_with_an_id --moldau-seeds 5\n" in said


@pytest.mark.parametrize("name", ["test_fails_each_time", "test_fails_by_the_time"])
def test_captured_output_has_the_first_run_only(captured: Finished, name: str) -> None:
    assert sections(captured)[name].count("printed once\n") == 1
    assert sections(captured)[name].count("logged once\n") == 1


SET = """
import pytest


@pytest.mark.moldau(simulated=True, brokers=1, controllers=1)
async def test_it(moldau_cluster):
    assert "".join({"a", "b", "c", "d", "e"}) == ""
"""


def test_a_chosen_order_of_sets_is_in_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "3")
    (tmp_path / "test_set.py").write_text(SET)
    done = run_pytest(tmp_path, "--moldau-repeat", "never")
    assert "with seed 1: PYTHONHASHSEED=3 pytest test_set.py::test_it --moldau-seeds 1\n" in done.stdout, done.stdout


def test_the_guide_shows_the_report_of_its_example(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(examples()[-1])
    done = run_pytest(tmp_path)
    report = re.findall(r"^in the simulation, with seed 7: (?:.*\n)+?  take them from .*$", done.stdout, re.MULTILINE)
    shown = re.findall(r"^    (in the simulation, (?:.*\n    )+  take them from .*)$", GUIDE.read_text(), re.MULTILINE)
    assert [likened(one.replace("\n    ", "\n")) for one in shown] == [likened(report[0])], done.stdout


def likened(report: str) -> str:
    """A report without what differs each time: numbers of events, the partition, and the folder."""
    lines = re.sub(r"at /\S+/", "at ", report).splitlines()
    return "\n".join(re.sub(r"(of both:|first run:|second run:) +[\d.]+ .*", r"\1", line) for line in lines)


class Configured:
    """A configuration of pytest."""

    stash: dict[object, object] = {}  # noqa: RUF012  # it stays empty

    def __init__(self, said: str | None, written: str, *, pdb: bool = False) -> None:
        self.said, self.written, self.pdb = said, written, pdb

    def getoption(self, name: str, default: object = None) -> object:
        return {"--moldau-repeat": self.said, "usepdb": self.pdb}[name]

    def getini(self, name: str) -> str:
        assert name == "moldau_repeat"
        return self.written


def test_the_command_line_precedes_the_configuration() -> None:
    assert repeat_of(Configured(None, "failed")) == "failed"  # type: ignore[arg-type]
    assert repeat_of(Configured("always", "never")) == "always"  # type: ignore[arg-type]
    assert repeat_of(Configured(None, "always", pdb=True)) == "never"  # type: ignore[arg-type]
    with pytest.raises(pytest.UsageError, match=r"moldau_repeat .* is never, failed or always, and not 'yes'"):
        repeat_of(Configured(None, "yes"))  # type: ignore[arg-type]


def recorded(*texts: str, turn: int = 1) -> Recording:
    """A recording of so many events, of which each turn has several."""
    recording, trace = Recording(), Trace(lambda: 2.5)
    recording.begin(trace)
    for number, text in enumerate(texts):
        trace.event("send", text)
        if number % turn == turn - 1:
            recording.turn_ended()
    recording.take()
    return recording


MANY = [str(number) for number in range(3 * CHUNK_EVENTS)]


def test_the_first_event_that_differs_is_found() -> None:
    same = recorded(*MANY)
    assert same.events == len(MANY)
    assert len(same.chunks) == 3
    assert first_difference(same, recorded(*MANY)) is None
    assert first_difference(same, recorded(*MANY, turn=1_500)) is None, "only the turns differ"
    for place in (0, 1, CHUNK_EVENTS - 1, CHUNK_EVENTS, 2 * CHUNK_EVENTS + 7, len(MANY) - 1):
        other = [*MANY[:place], "x", *MANY[place + 1 :]]
        found = first_difference(same, recorded(*other))
        before = f"    2.500000  send         {place - 1}" if place else None
        assert found == Difference(before=before, first=line(MANY[place]), second=line("x"))
        assert found.seconds == 2.5
    ended = first_difference(same, recorded(*MANY[:-1]))
    assert ended == Difference(before=line(MANY[-2]), first=line(MANY[-1]), second=None)


def line(text: str) -> str:
    return f"    2.500000  send         {text}"


def test_calls_are_found_however_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects.trio, "current_time", lambda: 1.0)
    found, draw = Suspects(), random.randint
    before = sys.getprofile()
    with found.watched():
        for _ in range(3):
            draw(1, 6)
        uuid.uuid4(), uuid.uuid1(), datetime.date.today()  # noqa: DTZ011
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        random.Random(7).random()
        logging.getLogger("moldau.testing").warning("has a time")
    assert sys.getprofile() is before
    names = [re.fullmatch(r"(\S+\(\)) at .*test_repeat.py:\d+", one) for one in found.until(1.0)]
    assert [one[1] for one in names if one] == [
        "threading.Thread.start()",
        "datetime.date.today()",
        "uuid.uuid1()",
        "uuid.uuid4()",
        "random.Random.randint()",
    ]
    assert found.until(0.5) == []


def test_a_seeded_generator_is_no_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects.trio, "current_time", lambda: 1.0)
    found, state = Suspects(), random.getstate()
    with found.watched():
        random.seed(7)
        random.random()
        random.shuffle([1, 2])
    assert found.until(1.0) == []
    with found.watched():
        random.seed()
        random.random()
    random.setstate(state)
    assert len(found.until(1.0)) == 1
