"""Provides checkers: pure functions that compare the history of a run with the promised guarantees.

``check_history`` runs all checkers that need only the history; ``check_register`` judges a linearizable register,
``check_topics`` topics that are deleted and created again. The definitions follow Jepsen's analyses of Kafka and
Redpanda.
"""

from moldau_jepsen.checkers.anomalies import Anomaly, AnomalyKind, Bank, CheckOptions, Verdict
from moldau_jepsen.checkers.check import check_history
from moldau_jepsen.checkers.log.reads import check_read
from moldau_jepsen.checkers.log.topics import TopicRead, TopicWrite, check_topics
from moldau_jepsen.checkers.register import RegisterOperation, RegisterVerdict, check_register

__all__ = [
    "Anomaly",
    "AnomalyKind",
    "Bank",
    "CheckOptions",
    "RegisterOperation",
    "RegisterVerdict",
    "TopicRead",
    "TopicWrite",
    "Verdict",
    "check_history",
    "check_read",
    "check_register",
    "check_topics",
]
