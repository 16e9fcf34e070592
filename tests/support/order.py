"""Decides in which order, and in which portions, parallel pytest processes get the tests.

One process gets all tests of a file, so that the tests share its fixtures. Files that take long go first: a long file
that is begun last would keep one process busy while the others have nothing left to do. Portions that wait for other
processes most of the time are spread among those that compute: a few of the former at a time leave no core idle. Tests
of files in ``SPREAD`` share nothing and take long, so each of them is a portion of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SECONDS: dict[str, float] = {
    "tests/pyspark_moldau": 230,
    "tests/processes/test_upgrade.py": 300,
    "tests/interop/test_frameworks.py": 240,
    "tests/interop/test_mirrormaker.py": 180,
    "tests/interop/test_kafka_brokers.py": 150,
    "tests/interop/test_kafka_streams.py": 120,
    "tests/interop/test_same_answers.py": 110,
    "tests/interop/test_same_answers_of_three.py": 110,
    "tests/interop/test_kafkajs.py": 75,
    "tests/interop/test_java_security.py": 60,
    "tests/processes/test_chaos.py": 60,
    "tests/simulation/test_kit_convicts.py": 58,
    "tests/docs/test_pages.py": 40,
    "tests/moldau_jepsen/testing/test_plugin.py": 55,
    "tests/processes/test_mirror.py": 45,
    "tests/interop/test_tls.py": 38,
    "tests/moldau_cli/test_sim_commands.py": 32,
    "tests/moldau_jepsen/simulation/inject/test_core_first.py": 32,
    "tests/moldau_jepsen/workloads/test_transaction_workload.py": 32,
    "tests/moldau_cli/console/test_browser.py": 30,
    "tests/moldau_cli/operations/test_roll_commands.py": 30,
    "tests/moldau_jepsen/testing/test_plugin_reports.py": 30,
    "tests/processes/test_failover.py": 30,
    "tests/moldau/client/faces/test_three_faces.py": 28,
    "tests/moldau_quorum/log/raft/test_campaign.py": 28,
    "tests/moldau_broker/log/partition/test_log_model.py": 27,
    "tests/interop": 25,
    "tests/interop/test_closest_replica.py": 25,
    "tests/interop/test_sasl.py": 20,
    "tests/moldau/mirror/test_mirroring.py": 22,
    "tests/moldau_quorum/node/test_hostile_peers.py": 22,
    "tests/interop/test_consumer_protocol.py": 10,
    "tests/interop/test_quotas.py": 20,
    "tests/moldau_cli/test_cluster_commands.py": 20,
    "tests/moldau_jepsen/simulation/inject/test_safekeeping.py": 20,
    "tests/moldau_jepsen/workloads/test_pipe_workload.py": 20,
    "tests/simulation/test_corpus.py::test_kept_runs_end_as_they_must[first-server-silent]": 20,
    "tests/moldau_cli/test_demo.py": 19,
    "tests/moldau_broker/log/partition/test_crash_points.py": 18,
    "tests/moldau_cli/operations/test_balance_commands.py": 18,
    "tests/moldau_jepsen/simulation/judge/test_sampling.py": 18,
    "tests/processes/test_bad_input.py": 18,
    "tests/processes/test_log_directories.py": 18,
    "tests/moldau_broker/server/data_path/test_held_requests.py": 17,
    "tests/moldau_broker/server/test_faults.py": 17,
    "tests/moldau_jepsen/chaos/test_power_loss.py": 17,
    "tests/moldau_jepsen/simulation/judge/test_rules_alone.py": 16,
    "tests/interop/test_share_consumers.py": 15,
    "tests/moldau_broker/server/replicas/test_log_directories.py": 15,
    "tests/moldau_broker/server/replicas/test_settling.py": 15,
    "tests/moldau_broker/server/test_request_costs.py": 15,
    "tests/moldau_jepsen/simulation/inject/test_fault_shapes.py": 15,
    "tests/processes/test_tiered_storage.py": 15,
    "tests/processes/test_watchdog.py": 15,
    "tests/docs/test_docstrings.py": 14,
    "tests/moldau_jepsen/simulation/campaign/test_workers.py": 14,
    "tests/simulation/test_stories.py::test_data_flow_without_a_majority_of_voters": 14,
    "tests/moldau/records/test_without_the_extension.py": 13,
    "tests/simulation/test_corpus.py::test_kept_runs_end_as_they_must[slow-disks-in-elections]": 13,
    "tests/moldau_broker/server/cluster_metadata/test_metadata_levels.py": 12,
    "tests/moldau_cli/console/test_app.py": 12,
    "tests/moldau_jepsen/chaos/test_link_contract.py": 12,
    "tests/moldau_jepsen/workloads/test_bank_workload.py": 12,
    "tests/simulation/test_short_histories_convict.py": 12,
    "tests/moldau_broker/log/files/test_damage.py": 11,
    "tests/moldau/client/consumer/test_subscription_changes.py": 10,
    "tests/moldau/runtime/sasl/test_gate.py": 10,
    "tests/moldau_broker/server/test_cluster_with_quotas.py": 10,
    "tests/moldau_cli/operations/test_simulated_operations.py": 10,
    "tests/moldau_jepsen/workloads/test_liveness.py": 10,
    "tests/simulation/test_late_packets.py": 10,
    "tests/simulation/test_share_groups.py": 10,
    "tests/moldau/protocol/test_codec.py": 9,
    "tests/moldau/protocol/test_oracles.py": 9,
    "tests/moldau/records/test_cleaning_twins.py": 9,
    "tests/moldau_broker/log/cleaner/test_cleaner_interrupted.py": 9,
    "tests/moldau_broker/server/coordination/test_client_transactions.py": 9,
    "tests/moldau_broker/server/coordination/test_consumer_protocol.py": 9,
    "tests/moldau_jepsen/simulation/campaign/test_client_failure.py": 9,
    "tests/moldau_jepsen/simulation/inject/test_silent_brokers.py": 9,
    "tests/pyspark_moldau/sink/test_protocol_model.py": 9,
    "tests/simulation/test_corpus.py::test_kept_runs_end_as_they_must[expelled-while-joining]": 9,
    "tests/moldau/records/test_record_codec_twins.py": 8,
    "tests/moldau_broker/log/files/test_descriptors.py": 8,
    "tests/moldau_broker/server/lifecycle/test_hanging_disks.py": 8,
    "tests/moldau_broker/server/test_cluster_with_sasl.py": 8,
    "tests/moldau_cli/test_quorum_commands.py": 8,
    "tests/moldau_jepsen/chaos/test_chaos_clients.py": 8,
    "tests/moldau_jepsen/simulation/campaign/test_shrink.py": 8,
    "tests/moldau_jepsen/simulation/inject/test_lost_voters.py": 8,
    "tests/moldau_quorum/log/pysyncobj/test_pysyncobj.py": 8,
    "tests/moldau_quorum/node/test_controller_campaign.py": 8,
    "tests/moldau_quorum/node/test_controller_server.py": 8,
    "tests/moldau/mirror/test_crashes.py": 7,
    "tests/moldau_broker/replication/test_short_sessions.py": 7,
    "tests/moldau_cli/plans/test_balance.py": 7,
    "tests/moldau_jepsen/coverage/test_coverage.py": 7,
    "tests/moldau_jepsen/world/test_streams.py": 7,
    "tests/moldau_quorum/broker_side/test_private_apis.py": 7,
    "tests/moldau/client/consumer/test_consumer_groups.py": 6,
    "tests/moldau/mirror/test_loops.py": 6,
    "tests/moldau/records/test_oracle_fuzz.py": 6,
    "tests/moldau_broker/log/directories/test_directory_files.py": 6,
    "tests/moldau_broker/server/data_path/test_long_checks.py": 6,
    "tests/moldau_broker/server/test_idle_work.py": 6,
    "tests/moldau_broker/server/test_session_metrics.py": 6,
    "tests/moldau_jepsen/checkers/test_checkers.py": 6,
    "tests/moldau_jepsen/world/test_disk_errors.py": 6,
    "tests/moldau_jepsen/world/test_syncs.py": 6,
    "tests/moldau_quorum/controller/test_controller_mutants.py": 6,
    "tests/moldau_quorum/log/raft/test_short_histories.py": 6,
    "tests/moldau_quorum/node/test_emptied_voters.py": 6,
    "tests/moldau_quorum/node/test_work_per_turn.py": 6,
    "tests/simulation/test_controls.py": 6,
    "tests/moldau_broker/replication/test_replicas_together.py": 5,
    "tests/moldau_broker/server/coordination/test_consumer_client.py": 5,
    "tests/moldau_broker/server/coordination/test_gone_offsets_while_brokers_die.py": 5,
    "tests/moldau_broker/server/data_path/test_requests.py": 5,
    "tests/moldau_broker/server/lifecycle/test_unclaimed_logs.py": 5,
    "tests/moldau_broker/server/test_answer_limit.py": 5,
    "tests/moldau_broker/server/test_cluster_with_tls.py": 5,
    "tests/moldau_cli/records/test_copying.py": 5,
    "tests/moldau_cli/test_daily_commands.py": 5,
    "tests/moldau_jepsen/launcher/test_undo.py": 5,
    "tests/moldau_jepsen/reports/test_consumption.py": 5,
    "tests/moldau_jepsen/simulation/inject/test_strikes.py": 5,
    "tests/moldau_jepsen/test_history.py": 5,
    "tests/moldau_jepsen/testing/test_misuse.py": 5,
    "tests/moldau_jepsen/testing/test_tested_service.py": 5,
    "tests/moldau_quorum/log/raft/test_core_inputs.py": 5,
    "tests/moldau_quorum/node/test_voter_address.py": 5,
    "tests/processes/test_broker_group.py": 5,
    "tests/processes/test_metrics.py": 5,
    "tests/simulation/test_cluster_simulation.py": 5,
    "tests/simulation/test_stories.py": 5,
    "tests/simulation/test_streams_groups.py": 5,
    "tests/deploy/test_monitoring.py": 4,
    "tests/interop/test_secured_cluster.py": 4,
    "tests/moldau/protocol/test_hot.py": 4,
    "tests/moldau/protocol/test_refusals.py": 4,
    "tests/moldau/runtime/test_tls.py": 4,
    "tests/moldau_broker/coordinator/streams/test_short_tasks.py": 4,
    "tests/moldau_broker/log/cleaner/test_cleaned_again.py": 4,
    "tests/moldau_broker/server/coordination/test_gone_offsets.py": 4,
    "tests/moldau_broker/server/coordination/test_transaction_completion.py": 4,
    "tests/moldau_broker/server/test_cluster.py": 4,
    "tests/moldau_cli/nodes/test_several.py": 4,
    "tests/moldau_cli/test_pipeline_commands.py": 4,
    "tests/moldau_cli/test_txns_commands.py": 4,
    "tests/moldau_jepsen/launcher/test_process.py": 4,
    "tests/moldau_jepsen/simulation/inject/test_fault_actions.py": 4,
    "tests/moldau_quorum/authorization/test_checks.py": 4,
    "tests/moldau_quorum/controller/test_partitions.py": 4,
    "tests/processes/test_node_console.py": 4,
    "tests/pyspark_moldau/wire/test_cluster_reader.py": 4,
    "tests/simulation/test_corpus.py": 4,
    "tests/test_pure_modules.py": 4,
    "tests/test_vocabulary.py": 4,
}
"""Seconds that a portion or a single test takes, or each test of a file in ``SPREAD``, on two idle cores, roughly."""

OTHERS_S = 1.0
"""Seconds that portions without a row take."""

WAITING = (
    "tests/docs/test_pages.py",
    "tests/interop",
    "tests/moldau/client/faces",
    "tests/moldau_cli",
    "tests/moldau_jepsen/chaos",
    "tests/moldau_jepsen/testing",
    "tests/processes",
    "tests/pyspark_moldau",
)
"""Where portions mostly wait for clusters of processes, Spark, browsers and commands."""

SPREAD = frozenset(
    {
        "tests/simulation/test_cluster_simulation.py",
        "tests/simulation/test_controls.py",
        "tests/simulation/test_corpus.py",
        "tests/simulation/test_stories.py",
    }
)

TOGETHER = dict.fromkeys(
    (
        "tests/interop/test_clients.py",
        "tests/interop/test_configs.py",
        "tests/interop/test_kcat.py",
        "tests/interop/test_transactions.py",
    ),
    "tests/interop",
) | dict.fromkeys(
    (
        "tests/moldau_jepsen/checkers/test_spark_checker.py",
        "tests/pyspark_moldau/jobs/queries/test_joined_times.py",
        "tests/pyspark_moldau/jobs/test_flights.py",
        "tests/pyspark_moldau/jobs/test_jobs.py",
        "tests/pyspark_moldau/jobs/test_partition_values.py",
        "tests/pyspark_moldau/jobs/test_session_queries.py",
        "tests/pyspark_moldau/jobs/test_standalone.py",
        "tests/pyspark_moldau/sink/test_set_back_checkpoints.py",
        "tests/pyspark_moldau/sink/test_sink_cluster.py",
        "tests/pyspark_moldau/sink/test_spark_sink.py",
        "tests/pyspark_moldau/source/test_tiered_topics.py",
        "tests/pyspark_moldau/test_both_connectors.py",
        "tests/pyspark_moldau/test_connect.py",
        "tests/pyspark_moldau/test_secured_spark.py",
        "tests/pyspark_moldau/test_spark.py",
        "tests/pyspark_moldau/test_spark_features.py",
        "tests/pyspark_moldau/test_spark_pages.py",
        "tests/pyspark_moldau/test_spark_sql.py",
        "tests/pyspark_moldau/test_tested_queries.py",
        "tests/pyspark_moldau/test_wrong_use.py",
    ),
    "tests/pyspark_moldau",
)
"""Files whose tests share a cluster or a JVM (``support.shared``), by the name of their portion."""


def portion_of(nodeid: str) -> str:
    """Returns the name of the portion that a test belongs to."""
    file = nodeid.partition("::")[0]
    return nodeid if file in SPREAD else TOGETHER.get(file, file)


def longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests in the order of their portions; tests of a portion keep their order.

    Portions that wait and portions that compute are sorted apart, the longest first, and merged so that each prefix of
    the result holds equal shares of the seconds of both.
    """
    portions: dict[str, list[pytest.Item]] = {}
    for item in items:
        portions.setdefault(portion_of(item.nodeid), []).append(item)
    ranked: list[tuple[float, str]] = []
    for waits in (True, False):
        kind = sorted((each for each in portions if each.startswith(WAITING) is waits), key=_seconds, reverse=True)
        total = sum(map(_seconds, kind))
        begun = 0.0
        for portion in kind:
            ranked.append((begun / total, portion))
            begun += _seconds(portion)
    ranked.sort(key=lambda rank: rank[0])
    return [item for _, portion in ranked for item in portions[portion]]


def _seconds(portion: str) -> float:
    return SECONDS.get(portion, SECONDS.get(portion.partition("::")[0], OTHERS_S))


def scheduler_of(config: pytest.Config, log: object) -> object:
    """Returns a scheduler that hands out portions in the order of the collected tests."""
    from xdist.scheduler import LoadScopeScheduling

    class LongestFirst(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return portion_of(nodeid)

    config.option.loadscopereorder = False  # xdist would begin with the files that have the most tests
    return LongestFirst(config, log)
