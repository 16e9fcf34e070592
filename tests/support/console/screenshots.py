"""Takes the pictures of docs/guides/console.md: ``make screenshots``.

A cluster and a console are started, a topic is filled, a leader is killed, and a headless Chromium takes the pictures.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.admin import NewTopic
from moldau.blocking import Admin, Consumer, Producer
from moldau_jepsen.launcher import ClusterSpec, open_cluster, start_cluster
from moldau_jepsen.launcher.process import ProcessState, log_tail
from support.console.browser import absent, open_browser

if TYPE_CHECKING:
    from support.console.browser import Browser

ASSETS = Path(__file__).parents[3] / "docs" / "assets"
BYTES_MAX = 600 * 1024
WIDTH, HEIGHT = 1180, 820
AIRLINES = ("AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN")


def fill(bootstrap: str) -> None:
    """Creates topics, records and a group with lag."""
    config = {"bootstrap.servers": bootstrap}
    with Admin(config) as admin:
        topics = [("flights", 6), ("orders", 3), ("payments", 3)]
        admin.create_topics([NewTopic(name=name, partitions=count, replication_factor=3) for name, count in topics])
    with Producer(config) as producer:
        for number in range(400):
            send(producer, number)
        producer.flush()
    with Consumer({**config, "group.id": "delays", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["flights"])
        while not consumer.poll(100):
            pass


def send(producer: Producer, number: int) -> None:
    """Sends one flight."""
    airline = AIRLINES[number * 7 % len(AIRLINES)]
    flight = {"flight": f"{airline}{100 + number}", "origin": "JFK", "delay_min": number * 13 % 90}
    producer.send("flights", json.dumps(flight).encode(), key=airline.encode())


def picture(browser: Browser, name: str) -> int:
    """Writes a picture of the window and returns its bytes."""
    from PIL import Image

    target = ASSETS / f"console-{name}.webp"
    Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB").save(target, quality=82, method=6)
    return target.stat().st_size


def take(browser: Browser, address: str, producer: Producer) -> int:
    """Takes all pictures and returns the sum of their bytes."""
    total = 0
    browser.shape(WIDTH, HEIGHT)
    browser.driver.get(address)
    browser.wait("document.querySelector('.verdict h1')")
    for second in range(24):  # records for the charts, more and fewer in turn
        for number in range(20 + 15 * (second % 5)):
            send(producer, number)
        producer.flush()
        time.sleep(1)
    for dark in (False, True):
        browser.shape(WIDTH, HEIGHT, dark=dark)
        kind = "dark" if dark else "light"
        browser.go("overview", "The cluster is healthy")
        total += picture(browser, f"overview-{kind}")
    browser.shape(WIDTH, HEIGHT + 120)
    browser.go("topic?name=flights", "Partitions")
    total += picture(browser, "topic-light")
    browser.shape(WIDTH, HEIGHT, dark=True)
    browser.go("messages?topic=flights", "records shown")
    browser.run("document.querySelectorAll('.record .fold')[2].click()")
    browser.wait("document.querySelector('.opened')")
    total += picture(browser, "messages-dark")
    return total + failover(browser)


def failover(browser: Browser) -> int:
    """Kills a leader and an active controller, and takes the picture of what follows."""
    browser.shape(WIDTH, 1180, dark=True)
    browser.go("replication", "A write counts when")
    leader = browser.wait("document.querySelector('.machine.leader')?.dataset.node")
    time.sleep(12)
    for action, wait_s in (("Kill", 6), ("Start", 12)):
        label = f"{action} broker {leader}"
        browser.wait('document.querySelector(`[aria-label="${arguments[0]}"]`)', label).click()
        time.sleep(wait_s)
    active = browser.wait("document.querySelector('.machine.active')?.dataset.node")
    browser.driver.find_element("css selector", f'[aria-label="Kill controller {active}"]').click()
    time.sleep(7)
    browser.run("window.scrollTo(0, 0)")
    return sum(_failover_picture(browser, dark=dark) for dark in (True, False))


def _failover_picture(browser: Browser, *, dark: bool) -> int:
    browser.shape(WIDTH, 1180, dark=dark)
    time.sleep(1)
    return picture(browser, f"replication-{'dark' if dark else 'light'}")


def last_lines(directory: Path) -> dict[int, str]:
    """Returns the last line in the log of each node that has ended."""
    cluster = open_cluster(directory)
    return {
        node.node_id: log_tail(node) for node in cluster.nodes if cluster.state(node.node_id) is ProcessState.STOPPED
    }


def main() -> int:
    """Takes the pictures and returns the exit code."""
    if reason := absent():
        print(reason, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="moldau-pictures-") as folder:
        cluster = start_cluster(Path(folder) / "cluster", ClusterSpec())
        command = [sys.executable, "-m", "moldau_cli", "console", "--dir", str(cluster.directory), "--no-browser"]
        console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert console.stdout is not None
            address = console.stdout.readline().strip()
            fill(cluster.bootstrap)
            with Producer({"bootstrap.servers": cluster.bootstrap}) as producer, open_browser() as browser:
                total = take(browser, address, producer)
            ended = last_lines(cluster.directory)
        finally:
            console.terminate()
            console.wait(30)
            cluster.shut_down()
    if len(ended) > 1:
        print(f"more nodes than the killed controller have ended: {ended}", file=sys.stderr)
        return 1
    print(f"{total} bytes of pictures in {ASSETS}")
    return 0 if total <= BYTES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
