"""Goal: Prometheus loads the alert rules and its example configuration, and each alert fires for what it names.

Method: promtool, where it is installed, checks the files and evaluates every rule against series made for it: one set
that is well, and one in which each rule finds its fault.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
ESTIMATED = [name for name, rule in ALERTS.items() if re.search(r"increase\(|rate\(", rule["expr"])]


@pytest.fixture(scope="module")
def promtool():
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return found


def run(promtool, *words, cwd):
    done = subprocess.run([promtool, *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_prometheus_loads_rules_and_configuration(promtool):
    assert f"{len(ALERTS)} rules found" in run(promtool, "check", "rules", "alerts.yml", cwd=PROMETHEUS)
    assert "1 rule files found" in run(promtool, "check", "config", "prometheus.yml", cwd=PROMETHEUS)


@pytest.mark.parametrize("name", ESTIMATED)
def test_texts_show_no_extrapolated_fractions(name):
    """Prometheus extrapolates: 3 dead letters came out as 3.0376666666666665."""
    assert not re.search(r"\{\{\s*\$value\s*\}\}", ALERTS[name]["annotations"]["summary"])


COPIES = 'kafka_server_brokertopicmetrics_remotecopyerrors_total{instance="a",topic=""}'
READS = 'kafka_server_brokertopicmetrics_remotefetcherrors_total{instance="a",topic=""}'
DELETIONS = 'kafka_server_brokertopicmetrics_remotedeleteerrors_total{instance="a",topic=""}'
LISTINGS = 'moldau_remote_log_listing_errors_total{instance="a"}'
COPY_LAG = 'kafka_server_brokertopicmetrics_remotecopylagbytes{instance="a",topic=""}'
LOGINS = 'kafka_server_socketservermetrics_failed_authentication_total{instance="a",listener="L",mechanism="PLAIN"}'
RENEWALS = LOGINS.replace("authentication", "reauthentication")
WELL = {
    'up{job="moldau",instance="a"}': "1+0x60",
    'kafka_controller_kafkacontroller_activecontrollercount{instance="a"}': "1+0x60",
    'kafka_controller_kafkacontroller_activecontrollercount{instance="b"}': "0+0x60",
    'kafka_controller_kafkacontroller_offlinepartitionscount{instance="a"}': "0+0x60",
    'kafka_server_replicamanager_underminisrpartitioncount{instance="a"}': "0+0x60",
    'kafka_server_replicamanager_underreplicatedpartitions{instance="a"}': "0+0x60",
    'kafka_controller_controllerstats_uncleanleaderelections_total{instance="a"}': "2+0x60",
    'kafka_log_logmanager_offlinelogdirectorycount{instance="a"}': "0+0x60",
    'moldau_log_directory_usable_bytes{instance="a",directory="/d"}': "200+0x60",
    'moldau_log_directory_total_bytes{instance="a",directory="/d"}': "1000+0x60",
    'kafka_log_logmanager_logdirectorycordoned{instance="a",logDirectory="/d"}': "0x300 1+0x1300",  # less than a day
    'kafka_log_logmanager_logdirectorycordoned{instance="a",logDirectory="/e"}': "1+0x1550 0+0x50",  # not any more
    LOGINS: "5+1x60",  # some are always refused
    RENEWALS: "0+0x60",
    'moldau_certificate_expires_seconds{instance="a",listener="SSL"}': "2000000+0x60",  # time() begins at 0
    'kafka_server_kafkaserver_brokerstate{instance="a"}': "3+0x60",
    'moldau_broker_fenced{instance="a"}': "0+0x60",
    'kafka_server_replicamanager_isrshrinks_total{instance="a"}': "3+0x60",
    'moldau_event_loop_lag_ms_bucket{instance="a",le="200"}': "0+100x60",
    'moldau_event_loop_lag_ms_bucket{instance="a",le="+Inf"}': "0+100x60",
    'moldau_metadata_log_sync_ms_bucket{instance="a",le="500"}': "0+100x60",
    'moldau_metadata_log_sync_ms_bucket{instance="a",le="+Inf"}': "0+100x60",
    'process_open_fds{job="moldau",instance="a"}': "100+0x60",
    'process_max_fds{job="moldau",instance="a"}': "1000+0x60",
    'kafka_server_replicamanager_partitionswithlatetransactionscount{instance="a"}': "0+0x60",
    'moldau_transaction_open_max_ms{instance="a"}': "0 60000 900000 0+0x60",
    'kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total{instance="a"}': "0+10x60",
    'kafka_server_replicamanager_produceridcount{instance="a"}': "0+1000x60",
    'moldau_transaction_partitions{instance="a",state="active"}': "50+0x60",
    'moldau_transaction_partitions{instance="a",state="loading"}': "0+0x60",
    'kafka_server_group_coordinator_metrics_num_partitions{instance="a",state="loading"}': "0+0x60",
    'moldau_share_dead_letters_total{instance="a",outcome="given_up"}': "4+0x60",
    'moldau_share_dead_letters_total{instance="a",outcome="written"}': "0+5x60",
    COPIES: "0x20 1x40",
    READS: "0x20 1x40",
    DELETIONS: "0+0x60",
    LISTINGS: "0x20 1x40",
    COPY_LAG: "9000x14 0x6 9000x38",
    'moldau_remote_log_damaged_partitions{instance="a"}': "0+0x60",
}
"""Series of a cluster without a fault, a value each minute."""

FAULTS = {
    "MoldauNodeDown": {'up{job="moldau",instance="a"}': "0+0x60"},
    "MoldauNoActiveController": {
        'kafka_controller_kafkacontroller_activecontrollercount{instance="b"}': "1+0x60",
    },
    "MoldauOfflinePartitions": {'kafka_controller_kafkacontroller_offlinepartitionscount{instance="a"}': "2+0x60"},
    "MoldauUnderMinIsr": {'kafka_server_replicamanager_underminisrpartitioncount{instance="a"}': "1+0x60"},
    "MoldauUncleanElection": {
        'kafka_controller_controllerstats_uncleanleaderelections_total{instance="a"}': "0x20 1+0x40",
    },
    "MoldauUnderReplicated": {'kafka_server_replicamanager_underreplicatedpartitions{instance="a"}': "1+0x60"},
    "MoldauOfflineLogDirectory": {'kafka_log_logmanager_offlinelogdirectorycount{instance="a"}': "1+0x60"},
    "MoldauLogDirectoryFillsUp": {
        'moldau_log_directory_usable_bytes{instance="a",directory="/d"}': "90+0x60",
    },
    "MoldauForgottenCordon": {
        'kafka_log_logmanager_logdirectorycordoned{instance="a",logDirectory="/d"}': "1+0x1600",
    },
    "MoldauLoginsRefused": {
        LOGINS: "0+20x60",
    },
    "MoldauCertificateExpires": {
        'moldau_certificate_expires_seconds{instance="a",listener="SSL"}': "1000000+0x60",
    },
    "MoldauCertificateExpired": {
        'moldau_certificate_expires_seconds{instance="a",listener="SSL"}': "900+0x60",
    },
    "MoldauBrokerStartsLong": {'kafka_server_kafkaserver_brokerstate{instance="a"}': "2+0x60"},
    "MoldauBrokerFenced": {'moldau_broker_fenced{instance="a"}': "1+0x60"},
    "MoldauIsrFlapping": {'kafka_server_replicamanager_isrshrinks_total{instance="a"}': "0+30x60"},
    "MoldauEventLoopLag": {
        'moldau_event_loop_lag_ms_bucket{instance="a",le="200"}': "0+50x60",
        'moldau_event_loop_lag_ms_bucket{instance="a",le="500"}': "0+100x60",
    },
    "MoldauSlowSync": {
        'moldau_metadata_log_sync_ms_bucket{instance="a",le="500"}': "0+50x60",
        'moldau_metadata_log_sync_ms_bucket{instance="a",le="1000"}': "0+100x60",
    },
    "MoldauLateTransactions": {
        'kafka_server_replicamanager_partitionswithlatetransactionscount{instance="a"}': "1+0x60",
    },
    "MoldauLongTransaction": {'moldau_transaction_open_max_ms{instance="a"}': "0+60000x60"},
    "MoldauFetchSessionsFull": {
        'kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total{instance="a"}': "0+120x60",
    },
    "MoldauProducerIds": {'kafka_server_replicamanager_produceridcount{instance="a"}': "0+20000x60"},
    "MoldauCoordinatorLoading": {
        'kafka_server_group_coordinator_metrics_num_partitions{instance="a",state="loading"}': "1+0x60",
    },
    "MoldauDeadLettersLost": {'moldau_share_dead_letters_total{instance="a",outcome="given_up"}': "0+1x60"},
    "MoldauRemoteStoreFails": {LISTINGS: "0+1x60"},
    "MoldauRemoteReadsFail": {READS: "0+1x60"},
    "MoldauRemoteCopyLag": {COPY_LAG: "9000+0x60"},
    "MoldauRemoteRecordsMissing": {'moldau_remote_log_damaged_partitions{instance="a"}': "1+0x60"},
    "MoldauFileDescriptors": {'process_open_fds{job="moldau",instance="a"}': "900+0x60"},
}
"""For each alert the series that differ when its fault is there."""

LATE = {"MoldauForgottenCordon": "26h"}
"""Alerts about what lasts too long, and when they are evaluated; all others after half an hour."""


def case_of(series, times, names=tuple(ALERTS)):
    """Returns a case for promtool: none of these alerts is expected at its time."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": times.get(name, "30m"), "alertname": name, "exp_alerts": []} for name in names
        ],
    }


def evaluated(promtool, tmp_path, series, times=None):
    """Returns what promtool prints of the alerts that fire for these series at their times."""
    times = times or {}
    steps = "10m" if times else "1m"  # rules are evaluated at each step, and a day has many minutes
    return printed(promtool, tmp_path, [case_of(series, times)], steps)


def printed(promtool, tmp_path, cases, steps):
    """Returns what promtool prints of the alerts that fire in these cases."""
    file = tmp_path / "case.yml"
    rules = {"rule_files": [str(PROMETHEUS / "alerts.yml")], "evaluation_interval": steps, "tests": cases}
    file.write_text(yaml.safe_dump(rules))
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1), said
    assert (done.returncode == 0) == ("SUCCESS" in said), said
    return said


def fires(promtool, tmp_path, series, times=None):
    """Returns the alerts that fire for these series at their times."""
    return set(re.findall(r"alertname:\s*(\w+)", evaluated(promtool, tmp_path, series, times)))


def test_the_cluster_that_is_well_has_each_metric_of_an_alert():
    """Without a series of a healthy node, no test would see an alert that fires for ever."""
    words = {word for rule in ALERTS.values() for word in re.findall(r"[a-z_]{3,}", rule["expr"])}
    metrics = {word for word in words if word.startswith(("kafka_", "moldau_", "process_"))} | {"up"}
    assert len(metrics) > 30
    assert metrics == {name.partition("{")[0] for name in WELL}


def test_no_alert_fires_while_all_is_well(promtool, tmp_path):
    assert fires(promtool, tmp_path, WELL) == fires(promtool, tmp_path, WELL, LATE) == set()


@pytest.mark.parametrize("alert", list(ALERTS))
def test_each_alert_fires_for_its_fault(promtool, tmp_path, alert):
    times = {alert: LATE[alert]} if alert in LATE else None
    said = evaluated(promtool, tmp_path, {**WELL, **FAULTS[alert]}, times)
    assert set(re.findall(r"alertname:\s*(\w+)", said)) == {alert}
    # Labels that an expression has summed away would be empty words in its texts.
    (labels,) = set(re.findall(r"Labels:\s*(\{.*?\})", said))
    shown = {name for text in ALERTS[alert]["annotations"].values() for name in re.findall(r"\$labels\.(\w+)", text)}
    assert shown <= set(re.findall(r"(\w+)=", labels))
    assert re.search(r'severity="(critical|warning)"', labels)


def test_a_node_that_is_well_hides_no_fault_of_another(promtool, tmp_path):
    """Any alert: a controller that is cut off still counts no partition without a leader, while the others do."""
    other = {name.replace('instance="a"', 'instance="b"'): values for name, values in WELL.items()}
    cases = [case_of({**other, **WELL, **FAULTS[alert]}, LATE, [alert]) for alert in ALERTS]
    said = printed(promtool, tmp_path, cases, "10m")
    assert set(re.findall(r"alertname:\s*(\w+)", said)) == set(ALERTS)


def test_no_alert_fires_for_two_nodes_that_are_well(promtool, tmp_path):
    other = {name.replace('instance="a"', 'instance="b"'): values for name, values in WELL.items()}
    assert fires(promtool, tmp_path, {**other, **WELL}) == set()


def expressions(part):
    """Yields the queries of a dashboard."""
    for each in part if isinstance(part, list) else part.values() if isinstance(part, dict) else ():
        yield from expressions(each)
    if isinstance(part, dict) and "expr" in part:
        yield part["expr"]


def test_no_query_adds_topics_to_their_total():
    """Nodes export these metrics by topic and, with an empty topic, in total: a sum of all counts each event twice."""
    dashboard = json.loads((PROMETHEUS.parent / "grafana" / "moldau.json").read_text())
    queries = [*(rule["expr"] for rule in ALERTS.values()), *expressions(dashboard)]
    selectors = [
        found for query in queries for found in re.findall(r"(kafka_server_brokertopicmetrics_\w+)(\{.*?\})?", query)
    ]
    assert len(selectors) > 10
    assert [name for name, labels in selectors if not re.search(r'\btopic!?=""', labels)] == []


def test_a_panel_that_may_be_empty_says_when():
    """A cluster that is well has no data in ten panels, as if their queries were wrong."""
    dashboard = json.loads((PROMETHEUS.parent / "grafana" / "moldau.json").read_text())
    may_be_empty = re.compile(r"histogram_quantile|_remote|_failed_authentication")
    panels = [panel for panel in dashboard["panels"] if any(map(may_be_empty.search, expressions(panel)))]
    assert len(panels) >= 10
    assert [panel["title"] for panel in panels if not panel.get("description")] == []


def test_a_new_prometheus_knows_no_forgotten_cordon(promtool, tmp_path):
    """It has seen the cordon for some hours, which may be as old as that."""
    series = {**WELL, **FAULTS["MoldauForgottenCordon"]}
    assert fires(promtool, tmp_path, series, {"MoldauForgottenCordon": "12h"}) == set()


def test_refused_renewals_count_as_refused_logins(promtool, tmp_path):
    assert fires(promtool, tmp_path, {**WELL, RENEWALS: "0+20x60"}) == {"MoldauLoginsRefused"}


@pytest.mark.parametrize("end", ["_x60", "1x10 stale"], ids=["never scraped", "gone"])
def test_no_controller_at_all_is_no_active_one(promtool, tmp_path, end):
    """A sum over no series is empty, not 0, so the alert was silent when the last controller had ended."""
    active = "kafka_controller_kafkacontroller_activecontrollercount"
    series = {**WELL, f'{active}{{instance="a"}}': end, f'{active}{{instance="b"}}': end}
    assert fires(promtool, tmp_path, series) == {"MoldauNoActiveController"}
