"""Members of groups in Java and Go, as programs whose output is read: one line for each record, and for each rebalance.

A program runs until its standard input ends; then it commits and leaves the group.
"""

from __future__ import annotations

import functools
import queue
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from support.interop.word_count import streams_jars

if TYPE_CHECKING:
    from collections.abc import Callable

GO_CLIENT = "github.com/twmb/franz-go"
GO_VERSION = "v1.20.5"
BUILD_TIMEOUT_S = 400
WAIT_S = 120.0
JAVA = """import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Member {
    public static void main(String[] given) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", given[0]);
        settings.put("group.id", given[1]);
        AtomicBoolean ended = new AtomicBoolean();
        Thread watch = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException error) {
                error.printStackTrace();
            }
            ended.set(true);
        });
        watch.setDaemon(true);
        watch.start();
        if (given[3].equals("share")) {
            share(settings, given[2], ended);
        } else {
            settings.put("group.protocol", given[3]);
            settings.put("auto.offset.reset", "earliest");
            settings.put("enable.auto.commit", "false");
            consume(settings, given[2], ended);
        }
        System.out.println("done");
    }

    static void consume(Properties settings, String topic, AtomicBoolean ended) {
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            consumer.subscribe(List.of(topic));
            String owned = "";
            while (!ended.get()) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                for (ConsumerRecord<String, String> record : records)
                    System.out.println("record " + record.partition() + " " + record.offset() + " " + record.value());
                if (!records.isEmpty()) consumer.commitSync();
                StringBuilder now = new StringBuilder();
                for (TopicPartition each : consumer.assignment()) now.append(" " + each.partition());
                if (!now.toString().equals(owned)) System.out.println("owned" + (owned = now.toString()));
            }
        }
    }

    static void share(Properties settings, String topic, AtomicBoolean ended) {
        StringDeserializer text = new StringDeserializer();
        settings.put("share.acknowledgement.mode", "explicit");
        Set<Long> refused = new HashSet<>();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings, text, text)) {
            consumer.subscribe(List.of(topic));
            while (!ended.get()) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                for (ConsumerRecord<String, String> record : records) {
                    int count = record.deliveryCount().orElse((short) 0);
                    int number = Integer.parseInt(record.value());
                    // Every third record is released once, every fifth is rejected.
                    AcknowledgeType type = number % 3 == 0 && count == 1 ? AcknowledgeType.RELEASE
                        : number % 5 == 0 ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
                    consumer.acknowledge(record, type);
                    System.out.println("record " + record.partition() + " " + record.offset() + " " + record.value()
                        + " " + count + " " + type);
                }
                if (!records.isEmpty()) consumer.commitSync().forEach((partition, error) ->
                    error.ifPresent(each -> System.out.println("error " + each)));
            }
        }
    }
}
"""
"""A member in the classic or the consumer protocol, or of a share group."""
GO = """package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	if os.Args[4] == "consumer" {
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	show := func(word string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, found map[string][]int32) {
			for _, partitions := range found {
				fmt.Println(word, strings.Trim(fmt.Sprint(partitions), "[]"))
			}
		}
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.ConsumerGroup(os.Args[2]),
		kgo.ConsumeTopics(os.Args[3]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(show("assigned")),
		kgo.OnPartitionsRevoked(show("revoked")),
		kgo.WithContext(ctx),
	)
	if err != nil {
		panic(err)
	}
	polling, end := context.WithCancel(ctx)
	var ended atomic.Bool
	go func() {
		bufio.NewReader(os.Stdin).ReadByte()
		ended.Store(true)
		end()
	}()
	for !ended.Load() {
		fetches := client.PollFetches(polling)
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Println("record", record.Partition, record.Offset, string(record.Value))
		})
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			fmt.Println("error", err)
		}
	}
	client.Close()
	stop()
	fmt.Println("done")
}
"""
"""A member in the classic or the consumer protocol."""


@functools.cache
def go_member() -> tuple[Path | None, str]:
    """Returns the compiled Go program, or None and the reason why there is none."""
    go = shutil.which("go")
    if go is None:
        return None, "Go is not installed, so its client cannot be run"
    home = Path("~/.cache/moldau-tests").expanduser() / f"franz-go-{GO_VERSION}"
    home.mkdir(parents=True, exist_ok=True)
    source, program = home / "main.go", home / "member"
    if program.exists() and source.exists() and source.read_text() == GO:
        return program, ""
    source.write_text(GO)
    program.unlink(missing_ok=True)
    (home / "go.mod").write_text("module member\n\ngo 1.24\n")
    for words in (("get", f"{GO_CLIENT}/pkg/kgo@{GO_VERSION}"), ("build", "-o", str(program), ".")):
        try:
            run = subprocess.run(
                [go, *words], cwd=home, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return None, f"go {words[0]} did not end within {BUILD_TIMEOUT_S} s"
        if run.returncode:
            return None, f"go {words[0]} failed: {run.stderr.strip().splitlines()[-1:]}"
    return program, ""


def java_command(folder: Path) -> tuple[list[str] | None, str]:
    """Returns the words that run the Java program, or None and the reason why there are none."""
    jars, reason = streams_jars()
    if jars is None:
        return None, reason
    source = folder / "Member.java"
    source.write_text(JAVA)
    return ["java", "-Xmx128m", "-cp", f"{jars}/*", str(source)], ""


class Program:
    """A running member; ``records`` and ``owned`` grow and change as it prints them."""

    def __init__(self, command: list[str], bootstrap: str, group: str, topic: str, kind: str, log: Path) -> None:
        self.records: list[tuple[str, ...]] = []
        """Partition, offset, value and more."""
        self.owned: set[int] = set()
        self.errors: list[str] = []
        self._log = log
        self._lines: queue.Queue[str] = queue.Queue()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, bootstrap, group, topic, kind],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def look(self) -> None:
        """Takes what the program has printed."""
        while not self._lines.empty():
            word, *rest = self._lines.get().split()
            numbers = {int(each) for each in rest} if word in ("owned", "assigned", "revoked") else set()
            if word == "record":
                self.records.append(tuple(rest))
            elif word == "owned":
                self.owned = numbers
            elif word == "assigned":
                self.owned |= numbers
            elif word == "revoked":
                self.owned -= numbers
            elif word == "error":
                self.errors.append(" ".join(rest))

    def wait(self, condition: Callable[[Program], object], what: str) -> None:
        """Waits until the program has printed what is expected."""
        until = time.monotonic() + WAIT_S
        while True:
            self.look()
            if condition(self):
                return
            if time.monotonic() > until or self._process.poll() is not None:
                shown = f"{len(self.records)} records, {sorted(self.owned)} owned, {self.errors}"
                raise AssertionError(f"{what}: {shown}, {self._log.read_text(errors='replace')[-1_500:]}")
            time.sleep(0.05)

    def end(self) -> None:
        """Lets the member commit and leave."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.look()


__all__ = ["Program", "go_member", "java_command"]
