"""Runs a worker of Celery, or sends tasks, over kombu's transport for Kafka.

Its words are: worker or send, BOOTSTRAP NAME FILE [FIRST LAST]. The worker appends the number of each task that it
carried out to the file; the sender sends the numbers from the first to the one before the last.
"""

import sys

from celery import Celery

role, bootstrap, name, results = sys.argv[1:5]
application = Celery(name, broker=f"confluentkafka://{bootstrap.split(',')[0]}")
application.conf.update(
    task_default_queue=f"{name}-tasks",
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "wait_time_seconds": 1,
        "num_partitions": 1,
        "replication_factor": 3,
        "kafka_common_config": {"bootstrap.servers": bootstrap},
        "kafka_producer_config": {"enable.idempotence": True},
        "kafka_consumer_config": {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
    },
)


@application.task(name="note")
def note(number):
    """Notes that the task was carried out."""
    with open(results, "a", encoding="utf-8") as file:
        file.write(f"{number}\n")


if role == "worker":
    application.worker_main(["worker", "--pool=solo", "--loglevel=INFO", "--without-gossip", "--without-mingle"])
else:
    for number in range(int(sys.argv[5]), int(sys.argv[6])):
        note.delay(number)
