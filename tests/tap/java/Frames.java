import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Pattern;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.impl.ProducerBuilderImpl;
import org.apache.pulsar.client.impl.schema.AvroSchema;
import org.apache.pulsar.common.policies.data.TenantInfo;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * Makes the Java client send and receive as many kinds of frames as it can: {@code Frames SERVICE_URL ADMIN_URL [TOKEN]}.
 * It judges nothing; what goes over the wire is what counts. A step that fails is reported and the next one goes on.
 */
public final class Frames {
    private static final String NAMESPACE = "public/frames";
    private static final int SECONDS = 15;
    private static PulsarClient client;
    private static PulsarAdmin admin;

    private interface Step {
        void run(String topic) throws Exception;
    }

    private Frames() {
    }

    public static void main(String[] arguments) throws Exception {
        ClientBuilder builder = PulsarClient.builder().serviceUrl(arguments[0]).keepAliveInterval(1, TimeUnit.SECONDS)
                .enableTransaction(arguments.length < 3).operationTimeout(SECONDS, TimeUnit.SECONDS);
        var adminBuilder = PulsarAdmin.builder().serviceHttpUrl(arguments[1]);
        if (arguments.length > 2) {
            builder.authentication(new ShortLivedToken(arguments[2]));
            adminBuilder.authentication(AuthenticationFactory.token(arguments[2].split(",")[0]));
        }
        client = builder.build();
        admin = adminBuilder.build();
        createNamespace();
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("producers", Frames::producers);
        steps.put("metadata", Frames::metadata);
        steps.put("consumers", Frames::consumers);
        steps.put("acknowledgements", Frames::acknowledgements);
        steps.put("redelivery", Frames::redelivery);
        steps.put("keys", Frames::keys);
        steps.put("chunks", Frames::chunks);
        steps.put("readers", Frames::readers);
        steps.put("schemas", Frames::schemas);
        steps.put("patterns", Frames::patterns);
        steps.put("encryption", Frames::encryption);
        steps.put("compaction", Frames::compaction);
        steps.put("closing", Frames::closing);
        steps.put("refusals", Frames::refusals);
        if (arguments.length < 3) {
            steps.put("transactions", Frames::transactions);
        }
        steps.put("quiet", topic -> Thread.sleep(4_000));
        steps.forEach(Frames::runStep);
        client.close();
        admin.close();
        System.exit(0);
    }

    private static void createNamespace() throws Exception {
        if (!admin.tenants().getTenants().contains("public")) {
            admin.tenants().createTenant("public", TenantInfo.builder().allowedClusters(
                    new java.util.HashSet<>(admin.clusters().getClusters())).build());
        }
        if (!admin.namespaces().getNamespaces("public").contains(NAMESPACE)) {
            admin.namespaces().createNamespace(NAMESPACE, 4);
        }
    }

    private static void runStep(String name, Step step) {
        try {
            CompletableFuture.runAsync(() -> {
                try {
                    step.run("persistent://" + NAMESPACE + "/java-" + name);
                } catch (Exception problem) {
                    throw new IllegalStateException(problem);
                }
            }).get(90, TimeUnit.SECONDS);
            System.out.println("did " + name);
        } catch (TimeoutException problem) {
            System.out.println("gave up " + name);
        } catch (Exception problem) {
            System.out.println("cut short " + name + ": " + problem.getCause());
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static ConsumerBuilder<byte[]> consumer(String topic) {
        return client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    private static void fill(String topic, int count) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            for (int index = 0; index < count; index++) {
                producer.newMessage().value(bytes("m" + index)).key("k" + index % 7).send();
            }
        }
    }

    private static void drain(Consumer<?> consumer, boolean acknowledge) throws Exception {
        Message<?> message;
        while ((message = consumer.receive(700, TimeUnit.MILLISECONDS)) != null) {
            if (acknowledge) {
                consumer.acknowledge(message);
            }
        }
    }

    private static void producers(String topic) throws Exception {
        client.newProducer().topic(topic).producerName("named").properties(Map.of("p", "v", "q", "w")).create().close();
        ((ProducerBuilderImpl<byte[]>) client.newProducer().topic(topic)).initialSubscriptionName("first").create().close();
        admin.topics().createPartitionedTopic(topic + "-p", 3);
        client.newProducer().topic(topic + "-p").enableLazyStartPartitionedProducers(true)
                .accessMode(ProducerAccessMode.Shared).create().close();
        client.newProducer().topic("non-persistent://" + NAMESPACE + "/java-np").create().send(bytes("x"));
        Producer<byte[]> only = client.newProducer().topic(topic + "-e").accessMode(ProducerAccessMode.Exclusive).create();
        CompletableFuture<Producer<byte[]>> waiting = client.newProducer().topic(topic + "-e")
                .accessMode(ProducerAccessMode.WaitForExclusive).sendTimeout(2, TimeUnit.SECONDS).createAsync();
        Thread.sleep(500);
        only.send(bytes("x"));
        only.close();
        Producer<byte[]> second = waiting.get(SECONDS, TimeUnit.SECONDS);
        second.send(bytes("y"));
        client.newProducer().topic(topic + "-e").accessMode(ProducerAccessMode.ExclusiveWithFencing).create();
        try {
            second.send(bytes("z"));
        } catch (PulsarClientException fenced) {
            System.out.println("fenced: " + fenced.getClass().getSimpleName());
        }
    }

    private static void metadata(String topic) throws Exception {
        Consumer<byte[]> consumer = consumer(topic).subscribe();
        for (CompressionType codec : CompressionType.values()) {
            for (boolean batching : new boolean[] {true, false}) {
                try (Producer<byte[]> producer = client.newProducer().topic(topic).compressionType(codec)
                        .enableBatching(batching).batchingMaxPublishDelay(50, TimeUnit.MILLISECONDS).create()) {
                    producer.newMessage().value(bytes("all of it ".repeat(20))).key("k").orderingKey(bytes("o"))
                            .eventTime(12345).property("p", "v").property("q", "w").sequenceId(7).sendAsync();
                    producer.newMessage().value(null).keyBytes(bytes("kb")).sendAsync();
                    producer.newMessage().value(bytes("x")).disableReplication().sendAsync();
                    producer.newMessage().value(bytes("x")).replicationClusters(List.of("a", "b")).sendAsync();
                    producer.newMessage().value(bytes("x")).sendAsync();
                    producer.newMessage().value(bytes("y")).sendAsync();
                    producer.flush();
                    producer.newMessage().value(bytes("later")).deliverAfter(100, TimeUnit.MILLISECONDS).send();
                }
            }
        }
        drain(consumer, true);
        consumer.unsubscribe();
    }

    private static void consumers(String topic) throws Exception {
        fill(topic, 3);
        for (SubscriptionType type : SubscriptionType.values()) {
            Consumer<byte[]> consumer = consumer(topic).subscriptionName(type.name()).subscriptionType(type)
                    .priorityLevel(1).consumerName("c").property("p", "v")
                    .subscriptionProperties(Map.of("sp", "sv")).receiverQueueSize(2)
                    .replicateSubscriptionState(type == SubscriptionType.Shared).subscribe();
            Consumer<byte[]> other = type == SubscriptionType.Exclusive ? null
                    : consumer(topic).subscriptionName(type.name()).subscriptionType(type).consumerName("d").subscribe();
            drain(consumer, true);
            consumer.getLastMessageIds();
            consumer.seek(MessageId.earliest);
            consumer.pause();
            consumer.resume();
            drain(consumer, false);
            consumer.seek(System.currentTimeMillis() - 1000);
            drain(consumer, false);
            consumer.close();
            if (other != null) {
                drain(other, true);
                other.unsubscribe(true);
            }
        }
        client.newConsumer().topic(topic).subscriptionName("volatile").subscriptionMode(SubscriptionMode.NonDurable)
                .subscribe().close();
        client.newConsumer().topics(List.of(topic, topic + "-2")).subscriptionName("many").subscribe().close();
        client.newConsumer().topic("non-persistent://" + NAMESPACE + "/java-np").subscriptionName("np").subscribe().close();
    }

    private static void acknowledgements(String topic) throws Exception {
        for (boolean receipts : new boolean[] {false, true}) {
            for (boolean batchIndex : new boolean[] {false, true}) {
                String name = topic + "-" + receipts + "-" + batchIndex;
                Consumer<byte[]> consumer = consumer(name).isAckReceiptEnabled(receipts)
                        .enableBatchIndexAcknowledgment(batchIndex)
                        .acknowledgmentGroupTime(receipts ? 0 : 20, TimeUnit.MILLISECONDS).subscribe();
                try (Producer<byte[]> producer = client.newProducer().topic(name)
                        .batchingMaxPublishDelay(300, TimeUnit.MILLISECONDS).create()) {
                    for (int round = 0; round < 3; round++) {
                        for (int index = 0; index < 8; index++) {
                            producer.sendAsync(bytes("m" + index));
                        }
                        producer.flush();
                    }
                }
                List<Message<byte[]>> messages = new ArrayList<>();
                for (int index = 0; index < 24; index++) {
                    messages.add(consumer.receive(SECONDS, TimeUnit.SECONDS));
                }
                soon(consumer.acknowledgeAsync(messages.get(2)));
                soon(consumer.acknowledgeCumulativeAsync(messages.get(5)));
                soon(consumer.acknowledgeAsync(messages.get(7).getMessageId()));
                Thread.sleep(60);
                soon(consumer.acknowledgeAsync(List.of(messages.get(12).getMessageId(), messages.get(20).getMessageId())));
                soon(consumer.acknowledgeCumulativeAsync(messages.get(23)));
                consumer.close();
            }
        }
    }

    /** Wait for the outcome, whatever it is, but not for long: the broker leaves some requests unanswered. */
    private static void soon(CompletableFuture<?> outcome) throws Exception {
        try {
            outcome.handle((done, problem) -> problem).get(3, TimeUnit.SECONDS);
        } catch (TimeoutException unanswered) {
            System.out.println("unanswered");
        }
    }

    private static void redelivery(String topic) throws Exception {
        for (SubscriptionType type : List.of(SubscriptionType.Shared, SubscriptionType.Exclusive)) {
            String name = topic + "-" + type;
            Consumer<byte[]> consumer = consumer(name).subscriptionType(type).enableRetry(type == SubscriptionType.Shared)
                    .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).ackTimeout(1, TimeUnit.SECONDS)
                    .deadLetterPolicy(type == SubscriptionType.Shared ? DeadLetterPolicy.builder().maxRedeliverCount(2).build()
                            : null).subscribe();
            fill(name, 6);
            for (int index = 0; index < 12; index++) {
                Message<byte[]> message = consumer.receive(3, TimeUnit.SECONDS);
                if (message != null && index % 3 == 0) {
                    consumer.negativeAcknowledge(message);
                } else if (message != null && index == 4 && type == SubscriptionType.Shared) {
                    consumer.reconsumeLater(message, 200, TimeUnit.MILLISECONDS);
                } else if (message != null && index == 5) {
                    consumer.redeliverUnacknowledgedMessages();
                }
            }
            consumer.close();
        }
    }

    private static void keys(String topic) throws Exception {
        KeySharedPolicy out = KeySharedPolicy.autoSplitHashRange().setAllowOutOfOrderDelivery(true);
        KeySharedPolicy sticky = KeySharedPolicy.stickyHashRange().ranges(Range.of(0, 100), Range.of(200, 65535));
        for (KeySharedPolicy policy : List.of(out, sticky)) {
            Consumer<byte[]> consumer = consumer(topic).subscriptionName(policy.getClass().getSimpleName())
                    .subscriptionType(SubscriptionType.Key_Shared).keySharedPolicy(policy).subscribe();
            try (Producer<byte[]> producer = client.newProducer().topic(topic).batcherBuilder(BatcherBuilder.KEY_BASED)
                    .create()) {
                for (int index = 0; index < 9; index++) {
                    producer.newMessage().key("k" + index % 3).value(bytes("v")).sendAsync();
                }
                producer.flush();
            }
            drain(consumer, true);
            consumer.close();
        }
    }

    private static void chunks(String topic) throws Exception {
        Consumer<byte[]> consumer = consumer(topic).maxPendingChunkedMessage(2).subscribe();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).enableChunking(true)
                .chunkMaxMessageSize(400).compressionType(CompressionType.LZ4).create()) {
            byte[] content = new byte[1000];
            new java.util.Random(1).nextBytes(content);
            producer.newMessage().value(content).key("k").property("p", "v").send();
        }
        drain(consumer, true);
        consumer.close();
    }

    private static void readers(String topic) throws Exception {
        fill(topic, 5);
        MessageId middle;
        try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest)
                .readerName("r").subscriptionName("reader-of-frames").create()) {
            reader.readNext();
            middle = reader.readNext().getMessageId();
            reader.hasMessageAvailable();
            reader.seek(middle);
            reader.seek(0L);
        }
        for (boolean inclusive : new boolean[] {true, false}) {
            ReaderBuilder<byte[]> builder = client.newReader().topic(topic).startMessageId(middle);
            try (Reader<byte[]> reader = (inclusive ? builder.startMessageIdInclusive() : builder).create()) {
                while (reader.hasMessageAvailable()) {
                    reader.readNext(1, TimeUnit.SECONDS);
                }
            }
        }
        client.newReader().topic(topic).startMessageId(MessageId.latest).create().close();
        client.newReader().topic(topic).startMessageFromRollbackDuration(1, TimeUnit.HOURS).create().close();
        client.newReader().topic(topic).startMessageId(MessageId.earliest).readCompacted(true).create().close();
        client.newReader().topic(topic).startMessageId(MessageId.earliest)
                .keyHashRange(Range.of(0, 1000)).create().close();
        TableView<byte[]> table = client.newTableView().topic(topic).create();
        table.size();
        table.close();
        client.getPartitionsForTopic(topic + "-nothing", false).handle((names, problem) -> null).get();
    }

    /** A record for the schema frames. */
    public static final class Point {
        public int x;
        public String name;
    }

    /** The same record with a further field: another version of the schema. */
    public static final class Point3 {
        public int x;
        public String name;
        public int z;
    }

    private static void schemas(String topic) throws Exception {
        List<Schema<?>> schemas = List.of(Schema.STRING, Schema.INT8, Schema.INT16, Schema.INT32, Schema.INT64, Schema.BOOL,
                Schema.FLOAT, Schema.DOUBLE, Schema.DATE, Schema.TIME, Schema.TIMESTAMP, Schema.INSTANT,
                Schema.LOCAL_DATE, Schema.LOCAL_TIME, Schema.LOCAL_DATE_TIME, Schema.JSON(Point.class),
                Schema.AVRO(Point.class), Schema.KeyValue(Schema.STRING, Schema.JSON(Point.class),
                        KeyValueEncodingType.SEPARATED), Schema.KeyValue(Schema.INT32, Schema.STRING,
                        KeyValueEncodingType.INLINE));
        int number = 0;
        for (Schema<?> schema : schemas) {
            String name = topic + "-" + number++;
            client.newProducer(schema).topic(name).create().close();
            client.newConsumer(schema).topic(name).subscriptionName("s").subscribe().close();
        }
        Point point = new Point();
        point.name = "n";
        String json = topic + "-json";
        try (Producer<Point> producer = client.newProducer(Schema.JSON(Point.class)).topic(json).create();
                Consumer<GenericRecord> consumer = client.newConsumer(Schema.AUTO_CONSUME()).topic(json)
                        .subscriptionName("s").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            producer.send(point);
            consumer.receive(SECONDS, TimeUnit.SECONDS).getValue().getFields();
        }
        try (Producer<byte[]> producer = client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(json).create()) {
            producer.send(Schema.JSON(Point.class).encode(point));
        }
        String avro = topic + "-avro";
        try (Producer<byte[]> producer = client.newProducer().topic(avro).enableBatching(false).create()) {
            producer.newMessage(AvroSchema.of(Point.class)).value(point).send();
            producer.newMessage(AvroSchema.of(Point3.class)).value(new Point3()).sendAsync().handle((id, e) -> null).get();
        }
        Schema<KeyValue<String, Point>> separated = Schema.KeyValue(Schema.STRING, Schema.JSON(Point.class),
                KeyValueEncodingType.SEPARATED);
        try (Producer<KeyValue<String, Point>> producer = client.newProducer(separated).topic(topic + "-kv").create()) {
            producer.newMessage().value(new KeyValue<>("k", point)).send();
            producer.newMessage().value(new KeyValue<>("k", null)).send();
        }
    }

    private static void patterns(String topic) throws Exception {
        client.newProducer().topic(topic + "-a").create().close();
        Consumer<byte[]> consumer = client.newConsumer().topicsPattern(Pattern.compile(topic + "-.*"))
                .subscriptionName("pattern").patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS).subscribe();
        client.newProducer().topic(topic + "-b").create().close();
        Thread.sleep(1500);
        admin.topics().delete(topic + "-b", true);
        Thread.sleep(1500);
        consumer.close();
        for (RegexSubscriptionMode mode : RegexSubscriptionMode.values()) {
            client.newConsumer().topicsPattern(NAMESPACE + "/java-.*").subscriptionTopicsMode(mode)
                    .subscriptionName("pattern-" + mode).subscribe().close();
        }
    }

    private static void encryption(String topic) throws Exception {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("RSA");
        generator.initialize(2048);
        KeyPair pair = generator.generateKeyPair();
        CryptoKeyReader keys = new CryptoKeyReader() {
            @Override
            public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
                return new EncryptionKeyInfo(pem("PUBLIC KEY", pair.getPublic().getEncoded()), Map.of("version", "1"));
            }

            @Override
            public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
                return new EncryptionKeyInfo(pem("PRIVATE KEY", pair.getPrivate().getEncoded()), Map.of("version", "1"));
            }
        };
        Consumer<byte[]> consumer = consumer(topic).cryptoKeyReader(keys).subscribe();
        for (boolean batching : new boolean[] {true, false}) {
            try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(batching)
                    .addEncryptionKey("key").cryptoKeyReader(keys).create()) {
                producer.send(bytes("secret"));
                producer.newMessage().key("k").property("p", "v").value(bytes("secret")).send();
            }
        }
        drain(consumer, true);
        consumer.close();
    }

    private static byte[] pem(String kind, byte[] der) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        out.writeBytes(bytes("-----BEGIN " + kind + "-----\n"));
        out.writeBytes(Base64.getMimeEncoder(64, bytes("\n")).encode(der));
        out.writeBytes(bytes("\n-----END " + kind + "-----\n"));
        return out.toByteArray();
    }

    private static void compaction(String topic) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic)
                .batchingMaxPublishDelay(100, TimeUnit.MILLISECONDS).create()) {
            for (int index = 0; index < 8; index++) {
                producer.newMessage().key("k" + index % 3).value(bytes("v" + index)).sendAsync();
            }
            producer.flush();
        }
        admin.topics().triggerCompaction(topic);
        Thread.sleep(3000);
        try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).readCompacted(true)
                .create()) {
            while (reader.hasMessageAvailable()) {
                reader.readNext(1, TimeUnit.SECONDS);
            }
        }
    }

    private static void closing(String topic) throws Exception {
        fill(topic, 3);
        Consumer<byte[]> consumer = consumer(topic).subscribe();
        Producer<byte[]> producer = client.newProducer().topic(topic).create();
        admin.topics().unload(topic);
        Thread.sleep(1000);
        producer.send(bytes("after"));
        drain(consumer, true);
        admin.topics().terminateTopic(topic);
        Thread.sleep(500);
        drain(consumer, true);
        try {
            client.newProducer().topic(topic).create();
        } catch (PulsarClientException refused) {
            System.out.println("refused: " + refused.getClass().getSimpleName());
        }
        consumer.unsubscribe();
        consumer(topic + "-p").subscribe();
        admin.topics().delete(topic + "-p", true);
    }

    private static void refusals(String topic) throws Exception {
        consumer(topic).subscribe();
        client.newProducer().topic(topic).producerName("taken").create();
        Producer<Integer> typed = client.newProducer(Schema.INT32).topic(topic + "-typed").create();
        typed.send(1);
        List<CompletableFuture<?>> attempts = new ArrayList<>(List.of(
                consumer(topic).subscribeAsync(),
                consumer(topic).subscriptionType(SubscriptionType.Shared).subscribeAsync(),
                client.newProducer().topic(topic).producerName("taken").createAsync(),
                client.newProducer(Schema.AVRO(Point.class)).topic(topic + "-typed").createAsync(),
                client.newConsumer(Schema.AVRO(Point.class)).topic(topic + "-typed").subscriptionName("s").subscribeAsync(),
                client.newProducer().topic("persistent://public/missing/topic").createAsync(),
                client.newConsumer().topic("persistent://public/missing/topic").subscriptionName("s").subscribeAsync()));
        attempts.add(client.newConsumer().topicsPattern("public/missing/.*").subscriptionName("s").subscribeAsync());
        for (CompletableFuture<?> attempt : attempts) {
            attempt.handle((made, problem) -> problem).get(2 * SECONDS, TimeUnit.SECONDS);
        }
        fill(topic + "-small", 1);
        admin.topicPolicies().setMaxMessageSize(topic + "-small", 10);
        Thread.sleep(2000);
        soon(client.newProducer().topic(topic + "-small").sendTimeout(2, TimeUnit.SECONDS).create()
                .sendAsync(new byte[500]));
        Consumer<byte[]> shared = consumer(topic + "-2").subscriptionType(SubscriptionType.Shared).subscribe();
        consumer(topic + "-2").subscriptionType(SubscriptionType.Shared).subscribe();
        shared.unsubscribeAsync().handle((done, problem) -> problem).get(SECONDS, TimeUnit.SECONDS);
    }

    private static void transactions(String topic) throws Exception {
        fill(topic, 6);
        Consumer<byte[]> consumer = consumer(topic).subscriptionType(SubscriptionType.Shared).isAckReceiptEnabled(true)
                .subscribe();
        for (boolean batching : new boolean[] {false, true}) {
            Producer<byte[]> producer = client.newProducer().topic(topic + "-out").sendTimeout(0, TimeUnit.SECONDS)
                    .enableBatching(batching).create();
            for (boolean commit : new boolean[] {true, false}) {
                Transaction transaction = client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
                producer.newMessage(transaction).value(bytes("t")).key("k").send();
                Message<byte[]> message = consumer.receive(SECONDS, TimeUnit.SECONDS);
                consumer.acknowledgeAsync(message.getMessageId(), transaction).get();
                if (commit) {
                    transaction.commit().get();
                } else {
                    transaction.abort().get();
                }
            }
            Transaction forgotten = client.newTransaction().withTransactionTimeout(1, TimeUnit.SECONDS).build().get();
            Thread.sleep(2500);
            producer.newMessage(forgotten).value(bytes("late")).sendAsync().handle((id, problem) -> problem)
                    .get(SECONDS, TimeUnit.SECONDS);
        }
        Consumer<byte[]> results = consumer(topic + "-out").subscribe();
        drain(results, true);
    }

    /** Hands out tokens one after the other, so that the broker asks again when the first has expired. */
    private static final class ShortLivedToken implements Authentication, EncodedAuthenticationParameterSupport {
        private final List<String> tokens;

        ShortLivedToken(String tokens) {
            this.tokens = new ArrayList<>(Arrays.asList(tokens.split(",")));
        }

        @Override
        public String getAuthMethodName() {
            return "token";
        }

        @Override
        public synchronized AuthenticationDataProvider getAuthData() {
            String token = tokens.size() > 1 ? tokens.remove(1) : tokens.get(0);
            return new AuthenticationDataProvider() {
                @Override
                public boolean hasDataFromCommand() {
                    return true;
                }

                @Override
                public String getCommandData() {
                    return token;
                }
            };
        }

        @Override
        public void configure(String parameters) {
            // The constructor says everything.
        }

        @Override
        public void configure(Map<String, String> parameters) {
            // The constructor says everything.
        }

        @Override
        public void start() {
            // Nothing to prepare.
        }

        @Override
        public void close() {
            // Nothing to release.
        }
    }
}
