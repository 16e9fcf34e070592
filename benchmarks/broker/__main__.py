"""Measures the broker's data path side by side with Apache Kafka:

    python -m benchmarks.broker [--quick] [--rounds N] [--seconds S] [--output docs/benchmarks/broker.md]
    python -m benchmarks.broker --connections 100,1000 [--broker-cores all,1] [--broker-processes N]
        [--quick] [--rounds N] [--seconds S] [--output PAGE]

The second form measures only many connections with one request in flight on each (``many.connections``), on clusters
of their own for each entry of ``--broker-cores``: that many cores for the brokers, the others for the load generator.
Load comes from ``benchmarks.broker.load`` (prepared frames, almost free) and, as the client that users have, from
librdkafka: through confluent-kafka, and by its own performance tool where that is at hand (``librdkafka_tool``). Apache
Kafka is fetched with Maven. Without a Java or Maven its columns are left out, without the tool its rows; the reason is
printed. All processes share this machine's cores: a row says what was reached and how much of a core the brokers used
for it. Data goes to the directory given by ``--directory``, by default memory (/dev/shm) where there is one, so that
the disk of the day is not what is measured. The figures also go to a JSON file beside the page, and a plot (SVG) with
them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.broker import librdkafka_tool
from benchmarks.broker.many.connections import Setup, page_of, raise_file_limit, setups_of
from benchmarks.broker.many.connections import measure_connections as many_connections
from benchmarks.broker.many.cores import CoresError, parse_cores
from benchmarks.broker.measure import Bench, Row
from benchmarks.broker.peers import KafkaPeer, MoldauPeer, Peer, PeerError, kafka_libraries
from benchmarks.broker.report import draw, markdown
from benchmarks.broker.unavailability import unavailable_ms

from moldau_jepsen.testing import cluster as test_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = {"log.retention.check.interval.ms": "1000", "log.segment.delete.delay.ms": "0"}
CONFIGURATIONS = (("1 broker, acks=1", 1, 1), ("3 brokers, RF 3, acks=all", 3, -1))


def start_peer(
    stack: ExitStack,
    name: str,
    directory: Path,
    brokers: int,
    libraries: Path | None,
    cores: frozenset[int] | None = None,
) -> Peer:
    """Starts a cluster of the kind that ``name`` says, with brokers on ``cores`` only; it ends with ``stack``."""
    peer: Peer
    if name == MoldauPeer.name or libraries is None:
        peer = MoldauPeer(directory, brokers, SETTINGS, cores)
    else:
        peer = KafkaPeer(libraries, directory, brokers, SETTINGS, cores)
    stack.callback(peer.shut_down)
    return peer


def measure(
    section: str, peers: list[Peer], acks: int, options: argparse.Namespace, libraries: Path | None
) -> tuple[list[Row], list[Any]]:
    """All rows of one configuration, and its start times and memory."""
    replicas = len(peers[0].broker_pids())
    directory = Path(options.directory or tempfile.gettempdir())
    bench = Bench(
        section,
        peers,
        replicas=replicas,
        acks=acks,
        seconds=options.seconds,
        directory=directory,
        libraries=libraries,
    )
    idle = bench.memory_megabytes()
    bench.warm_up(min(options.seconds, 3.0))
    for number in range(options.rounds):
        sys.stderr.write(f"{section}: round {number + 1} of {options.rounds}\n")
        bench.peers = [*bench.peers[1:], *bench.peers[:1]]  # who comes second finds memory that is warm
        bench.throughput()
        bench.latency()
        if replicas == 1:
            counts = (1, 100) if options.quick else (1, 100, 1000)
            bench.spread(counts, counts)
        bench.librdkafka()
        bench.librdkafka_tool()
        bench.java_tools()
    loaded = bench.memory_megabytes()
    starts = [(section, peer.name, peer.started_s, idle[peer.name], loaded[peer.name]) for peer in peers]
    return list(bench.rows.values()), starts


def measure_unavailability(
    names: list[str], directory: Path, libraries: Path | None, rounds: int
) -> list[tuple[str, str, list[float]]]:
    """Kill -9 and SIGSTOP of a leader on fresh clusters of every peer, a cut of it on Moldau alone."""
    results: dict[tuple[str, str], list[float]] = {}

    def run(fault: str, name: str, bootstrap: str, number: int, strike: Callable[[int], None]) -> None:
        took = unavailable_ms(bootstrap, f"{fault.split()[0].lower()}-{number}", strike)
        results.setdefault((fault, name), []).append(took)
        sys.stderr.write(f"  unavailable after {fault}, {name}: {took:,.0f} ms\n")

    for number in range(rounds):
        for fault in ("kill -9", "SIGSTOP"):
            for kind, name in enumerate(names):
                with ExitStack() as stack:
                    place = directory / f"{fault.split()[0]}-{kind}-{number}"
                    peer = start_peer(stack, name, place, 3, libraries)
                    run(fault, peer.name, peer.bootstrap, number, peer.kill if fault == "kill -9" else peer.pause)
        with test_cluster(brokers=3, controllers=1) as local:
            run(
                "cut of all its links",
                "Moldau",
                local.bootstrap,
                number,
                lambda leader: local.cut(leader, clients=True),
            )
    return [(fault, name, values) for (fault, name), values in results.items()]


def measure_connections(options: argparse.Namespace, names: list[str], libraries: Path | None) -> None:
    """Measures many connections only; prints the page and writes it if a file is named."""
    raise_file_limit(max(options.connections))
    load = os.getloadavg()[0]
    limits = {"rounds": options.rounds, "seconds": options.seconds}
    place = Path(options.directory or tempfile.gettempdir())
    sections = []
    for setup in setups_of(options.broker_cores, options.broker_processes):
        with tempfile.TemporaryDirectory(dir=options.directory, ignore_cleanup_errors=True) as directory:
            sections.append((setup, measure_setup(setup, names, Path(directory), place, libraries, options)))
    page = page_of(sections, names, load=load, **limits)
    print(page)
    if options.output is not None:
        options.output.write_text(page, encoding="utf-8")


def measure_setup(
    setup: Setup,
    names: list[str],
    directory: Path,
    place: Path,
    libraries: Path | None,
    options: argparse.Namespace,
) -> list[Row]:
    """Measures many connections on clusters of their own below ``directory``, with files of the load in ``place``."""
    cores = setup.cores.brokers if setup.cores else None
    with ExitStack() as stack:
        peers = [
            start_peer(
                stack,
                name,
                directory / f"brokers-{kind}",
                setup.processes if name == MoldauPeer.name else 1,
                libraries,
                cores,
            )
            for kind, name in enumerate(names)
        ]
        return many_connections(
            peers, options.connections, setup, rounds=options.rounds, seconds=options.seconds, directory=place
        )


def arguments() -> argparse.Namespace:
    """Reads and checks the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of one second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    parser.add_argument("--output", type=Path, default=None, help="where to write the page (Markdown)")
    parser.add_argument("--cache", type=Path, default=Path("build/kafka"), help="where Apache Kafka's jars are kept")
    parser.add_argument("--directory", default="/dev/shm" if os.path.isdir("/dev/shm") else None)
    parser.add_argument(
        "--connections",
        type=lambda text: [int(count) for count in text.split(",")],
        default=None,
        metavar="N,N",
        help="measure only these numbers of connections",
    )
    parser.add_argument(
        "--broker-cores",
        type=parse_cores,
        default=[None],
        metavar="all,N",
        help="with --connections: cores of the brokers, each entry on clusters of its own (default: all)",
    )
    parser.add_argument(
        "--broker-processes",
        type=int,
        default=1,
        metavar="N",
        help="with --connections: measure also N brokers of Moldau on all cores",
    )
    options = parser.parse_args()
    if options.connections:
        try:
            setups_of(options.broker_cores, options.broker_processes)
        except CoresError as error:
            parser.error(str(error))
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    return options


def main() -> None:
    """Measures, shows progress, writes page, JSON and plot."""
    options = arguments()
    facts: dict[str, Any] = {"rounds": options.rounds, "seconds": options.seconds, "load": os.getloadavg()[0]}
    libraries: Path | None = None
    try:
        libraries = kafka_libraries(options.cache)
    except PeerError as error:
        facts["absent"] = str(error)
        sys.stderr.write(f"Apache Kafka is not measured: {error}\n")
    names = [MoldauPeer.name] + ([KafkaPeer.name] if libraries is not None else [])
    if options.connections:
        measure_connections(options, names, libraries)
        return
    try:
        librdkafka_tool.find_tool()
    except librdkafka_tool.ToolError as error:
        sys.stderr.write(f"librdkafka's performance tool is not measured: {error}\n")
    facts["peers"] = names
    rows: list[Row] = []
    starts: list[Any] = []
    with tempfile.TemporaryDirectory(dir=options.directory, ignore_cleanup_errors=True) as directory:
        for section, brokers, acks in CONFIGURATIONS:
            with ExitStack() as stack:
                places = [Path(directory) / f"brokers-{brokers}-{kind}" for kind in range(len(facts["peers"]))]
                peers = [
                    start_peer(stack, name, place, brokers, libraries)
                    for name, place in zip(facts["peers"], places, strict=True)
                ]
                more, begun = measure(section, peers, acks, options, libraries)
                rows += more
                starts += begun
        facts["starts"] = starts
        facts["unavailable"] = measure_unavailability(
            facts["peers"], Path(directory) / "faults", libraries, max(1, options.rounds)
        )
    page = markdown(rows, facts, options.output and options.output.with_suffix(".svg").name)
    print(page)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(page, encoding="utf-8")
        document = {**facts, "rows": [dataclasses.asdict(row) for row in rows]}
        options.output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        draw(rows, facts["peers"], options.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
