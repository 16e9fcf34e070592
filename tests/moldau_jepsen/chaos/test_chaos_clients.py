"""Goal: a chaos run promises what its clients are configured for, controls are judged by the full promise and strike as
their scripts say, and a run can be had once more by one command.

Method: options and scripts as values; processes are a list of calls under a virtual clock.
"""

import shlex
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from moldau.admin import Admin
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from moldau_jepsen.chaos.clients import QUICK_SESSION, ClientOptions, RunClients, Workload
from moldau_jepsen.chaos.controls import CONTROLS, POLLED_S, wait_polled
from moldau_jepsen.chaos.folder import RunFacts, judge, read_facts, write_facts
from moldau_jepsen.chaos.foreign import delete_topics, new_mark, with_own_names
from moldau_jepsen.chaos.nemesis.stage import ProcessStage
from moldau_jepsen.chaos.options import ChaosOptions, Network, once_more, possible_kinds, refuse_impossible
from moldau_jepsen.chaos.run import _Run
from moldau_jepsen.checkers import CheckOptions, RegisterOperation
from moldau_jepsen.checkers.group.share import Acknowledged, Acknowledgement, Delivered, Sent
from moldau_jepsen.checkers.group.streams import Holding
from moldau_jepsen.checkers.log.topics import TopicRead, TopicsMade, TopicWrite
from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.history import HistoryWriter, TopicPartition, write_history
from moldau_jepsen.launcher import LauncherError, LauncherUsageError, Node
from moldau_jepsen.launcher.spec import Door
from moldau_jepsen.workloads.operations import OperationFailedError
from moldau_jepsen.workloads.pipe import PipeOptions
from moldau_jepsen.workloads.queue import QueueOptions
from moldau_jepsen.workloads.recording.recorder import Recorder
from moldau_jepsen.workloads.transactions import TransactionOptions
from support.cluster.broker_cluster import BROKER_PORT, CONTROLLER_PORT, run_cluster


def test_the_promise_follows_the_configuration() -> None:
    assert ClientOptions().promised == CheckOptions(read_committed=True, idempotent=True)
    weak = QueueOptions(producer={"acks": "1"}, consumer={"isolation.level": "read_uncommitted"})
    assert ClientOptions(queue=weak).promised == CheckOptions(read_committed=False, idempotent=False)
    everything = ClientOptions(workload=Workload.ALL, queue=weak)
    assert everything.promised.read_committed
    assert everything.promised.pipes == (("pipe-source", "pipe-target"),)
    (bank,) = everything.promised.banks
    assert bank.topics == ("bank-east", "bank-west")
    others = {"share", "streams", *bank.topics, bank.requests}
    assert set(everything.topics) == {"queue", "pipe-source", "pipe-target", *others}
    assert set(ClientOptions(workload=Workload.REGISTER).topics) == {"queue"}


class CallStage:
    def __init__(self) -> None:
        self.calls: list[tuple[float, str, tuple[int, ...]]] = []
        self.down: set[int] = set()
        self.links = self

    def _note(self, call: str, nodes: tuple[int, ...]) -> None:
        self.calls.append((trio.current_time(), call, nodes))

    def reset(self, members: tuple[int, ...]) -> int:
        self._note("reset", members)
        return len(members)

    async def pause(self, *nodes: int) -> None:
        self._note("pause", nodes)
        self.down |= set(nodes)

    async def resume(self, *nodes: int) -> None:
        self._note("resume", nodes)
        self.down -= set(nodes)

    async def kill(self, *nodes: int) -> None:
        self._note("kill", nodes)
        self.down |= set(nodes)
        assert len(self.down) == 3 or nodes == (2, 3)

    async def start(self, *nodes: int) -> None:
        self._note("start", nodes)
        self.down -= set(nodes)

    async def wait_led_by(self, *nodes: int) -> None:
        assert not self.down & set(nodes)
        self._note("wait", nodes)


@pytest.mark.parametrize("name", list(CONTROLS))
def test_a_control_strikes_and_leaves_no_node_down(name: str) -> None:
    stage = CallStage()
    trio.run(CONTROLS[name].script, stage, clock=trio.testing.MockClock(autojump_threshold=0))
    assert not stage.down
    assert bool(stage.calls) == (name not in ("read-uncommitted", "spark-at-least-once"))
    assert CONTROLS[name].convicted_by


@pytest.mark.parametrize(("reading", "until_s"), [(True, 20.0), (False, POLLED_S)])
def test_a_control_waits_for_what_its_clients_read(reading: bool, until_s: float) -> None:
    """Found on a busy machine: clients had read nothing when the script was over, so the control was acquitted."""
    recorder = SimpleNamespace(polled=0)

    async def read() -> None:
        while reading:
            await trio.sleep(1.0)
            recorder.polled += 10

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            begun = trio.current_time()
            await wait_polled(recorder, CONTROLS["read-uncommitted"].polled_min)
            nursery.cancel_scope.cancel()
            return trio.current_time() - begun

    waited = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert waited == pytest.approx(until_s, abs=0.2)


def test_most_controls_need_a_fresh_cluster_of_three(tmp_path: Path) -> None:
    """A control needs a fresh cluster of three, unless it needs only clients."""
    foreign = ChaosOptions(directory=tmp_path / "new", kinds=(), bootstrap="127.0.0.1:1", brokers=1)
    fresh = ChaosOptions(directory=tmp_path / "new", brokers=5)
    for control in CONTROLS.values():
        with pytest.raises(LauncherUsageError, match="fresh cluster of 3"):
            refuse_impossible(replace(fresh, control=control))
        if control.name != "read-uncommitted":
            with pytest.raises(LauncherUsageError, match=f"control {control.name} is for a fresh cluster"):
                refuse_impossible(replace(foreign, control=control))
    refuse_impossible(replace(foreign, control=CONTROLS["read-uncommitted"]))


def test_runs_on_a_cluster_started_elsewhere_share_no_name(tmp_path: Path) -> None:
    """Also one with the same seed."""
    options = ClientOptions(workload=Workload.ALL)
    assert new_mark() != new_mark()
    one, other = (with_own_names(options, mark) for mark in ("one-", "other-"))

    def names(clients: ClientOptions) -> list[str]:
        queue, pipe, bank = clients.queue, clients.pipe, clients.bank
        found = [*clients.topics, queue.group, pipe.group, bank.clerks.group, bank.clerks.target, clients.share.group]
        found.append(clients.streams.group)
        return [*found, clients.transactions.id_prefix, pipe.id_prefix, bank.id_prefix, bank.clerks.id_prefix]

    plain = names(options)
    assert len(plain) == 18
    assert names(one) == [f"one-{name}" for name in plain]
    assert not set(names(other)) & {*names(one), *plain}
    assert (one.share.queue, other.share.queue) == ("dlq.one-share", "dlq.other-share")
    # The promises of the judge have the same names.
    assert one.promised.pipes == (("one-pipe-source", "one-pipe-target"),)
    assert one.promised.banks[0].topics == ("one-bank-east", "one-bank-west")


def test_topics_of_a_run_are_deleted_or_it_is_said_why_not() -> None:
    async def scenario(cluster) -> list[str]:
        environment, bootstrap = cluster.client_environment, f"b1:{BROKER_PORT}"
        recorder = Recorder(environment.clock, lambda _: None)
        clients = RunClients(environment, bootstrap, ClientOptions(), recorder, None)
        await clients.create_topics(1, {})
        said = [await delete_topics(environment, bootstrap, ["queue"])]
        said.append(await delete_topics(environment, bootstrap, ["queue"]))
        cluster.kill(1)
        said.append(await delete_topics(environment, bootstrap, ["queue"]))
        return said

    said, _ = run_cluster(scenario)
    assert said[0] == "deleted at the end"
    assert said[1].startswith("left there: UNKNOWN_TOPIC_OR_PARTITION")
    assert said[2].startswith("left there: ")


PLACE = (TopicPartition("share", 0), 0)
TWO_HOLD_IT = [
    Sent(PLACE, 1),
    Sent((TopicPartition("share", 0), 1), 2),
    Delivered(PLACE, 1, 1, 1, 0, 1),
    Delivered(PLACE, 7, 1, 2, 2, 3),
    Acknowledged(PLACE, 1, Acknowledgement.ACCEPT, 4, 5, True),
]
"""Members saw a record change, and two of them hold one; no member saw another record."""


def test_a_read_that_does_not_end_hides_no_violation() -> None:
    """The cluster did not answer any more at the end: whether a record was lost is not known then."""
    options = ClientOptions(workload=Workload.SHARE)

    async def scenario(cluster) -> None:
        recorder = Recorder(cluster.client_environment.clock, lambda _: None)
        clients = RunClients(cluster.client_environment, f"b1:{BROKER_PORT}", options, recorder, None)
        await clients.create_topics(1, {})
        cluster.kill(1)
        share = clients._share
        assert share is not None
        share.events += TWO_HOLD_IT
        await clients.final_read(1)
        found.extend([*clients.stuck, *clients.wrong])

    found: list[str] = []
    run_cluster(scenario, **options.settings)
    assert len(found) == 3, found
    assert "did not come to its end" in found[0]
    assert found[1].startswith("share-altered: ")
    assert found[2].startswith("share-two-holders: "), "the lock was asked for at the beginning"


REFUSED = KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)


@pytest.mark.parametrize(
    ("workload", "call", "text"),
    [
        (Workload.SHARE, "alter_configs", "share group share was not set up within 30 s: GROUP_AUTHORIZATION_FAILED"),
        (Workload.STREAMS, "describe_configs", "the session timeout of streams groups is not known: GROUP_AUTH"),
    ],
)
def test_a_group_that_is_refused_ends_the_run(
    workload: Workload, call: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has no right to the group, say, or the brokers are too old to know such groups."""

    async def refuse(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise REFUSED

    async def scenario(cluster) -> None:
        recorder = Recorder(cluster.client_environment.clock, lambda _: None)
        options = ClientOptions(workload=workload)
        clients = RunClients(cluster.client_environment, f"b1:{BROKER_PORT}", options, recorder, None)
        with pytest.raises(OperationFailedError, match=text), trio.fail_after(60):
            await clients.create_topics(1, {})

    monkeypatch.setattr(Admin, call, refuse)
    run_cluster(scenario)


@pytest.mark.parametrize("workload", [Workload.SHARE, Workload.STREAMS])
def test_a_run_that_ended_early_keeps_what_groups_saw(
    workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The final read never began, so no record counts as lost."""

    async def load(run: _Run, *parts: object) -> None:
        await trio.lowlevel.checkpoint()
        run.began = True
        (clients,) = (part for part in parts if isinstance(part, RunClients))
        if clients._share is not None:
            clients._share.events += TWO_HOLD_IT
        if clients._streams is not None:
            task = ("0", 0)
            clients._streams.history.holdings += [Holding(task, name, 0.0, 1.0, {3}) for name in ("m1", "m2")]
        raise LauncherError("node 2 did not come back")

    monkeypatch.setattr(_Run, "_load", load)
    clients = ClientOptions(workload=workload)
    options = ChaosOptions(directory=tmp_path, bootstrap="127.0.0.1:1", kinds=(), clients=clients)
    found = trio.run(_Run(options, lambda _: None).main).deaths
    assert found[0] == "ended early: node 2 did not come back"
    kinds = {text.partition(":")[0] for text in found[1:]}
    both = {"share-altered", "share-two-holders"}
    assert kinds == (both if workload is Workload.SHARE else {"streams-two-in-epoch"})


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_run_that_ends_early_keeps_its_deaths(is_interrupted: bool, tmp_path: Path) -> None:
    """A broker ended by itself and does not start again, or the user, or a failed client, ended the run."""

    class Dying:
        deaths: tuple[str, ...] = ()

        async def watch(self) -> None:
            self.deaths = ("broker 2 ended by itself; its log is 2.log",)
            if is_interrupted:
                scope.cancel()
            else:
                raise LauncherError("broker 2 did not start")
            await trio.lowlevel.checkpoint()

        async def run(self, _: object) -> None:
            await trio.sleep_forever()

    async def main() -> None:
        with scope, pytest.RaisesGroup(LauncherError) if not is_interrupted else nullcontext():
            await run._strike(Dying(), [])

    scope = trio.CancelScope()
    run = _Run(ChaosOptions(directory=tmp_path), lambda _: None)
    trio.run(main)
    assert run.deaths == ["broker 2 ended by itself; its log is 2.log"]


def test_once_more_names_all_that_decides_the_plan(tmp_path: Path) -> None:
    options = ChaosOptions(
        directory=tmp_path,
        seed=7,
        duration_s=60,
        kinds=(FaultKind.KILL, FaultKind.CUT),
        churn=True,
        settings={"min.insync.replicas": "1"},
        clients=ClientOptions(queue=QueueOptions(producer={"client.id": "a b"})),
    )
    words = shlex.split(once_more(options))
    assert words[:3] == ["moldau", "chaos", "run"]
    for flag, value in (
        ("--seed", "7"),
        ("--duration", "60"),
        ("--window", "30"),
        ("--faults", "kill,cut"),
        ("--set", "min.insync.replicas=1"),
        ("--producer", "client.id=a b"),
    ):
        assert words[words.index(flag) + 1] == value
    assert "--churn" in words
    assert once_more(ChaosOptions(directory=tmp_path, seed=2, control=CONTROLS["acks-1"])).endswith("acks-1 --seed 2")


def test_a_register_that_no_order_explains_fails_the_run(tmp_path: Path) -> None:
    def write(value: int, begun: float, ended: float) -> RegisterOperation:
        return RegisterOperation(write=True, value=value, begun_ms=begun, ended_ms=ended)

    good = (write(1, 0, 1), write(2, 2, float("inf")), RegisterOperation(write=False, value=1, begun_ms=3, ended_ms=4))
    stale = (write(1, 0, 1), write(2, 2, 3), RegisterOperation(write=False, value=1, begun_ms=4, ended_ms=5))
    for register, valid in ((good, True), (stale, False)):
        facts = RunFacts(duration_s=1, settings={}, promised=CheckOptions(), faults=(), samples=(), register=register)
        write_facts(tmp_path, facts)
        assert read_facts(tmp_path) == facts
        with (tmp_path / "history").open("wb") as stream:
            write_history(stream, [])
        result = judge(tmp_path)
        assert result.valid is valid
        assert ("not linearizable" in " ".join(result.deaths)) is not valid


def test_a_topic_that_lost_what_was_acknowledged_fails_the_run(tmp_path: Path) -> None:
    writes = (TopicWrite("one", 0, "a", 0), TopicWrite("one", 0, "b", -1), TopicWrite("two", 1, "c", 0))
    good = TopicRead("one", 0, ((0, "a"), (1, "b")), 2, 2)
    lossy = TopicRead("two", 1, (), 0, 3)
    for reads, text in (((good,), ""), ((good, lossy), "partition 1 of topic two lost 'c', acknowledged at offset 0")):
        topics = TopicsMade(writes, reads)
        facts = RunFacts(duration_s=1, settings={}, promised=CheckOptions(), faults=(), samples=(), topics=topics)
        write_facts(tmp_path, facts)
        assert read_facts(tmp_path) == facts
        with (tmp_path / "history").open("wb") as stream:
            write_history(stream, [])
        result = judge(tmp_path)
        assert result.valid is not bool(text)
        assert text in " ".join(result.deaths)
        assert {"topics_made": 2, "topic_writes": 2, "topic_reads": len(reads)}.items() <= result.document[
            "figures"
        ].items()


@pytest.mark.parametrize("workload", [Workload.REGISTER, Workload.TOPICS])
def test_workloads_that_ask_chosen_nodes_need_a_fresh_cluster(workload: Workload, tmp_path: Path) -> None:
    clients = ClientOptions(workload=workload)
    with pytest.raises(LauncherUsageError, match=f"workload {workload.value} is for a fresh cluster"):
        refuse_impossible(ChaosOptions(directory=tmp_path / "new", kinds=(), bootstrap="127.0.0.1:1", clients=clients))
    refuse_impossible(ChaosOptions(directory=tmp_path / "new", kinds=(), clients=clients))


def test_connection_options_need_a_running_cluster_and_a_file(tmp_path: Path) -> None:
    """The command that repeats a run names the file of keys and passwords, and does not contain them."""
    clients = ClientOptions(connection={"security.protocol": "SSL", "ssl.key.password": "secret"})
    options = ChaosOptions(directory=tmp_path / "new", kinds=(), clients=clients, command_config="my client.properties")
    with pytest.raises(LauncherUsageError, match=r"security\.protocol, ssl\.key\.password: .* give --bootstrap"):
        refuse_impossible(options)
    foreign = replace(options, bootstrap="127.0.0.1:1")
    refuse_impossible(foreign)
    for again in (foreign, replace(foreign, control=CONTROLS["read-uncommitted"])):
        assert once_more(again).endswith(" --command-config 'my client.properties'")
        assert "secret" not in once_more(again)


LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": "secret",
}


@pytest.mark.parametrize("workload", [Workload.SHARE, Workload.STREAMS])
def test_groups_log_in_on_a_running_cluster(workload: Workload, tmp_path: Path) -> None:
    clients = ClientOptions(workload=workload, connection=LOGIN)
    refuse_impossible(ChaosOptions(directory=tmp_path / "new", kinds=(), bootstrap="127.0.0.1:1", clients=clients))
    made = with_own_names(clients, "mark-")
    internal = [f"mark-{clients.streams.topic}-words", f"mark-{clients.streams.topic}-counts"]
    assert made.internal_topics == (internal if workload is Workload.STREAMS else [])


def test_faults_that_links_lack_are_left_out_and_listed() -> None:
    kinds = (FaultKind.KILL, FaultKind.SLOW, FaultKind.LOSS, FaultKind.RESET)
    assert possible_kinds(kinds, {}) == (kinds, [])
    assert possible_kinds(kinds, {"delay": "no netem"}) == (
        kinds,
        ["slow links have a low rate instead of a delay: no netem"],
    )
    assert possible_kinds(kinds, {"delay": "no htb", "rate": "no htb", "loss": "no htb", "reset": "no ss"}) == (
        (FaultKind.KILL,),
        ["left out loss: no htb", "left out reset: no ss", "left out slow: no htb"],
    )
    assert possible_kinds((FaultKind.CUT,), {"delay": "no netem", "loss": "no u32"}) == ((FaultKind.CUT,), [])


def test_a_run_in_namespaces_is_had_once_more_in_namespaces(tmp_path: Path) -> None:
    options = ChaosOptions(directory=tmp_path, network=Network.NAMESPACES)
    assert "--network namespaces" in once_more(options)
    assert "--network" not in once_more(ChaosOptions(directory=tmp_path))
    assert once_more(ChaosOptions(directory=tmp_path, network=Network.NAMESPACES, control=CONTROLS["acks-1"])).endswith(
        "--network namespaces"
    )


class ClusterNodes:
    """Nodes of a cluster in virtual time, as clients reach them."""

    def __init__(self, cluster) -> None:
        self.broker_ids, self.controller_ids = cluster.broker_ids, cluster.controller_ids

    def address(self, node_id: int) -> tuple[str, int]:
        return (f"b{node_id}", BROKER_PORT) if node_id in self.broker_ids else (f"c{node_id}", CONTROLLER_PORT)


def test_streams_are_judged_by_the_session_of_the_cluster() -> None:
    """A run may set a shorter one, and a member that lost its tasks after that was taken for a broken promise."""
    options = ClientOptions(workload=Workload.STREAMS)
    settings = {key.replace(".", "_"): value for key, value in options.settings.items()}
    said = []

    async def scenario(cluster) -> None:
        environment = cluster.client_environment
        recorder = Recorder(environment.clock, lambda _: None)
        clients = RunClients(environment, f"b1:{BROKER_PORT}", options, recorder, ClusterNodes(cluster))
        await clients.create_topics(1, {})
        said.append(clients.groups["streams group"])

    run_cluster(scenario, **settings | {"group_streams_session_timeout_ms": "2000"})
    assert said[0].endswith("session 2000 ms")


@pytest.mark.proof
def test_all_workloads_run_at_once_and_each_can_be_judged(tmp_path: Path) -> None:
    """The clients of a chaos run, a broker that dies and comes back, and the folder that remains; in virtual time."""
    options = ClientOptions(
        workload=Workload.ALL,
        queue=QueueOptions(senders=1, sends_per_second=10.0, partitions=2),
        transactions=TransactionOptions(clients=1, transactions_per_second=3.0),
        pipe=PipeOptions(records_per_second=5.0, crash_every_s=0),
    )

    async def scenario(cluster) -> RunFacts:
        environment = cluster.client_environment
        bootstrap = ",".join(f"b{broker_id}:{BROKER_PORT}" for broker_id in cluster.broker_ids)
        with (tmp_path / "history").open("wb") as stream:
            writer = HistoryWriter(stream)
            recorder = Recorder(environment.clock, writer.add)
            clients = RunClients(environment, bootstrap, options, recorder, ClusterNodes(cluster), replication=(1, 3))
            await clients.create_topics(3, {})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(clients.run)
                await trio.sleep(3)
                cluster.kill(2)
                await trio.sleep(4)
                cluster.start_broker(2)
                await trio.sleep(3)
                clients.stop()
            await clients.final_read(60)
            writer.flush()
        return RunFacts(
            duration_s=10,
            settings={},
            promised=options.promised,
            faults=(),
            samples=(),
            deaths=(*clients.stuck, *clients.wrong),
            register=clients.register_operations,
            topics=clients.topics_made,
        )

    facts, _ = run_cluster(scenario, brokers=3, controllers=3, **options.settings)
    write_facts(tmp_path, facts)
    result = judge(tmp_path)
    assert result.valid, (result.deaths, result.verdict.anomalies)
    figures = result.document["figures"]
    for figure, least in (("sends_acknowledged", 60), ("register_operations", 10), ("topics_made", 2)):
        assert figures[figure] >= least, figure
    assert figures["topic_reads"] >= 2
    assert figures["leaderships"] > 2 + 2 * options.pipe.partitions  # of each partition one, more where a leader died


@pytest.mark.parametrize("comes_about", [True, False])
def test_a_script_waits_until_its_brokers_lead_everything(comes_about: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of them says; a script whose state does not come about goes on after a while."""
    nodes = [Node(node_id=n, role="broker", port=n, directory="", config="", log="") for n in (1, 2, 3)]
    asked: list[int] = []

    def answer(door: Door, topics: list[str], timeout_ms: float) -> MetadataResponse | None:
        assert topics == ["queue"]
        asked.append(door.port)
        leaders = (2, 3) if comes_about and len(asked) > 4 else (2, 1)
        parts = [MetadataResponsePartition(partition_index=n, leader_id=leader) for n, leader in enumerate(leaders)]
        return (
            MetadataResponse(topics=[MetadataResponseTopic(name="queue", partitions=parts)]) if door.port == 3 else None
        )

    monkeypatch.setattr("moldau_jepsen.launcher.probe.fetch_metadata", answer)
    monkeypatch.setattr("moldau_jepsen.chaos.nemesis.stage.ASK_EVERY_S", 0.001)
    if not comes_about:
        monkeypatch.setattr("moldau_jepsen.chaos.nemesis.stage.LED_WITHIN_S", 0.05)

    async def main() -> None:
        stage = ProcessStage(SimpleNamespace(brokers=nodes), None, lambda _: None, ["queue"])
        await stage.wait_led_by(2, 3)

    trio.run(main)
    assert set(asked) <= {2, 3}
    if comes_about:
        assert asked == [2, 3] * 3


def test_each_pause_of_a_script_is_reported_once() -> None:
    """Recovery resumes and starts what a script may have resumed already."""
    events: list[Any] = []
    nothing: Any = SimpleNamespace(pause=lambda _: None, resume=lambda _: None, kill=lambda _: None)

    async def main() -> None:
        stage = ProcessStage(nothing, None, events.append, [])
        await stage.pause(1, 2)
        await stage.resume(2)
        await stage.resume(1, 2)
        await stage.kill(1)
        await stage.resume(1)

    trio.run(main)
    assert [(event.kind, event.nodes) for event in events] == [("pause", (2,)), ("pause", (1,)), ("kill", (1,))]


def test_groups_of_both_protocols_have_short_sessions() -> None:
    """Without it the partitions of a crashed member of the consumer protocol had no reader for 45 s."""
    options = ClientOptions(queue=QueueOptions(consumer={"group.protocol": "consumer"}))
    assert options.settings["group.consumer.session.timeout.ms"] == str(QUICK_SESSION["session.timeout.ms"])
    assert ClientOptions().settings == {}
