import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads a tiered partition: all committed records, all records, those since a time, the offsets that only tiered topics
 * have, and the start after a deletion of remote records. Arguments: brokers, topic, rack, a time, an offset.
 */
public class TieredReads {
    private static final Duration WAIT = Duration.ofSeconds(60);

    public static void main(String[] given) throws Exception {
        TopicPartition partition = new TopicPartition(given[1], 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(given[0], given[2], "read_committed")) {
            System.out.println("committed=" + read(consumer, partition, 0));
            long since = consumer.offsetsForTimes(Map.of(partition, Long.parseLong(given[3])), WAIT).get(partition).offset();
            System.out.println("since=" + since + " " + read(consumer, partition, since).get(0));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(given[0], given[2], "read_uncommitted")) {
            System.out.println("all=" + read(consumer, partition, 0).size());
        }
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", given[0]))) {
            for (OffsetSpec spec : List.of(OffsetSpec.earliest(), OffsetSpec.earliestLocal(), OffsetSpec.latestTiered())) {
                System.out.println(spec.getClass().getSimpleName() + "=" + admin.listOffsets(Map.of(partition, spec))
                    .partitionResult(partition).get(WAIT.toSeconds(), TimeUnit.SECONDS).offset());
            }
            RecordsToDelete before = RecordsToDelete.beforeOffset(Long.parseLong(given[4]));
            System.out.println("start=" + admin.deleteRecords(Map.of(partition, before))
                .lowWatermarks().get(partition).get(WAIT.toSeconds(), TimeUnit.SECONDS).lowWatermark());
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(given[0], given[2], "read_committed")) {
            System.out.println("rest=" + read(consumer, partition, 0).get(0));
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String brokers, String rack, String level) {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", brokers, "client.rack", rack));
        config.putAll(Map.of("isolation.level", level, "auto.offset.reset", "earliest", "enable.auto.commit", false));
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** Returns the offsets and first bytes of the records from an offset to the present end. */
    private static List<String> read(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, long start) {
        List<String> found = new java.util.ArrayList<>();
        consumer.assign(Collections.singleton(partition));
        consumer.seek(partition, start);
        long end = consumer.endOffsets(Collections.singleton(partition)).get(partition);
        long until = System.nanoTime() + WAIT.toNanos();
        while (consumer.position(partition) < end) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException("read " + consumer.position(partition) + " of " + end);
            }
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                found.add(record.offset() + ":" + new String(record.value(), 0, 6));
            }
        }
        return found;
    }
}
