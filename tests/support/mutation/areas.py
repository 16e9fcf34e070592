"""Lists the pure cores that mutants go into, and the tests that must find them.

The tests of an area are those that a developer of that core runs: quick ones. A bug that only a whole cluster shows
counts as a survivor, and gets a quick test.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """One core and its tests."""

    name: str
    modules: tuple[str, ...]
    """Files and folders below the root, without end marks of modules that have no behaviour."""
    tests: tuple[str, ...]
    simulated: bool = False
    """Short simulations also look for mutants that the tests missed."""

    def files(self) -> tuple[Path, ...]:
        """Returns the area's modules in a fixed order."""
        found: list[Path] = []
        for each in self.modules:
            path = ROOT / each
            found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
        return tuple(path for path in found if path.name != "__init__.py")


def tests_in(folder: str, *names: str) -> tuple[str, ...]:
    """Returns the test files of a folder, given without ``test_`` and ``.py``."""
    return tuple(f"{folder}/test_{name}.py" for name in names)


def module_name(path: Path) -> str:
    """Returns the dotted name under which a file below one of the source roots is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])


BROKER = "data_plane/moldau_broker"
QUORUM = "metadata_quorum/moldau_quorum"
GROUPS = f"{BROKER}/coordinator/group"
FACES = (
    *tests_in(
        "tests/moldau/client/faces",  # without those that need a whole cluster of processes
        *("aio", "aio_waits", "blocking", "cancelled_close", "closed_from_elsewhere", "cluster_changes"),
        *("interrupted_calls", "limited_closing", "misplaced_calls", "misuse_of_arguments", "negative_limits"),
        *("iterated_positions", "passed_on", "portal_ends", "records_handed_over"),
        *("records_on_their_way", "same_steps"),
    ),
    *tests_in("tests/moldau/client", "cancelled_calls", "handover", "handover_sizes", "steps"),
    *tests_in("tests/moldau/processing", "changes_meanwhile", "commits", "processors", "same_processors"),
)
RUNTIME = "client/moldau/runtime"

AREAS = (
    Area(
        name="Raft",
        modules=(f"{QUORUM}/log/raft/core",),
        tests=tests_in(
            "tests/moldau_quorum/log/raft", "core_inputs", "leader_rules", "stories", "state_machine", "short_histories"
        ),
        simulated=True,
    ),
    Area(
        name="controller",
        modules=(f"{QUORUM}/controller",),
        tests=("tests/moldau_quorum/controller", "tests/moldau_quorum/node/test_controller_campaign.py"),
        simulated=True,
    ),
    Area(
        name="metadata image",
        modules=(f"{QUORUM}/metadata",),
        tests=("tests/moldau_quorum/metadata", "tests/moldau_quorum/controller"),
        simulated=True,
    ),
    Area(
        name="authorization",
        modules=(f"{QUORUM}/authorization",),
        tests=("tests/moldau_quorum/authorization",),
    ),
    Area(
        name="quotas",
        modules=(f"{QUORUM}/quotas",),
        tests=("tests/moldau_quorum/quotas",),
    ),
    Area(
        name="replica",
        modules=tuple(
            f"{BROKER}/replication/{name}.py" for name in ("replica", "follower_progress", "alter_partition")
        ),
        tests=("tests/moldau_broker/replication",),
        simulated=True,
    ),
    Area(
        name="follower and fetch session",
        modules=tuple(f"{BROKER}/replication/{name}.py" for name in ("follower", "fetch_session", "throttle")),
        tests=("tests/moldau_broker/replication",),
        simulated=True,
    ),
    Area(
        name="delayed operations",
        modules=tuple(f"{BROKER}/replication/{name}.py" for name in ("purgatory", "timer_wheel")),
        tests=(
            "tests/moldau_broker/replication/test_purgatory.py",
            "tests/moldau_broker/replication/test_timer_wheel.py",
        ),
    ),
    Area(
        name="classic groups",
        modules=(f"{GROUPS}/core",),
        tests=(
            *tests_in(
                "tests/moldau_broker/coordinator/group",
                *("group_membership", "served_groups", "group_table", "group_offsets", "gone_offsets", "offset_order"),
                "membership_rules",
                *("short_rebalances", "group_machine", "offset_machine"),
            ),
            "tests/moldau_broker/coordinator/share_groups/test_share_group.py",
            *tests_in("tests/moldau_broker/coordinator/consumer", "group_rules", "migration"),
        ),
        simulated=True,
    ),
    Area(
        name="consumer groups (KIP-848)",
        modules=(f"{GROUPS}/consumer/core",),
        tests=("tests/moldau_broker/coordinator/consumer",),
        simulated=True,
    ),
    Area(
        name="share groups",
        modules=(f"{GROUPS}/share/core", f"{BROKER}/coordinator/share/core"),
        tests=("tests/moldau_broker/coordinator/share_groups", "tests/moldau_broker/coordinator/share"),
    ),
    Area(
        name="streams groups",
        modules=(f"{GROUPS}/streams/core",),
        tests=("tests/moldau_broker/coordinator/streams",),
    ),
    Area(
        name="share-partitions",
        modules=(f"{BROKER}/server/share/core",),
        tests=("tests/moldau_broker/server/share",),
    ),
    Area(
        name="transactions",
        modules=(f"{BROKER}/coordinator/transaction/core",),
        tests=tests_in(
            "tests/moldau_broker/coordinator/transaction",
            *("transaction_core", "transaction_levels", "transaction_rules"),
            *("short_transactions", "transaction_machine"),
        ),
        simulated=True,
    ),
    Area(
        name="producers of a log",
        modules=(f"{BROKER}/log/producers",),
        tests=(
            *tests_in("tests/moldau_broker/log/partition", "producer_state", "first_sequence", "repeated_batches"),
            *tests_in("tests/moldau_broker/log/files", "formats", "segments"),
            *tests_in("tests/moldau_broker/coordinator/transaction", "late_messages"),
        ),
        simulated=True,
    ),
    Area(
        name="log of a partition",
        modules=(f"{BROKER}/log/partition",),
        tests=("tests/moldau_broker/log/partition", "tests/moldau_broker/log/files"),
    ),
    Area(
        name="files of a log",
        modules=(f"{BROKER}/log/files",),
        tests=("tests/moldau_broker/log/files", "tests/moldau_broker/log/partition"),
    ),
    Area(
        name="log directories",
        modules=(f"{BROKER}/log/directories",),
        tests=("tests/moldau_broker/log/directories",),
    ),
    Area(
        name="remote log",
        modules=(f"{BROKER}/remote_log/core",),
        tests=tests_in(
            "tests/moldau_broker/remote_log/core",  # without the histories of two leaders, which take a minute
            *("auxiliary", "chunk_cache", "names", "plans", "plan_rules", "reading", "remote_log", "short_segments"),
        ),
    ),
    Area(
        name="local part of a tiered log",
        modules=(f"{BROKER}/log/remote",),
        tests=("tests/moldau_broker/log/remote",),
    ),
    Area(
        name="remote log of a replica",
        modules=(f"{BROKER}/server/remote_log/remote_partition.py",),
        tests=("tests/moldau_broker/server/remote_log/test_remote_partition.py",),
    ),
    Area(
        name="reads of remote segments",
        modules=tuple(f"{BROKER}/server/remote_reading/{name}.py" for name in ("offsets", "reads", "values")),
        tests=tests_in(
            "tests/moldau_broker/server/remote_reading",
            *("remote_offsets", "remote_reads", "remote_search", "remote_share_groups"),
        ),
    ),
    Area(
        name="coordinators of a broker",
        modules=(
            f"{BROKER}/server/coordination",
            f"{BROKER}/coordinator/runtime",
            f"{BROKER}/coordinator/transaction/coordinator.py",
            f"{GROUPS}/coordinator.py",
            f"{GROUPS}/shard.py",
        ),
        tests=(
            "tests/moldau_broker/server/coordination",
            *tests_in("tests/moldau_broker/coordinator", "shards", "deadlines"),
            *tests_in(
                "tests/moldau_broker/coordinator/group", "group_shell", "gone_offsets", "group_costs", "served_groups"
            ),
            "tests/moldau_broker/coordinator/consumer/test_consumer_rights.py",
            *tests_in(
                "tests/moldau_broker/coordinator/transaction",
                *("transaction_shell", "late_messages", "short_recoveries"),
            ),
            "tests/moldau_broker/coordinator/share/test_share_shell.py",
            *tests_in("tests/moldau_broker/server/handlers", "late_offsets", "lost_leaders"),
        ),
    ),
    Area(
        name="replicas of a broker",
        modules=(f"{BROKER}/server/replicas",),
        tests=("tests/moldau_broker/server/replicas",),
    ),
    Area(
        name="data path of a broker",
        modules=(f"{BROKER}/server/data_path",),
        tests=("tests/moldau_broker/server/data_path",),
    ),
    Area(
        name="share requests of a broker",
        modules=tuple(
            f"{BROKER}/server/share/{name}.py"  # without the core, which is an area of its own
            for name in ("fetching", "led_partition", "share_partition_manager", "persister", "settings")
        ),
        tests=(
            *tests_in(
                "tests/moldau_broker/server/share",
                *("share_durability", "share_limits", "share_persister", "share_quotas", "share_requests"),
                *("share_sessions", "share_shells"),
            ),
            "tests/moldau_broker/server/coordination/test_share_groups.py",
        ),
    ),
    Area(
        name="files of the quorum",
        modules=(f"{QUORUM}/log/raft/storage",),
        tests=("tests/moldau_quorum/log/raft",),
    ),
    Area(
        name="broker side of the quorum",
        modules=(f"{QUORUM}/broker_side",),
        tests=(
            "tests/moldau_quorum/broker_side",
            *tests_in("tests/moldau_quorum/node", "positions_of_followers", "snapshots_for_followers"),
            "tests/moldau_broker/server/lifecycle/test_unreachable_controllers.py",
        ),
    ),
    Area(
        name="connections and metadata of clients",
        modules=("client/moldau/cluster",),
        tests=(
            *tests_in(
                "tests/moldau/client",
                *("bootstrap", "links", "rebootstrap", "metadata_rules", "shared_attempts", "silence", "steps"),
                *("silent_coordinators", "unusable_servers", "former_leaders", "background_opening", "admin_failover"),
            ),
            "tests/moldau/client/telemetry",
        ),
    ),
    Area(
        name="administration by clients",
        modules=("client/moldau/admin",),
        tests=(
            *tests_in(
                "tests/moldau/client",
                *("admin", "admin_failover", "admin_lists", "admin_outcomes", "admin_quotas", "admin_repeats"),
                *("admin_refusals", "admin_rules", "admin_answers", "admin_fields", "admin_requests"),
                *("streams_group_admin", "few_apis", "calls_at_once", "eligible_replicas"),
                *("offset_answers", "controllers_found", "small_rules"),
            ),
            "tests/moldau/client/faces/test_misuse_of_arguments.py",
        ),
    ),
    Area(
        name="clients for threads",
        modules=("client/moldau/blocking",),
        tests=FACES,
    ),
    Area(
        name="clients for asyncio",
        modules=("client/moldau/aio",),
        tests=FACES,
    ),
    Area(
        name="serializers",
        modules=("client/moldau/serialization/core",),
        tests=("tests/moldau/serialization",),
    ),
    Area(
        name="serving of connections",
        modules=("client/moldau/runtime/net/serving",),
        tests=("tests/moldau/runtime/net",),
    ),
    Area(
        name="logins and certificates",
        modules=(
            *(  # without the core, which is an area of its own
                f"{RUNTIME}/sasl/{name}.py"
                for name in ("attempts", "tokens", "login", "http", "files", "gate", "listener", "network")
            ),
            f"{RUNTIME}/tls",
        ),
        tests=(
            "tests/moldau/runtime/sasl",
            *tests_in("tests/moldau/runtime", "tls", "tls_streams", "tls_versions", "reloaded_certificates"),
            *tests_in(
                "tests/moldau/runtime", "certificate_expiry", "stores", "environment_contract", "failed_openings"
            ),
        ),
    ),
    Area(
        name="configuration",
        modules=(f"{RUNTIME}/config",),
        tests=(
            "tests/moldau/runtime/config",
            "tests/moldau/runtime/sasl",
            *tests_in("tests/moldau/runtime", "tls", "tls_versions", "stores"),
            *tests_in("tests/moldau/client", "controllers_found", "few_apis"),
            "tests/moldau/mirror/test_settings.py",
            "tests/moldau/serialization/test_registry_answers.py",
            "tests/moldau_quorum/controller/test_config_checks.py",
            "tests/docs/test_generated_pages.py",
        ),
    ),
    Area(
        name="tasks, metrics and requests",
        modules=(
            f"{RUNTIME}/tasks",
            f"{RUNTIME}/telemetry",
            *(  # without the serving, which is an area of its own
                f"{RUNTIME}/net/{name}.py"
                for name in ("layers", "setup_times", "peer_refusals", "renewal", "pending", "receive_buffer", "frames")
            ),
            *(f"{RUNTIME}/net/{name}.py" for name in ("served_versions", "features", "rpc", "buffers")),
        ),
        tests=(
            *tests_in("tests/moldau/runtime", "abandoned_work", "step_loop", "metrics_log_supervision", "node_log"),
            "tests/moldau/runtime/test_log_levels.py",
            *tests_in("tests/moldau/runtime", "sync", "byte_budget", "exceptions", "supervision", "metric_families"),
            *tests_in(
                "tests/moldau/runtime/net",
                *("endpoint", "given_up_requests", "idle_connections", "peer_refusals", "rpc_and_server", "rounds"),
                *("socket_buffers", "several_addresses", "throttle", "transmission", "served_versions", "frames"),
                *("answers_of_peers", "setup_times"),
            ),
            "tests/moldau/runtime/sasl/test_login.py",
            *tests_in("tests/moldau/client", "few_apis", "silence"),
            "tests/moldau_quorum/broker_side/test_distant_controllers.py",
        ),
    ),
    Area(
        name="registry clients and client metrics",
        modules=(
            *(
                f"client/moldau/serialization/{name}.py"
                for name in ("avro", "json_schema", "json_validation", "lookups", "models", "protobuf", "registry")
            ),
            "client/moldau/cluster/telemetry",
        ),
        tests=(
            "tests/moldau/serialization",
            "tests/moldau/client/telemetry",
            "tests/moldau_cli/records/test_registry_waits.py",
        ),
    ),
    Area(
        name="processing",
        modules=("client/moldau/processing",),
        tests=("tests/moldau/processing",),
    ),
    Area(
        name="record batches",
        modules=("client/moldau/records",),
        tests=("tests/moldau/records",),
    ),
    Area(
        name="plans of commands",
        modules=("cli/moldau_cli/plans",),
        tests=("tests/moldau_cli/plans", "tests/moldau_cli/test_partition_filters.py"),
    ),
    Area(
        name="records of commands",
        modules=tuple(f"cli/moldau_cli/{folder}" for folder in ("records", "profiles", "completion")),
        tests=tuple(f"tests/moldau_cli/{folder}" for folder in ("records", "profiles", "completion")),
    ),
    Area(
        name="operations of commands",
        modules=("cli/moldau_cli/operations", "cli/moldau_cli/quorum_watch.py", "cli/moldau_cli/inspection.py"),
        tests=(
            *tests_in(
                "tests/moldau_cli/operations",  # without those that start processes
                *("drained_directory", "elected_leaders", "emptied_voters", "failed_directory", "hanging_transactions"),
                *("interrupted_rolls", "moving_partitions", "node_pages", "one_silent_broker", "refused_logins"),
                *("remote_copies", "reported_problems", "roll_of_a_node_that_is_down", "roll_of_a_voter"),
                *("simulated_operations", "topics_that_go", "waits_without_leader"),
            ),
            *tests_in("tests/moldau_cli", "partial_answers", "quorum_status", "transcripts"),
        ),
    ),
    Area(
        name="commands of administration",
        modules=(
            *(
                f"cli/moldau_cli/commands/{name}"
                for name in ("administration", "groups", "operations", "topics", "watching")
            ),
            *(f"cli/moldau_cli/commands/{name}.py" for name in ("consume", "produce", "txns", "log", "mirror")),
        ),
        tests=(
            *tests_in(
                "tests/moldau_cli",  # without those that start processes
                *("dry_runs", "group_types", "interrupts", "main", "mirror_status", "partial_answers", "quorum_status"),
                *("files_of_commands", "options_of_records", "token_times", "transcripts", "words"),
            ),
            "tests/moldau_cli/records",
            *tests_in("tests/moldau_cli/operations", "elected_leaders", "interrupted_rolls", "topics_that_go"),
        ),
    ),
    Area(
        name="command line",
        modules=(
            "cli/moldau_cli/client",
            *(
                f"cli/moldau_cli/{name}.py"
                for name in (
                    *("endpoints", "errors", "group_types", "health", "help", "main", "output", "progress"),
                    *("signals", "words"),
                )
            ),
        ),
        tests=(
            *tests_in(
                "tests/moldau_cli",  # without those that start processes
                *(
                    "application",
                    "codes",
                    "configured_controllers",
                    "errors_of_commands",
                    "group_types",
                    "interrupts",
                    "main",
                    "output",
                ),
                *("partial_answers", "progress", "refused_login_texts", "silent_servers", "transcripts"),
                *("unusable_servers", "words"),
            ),
            "tests/moldau_cli/profiles",
            "tests/moldau_cli/nodes/test_health.py",
        ),
    ),
    Area(
        name="console",
        modules=("cli/moldau_cli/console",),
        tests=(
            *tests_in(
                "tests/moldau_cli/console",  # without those that start a browser or lose a quorum of processes
                *("access", "app", "certificate", "command", "content", "hostile_input", "login", "probe", "rates"),
                *("refused_logins", "samples", "small_parts", "timeline", "unread_records"),
                *("buttons", "figures", "questions", "searches", "serving", "sessions"),
            ),
            *tests_in("tests/moldau_cli", "links_commands", "locked_clusters", "silent_servers"),
        ),
    ),
    Area(
        name="live views, nodes and the demo",
        modules=("cli/moldau_cli/live", "cli/moldau_cli/nodes", "cli/moldau_cli/demo"),
        tests=(
            "tests/moldau_cli/live",
            "tests/moldau_cli/nodes",
            *tests_in("tests/moldau_cli", "demo", "demo_proof"),
        ),
    ),
    Area(
        name="launcher and links",
        modules=("jepsen_like/moldau_jepsen/launcher", "jepsen_like/moldau_jepsen/chaos/network"),
        tests=(
            "tests/moldau_jepsen/launcher",
            *tests_in(
                "tests/moldau_jepsen/chaos",
                *("fabric_rules", "free_networks", "link_contract", "links", "meter", "namespaces", "power_loss"),
            ),
            *tests_in("tests/moldau_jepsen/testing", "fabric", "full_disks", "restoring"),
            *tests_in("tests/moldau_cli", "links_commands", "locked_clusters", "lost_links"),
        ),
    ),
    Area(
        name="tests of applications",
        modules=tuple(
            f"jepsen_like/moldau_jepsen/testing/{name}.py"  # without the plugin, which a pytest of its own runs
            for name in ("awaited", "imports", "local", "pipeline", "scenario", "simulated", "wanted")
        ),
        tests=tests_in(
            "tests/moldau_jepsen/testing",
            *("awaited", "full_disks", "imports", "marker", "misuse", "on_processes", "pipeline", "restoring"),
            *("simulate", "simulated_faults"),
        ),
    ),
    Area(
        name="Spark source",
        modules=("spark/pyspark_moldau/source/core",),
        tests=tests_in("tests/pyspark_moldau/source", "ends", "filters", "offsets", "options", "reader"),
    ),
    Area(
        name="log cleaner",
        modules=(f"{BROKER}/log/cleaner",),
        tests=("tests/moldau_broker/log/cleaner",),
    ),
    Area(
        name="producer",
        modules=("client/moldau/producer/core",),
        tests=(
            *tests_in(
                "tests/moldau/client/producer",
                *("accumulator", "splitting", "batch_rules", "partitioners", "producer_rules"),
                *("transaction_core", "transaction_levels", "transaction_outcomes", "transaction_rules"),
            ),
            "tests/moldau/client/test_steps.py",
        ),
        simulated=True,
    ),
    Area(
        name="consumer",
        modules=("client/moldau/consumer/core",),
        tests=(
            "tests/moldau/client/consumer/core",
            *tests_in(
                "tests/moldau/client/consumer",
                *("positions", "assignors", "chunk_bounds", "fetch_plan", "short_memberships", "departures"),
                *("lost_memberships", "member_rules", "commit_order", "consumer_groups", "consumer"),
            ),
        ),
        simulated=True,
    ),
    Area(
        name="share consumer",
        modules=("client/moldau/share/core",),
        tests=("tests/moldau/client/share",),
    ),
    Area(
        name="SASL",
        modules=("client/moldau/runtime/sasl/core",),
        tests=("tests/moldau/runtime/sasl",),
    ),
    Area(
        name="mirror",
        modules=("client/moldau/mirror/core",),
        tests=tests_in(
            "tests/moldau/mirror",  # without those that mirror between whole clusters
            *("core_batches", "core_formats", "core_names", "core_offsets", "core_progress", "core_topics", "settings"),
        ),
    ),
    Area(
        name="mirror between clusters",
        modules=tuple(
            f"client/moldau/mirror/{name}.py"  # without the core, which is an area of its own
            for name in (
                *("sending", "internal", "topic_sync", "exactly_once", "flow", "statistics", "syncs", "reading"),
                *("at_least_once", "status", "group_sync", "positions", "mirror"),
            )
        ),
        tests=tests_in(
            "tests/moldau/mirror",
            *("aborted_positions", "crashes", "group_reading", "groups", "internal_topics", "loops", "mirroring"),
            *("missing_copies", "reading", "replaced_clusters", "shell_rules", "statistics"),
            *("sync_writer", "topic_sync"),
        ),
    ),
    Area(
        name="Spark sink",
        modules=("spark/pyspark_moldau/sink/core",),
        tests=tuple(
            f"tests/pyspark_moldau/sink/test_{name}.py"
            for name in ("sink_options", "decision_codec", "amendments", "protocol_model")
        ),
    ),
    Area(
        name="Spark jobs",
        modules=tuple(
            f"spark/pyspark_moldau/jobs/{name}"
            for name in (
                *("config", "payloads", "aggregate.py", "export.py", "files.py", "join.py", "load.py", "schemas.py"),
                "sessions.py",
            )
        ),
        tests=(
            *tests_in(
                "tests/pyspark_moldau/jobs",  # without those that start a JVM
                *("avro_evolution", "avro_references", "job_files", "payloads", "schemas", "session_state"),
            ),
            "tests/pyspark_moldau/jobs/config",
            "tests/pyspark_moldau/jobs/payloads",
            *tests_in("tests/pyspark_moldau/jobs/queries", "exports", "session_steps"),
        ),
    ),
    Area(
        name="queries and views of Spark jobs",
        modules=(
            "spark/pyspark_moldau/jobs/queries",
            "spark/pyspark_moldau/jobs/tables.py",
            "spark/pyspark_moldau/jobs/views.py",
        ),
        tests=(
            *tests_in(
                "tests/pyspark_moldau/jobs",
                *("compactions", "job_files", "long_letters", "progress", "schemas", "session_state", "session_values"),
                *("starts", "table_crashes", "view_rules", "view_versions"),
            ),
            "tests/pyspark_moldau/jobs/queries",
        ),
    ),
    Area(
        name="Spark sessions and terminal",
        modules=tuple(
            f"spark/pyspark_moldau/{name}"
            for name in ("session", "terminal", "errors.py", "unsupported.py", "versions.py")
        ),
        tests=(
            *tests_in(
                "tests/pyspark_moldau/session",
                *("find_java", "interrupted_start", "java", "locale", "programs", "secret_settings", "sessions"),
                *("worker_archive", "worker_package"),
            ),
            *tests_in("tests/pyspark_moldau", "first_messages", "terminal", "watching"),
        ),
    ),
    Area(
        name="connections of Spark",
        modules=(
            "spark/pyspark_moldau/wire",
            "spark/pyspark_moldau/client_options.py",
            *(f"spark/pyspark_moldau/source/{name}.py" for name in ("arrow", "data_source", "planning", "reader")),
            "spark/pyspark_moldau/source/stream.py",
            *(f"spark/pyspark_moldau/sink/{name}.py" for name in ("cluster", "explanations", "reach", "rows")),
            "spark/pyspark_moldau/sink/writer.py",
        ),
        tests=(
            *tests_in(
                "tests/pyspark_moldau/wire",
                *("authentication", "client_options", "cluster_layouts", "group_offsets", "hang_ups"),
                *("kept_connections", "missing_topics", "reach", "renewed_certificates"),
            ),
            *tests_in(
                "tests/pyspark_moldau/source",  # without those that start a JVM or processes of a cluster
                *("ending_sessions", "nearest_replica", "options", "outdated_brokers", "planning", "reader"),
                *("recreated_topics", "restarts", "source", "trigger_delays", "wide_timestamps"),
            ),
            *tests_in(
                "tests/pyspark_moldau/sink",
                *("delivered_rows", "explanations", "late_batches", "sink_options", "sink_order", "sink_rows"),
                *("sink_waits", "topics_of_jobs", "unreachable_brokers", "writers"),
            ),
        ),
    ),
    Area(
        name="checkers",
        modules=tuple(
            f"jepsen_like/moldau_jepsen/checkers/{name}"
            for name in (
                *("group", "log", "transaction", "check.py", "quotas.py", "register.py", "rights.py", "shards.py"),
                "witnesses.py",
            )
        ),
        tests=tests_in(
            "tests/moldau_jepsen/checkers",  # without the checker of Spark, whose test starts a JVM
            *("administered", "bank_checker", "checkers", "compacted", "copies_checker", "group_checker", "identity"),
            *("number_checker", "pipe_checker", "quotas", "register", "rights", "seek_checker", "share_checker"),
            *("split_brain", "streams_checker", "witnesses", "borders"),
        )
        + tests_in("tests/moldau_jepsen/workloads", "group_read"),
    ),
)
