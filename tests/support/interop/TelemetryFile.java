import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Base64;
import java.util.List;
import java.util.Map;

import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

/** A plugin of Apache Kafka's broker that appends each push of a client to a file: id, last or not, metrics in base64. */
public class TelemetryFile implements MetricsReporter, ClientTelemetry {
    private final Path file = Path.of(System.getenv("MOLDAU_TELEMETRY_FILE"));

    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return (context, payload) -> {
            ByteBuffer data = payload.data();
            byte[] bytes = new byte[data.remaining()];
            data.get(bytes);
            String line = context.clientId() + " " + payload.clientInstanceId() + " " + payload.isTerminating() + " "
                + Base64.getEncoder().encodeToString(bytes) + "\n";
            try {
                Files.writeString(file, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        };
    }

    @Override
    public void configure(Map<String, ?> configs) { }

    @Override
    public void init(List<KafkaMetric> metrics) { }

    @Override
    public void metricChange(KafkaMetric metric) { }

    @Override
    public void metricRemoval(KafkaMetric metric) { }

    @Override
    public void close() { }
}
