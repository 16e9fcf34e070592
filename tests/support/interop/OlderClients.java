import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** The daily work of an application, with calls that all Java clients since 2.0 have. Prints a line for each step. */
public class OlderClients {
    private static final int RECORDS = 100;
    private static final int WAIT_S = 60;

    public static void main(String[] given) throws Exception {
        String topic = given[1];
        try (AdminClient admin = AdminClient.create(with(given[0], new HashMap<>()))) {
            admin.createTopics(Collections.singleton(new NewTopic(topic, 2, (short) 1))).all().get(WAIT_S, TimeUnit.SECONDS);
            System.out.println("brokers=" + admin.describeCluster().nodes().get(WAIT_S, TimeUnit.SECONDS).size());
            produce(given[0], topic);
            System.out.println("transactions=" + transactions(given[0], topic));
            System.out.println("read=" + read(given[0], topic));
            Map<TopicPartition, OffsetAndMetadata> committed = admin.listConsumerGroupOffsets(topic)
                .partitionsToOffsetAndMetadata().get(WAIT_S, TimeUnit.SECONDS);
            System.out.println("committed=" + new TreeSet<>(committed.keySet().stream().map(TopicPartition::partition).toList()));
            admin.deleteTopics(Collections.singleton(topic)).all().get(WAIT_S, TimeUnit.SECONDS);
            System.out.println("deleted=" + !admin.listTopics().names().get(WAIT_S, TimeUnit.SECONDS).contains(topic));
        }
    }

    private static Map<String, Object> with(String bootstrap, Map<String, Object> more) {
        more.put("bootstrap.servers", bootstrap);
        for (String side : Arrays.asList("key", "value")) {
            more.put(side + ".serializer", "org.apache.kafka.common.serialization.StringSerializer");
            more.put(side + ".deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        }
        return more;
    }

    private static void produce(String bootstrap, String topic) throws Exception {
        Map<String, Object> config = new HashMap<>(Map.of("enable.idempotence", true, "acks", "all", "compression.type", "lz4"));
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(with(bootstrap, config))) {
            for (int number = 0; number < RECORDS; number++) {
                producer.send(new ProducerRecord<>(topic, "k" + number, "v" + number));
            }
            producer.flush();
        }
    }

    private static String transactions(String bootstrap, String topic) throws ExecutionException, InterruptedException {
        Map<String, Object> config = new HashMap<>(Map.of("transactional.id", topic));
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(with(bootstrap, config))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "k", "aborted")).get();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "k", "committed")).get();
            producer.commitTransaction();
        }
        return "done";
    }

    private static String read(String bootstrap, String topic) {
        Map<String, Object> config = new HashMap<>(
            Map.of("group.id", topic, "auto.offset.reset", "earliest", "isolation.level", "read_committed", "enable.auto.commit", false)
        );
        TreeSet<String> values = new TreeSet<>();
        int count = 0;
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(with(bootstrap, config))) {
            consumer.subscribe(Collections.singleton(topic));
            while (count <= RECORDS && System.nanoTime() < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    values.add(record.value());
                    count++;
                }
            }
            consumer.commitSync();
        }
        return count + " " + (count - values.size()) + " " + values.first();
    }
}
