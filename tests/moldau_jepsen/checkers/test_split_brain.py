"""Goal: any two leaders of one epoch are convicted, at any moment, and nothing else is.

Method: golden histories by hand, good and bad; clients of a whole cluster in virtual time, whose brokers change their
leaders, and one whose metadata names a broker that is no leader.
"""

import pytest

from moldau.producer import Producer
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
)
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.runtime.net.rpc import RpcConnection
from moldau_jepsen.chaos.observe.claims import ClaimSampler, claimed, claimed_quorum, epochs, served
from moldau_jepsen.checkers import AnomalyKind, CheckOptions, check_history
from moldau_jepsen.checkers.shards import check_in_shards
from moldau_jepsen.history import Evidence, HistoryFile, Kind, Lead, Send, Status, TopicPartition, write_history
from moldau_jepsen.launcher import Node
from moldau_jepsen.launcher.probe import LIST_OFFSETS_VERSION, ask_for_ends
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.workloads.recording.recorder import Recorder, acknowledgements
from support.cluster.broker_cluster import BROKER_PORT, CONTROLLER_PORT, run_cluster
from support.kit.golden_histories import P0, P1, Story, assert_same, good

K = AnomalyKind
METADATA_VERSION = 9
QUORUM = TopicPartition("__cluster_metadata", 0)
QUORUM_QUESTION = DescribeQuorumRequest(
    topics=[
        DescribeQuorumRequestTopicData(
            topic_name=QUORUM.topic, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
        )
    ]
)
SPLIT = "in epoch 5 node 1 claimed to lead and node 2 "


def test_leaders_that_follow_each_other_are_acquitted() -> None:
    story = good()
    for epoch, leader in ((0, 1), (1, 2), (2, 1), (2, 1), (4, 3), (1, 2)):
        story.lead(leader, epoch).lead(leader, epoch, evidence=Evidence.ACKNOWLEDGED)
        story.lead(4 - leader, epoch, P1)
        story.lead(100 + leader, epoch, QUORUM)
    verdict = story.check()
    assert verdict.valid
    assert not verdict.counts
    assert verdict.figures.leaderships == 3 * 4


@pytest.mark.parametrize("evidence", list(Evidence))
@pytest.mark.parametrize("partition", [P1, QUORUM, TopicPartition("never-written", 7)])
def test_two_leaders_of_one_epoch_are_convicted(evidence: Evidence, partition: TopicPartition) -> None:
    story = good().lead(1, 5, partition).lead(3, 6, partition).lead(2, 5, partition, evidence).lead(1, 5, partition)
    verdict = story.check()
    assert not verdict.valid
    assert verdict.counts == {K.SPLIT_BRAIN: 1}
    (anomaly,) = verdict.anomalies
    assert anomaly.text == SPLIT + evidence.value
    assert (anomaly.partition, anomaly.operations) == (partition, (7, 9))


def test_each_further_leader_of_an_epoch_is_one_finding() -> None:
    """Each further leader is one finding, and one operation may hold both leaders."""
    both = (Lead(P0, 5, 1, Evidence.CLAIMED), Lead(P0, 5, 2, Evidence.SERVED))
    verdict = Story().add(0, Kind.CLAIM, leads=both).lead(3, 5).check(final_phase=False)
    assert verdict.counts == {K.SPLIT_BRAIN: 2}
    assert [anomaly.operations for anomaly in verdict.anomalies] == [(0,), (0, 1)]
    again = Story().add(0, Kind.CLAIM, leads=both).lead(3, 5).lead(2, 5).lead(3, 5).check(final_phase=False)
    assert again.counts == verdict.counts, "a leader that claims it again is no further one"


def test_a_write_that_another_leader_acknowledged_is_convicted(tmp_path) -> None:
    """The evidence stands in the operation of the client, beside what it sent; also in a file."""
    story = good().lead(1, 5)
    led = (Lead(P0, 5, 2, Evidence.ACKNOWLEDGED),)
    story.add(1, Kind.SEND, Send(P0, 9, 3), leads=led).poll(4, (3, 9)).poll(5, (3, 9), final=True)
    verdict = story.check()
    assert verdict.counts == {K.SPLIT_BRAIN: 1}
    assert verdict.anomalies[0].text == SPLIT + "acknowledged a write"
    assert verdict.anomalies[0].operations == (7, 8)
    path = tmp_path / "history"
    with path.open("wb") as stream:
        write_history(stream, story.history)
    assert list(HistoryFile(path)) == story.history
    assert_same(check_history(HistoryFile(path), CheckOptions()), verdict)
    assert_same(check_in_shards(HistoryFile(path), CheckOptions()), verdict)


def test_a_history_tells_each_leader_once() -> None:
    class Clock:
        def monotonic_ms(self) -> float:
            return 0.0

    history = []
    recorder = Recorder(Clock(), history.append)
    one, other = (Lead(P0, 5, 1, evidence) for evidence in (Evidence.CLAIMED, Evidence.SERVED))
    recorder.claim(0, 0, [one, one])
    recorder.claim(0, 0, [one])
    recorder.operation(1, Kind.SEND, Status.OK, 0, Send(P0, 0, 0), leads=[other, one])
    recorder.claim(0, 0, [other, one._replace(epoch=6)])
    recorder.claim(0, 0, [])
    assert [(operation.kind, operation.leads) for operation in history] == [
        (Kind.CLAIM, (one,)),
        (Kind.SEND, (other,)),
        (Kind.CLAIM, (one._replace(epoch=6),)),
    ]


def bootstrap_of(cluster) -> str:
    return ",".join(f"b{broker_id}:{BROKER_PORT}" for broker_id in cluster.broker_ids)


async def sent(producer: Producer, count: int):
    deliveries = []
    for _ in range(count):
        delivery = await producer.send("led", b"x", partition=0)
        await delivery
        deliveries.append(delivery)
    return deliveries


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_producers_know_the_acknowledging_broker(acks: str) -> None:
    """Covers a change of leadership; with acks=0 no broker acknowledges."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("led", replicas=3)
        first = await cluster.leader("led")
        config = {"bootstrap.servers": bootstrap_of(cluster), "acks": acks, "enable.idempotence": acks == "all"}
        async with Producer(config, environment=cluster.client_environment) as producer:
            before = await sent(producer, 3)
            cluster.kill(first)
            second = await cluster.leader("led", other_than=first)
            after = await sent(producer, 3)
        leads = list(dict.fromkeys(acknowledgements([*before, *after])))
        if acks == "0":
            assert leads == []
            return
        assert [lead.leader for lead in leads] == [first, second]
        assert leads[0].epoch < leads[1].epoch
        assert {lead[0] for lead in leads} == {TopicPartition("led", 0)}

    run_cluster(scenario, brokers=3)


def test_failed_and_pending_records_have_no_acknowledging_leader() -> None:
    """A record that failed or is in flight was not acknowledged by any leader."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("led", replicas=3)
        config = {"bootstrap.servers": bootstrap_of(cluster), "delivery.timeout.ms": 3_000, "request.timeout.ms": 1_000}
        async with Producer({**config, "linger.ms": 0}, environment=cluster.client_environment) as producer:
            await sent(producer, 1)
            for broker_id in cluster.broker_ids:
                cluster.kill(broker_id)
            delivery = await producer.send("led", b"x", partition=0)
            assert delivery.acknowledged_by is None
            with pytest.raises(KafkaError):
                await delivery
            assert delivery.acknowledged_by is None

    run_cluster(scenario, brokers=3)


async def shown(cluster, broker_id: int, *topics: str) -> list[Lead]:
    client = cluster.client(broker_id)
    claims = claimed(broker_id, await client.request(metadata_of(topics), METADATA_VERSION))
    return claims + served(claims, await client.request(ask_for_ends(epochs(claims)), LIST_OFFSETS_VERSION))


def metadata_of(topics) -> MetadataRequest:
    names = [MetadataRequestTopic(name=name) for name in topics]
    return MetadataRequest(topics=names, allow_auto_topic_creation=False)


def test_brokers_show_what_they_lead_and_nothing_of_others() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("led", partitions=3, replicas=3)
        led = [TopicPartition("led", number) for number in range(3)]
        leaders = {place: await cluster.leader(*place) for place in led}
        found = {broker_id: await shown(cluster, broker_id, "led", "nowhere") for broker_id in (1, 2, 3)}
        for broker_id, leads in found.items():
            assert {lead.leader for lead in leads} <= {broker_id}
            for evidence in (Evidence.CLAIMED, Evidence.SERVED):
                reported = [lead.partition for lead in leads if lead.evidence is evidence]
                assert reported == [place for place in led if leaders[place] == broker_id]
        claims = [lead._replace(epoch=lead.epoch + 1) for lead in found[leaders[led[0]]]]
        answer = await cluster.client(claims[0].leader).request(ask_for_ends(epochs(claims)), LIST_OFFSETS_VERSION)
        assert served(claims, answer) == []  # it does not answer for an epoch that is not its own
        everything = [lead for leads in found.values() for lead in leads]
        verdict = check_history(Story().add(0, Kind.CLAIM, leads=tuple(everything)).history, CheckOptions())
        assert verdict.valid
        assert verdict.figures.leaderships == 3

    run_cluster(scenario, brokers=3)


def test_controllers_show_that_they_lead_the_quorum() -> None:
    async def scenario(cluster) -> None:
        found = []
        for controller_id in cluster.controller_ids:
            connection = await RpcConnection.open(
                cluster.client_environment, f"c{controller_id}", CONTROLLER_PORT, "test"
            )
            try:
                found += claimed_quorum(controller_id, await connection.request(QUORUM_QUESTION, 1))
            finally:
                connection.close()
        (lead,) = found
        assert (lead.partition, lead.evidence) == (QUORUM, Evidence.CLAIMED)
        assert lead.epoch >= 1

    run_cluster(scenario, controllers=3)


class Answers:
    """Stands for the nodes' listeners: what the one behind a port answers, None for one that does not."""

    def __init__(self, answers) -> None:
        self.answers = answers
        self.asked: list[tuple[int, str]] = []

    def ask(self, where, request, version, response_class, timeout_ms):
        self.asked.append((where.port, type(request).__name__))
        return self.answers.get((where.port, type(request).__name__))


def metadata(*led: tuple[int, int, int], brokers: tuple[int, ...] = ()) -> MetadataResponse:
    """``led``: partition, leader and epoch."""
    parts = [MetadataResponsePartition(partition_index=p, leader_id=who, leader_epoch=epoch) for p, who, epoch in led]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=one, host="127.0.0.1", port=9000 + one) for one in brokers],
        topics=[MetadataResponseTopic(name="led", partitions=parts)],
    )


def ends(*codes: ErrorCode) -> ListOffsetsResponse:
    parts = [ListOffsetsPartitionResponse(partition_index=number, error_code=code) for number, code in enumerate(codes)]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="led", partitions=parts)])


def quorum(leader: int, epoch: int, code: ErrorCode = ErrorCode.NONE) -> DescribeQuorumResponse:
    part = DescribeQuorumResponsePartitionData(partition_index=0, leader_id=leader, leader_epoch=epoch)
    topic = DescribeQuorumResponseTopicData(topic_name=QUORUM.topic, partitions=[part])
    return DescribeQuorumResponse(error_code=code, topics=[topic])


def node(role: str, number: int) -> Node:
    return Node(node_id=number, role=role, port=9000 + number, directory="", config="", log="")


class Processes:
    """A cluster of which broker 3 and controller 103 are down."""

    brokers = tuple(node("broker", number) for number in (1, 2, 3))
    controllers = tuple(node("controller", number) for number in (101, 102, 103))

    def state(self, node_id: int) -> ProcessState:
        return ProcessState.STOPPED if node_id in (3, 103) else ProcessState.RUNNING


L = [TopicPartition("led", number) for number in range(3)]


def test_running_nodes_are_asked_and_only_own_claims_count(monkeypatch) -> None:
    """Every running node is asked, and only its claims about itself count."""
    answers = Answers(
        {
            # Broker 2 lags: it says of broker 1 what is no longer so, which is no evidence.
            (9001, "MetadataRequest"): metadata((0, 1, 5), (1, 2, 3), (2, 1, 7)),
            (9001, "ListOffsetsRequest"): ends(ErrorCode.NONE, ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH),
            (9002, "MetadataRequest"): metadata((0, 1, 4), (1, 2, 3), (2, -1, 7)),
            (9002, "ListOffsetsRequest"): ends(ErrorCode.NONE, ErrorCode.OFFSET_NOT_AVAILABLE),
            (9101, "DescribeQuorumRequest"): quorum(101, 9),
            (9102, "DescribeQuorumRequest"): quorum(101, 9),
        }
    )
    monkeypatch.setattr("moldau_jepsen.launcher.probe.ask", answers.ask)
    leads = ClaimSampler(["led"], Processes(), "127.0.0.1:1").sample()
    assert leads == [
        Lead(L[0], 5, 1, Evidence.CLAIMED),
        Lead(L[2], 7, 1, Evidence.CLAIMED),
        Lead(L[0], 5, 1, Evidence.SERVED),
        Lead(L[1], 3, 2, Evidence.CLAIMED),
        Lead(L[1], 3, 2, Evidence.SERVED),
        Lead(QUORUM, 9, 101, Evidence.CLAIMED),
    ]
    assert {port for port, _ in answers.asked} == {9001, 9002, 9101, 9102}
    answers.answers[9102, "DescribeQuorumRequest"] = quorum(102, 9, ErrorCode.NOT_CONTROLLER)
    assert ClaimSampler(["led"], Processes(), "127.0.0.1:1").sample() == leads
    answers.answers[9102, "DescribeQuorumRequest"] = quorum(102, 9)
    story = Story().add(0, Kind.CLAIM, leads=tuple(ClaimSampler(["led"], Processes(), "127.0.0.1:1").sample()))
    assert story.check(final_phase=False).counts == {K.SPLIT_BRAIN: 1}


def test_the_first_answer_names_brokers_of_a_foreign_cluster(monkeypatch) -> None:
    """The first broker that answers names the brokers of a foreign cluster."""
    answers = Answers(
        {
            (9002, "MetadataRequest"): metadata((0, 2, 5), brokers=(1, 2)),
            (9002, "ListOffsetsRequest"): ends(ErrorCode.NONE),
        }
    )
    monkeypatch.setattr("moldau_jepsen.launcher.probe.ask", answers.ask)
    sampler = ClaimSampler(["led"], None, "127.0.0.1:9001, 127.0.0.1:9002")
    assert sampler.sample() == [Lead(L[0], 5, 2, Evidence.CLAIMED), Lead(L[0], 5, 2, Evidence.SERVED)]
    del answers.answers[9002, "MetadataRequest"]
    assert sampler.sample() == []
