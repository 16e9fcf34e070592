"""Stories of brokers: registration, heartbeats, fencing, controlled shutdown, producer ids, features."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.values import BrokerId
from moldau_quorum.controller.cluster.features import INITIAL_FEATURES
from moldau_quorum.controller.context import SLICE_RECORDS
from moldau_quorum.metadata.records import METADATA_VERSION, BrokerRegistrationChangeRecord
from support.controller.model import ModelController, offered


def test_a_broker_is_fenced_until_it_has_caught_up() -> None:
    """A registered broker stays fenced until it has applied the metadata up to its own registration."""
    controller = ModelController()
    response = controller.register(1)
    assert response.error_code == 0
    assert response.broker_epoch <= controller.image.offset
    assert controller.image.brokers[1].fenced
    beat = controller.beat(1, offset=response.broker_epoch - 1)
    assert (beat.is_caught_up, beat.is_fenced) == (False, True)
    beat = controller.beat(1, want_fence=True)
    assert (beat.is_caught_up, beat.is_fenced) == (True, True)
    beat = controller.beat(1)
    assert (beat.is_caught_up, beat.is_fenced) == (True, False)
    assert not controller.image.brokers[1].fenced


def test_a_broker_that_lags_is_not_said_to_be_caught_up() -> None:
    """A broker deletes remote records of topics that it does not know, if this answer calls its metadata the newest."""
    controller = ModelController()
    controller.join(1)
    controller.create("t", partitions=1, factor=1)
    behind = controller.beat(1, offset=controller.image.offset - 1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, False)
    assert controller.beat(1).is_caught_up


def test_the_retry_of_a_registration_gets_the_same_epoch() -> None:
    controller = ModelController()
    first = controller.register(1)
    again = controller.register(1)
    assert again.broker_epoch == first.broker_epoch
    assert len(controller.commands) == 3


@pytest.mark.parametrize("changed", [{"rack": "r"}, {"log_dirs": [UUID(int=1001)]}], ids=str)
def test_a_registration_with_other_values_is_no_retry(changed: dict) -> None:
    """The process has lost a directory, say, since its first attempt; the controller must not go by the former ones."""
    controller = ModelController()
    values = {"rack": None, "log_dirs": [UUID(int=1001), UUID(int=1002)]}
    first = controller.register(1, **values)
    again = controller.register(1, **{**values, **changed})
    assert again.broker_epoch > first.broker_epoch
    broker = controller.image.brokers[1]
    assert {"rack": broker.rack, "log_dirs": list(broker.log_dirs)} == {**values, **changed}


def test_a_second_live_broker_with_the_same_id_is_refused() -> None:
    controller = ModelController()
    controller.join(1)
    refused = controller.register(1, incarnation=2)
    assert refused.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    controller.now_ms += controller.settings.broker_session_timeout_ms
    taken = controller.register(1, incarnation=2)
    assert taken.error_code == 0
    stale = controller.handle(
        BrokerHeartbeatRequest(broker_id=1, broker_epoch=taken.broker_epoch - 1, current_metadata_offset=99)
    )
    assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
    unknown = controller.handle(BrokerHeartbeatRequest(broker_id=7, broker_epoch=1, current_metadata_offset=99))
    assert unknown.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_broker_epochs_grow_whatever_the_offset() -> None:
    """An epoch is above all others by itself, also where an engine of the log reports a position too low."""
    controller = ModelController()
    committed = controller.image.offset
    first = controller.register(1).broker_epoch
    controller.image = replace(controller.image, offset=committed)
    assert controller.register(2).broker_epoch > first


def test_broker_epochs_grow_with_every_registration() -> None:
    controller = ModelController()
    epochs = []
    for incarnation in range(1, 6):
        for broker_id in (1, 2):
            controller.sessions.remove(broker_id)
            epochs.append(controller.register(broker_id, incarnation=incarnation).broker_epoch)
    assert epochs == sorted(set(epochs))


def test_foreign_and_malformed_registrations_are_refused() -> None:
    """The controller refuses registrations of other clusters and malformed ones."""
    controller = ModelController()
    assert controller.register(1, cluster_id="other").error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    listener = Listener(name="PLAINTEXT", host="b", port=9092)
    for broken in (
        {"broker_id": -1},
        {"listeners": []},
        {"listeners": [listener, listener]},
        {"listeners": [Listener(name="PLAINTEXT", host="", port=9092)]},
        {"listeners": [Listener(name="PLAINTEXT", host="b", port=0)]},
        {"incarnation_id": UUID(int=0)},
        {"log_dirs": [UUID(int=500), UUID(int=500)]},
        {"log_dirs": [UUID(int=5)]},
    ):
        given = {"broker_id": 1, "incarnation_id": UUID(int=9), "listeners": [listener], **broken}
        assert controller.handle(BrokerRegistrationRequest(**given)).error_code == ErrorCode.INVALID_REGISTRATION
    feature = Feature(name="metadata.version", min_supported_version=5, max_supported_version=6)
    assert controller.register(1, features=[feature]).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert not controller.image.brokers


def test_a_broker_may_stop_after_its_leaderships_moved() -> None:
    """A broker in controlled shutdown may stop only after all its leaderships have moved."""
    controller = ModelController()
    controller.join(1, 2, 3)
    controller.create("t", partitions=6)
    commands = len(controller.commands)
    beat = controller.beat(2, want_shut_down=True)
    assert not beat.should_shut_down
    assert len(controller.commands) == commands + 1
    broker = controller.image.brokers[2]
    assert broker.in_controlled_shutdown
    assert not broker.fenced
    for partition in controller.image.topics_by_name["t"].partitions.values():
        assert partition.leader != 2
        assert 2 not in partition.isr
    session = controller.sessions.get(2)
    session.shutdown_offset = controller.image.offset
    for other in (1, 3):
        controller.sessions.get(other).metadata_offset = session.shutdown_offset - 1
    assert not controller.beat(2, want_shut_down=True).should_shut_down
    for other in (1, 3):
        controller.beat(other)
    session.metadata_offset = own_offset = session.shutdown_offset - 1
    assert controller.beat(2, want_shut_down=True, offset=own_offset).should_shut_down, "whatever itself has applied"
    controller.fence(2)
    controller.join(2)
    assert not controller.image.brokers[2].in_controlled_shutdown


def test_a_fenced_broker_may_stop_at_once() -> None:
    controller = ModelController()
    controller.register(1)
    assert controller.beat(1, want_shut_down=True, offset=0).should_shut_down, "whatever metadata it has applied"


@pytest.mark.parametrize("wants_to_stop", [False, True])
def test_a_broker_that_asks_to_be_fenced_stops_only_if_it_asks(wants_to_stop: bool) -> None:
    """It is not ready to serve, and may become ready again."""
    controller = ModelController()
    controller.join(1, 2)
    answer = controller.beat(1, want_fence=True, want_shut_down=wants_to_stop)
    assert (answer.is_fenced, answer.should_shut_down) == (True, wants_to_stop)
    assert controller.image.brokers[1].fenced


def test_an_unregistered_broker_is_forgotten_and_leads_nothing() -> None:
    controller = ModelController()
    controller.join(1, 2, 3)
    controller.create("t", partitions=3)
    assert controller.handle(UnregisterBrokerRequest(broker_id=9)).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert controller.handle(UnregisterBrokerRequest(broker_id=2)).error_code == 0
    assert sorted(controller.image.brokers) == [1, 3]
    assert all(p.leader in (1, 3) for p in controller.image.topics_by_name["t"].partitions.values())


def test_a_dead_brokers_partitions_get_leaders_in_slices() -> None:
    """Commands of bounded size elect new leaders for a thousand partitions of a dead broker; the last one fences it."""
    controller = ModelController()
    controller.join(1, 2, 3)
    controller.create("t", partitions=1000)
    led = [p for p in controller.image.topics_by_name["t"].partitions.values() if p.leader == 1]
    assert len(led) >= 333
    commands = len(controller.commands)
    controller.fence(1)
    slices = controller.commands[commands:]
    assert len(slices) == 1000 // SLICE_RECORDS + 1
    assert all(len(records) <= SLICE_RECORDS + 1 for records in slices)
    fenced = BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=controller.image.brokers[1].broker_epoch, fenced=True
    )
    assert [fenced in records for records in slices] == [False] * (len(slices) - 1) + [True]
    assert all(p.leader in (2, 3) for p in controller.image.topics_by_name["t"].partitions.values())
    moved = [p.leader for p in controller.image.topics_by_name["t"].partitions.values()]
    assert abs(moved.count(2) - moved.count(3)) <= 350


def test_a_broker_catches_up_with_all_slices_of_its_registration() -> None:
    """The slices that take the partitions of its last life away are not enough."""
    controller = ModelController()
    controller.join(1, 2, 3)
    controller.create("t", partitions=1000)
    controller.sessions.remove(BrokerId(1))
    before = controller.image.offset
    answer = controller.register(1, incarnation=2)
    assert controller.image.offset >= before + 3
    assert answer.broker_epoch == controller.image.brokers[1].broker_epoch == controller.image.offset
    beat = controller.beat(1, offset=controller.image.offset - 1)
    assert (beat.is_caught_up, beat.is_fenced) == (False, True)
    assert not controller.beat(1).is_fenced


def test_producer_ids_are_given_once() -> None:
    controller = ModelController()
    controller.join(1, 2)
    epoch = {b: controller.image.brokers[b].broker_epoch for b in (1, 2)}
    first = controller.handle(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch[1]))
    second = controller.handle(AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch[2]))
    assert first.producer_id_start + first.producer_id_len == second.producer_id_start
    stale = controller.handle(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch[1] - 1))
    assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH


def features(controller: ModelController, name: str, level: int, *, kind: int = 1, validate_only: bool = False):
    update = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
    return controller.handle(UpdateFeaturesRequest(feature_updates=[update], validate_only=validate_only))


def test_features_go_up_by_themselves_and_down_on_request_only() -> None:
    controller = ModelController()
    assert features(controller, "transaction.version", 0).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert features(controller, "transaction.version", 0, kind=2, validate_only=True).error_code == 0
    assert controller.image.features["transaction.version"] == 2
    assert features(controller, "transaction.version", 1, kind=2).error_code == 0
    assert controller.image.features["transaction.version"] == 1
    assert features(controller, "transaction.version", 0, kind=2).error_code == 0
    assert "transaction.version" not in controller.image.features
    assert features(controller, "transaction.version", 2).error_code == 0
    assert features(controller, "transaction.version", 3).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert features(controller, "transaction.version", 9).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert features(controller, "metadata.version", 0, kind=3).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert features(controller, "nonsense", 1).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert features(controller, "group.version", 0, kind=7).error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_the_last_level_of_a_feature_named_twice_counts() -> None:
    controller = ModelController()
    twice = [FeatureUpdateKey(feature="group.version", max_version_level=level, upgrade_type=2) for level in (0, 1)]
    assert controller.handle(UpdateFeaturesRequest(feature_updates=twice)).error_code == 0
    assert controller.image.features["group.version"] == 1


@pytest.mark.parametrize("kind", [2, 3])
def test_a_downgrade_request_raises_no_level(kind) -> None:
    controller = ModelController()
    assert features(controller, "group.version", 0, kind=2).error_code == 0
    refused = features(controller, "group.version", 1, kind=kind)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "does not raise" in refused.error_message
    assert "group.version" not in controller.image.features


def test_a_feature_level_that_a_broker_lacks_is_refused() -> None:
    controller = ModelController()
    assert features(controller, "group.version", 0, kind=2).error_code == 0
    assert controller.register(1, features=offered(group_version=0)).error_code == 0
    refused = features(controller, "group.version", 1)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "broker 1" in refused.error_message


@pytest.mark.parametrize("name", sorted(set(INITIAL_FEATURES) - {METADATA_VERSION}))
def test_a_feature_that_a_broker_does_not_mention_is_off_for_it(name) -> None:
    """It serves nothing of that feature, so the cluster must not rely on it (KIP-1022)."""
    controller = ModelController()
    older = [feature for feature in offered() if feature.name != name]
    assert controller.register(1, features=older).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert controller.register(1, features=[]).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert features(controller, name, 0, kind=2).error_code == 0
    assert controller.register(1, features=older).error_code == 0
    refused = features(controller, name, INITIAL_FEATURES[name])
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "broker 1 supports levels 0..0" in refused.error_message
    assert controller.join(1, 2) is None
    assert name not in controller.image.features


def test_a_broker_must_support_level_0_of_a_feature_that_is_off() -> None:
    controller = ModelController()
    newer = Feature(name="later.version", min_supported_version=1, max_supported_version=2)
    assert controller.register(1, features=[*offered(), newer]).error_code == ErrorCode.UNSUPPORTED_VERSION
    newer.min_supported_version = 0
    assert controller.register(1, features=[*offered(), newer]).error_code == 0


def test_elr_cannot_be_turned_off_while_a_partition_needs_it() -> None:
    """The ELR feature cannot be turned off while a partition depends on its eligible leader replicas."""
    controller = ModelController(min_insync_replicas=2)
    controller.join(1, 2, 3)
    controller.create("t")
    name = "eligible.leader.replicas.version"
    controller.fence(2, 3)
    assert controller.partition("t").elr
    assert features(controller, name, 0, kind=2).error_code == ErrorCode.INVALID_UPDATE_VERSION
    controller.join(2, 3)
    assert controller.alter("t", [1, 2, 3]).error_code == 0
    assert features(controller, name, 0, kind=2).error_code == 0
    assert features(controller, name, 1).error_code == 0
    assert controller.image.config(4, "") == {"min.insync.replicas": "2"}


def test_elr_cannot_be_turned_off_while_an_isr_is_empty() -> None:
    """Without the feature an ISR keeps its last member; an empty one would leave the partition without a leader."""
    controller = ModelController()
    controller.join(1)
    controller.create("t", factor=1)
    controller.sessions.remove(BrokerId(1))
    assert controller.register(1, incarnation=2).error_code == 0
    partition = controller.partition("t")
    assert (partition.isr, partition.elr, partition.last_known_elr) == ((), (), (1,))
    name = "eligible.leader.replicas.version"
    assert features(controller, name, 0, kind=2).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert not controller.beat(1).is_fenced
    assert controller.partition("t").isr == (1,)
    assert features(controller, name, 0, kind=2).error_code == 0
