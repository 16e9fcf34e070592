import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;

import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Clients write and read a record, wait for a line on stdin while their cluster moves, and do it again. */
public class Rebootstrap {
    private static final Map<String, Object> COMMON = Map.of(
        "metadata.recovery.rebootstrap.trigger.ms", 1000,
        "reconnect.backoff.max.ms", 200,
        "request.timeout.ms", 2000
    );

    public static void main(String[] given) throws Exception {
        try (KafkaProducer<String, String> follows = producer(given[0], "rebootstrap");
                KafkaProducer<String, String> stays = producer(given[0], "none");
                KafkaConsumer<String, String> reader = reader(given[0])) {
            TopicPartition partition = new TopicPartition("t", 0);
            reader.assign(List.of(partition));
            reader.seekToBeginning(List.of(partition));
            System.out.println("first=" + send(follows, "a"));
            System.out.println("first of the other=" + send(stays, "b"));
            System.out.println("read=" + read(reader, 2));
            System.out.flush();
            System.in.read();
            System.out.println("second=" + send(follows, "c"));
            System.out.println("read again=" + read(reader, 1));
            System.out.println("second of the other=" + send(stays, "d"));
        }
    }

    private static Map<String, Object> with(String bootstrap, String strategy, Map<String, Object> more) {
        Map<String, Object> all = new java.util.HashMap<>(COMMON);
        all.putAll(Map.of("bootstrap.servers", bootstrap, "metadata.recovery.strategy", strategy));
        all.putAll(more);
        return all;
    }

    private static KafkaProducer<String, String> producer(String bootstrap, String strategy) {
        int patience = strategy.equals("none") ? 4000 : 60000;
        return new KafkaProducer<>(with(bootstrap, strategy, Map.of(
            "key.serializer", "org.apache.kafka.common.serialization.StringSerializer",
            "value.serializer", "org.apache.kafka.common.serialization.StringSerializer",
            "linger.ms", 0, "delivery.timeout.ms", patience, "max.block.ms", patience)));
    }

    private static KafkaConsumer<String, String> reader(String bootstrap) {
        return new KafkaConsumer<>(with(bootstrap, "rebootstrap", Map.of(
            "key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer",
            "value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer")));
    }

    private static String send(KafkaProducer<String, String> producer, String value) throws Exception {
        try {
            return "at " + producer.send(new ProducerRecord<>("t", 0, null, value)).get().offset();
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        }
    }

    private static String read(KafkaConsumer<String, String> reader, int count) {
        StringBuilder values = new StringBuilder();
        long end = System.nanoTime() + 60_000_000_000L;
        while (values.length() < count && System.nanoTime() < end) {
            reader.poll(Duration.ofMillis(200)).forEach(record -> values.append(record.value()));
        }
        return values.toString();
    }
}
