"""Goal: a benchmark compares peers at equal cores. Method: real processes of a fake command, and what the system says.

Needs an operating system that can pin processes, and two cores for those tests that divide them.
"""

import argparse
import os
import subprocess
import sys

import pytest
from benchmarks.broker.many.connections import Setup, page_of, setups_of
from benchmarks.broker.many.cores import Cores, CoresError, divide_cores, parse_cores, pin, starting_on, threads_of
from benchmarks.broker.measure import Row, Sample

can_pin = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot pin processes")
THREADS = """
import sys, threading
threading.Thread(target=sys.stdin.read).start()
print(flush=True)
"""
SHOW = "import os; print(*sorted(os.sched_getaffinity(0)))"


def sample(rate, cores):
    return Sample(
        records_per_second=rate,
        megabytes_per_second=1.0,
        p50_ms=1.0,
        p99_ms=1.0,
        p999_ms=1.0,
        broker_cores=cores,
        requests_per_second=rate,
        load_cores=0.25,
    )


def test_numbers_of_cores_are_read():
    assert parse_cores("all") == [None]
    assert parse_cores("2,all,1") == [2, None, 1]


@pytest.mark.parametrize("text", ["", "0", "-1", "1,", "many", "1.5", "²"])
def test_other_words_are_refused(text):
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--broker-cores", type=parse_cores)
    with pytest.raises(argparse.ArgumentError, match="--broker-cores"):
        parser.parse_args([f"--broker-cores={text}"])


def test_a_system_that_cannot_pin_is_named(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with pytest.raises(CoresError, match="cannot pin processes to cores"):
        setups_of([1], 1)
    assert setups_of([None], 1) == [Setup()]  # all cores need no pinning


@can_pin
def test_the_load_generator_keeps_a_core(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 4, 7})
    assert divide_cores(2) == Cores(frozenset({4, 7}), frozenset({3}))
    with pytest.raises(CoresError, match="brokers on 3 of 3 cores leave none"):
        divide_cores(3)


@can_pin
def test_a_process_starts_on_its_cores():
    """The process sees them at its start, and the benchmark itself has all its cores again."""
    before = os.sched_getaffinity(0)
    one = frozenset([max(before)])
    with starting_on(one):
        shown = subprocess.run([sys.executable, "-S", "-c", SHOW], capture_output=True, text=True, check=True).stdout
    assert shown.split() == [str(max(before))]
    with starting_on(None):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


@can_pin
def test_all_threads_of_a_running_process_are_pinned():
    one = frozenset([min(os.sched_getaffinity(0))])
    command = [sys.executable, "-S", "-c", THREADS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # the second thread runs
        pin(process.pid, one)
        threads = threads_of(process.pid)
        assert len(threads) == 2
        assert [os.sched_getaffinity(thread) for thread in threads] == [one, one]
        process.stdin.close()
    assert os.sched_getaffinity(0) >= one


def test_the_page_has_a_section_for_each_setup():
    """Sections say who has which cores, and rows what the load generator used."""
    row = Row(section="s", what="produce, 100 connections", record_bytes=100, batch_bytes=1024)
    row.samples = {"Moldau": [sample(20_000.0, 0.9)], "Apache Kafka": [sample(16_000.0, 1.0)]}
    pinned = Setup(cores=Cores(frozenset({1}), frozenset({0})))
    page = page_of(
        [(pinned, [row]), (Setup(processes=2), [row])], ["Moldau", "Apache Kafka"], rounds=3, seconds=8.0, load=0.5
    )
    assert "## One core for the broker\n" in page
    assert (
        "- One core for the broker: Moldau reaches 1.25 to 1.25 of Apache Kafka's rate,\n"
        "  at 0.72 to 0.72 of its processor time for a request.\n"
    ) in page
    assert "## All cores, 2 brokers of Moldau beside one of Apache Kafka\n" in page
    assert "| produce, 100 connections | 1,024 B | Moldau | 20,000 | 0.90 | 0.25 | 45 |" in page
    assert page.count("| produce, 100 connections | 1,024 B | 1.25 | 0.72 |") == 2
    assert "Each connection produces to one of 2 partitions." in page
