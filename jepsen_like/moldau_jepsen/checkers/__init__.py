"""Pure functions that judge a history: what was promised, what was seen, and every way in which the two can disagree.

``check_history`` runs all checkers that need nothing but the history; ``check_register`` judges a linearizable
register, ``check_topics`` topics that are deleted and made again. The definitions follow Jepsen's analyses of Kafka
and Redpanda.
"""

from moldau_jepsen.checkers.anomalies import Anomaly, AnomalyKind, Bank, CheckOptions, Verdict
from moldau_jepsen.checkers.check import check_history
from moldau_jepsen.checkers.reads import check_read
from moldau_jepsen.checkers.register import RegisterOperation, RegisterVerdict, check_register
from moldau_jepsen.checkers.topics import TopicRead, TopicWrite, check_topics

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
