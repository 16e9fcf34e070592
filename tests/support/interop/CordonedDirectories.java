import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.config.ConfigResource;

/** Cordons and uncordons the log directories of broker 1, as an administrator would, and prints what comes of it. */
public class CordonedDirectories {
    private static Admin admin;

    public static void main(String[] given) throws Exception {
        String first = given[1], second = given[2];
        admin = Admin.create(Map.of("bootstrap.servers", given[0]));
        show("at first", CordonedDirectories::cordoned);
        show("topic", () -> create("t"));
        show("wrong path", () -> cordon("/nowhere"));
        show("first", () -> cordon(first));
        show("described", CordonedDirectories::cordoned);
        show("configured", CordonedDirectories::configured);
        show("second topic", () -> create("u"));
        show("places", () -> places().get("u-0").equals(second));
        show("move", () -> move("u", first));
        show("all", () -> cordon("*"));
        show("all described", CordonedDirectories::cordoned);
        show("no topic", () -> create("v"));
        show("no partition", () -> admin.createPartitions(Map.of("t", NewPartitions.increaseTo(2))).all().get());
        show("no assignment", () -> admin.createTopics(List.of(new NewTopic("w", Map.of(0, List.of(1))))).all().get());
        show("same replica", () -> admin.alterPartitionReassignments(Map.of(new TopicPartition("t", 0),
            java.util.Optional.of(new NewPartitionReassignment(List.of(1))))).all().get());
        show("none", () -> cordon(""));
        show("at last", CordonedDirectories::cordoned);
        show("topic again", () -> create("v"));
        show("move again", () -> move("u", first));
        admin.close();
    }

    private static void show(String step, Callable<Object> work) throws Exception {
        Object outcome;
        try {
            outcome = work.call();
        } catch (ExecutionException error) {
            outcome = error.getCause().getClass().getSimpleName();
        }
        System.out.println(step + "=" + outcome);
    }

    private static Object create(String name) throws Exception {
        admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get();
        while (!places().containsKey(name + "-0")) {
            Thread.sleep(20);
        }
        return "created";
    }

    /** The broker answers once the controller places replicas by the change. */
    private static Object cordon(String value) throws Exception {
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        ConfigEntry entry = new ConfigEntry("cordoned.log.dirs", value);
        admin.incrementalAlterConfigs(Map.of(broker, List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET))))
            .all().get();
        return "set";
    }

    private static Object cordoned() throws Exception {
        Map<String, Boolean> found = new TreeMap<>();
        admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1)
            .forEach((path, one) -> found.put(path.substring(path.length() - 2), one.isCordoned()));
        return found;
    }

    private static Object configured() throws Exception {
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        ConfigEntry entry = admin.describeConfigs(List.of(broker)).all().get().get(broker).get("cordoned.log.dirs");
        return entry.source() + " " + entry.isReadOnly() + " " + entry.type();
    }

    private static Map<String, String> places() throws Exception {
        Map<String, String> found = new TreeMap<>();
        admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1)
            .forEach((path, one) -> one.replicaInfos().keySet().forEach(part -> found.put(part.toString(), path)));
        return found;
    }

    private static Object move(String topic, String path) throws Exception {
        admin.alterReplicaLogDirs(Map.of(new TopicPartitionReplica(topic, 0, 1), path)).all().get();
        return "begun";
    }
}
