"""A word count with Kafka Streams, from Maven's jars: the application, and the lines that it reads."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from support.interop.maven import kafka_jars_of

if TYPE_CHECKING:
    from pathlib import Path

VERSION, NEWEST = "4.2.0", "4.4.0"
ARTIFACTS = ("kafka-streams",)
SOURCE = """import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

public class WordCount {
    public static void main(String[] given) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", given[0]);
        settings.put("group.protocol", given[1]);
        settings.put("state.dir", given[2]);
        if (given.length > 3) settings.put("group.instance.id", given[3]);
        settings.put("application.id", "word-count");
        settings.put("num.stream.threads", 2);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        settings.put("statestore.cache.max.bytes", 0);
        settings.put("commit.interval.ms", 200);
        settings.put("consumer.auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream("lines")
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.as("words"))
            .count(Materialized.as(Stores.inMemoryKeyValueStore("counts")))
            .toStream()
            .mapValues(String::valueOf)
            .to("word-counts", Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        new CountDownLatch(1).await();
    }
}
"""
"""Counts the words of the topic ``lines``; without a cache every count of a word leaves as a record of its own."""
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon")


def streams_jars(version: str = VERSION) -> tuple[Path | None, str]:
    """Returns the folder with the jars, or None and the reason why there are none."""
    return kafka_jars_of(version, ARTIFACTS, "kafka-streams")


def word_count(
    jars: Path, bootstrap: str, protocol: str, folder: Path, instance: str | None = None
) -> subprocess.Popen[bytes]:
    """Starts the application, with static members if it has an instance; its log is ``application.log``."""
    source = folder / "WordCount.java"
    source.write_text(SOURCE)
    words = [bootstrap, protocol, str(folder / "state"), *([] if instance is None else [instance])]
    command = ["java", "-Xmx256m", "-cp", f"{jars}/*", str(source), *words]
    with (folder / "application.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def line(number: int) -> str:
    """Returns one line of three words."""
    return " ".join(WORDS[(number + offset) % len(WORDS)] for offset in range(3))
