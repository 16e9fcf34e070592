import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Copies the topic "lines" into the topic "copies" exactly once, in a cluster of its own process. Lines on the standard
 * input control the job: "savepoint" stores its state and goes on, "stop" ends it with a savepoint.
 */
public class FlinkPipe {
    public static void main(String[] given) throws Exception {
        String bootstrap = given[0], folder = given[1], interval = given[2], naming = given[3];
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", interval);
        settings.setString("execution.checkpointing.dir", "file://" + folder + "/checkpoints");
        settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "10");
        settings.setString("restart-strategy.fixed-delay.delay", "500ms");
        if (given.length > 4) settings.setString("execution.state-recovery.path", given[4]);
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(bootstrap)
            .setTopics("lines")
            .setGroupId("flink")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(bootstrap)
            .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                .setTopic("copies")
                .setValueSerializationSchema(new SimpleStringSchema())
                .build())
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("flink-pipe")
            .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(naming))
            .setProperty("transaction.timeout.ms", "300000")
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "lines").uid("lines").sinkTo(sink).uid("copies");
        JobClient job = environment.executeAsync("pipe");
        System.out.println("started");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        String savepoints = "file://" + folder + "/savepoints";
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            if (order.equals("savepoint"))
                System.out.println("saved " + job.triggerSavepoint(savepoints, SavepointFormatType.CANONICAL).get());
            if (order.equals("stop")) {
                System.out.println(
                    "saved " + job.stopWithSavepoint(false, savepoints, SavepointFormatType.CANONICAL).get());
                System.exit(0);
            }
        }
    }
}
