"""A controller's metrics, under Kafka's names in the form of its Prometheus exporter (KIP-595, KIP-835).

Every value is read when it is asked for; nothing is counted on the way. Counting partitions looks at all of them, so
ask no more often than every few seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.runtime.telemetry.metrics import Histogram
from moldau_quorum.metadata.records import NO_LEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.telemetry.metrics import Registry
    from moldau_quorum.node.active_controller import ActiveController
    from moldau_quorum.node.server import ControllerNode

_CONTROLLER = "kafka_controller_kafkacontroller_"
_RAFT = "kafka_server_raft_metrics_"


def register_metrics(registry: Registry, node: ControllerNode) -> None:
    """Adds the gauges of one controller to the registry of its process."""

    def gauge(name: str, text: str, read: Callable[[], float]) -> None:
        registry.gauge(name, text).labels().read_from(read)

    machine, log, active = node.machine, node.log, node.active

    def count_partitions(condition: Callable[[int, tuple[int, ...]], bool]) -> float:
        return float(
            sum(
                condition(partition.leader, partition.replicas)
                for topic in machine.image.topics_by_id.unordered_values()
                for partition in topic.partitions.unordered_values()
            )
        )

    gauge(_CONTROLLER + "activecontrollercount", "1 on the active controller, else 0.", lambda: float(active.is_active))
    gauge(
        _CONTROLLER + "activebrokercount",
        "Registered brokers that are not fenced.",
        lambda: float(sum(not broker.fenced for broker in machine.image.brokers.values())),
    )
    gauge(
        _CONTROLLER + "fencedbrokercount",
        "Registered brokers that are fenced.",
        lambda: float(sum(broker.fenced for broker in machine.image.brokers.values())),
    )
    gauge(_CONTROLLER + "globaltopiccount", "Topics.", lambda: float(len(machine.image.topics_by_name)))
    gauge(_CONTROLLER + "globalpartitioncount", "Partitions.", lambda: float(machine.image.partition_count()))
    gauge(
        _CONTROLLER + "offlinepartitionscount",
        "Partitions without a leader.",
        lambda: count_partitions(lambda leader, replicas: leader == NO_LEADER),
    )
    gauge(
        _CONTROLLER + "preferredreplicaimbalancecount",
        "Partitions that another replica than the preferred one leads.",
        lambda: count_partitions(lambda leader, replicas: leader != replicas[0]),
    )
    gauge(
        _CONTROLLER + "lastappliedrecordoffset",
        "Offset of the last metadata command that this controller has applied.",
        lambda: float(machine.image.offset),
    )
    gauge(
        "kafka_controller_controllereventmanager_eventqueuesize",
        "Requests that wait for their decision.",
        lambda: float(active.statistics().queue_length),
    )
    _register_elections(registry, active)
    gauge(_RAFT + "current_leader", "Id of the leader; -1 unknown.", lambda: float(log.leadership.leader_id))
    gauge(_RAFT + "current_epoch", "Epoch of the quorum.", lambda: float(log.leadership.epoch))
    gauge(_RAFT + "high_watermark", "Last committed offset known here.", lambda: float(log.high_watermark))
    gauge(_RAFT + "log_end_offset", "Last offset written here.", lambda: float(log.status().log_end_index))
    gauge(_RAFT + "number_of_voters", "Voters of the quorum.", lambda: float(len(log.voters)))
    sync_times = getattr(log, "sync_times", None)  # the engine pysyncobj has none
    if isinstance(sync_times, Histogram):
        registry.histogram(
            "moldau_metadata_log_sync_ms", "Milliseconds until entries of the metadata log were durable (fsync)."
        ).attach(sync_times)


def _register_elections(registry: Registry, active: ActiveController) -> None:
    registry.histogram(
        "kafka_controller_controllerstats_leaderelectionrateandtimems",
        "Milliseconds from the decision of a leader until it was committed; one for each partition, decided here.",
    ).attach(active.elections.times)
    unclean = registry.counter(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        "Elections, decided here, of a leader that may lack acknowledged records.",
    ).labels()

    def update() -> None:
        unclean.value = active.statistics().unclean_elections

    registry.on_expose(update)
