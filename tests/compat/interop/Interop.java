import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/** Writes or reads the messages of a specification with the official Java client. See README.md beside this file. */
public final class Interop {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Interop() {
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int index = 1; index + 1 < arguments.length; index += 2) {
            options.put(arguments[index], arguments[index + 1]);
        }
        JsonNode spec = JSON.readTree(new File(options.get("--spec")));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(options.get("--service-url")).build()) {
            if (arguments[0].equals("produce")) {
                produce(client, options.get("--topic"), spec);
            } else {
                consume(client, options.get("--topic"), spec);
            }
        }
        System.exit(0);
    }

    private static void produce(PulsarClient client, String topic, JsonNode spec) throws Exception {
        String mode = spec.get("mode").asText();
        ProducerBuilder<byte[]> builder = client.newProducer(schema(spec)).topic(topic).blockIfQueueFull(true)
                .compressionType(CompressionType.valueOf(spec.get("codec").asText()))
                .enableBatching(mode.equals("batched")).batchingMaxPublishDelay(50, TimeUnit.MILLISECONDS)
                .enableChunking(mode.equals("chunked"));
        try (Producer<byte[]> producer = builder.create()) {
            List<CompletableFuture<?>> receipts = new ArrayList<>();
            for (JsonNode message : spec.get("messages")) {
                TypedMessageBuilder<byte[]> outgoing = producer.newMessage().value(payload(message));
                message.get("properties").fields().forEachRemaining(
                        property -> outgoing.property(property.getKey(), property.getValue().asText()));
                if (message.has("key")) {
                    outgoing.key(message.get("key").asText());
                }
                if (message.has("ordering_key")) {
                    outgoing.orderingKey(message.get("ordering_key").asText().getBytes(StandardCharsets.UTF_8));
                }
                if (message.has("event_time")) {
                    outgoing.eventTime(message.get("event_time").asLong());
                }
                receipts.add(outgoing.sendAsync());
            }
            producer.flush();
            for (CompletableFuture<?> receipt : receipts) {
                receipt.get(60, TimeUnit.SECONDS);
            }
        }
    }

    private static Schema<byte[]> schema(JsonNode spec) {
        if (!spec.has("schema")) {
            return Schema.BYTES;
        }
        SchemaType type = SchemaType.valueOf(spec.get("schema").get("type").asText());
        if (type == SchemaType.STRING) {
            return Schema.AUTO_PRODUCE_BYTES(Schema.STRING);
        }
        byte[] definition = spec.get("schema").get("definition").asText().getBytes(StandardCharsets.UTF_8);
        return Schema.AUTO_PRODUCE_BYTES(Schema.generic(
                SchemaInfo.builder().name("given").type(type).schema(definition).properties(Map.of()).build()));
    }

    private static byte[] payload(JsonNode message) {
        byte[] pattern = HexFormat.of().parseHex(message.get("payload").asText());
        ByteArrayOutputStream content = new ByteArrayOutputStream();
        for (int count = message.get("repeat").asInt(); count > 0; count--) {
            content.writeBytes(pattern);
        }
        return content.toByteArray();
    }

    private static void consume(PulsarClient client, String topic, JsonNode spec) throws Exception {
        Schema<?> schema = spec.has("schema") ? Schema.AUTO_CONSUME() : Schema.BYTES;
        try (Consumer<?> consumer = client.newConsumer(schema).topic(topic).subscriptionName("java")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            for (int count = spec.get("messages").size(); count > 0; count--) {
                Message<?> message = consumer.receive(60, TimeUnit.SECONDS);
                if (message == null) {
                    throw new AssertionError("no message within 60 s; " + count + " are missing");
                }
                consumer.acknowledge(message);
                System.out.println(JSON.writeValueAsString(line(message)));
            }
        }
    }

    private static ObjectNode line(Message<?> message) throws Exception {
        byte[] content = message.getData();
        ObjectNode line = JSON.createObjectNode();
        line.put("batched", ((MessageIdAdv) message.getMessageId()).getBatchIndex() >= 0);
        if (message.getValue() instanceof org.apache.pulsar.client.api.schema.GenericRecord value) {
            line.put("decoded", String.valueOf(value.getNativeObject()));
        }
        line.put("event_time", message.getEventTime() == 0 ? null : message.getEventTime());
        line.put("key", message.getKey());
        line.put("length", content.length);
        line.put("ordering_key", message.hasOrderingKey() ? new String(message.getOrderingKey(), StandardCharsets.UTF_8)
                : null);
        line.set("properties", JSON.valueToTree(new TreeMap<>(message.getProperties())));
        line.put("schema_version",
                message.getSchemaVersion() == null ? "" : HexFormat.of().formatHex(message.getSchemaVersion()));
        line.put("sha256", HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(content)));
        return line;
    }
}
