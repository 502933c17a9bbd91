import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** What a case needs: a client, unique topic names, the few admin calls, and small checks. */
final class Service implements AutoCloseable {
    static final int RECEIVE_SECONDS = 60;

    final PulsarClient client;
    private final Map<String, String> options;
    private final String namespace;
    private final String run;

    /** The options are those of the command line. */
    Service(Map<String, String> options) throws Exception {
        this.options = options;
        namespace = options.get("--namespace");
        run = options.get("--run");
        ClientBuilder builder = PulsarClient.builder().serviceUrl(options.get("--service-url"))
                .operationTimeout(60, TimeUnit.SECONDS).enableTransaction(false);
        if (options.containsKey("--trust")) {
            builder.tlsTrustCertsFilePath(options.get("--trust")).enableTlsHostnameVerification(true);
        }
        if (options.containsKey("--auth-plugin")) {
            builder.authentication(options.get("--auth-plugin"), options.get("--auth-params"));
        }
        client = builder.build();
    }

    @Override
    public void close() throws PulsarClientException {
        client.close();
    }

    /** A topic of this run that the client creates on first use. */
    String topic(String name) {
        return "persistent://" + namespace + "/java-" + name + "-" + run;
    }

    /** A topic of this run with partitions, created here. */
    String partitionedTopic(String name, int partitions) throws Exception {
        String topic = topic(name);
        put("/admin/v2/" + topic.replace("://", "/") + "/partitions", String.valueOf(partitions));
        return topic;
    }

    private void put(String path, String body) throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(options.get("--admin-url") + path))
                .header("Content-Type", "application/json").PUT(HttpRequest.BodyPublishers.ofString(body));
        if (options.containsKey("--admin-token")) {
            request.header("Authorization", "Bearer " + options.get("--admin-token"));
        }
        HttpResponse<String> answer =
                HttpClient.newHttpClient().send(request.build(), HttpResponse.BodyHandlers.ofString());
        check(answer.statusCode() < 300, "PUT " + path + ": HTTP " + answer.statusCode() + " " + answer.body());
    }

    /** A consumer of everything the topic has. */
    ConsumerBuilder<byte[]> consumer(String topic, SubscriptionType type) {
        return client.newConsumer().topic(topic).subscriptionName("subscription").subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    /** Distinct payloads. */
    static List<String> payloads(int start, int count) {
        List<String> contents = new ArrayList<>();
        for (int index = start; index < start + count; index++) {
            contents.add("message " + index);
        }
        return contents;
    }

    /** Send without waiting in between, then wait for every receipt. */
    static List<MessageId> sendAll(Producer<byte[]> producer, List<String> contents) throws Exception {
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (String content : contents) {
            receipts.add(producer.sendAsync(bytes(content)));
        }
        producer.flush();
        List<MessageId> ids = new ArrayList<>();
        for (CompletableFuture<MessageId> receipt : receipts) {
            ids.add(receipt.get(RECEIVE_SECONDS, TimeUnit.SECONDS));
        }
        return ids;
    }

    /** The next message; fails when none comes. */
    static Message<byte[]> next(Consumer<byte[]> consumer) throws Exception {
        Message<byte[]> message = consumer.receive(RECEIVE_SECONDS, TimeUnit.SECONDS);
        check(message != null, "no message within " + RECEIVE_SECONDS + " s");
        return message;
    }

    /** Receive and acknowledge that many messages; returns their payloads in order. */
    static List<String> receive(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> contents = new ArrayList<>();
        for (int index = 0; index < count; index++) {
            Message<byte[]> message = next(consumer);
            contents.add(text(message));
            consumer.acknowledge(message);
        }
        return contents;
    }

    /** Receive from two consumers in turn until that many came; returns one list per consumer. */
    static List<List<Message<byte[]>>> receiveShared(List<Consumer<byte[]>> consumers, int count) throws Exception {
        List<List<Message<byte[]>>> lists = new ArrayList<>();
        consumers.forEach(consumer -> lists.add(new ArrayList<>()));
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(RECEIVE_SECONDS);
        int received = 0;
        while (received < count && System.nanoTime() < end) {
            for (int index = 0; index < consumers.size(); index++) {
                Message<byte[]> message;
                while ((message = consumers.get(index).receive(50, TimeUnit.MILLISECONDS)) != null) {
                    lists.get(index).add(message);
                    consumers.get(index).acknowledge(message);
                    received++;
                }
            }
        }
        return lists;
    }

    static void check(boolean holds, String problem) {
        if (!holds) {
            throw new AssertionError(problem);
        }
    }

    static void checkEqual(Object seen, Object expected, String what) {
        check(Objects.equals(seen, expected),
                what + ": expected " + shortened(expected) + ", got " + shortened(seen));
    }

    static String shortened(Object value) {
        String text = String.valueOf(value);
        return text.length() > 300 ? text.substring(0, 300) + "..." : text;
    }
}
