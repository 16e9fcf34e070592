import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateDelegationTokenOptions;
import org.apache.kafka.clients.admin.ExpireDelegationTokenOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RenewDelegationTokenOptions;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.token.delegation.DelegationToken;

/** Kafka's own clients with every login, ACLs, quotas and delegation tokens. Prints one line "step=outcome" per step. */
public class SecuredClients {
    static final String MODULES = "org.apache.kafka.common.security.";
    static final int COUNT = 20;
    static Properties given = new Properties();

    public static void main(String[] arguments) throws Exception {
        try (var reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            given.load(reader);
        }
        try (Admin admin = Admin.create(scram("node", "node-s3cret", 256))) {
            prepare(admin);
            logins(admin);
            groups(admin);
            acls(admin);
            quotas(admin);
            tokens(admin);
        }
    }

    static void prepare(Admin admin) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        for (String name : List.of("open", "closed", "slow")) topics.add(new NewTopic(name, 1, (short) 1));
        admin.createTopics(topics).all().get();
        var users = new ArrayList<org.apache.kafka.clients.admin.UserScramCredentialAlteration>();
        for (ScramMechanism mechanism : List.of(ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)) {
            users.add(new UserScramCredentialUpsertion("alice", new ScramCredentialInfo(mechanism, 4096), "alice-s3cret"));
        }
        for (var each : users) admin.alterUserScramCredentials(List.of(each)).all().get();
        var erin = new UserScramCredentialUpsertion(
            "erin", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192), "erin-s3cret");
        admin.alterUserScramCredentials(List.of(erin)).all().get();
        say("scram credentials", admin.describeUserScramCredentials(List.of("alice")).all().get()
            .get("alice").credentialInfos().size());
        List<AclBinding> rights = new ArrayList<>();
        for (String user : List.of("alice", "bob", "carol", "dora")) {
            rights.add(acl(ResourceType.TOPIC, "open", PatternType.LITERAL, user, AclOperation.ALL, AclPermissionType.ALLOW));
            rights.add(acl(ResourceType.GROUP, "g-", PatternType.PREFIXED, user, AclOperation.READ, AclPermissionType.ALLOW));
        }
        admin.createAcls(rights).all().get();
    }

    static void logins(Admin admin) {
        attempt("PLAIN", () -> exchange(plain("bob", "bob-s3cret"), "g-plain"));
        attempt("SCRAM-SHA-256", () -> exchange(scram("alice", "alice-s3cret", 256), "g-256"));
        attempt("SCRAM-SHA-512", () -> exchange(scram("alice", "alice-s3cret", 512), "g-512"));
        attempt("OAUTHBEARER", () -> exchange(oauth(given.getProperty("token")), "g-oauth"));
        attempt("certificate", () -> exchange(certificate(), "g-certificate"));
        attempt("PLAIN, wrong password", () -> cluster(plain("bob", "wr0ng")));
        attempt("SCRAM, wrong password", () -> cluster(scram("alice", "wr0ng", 512)));
        attempt("SCRAM, unknown user", () -> cluster(scram("nobody", "wr0ng", 512)));
        attempt("OAUTHBEARER, expired token", () -> cluster(oauth(given.getProperty("expired.token"))));
        attempt("no login", () -> cluster(new HashMap<>(Map.of(
            "bootstrap.servers", given.getProperty("secured"), "default.api.timeout.ms", "4000", "request.timeout.ms", "3000",
            "security.protocol", "SSL", "ssl.truststore.type", "PEM", "ssl.truststore.location", given.getProperty("trust")))));
    }

    static void groups(Admin admin) {
        attempt("consumer group", () -> {
            Map<String, Object> config = scram("alice", "alice-s3cret", 512);
            config.put("group.protocol", "consumer");
            return read(config, "open", "g-consumer");
        });
        attempt("kind of group", () -> admin.describeConsumerGroups(List.of("g-consumer")).all().get().get("g-consumer").type());
        attempt("share group", () -> {
            var resource = new ConfigResource(ConfigResource.Type.GROUP, "g-share");
            var reset = new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(reset))).all().get();
            return shared(scram("alice", "alice-s3cret", 512));
        });
        attempt("share group, no ACL", () -> {
            Map<String, Object> config = scram("alice", "alice-s3cret", 512);
            config.put("group.id", "other");
            try (var consumer = shareConsumer(config)) {
                consumer.subscribe(List.of("open"));
                return consumer.poll(Duration.ofSeconds(30)).count();
            }
        });
    }

    static KafkaShareConsumer<byte[], byte[]> shareConsumer(Map<String, Object> config) {
        config.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        config.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        return new KafkaShareConsumer<>(config);
    }

    /** Reads as a share group: the first delivery of a record is released, the second one accepted. */
    static Object shared(Map<String, Object> config) {
        config.put("group.id", "g-share");
        config.put("share.acknowledgement.mode", "explicit");
        long deadline = System.nanoTime() + 60_000_000_000L;
        int released = 0;
        int accepted = 0;
        try (var consumer = shareConsumer(config)) {
            consumer.subscribe(List.of("open"));
            while (accepted < COUNT && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    boolean again = record.deliveryCount().get() > 1;
                    consumer.acknowledge(record, again ? AcknowledgeType.ACCEPT : AcknowledgeType.RELEASE);
                    if (again) accepted++;
                    else released++;
                }
                consumer.commitSync();
            }
        }
        return released >= COUNT && accepted >= COUNT ? "released and accepted" : released + " " + accepted;
    }

    static void acls(Admin admin) {
        var alice = scram("alice", "alice-s3cret", 256);
        attempt("write, no ACL", () -> write(alice, "closed"));
        attempt("read, no ACL", () -> read(alice, "closed", "g-closed"));
        attempt("group, no ACL", () -> read(alice, "open", "other"));
        attempt("describe, no ACL", () -> as(alice, own -> own.describeTopics(List.of("closed")).allTopicNames().get()));
        attempt("list, no ACL", () -> as(alice, own -> own.listTopics().names().get()));
        attempt("create topic, no ACL", () -> as(alice, own ->
            own.createTopics(List.of(new NewTopic("third", 1, (short) 1))).all().get()));
        attempt("create ACL, no ACL", () -> as(alice, own -> own.createAcls(List.of(acl(ResourceType.TOPIC, "closed",
            PatternType.LITERAL, "alice", AclOperation.ALL, AclPermissionType.ALLOW))).all().get()));
        attempt("transactional id, no ACL", () -> {
            Map<String, Object> config = new HashMap<>(alice);
            config.put("transactional.id", "foreign");
            try (var producer = producer(config)) {
                producer.initTransactions();
                return "permitted";
            }
        });
        var grant = acl(ResourceType.TOPIC, "clos", PatternType.PREFIXED, "alice", AclOperation.WRITE, AclPermissionType.ALLOW);
        var deny = acl(ResourceType.TOPIC, "closed", PatternType.LITERAL, "alice", AclOperation.WRITE, AclPermissionType.DENY);
        attempt("granted", () -> {
            admin.createAcls(List.of(grant)).all().get();
            return until(() -> write(alice, "closed"), "written");
        });
        attempt("described", () -> admin.describeAcls(grant.toFilter()).values().get().equals(List.of(grant)));
        attempt("denied", () -> {
            admin.createAcls(List.of(deny)).all().get();
            return until(() -> write(alice, "closed"), "TopicAuthorizationException");
        });
        attempt("deny removed", () -> {
            admin.deleteAcls(List.<AclBindingFilter>of(deny.toFilter())).all().get();
            return until(() -> write(alice, "closed"), "written");
        });
        attempt("revoked", () -> {
            admin.deleteAcls(List.<AclBindingFilter>of(grant.toFilter())).all().get();
            return until(() -> write(alice, "closed"), "TopicAuthorizationException");
        });
    }

    static void quotas(Admin admin) {
        var entity = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, "node"));
        attempt("quota", () -> {
            admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity,
                List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 100_000.0))))).all().get();
            Map<String, Object> config = new HashMap<>(scram("node", "node-s3cret", 256));
            config.put("batch.size", "20000");
            try (var producer = producer(config)) {
                for (int sent = 0; sent < 115; sent++) producer.send(new ProducerRecord<>("slow", new byte[10_000]));
                producer.flush();
                double longest = 0;
                for (var metric : producer.metrics().entrySet()) {
                    if (metric.getKey().name().equals("produce-throttle-time-max"))
                        longest = Math.max(longest, (Double) metric.getValue().metricValue());
                }
                return longest > 0 ? "throttled" : "not throttled";
            }
        });
        attempt("quota removed", () -> {
            admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity,
                List.of(new ClientQuotaAlteration.Op("producer_byte_rate", null))))).all().get();
            return "done";
        });
    }

    static void tokens(Admin admin) {
        var alice = scram("alice", "alice-s3cret", 256);
        var erin = scram("erin", "erin-s3cret", 256);
        DelegationToken[] token = new DelegationToken[1];
        attempt("token", () -> as(alice, own -> {
            token[0] = own.createDelegationToken(new CreateDelegationTokenOptions()
                .renewers(List.of(new KafkaPrincipal("User", "erin")))).delegationToken().get();
            return token[0].tokenInfo().ownerAsString();
        }));
        Map<String, Object> holder = with(sasl("SCRAM-SHA-256", "scram.ScramLoginModule required username=\""
            + token[0].tokenInfo().tokenId() + "\" password=\"" + token[0].hmacAsBase64String() + "\" tokenauth=true;"));
        attempt("token's login", () -> until(() -> exchange(holder, "g-token"), "read " + COUNT));
        attempt("token's rights", () -> write(holder, "closed"));
        attempt("token asks for a token", () -> as(holder, own -> own.createDelegationToken().delegationToken().get()));
        attempt("described to its owner", () -> as(alice, own -> own.describeDelegationToken().delegationTokens().get().size()));
        attempt("described to its renewer", () -> as(erin, own -> own.describeDelegationToken().delegationTokens().get().size()));
        attempt("described to others", () -> as(plain("bob", "bob-s3cret"), own ->
            own.describeDelegationToken().delegationTokens().get().size()));
        attempt("renewed by another", () -> as(plain("bob", "bob-s3cret"), own ->
            own.renewDelegationToken(token[0].hmac(), new RenewDelegationTokenOptions().renewTimePeriodMs(60_000))
                .expiryTimestamp().get()));
        attempt("renewed", () -> as(erin, own -> {
            long before = System.currentTimeMillis();
            long expiry = own.renewDelegationToken(token[0].hmac(),
                new RenewDelegationTokenOptions().renewTimePeriodMs(3_600_000)).expiryTimestamp().get();
            return Math.abs(expiry - before - 3_600_000) < 120_000;
        }));
        attempt("shortened", () -> as(alice, own -> own.expireDelegationToken(token[0].hmac(),
            new ExpireDelegationTokenOptions().expiryTimePeriodMs(1_500)).expiryTimestamp().get() > 0));
        attempt("token's login, after its expiry", () -> until(() -> cluster(holder), "SaslAuthenticationException"));
        attempt("ended at once", () -> as(alice, own -> {
            var second = own.createDelegationToken().delegationToken().get();
            var login = with(sasl("SCRAM-SHA-512", "scram.ScramLoginModule required username=\""
                + second.tokenInfo().tokenId() + "\" password=\"" + second.hmacAsBase64String() + "\" tokenauth=true;"));
            until(() -> cluster(login), "connected");
            own.expireDelegationToken(second.hmac(), new ExpireDelegationTokenOptions().expiryTimePeriodMs(-1))
                .expiryTimestamp().get();
            return until(() -> cluster(login), "SaslAuthenticationException");
        }));
    }

    // --- logins

    static Map<String, Object> sasl(String mechanism, String module) {
        return new HashMap<>(Map.of(
            "bootstrap.servers", given.getProperty("secured"), "security.protocol", "SASL_SSL", "sasl.mechanism", mechanism,
            "sasl.jaas.config", MODULES + module,
            "ssl.truststore.type", "PEM", "ssl.truststore.location", given.getProperty("trust")));
    }

    static Map<String, Object> with(Map<String, Object> config) {
        config.put("default.api.timeout.ms", "30000");
        return config;
    }

    static Map<String, Object> plain(String user, String password) {
        return with(sasl("PLAIN", "plain.PlainLoginModule required username=\"" + user + "\" password=\"" + password + "\";"));
    }

    static Map<String, Object> scram(String user, String password, int bits) {
        return with(sasl("SCRAM-SHA-" + bits,
            "scram.ScramLoginModule required username=\"" + user + "\" password=\"" + password + "\";"));
    }

    static Map<String, Object> oauth(String file) {
        var config = sasl("OAUTHBEARER", "oauthbearer.OAuthBearerLoginModule required;");
        config.put("sasl.login.callback.handler.class", MODULES + "oauthbearer.OAuthBearerLoginCallbackHandler");
        config.put("sasl.oauthbearer.token.endpoint.url", Path.of(file).toUri().toString());
        return with(config);
    }

    static Map<String, Object> certificate() {
        return with(new HashMap<>(Map.of(
            "bootstrap.servers", given.getProperty("certified"), "security.protocol", "SSL",
            "ssl.truststore.type", "PEM", "ssl.truststore.location", given.getProperty("trust"),
            "ssl.keystore.type", "PEM", "ssl.keystore.location", given.getProperty("keystore"))));
    }

    // --- what a client does

    interface Use {
        Object of(Admin admin) throws Exception;
    }

    static Object as(Map<String, Object> login, Use use) throws Exception {
        try (Admin admin = Admin.create(login)) {
            return use.of(admin);
        }
    }

    static Object cluster(Map<String, Object> login) throws Exception {
        return as(login, admin -> {
            admin.describeCluster().clusterId().get();
            return "connected";
        });
    }

    static KafkaProducer<byte[], byte[]> producer(Map<String, Object> login) {
        Map<String, Object> config = new HashMap<>(login);
        config.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        config.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        config.put("max.block.ms", "30000");
        return new KafkaProducer<>(config);
    }

    static Object write(Map<String, Object> login, String topic) throws Exception {
        try (var producer = producer(login)) {
            for (int sent = 0; sent < COUNT; sent++)
                producer.send(new ProducerRecord<>(topic, ("value-" + sent).getBytes())).get();
            return "written";
        }
    }

    static Object read(Map<String, Object> login, String topic, String group) {
        Map<String, Object> config = new HashMap<>(login);
        config.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        config.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        config.put("group.id", group);
        config.put("auto.offset.reset", "earliest");
        long deadline = System.nanoTime() + 60_000_000_000L;
        int found = 0;
        try (var consumer = new KafkaConsumer<byte[], byte[]>(config)) {
            consumer.subscribe(List.of(topic));
            while (found < COUNT && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200)))
                    if (new String(record.value()).startsWith("value-")) found++;
            }
            consumer.commitSync();
        }
        return "read " + Math.min(found, COUNT);
    }

    static Object exchange(Map<String, Object> login, String group) throws Exception {
        write(login, "open");
        return read(login, "open", group);
    }

    // --- outcomes

    static AclBinding acl(
        ResourceType type, String name, PatternType pattern, String user, AclOperation operation, AclPermissionType permission) {
        return new AclBinding(
            new ResourcePattern(type, name, pattern), new AccessControlEntry("User:" + user, "*", operation, permission));
    }

    static String outcome(Callable<Object> step) {
        try {
            return String.valueOf(step.call());
        } catch (Throwable error) {
            Throwable cause = error;
            while (cause.getCause() != null
                && (cause instanceof ExecutionException || cause.getClass() == org.apache.kafka.common.KafkaException.class))
                cause = cause.getCause();
            return cause.getClass().getSimpleName();
        }
    }

    /** A broker knows a change of the metadata a little later than the controller that answered. */
    static Object until(Callable<Object> step, String wanted) throws InterruptedException {
        long deadline = System.nanoTime() + 30_000_000_000L;
        String found = outcome(step);
        while (!found.equals(wanted) && System.nanoTime() < deadline) {
            Thread.sleep(100);
            found = outcome(step);
        }
        return found;
    }

    static void attempt(String name, Callable<Object> step) {
        say(name, outcome(step));
    }

    static void say(String name, Object outcome) {
        System.out.println(name + "=" + outcome);
    }
}
