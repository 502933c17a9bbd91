import static java.util.concurrent.TimeUnit.SECONDS;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** The cases that need no disturbance. Each throws when something is not as it should be. */
final class Cases {
    private Cases() {
    }

    static void produceConsume(Service service) throws Exception {
        String topic = service.topic("plain");
        try (Consumer<byte[]> consumer = service.consumer(topic, SubscriptionType.Exclusive).subscribe();
                Producer<byte[]> producer = service.client.newProducer().topic(topic).create()) {
            for (String content : Service.payloads(0, 10)) {
                producer.newMessage().value(Service.bytes(content)).key("k").property("p", "v").eventTime(12345).send();
            }
            Message<byte[]> first = Service.next(consumer);
            Service.checkEqual(Service.text(first), "message 0", "first message");
            Service.checkEqual(first.getProperties(), Map.of("p", "v"), "properties");
            Service.checkEqual(first.getKey(), "k", "key");
            Service.checkEqual(first.getEventTime(), 12345L, "event time");
            consumer.acknowledge(first);
            Service.checkEqual(Service.receive(consumer, 9), Service.payloads(1, 9), "messages");
            Service.check(consumer.receive(1500, TimeUnit.MILLISECONDS) == null, "an unexpected message came");
        }
    }

    static void partitioned(Service service) throws Exception {
        String topic = service.partitionedTopic("partitioned", 3);
        Service.checkEqual(service.client.getPartitionsForTopic(topic, true).get(60, SECONDS).size(), 3, "partitions");
        try (Consumer<byte[]> consumer = service.consumer(topic, SubscriptionType.Exclusive).subscribe();
                Producer<byte[]> producer = service.client.newProducer().topic(topic).create()) {
            Map<String, List<String>> sent = sendKeyed(producer, 6, 10);
            Map<String, List<String>> seen = new TreeMap<>();
            Set<String> partitions = new HashSet<>();
            for (int index = 0; index < 60; index++) {
                Message<byte[]> message = Service.next(consumer);
                seen.computeIfAbsent(message.getKey(), key -> new ArrayList<>()).add(Service.text(message));
                partitions.add(message.getTopicName());
                consumer.acknowledge(message);
            }
            Service.checkEqual(seen, sent, "messages by key");
            Service.check(partitions.size() > 1, "all keys went to one partition");
        }
    }

    private static Map<String, List<String>> sendKeyed(Producer<byte[]> producer, int keys, int each) throws Exception {
        Map<String, List<String>> sent = new TreeMap<>();
        for (int index = 0; index < each; index++) {
            for (int key = 0; key < keys; key++) {
                String content = "message " + (100 * key + index);
                sent.computeIfAbsent("key " + key, name -> new ArrayList<>()).add(content);
                producer.newMessage().key("key " + key).value(Service.bytes(content)).sendAsync();
            }
        }
        producer.flush();
        return sent;
    }

    static void exclusive(Service service) throws Exception {
        String topic = service.topic("exclusive");
        try (Consumer<byte[]> consumer = service.consumer(topic, SubscriptionType.Exclusive).subscribe();
                Producer<byte[]> producer = service.client.newProducer().topic(topic).create()) {
            try {
                service.consumer(topic, SubscriptionType.Exclusive).subscribe().close();
                throw new AssertionError("a second exclusive consumer was let in");
            } catch (PulsarClientException.ConsumerBusyException refused) {
                // This is what has to happen.
            }
            Service.sendAll(producer, Service.payloads(0, 20));
            Service.checkEqual(Service.receive(consumer, 20), Service.payloads(0, 20), "messages");
        }
    }

    static void shared(Service service) throws Exception {
        String topic = service.topic("shared");
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (int index = 0; index < 2; index++) {
            consumers.add(service.consumer(topic, SubscriptionType.Shared).receiverQueueSize(5).subscribe());
        }
        try (Producer<byte[]> producer = service.client.newProducer().topic(topic).enableBatching(false).create()) {
            Service.sendAll(producer, Service.payloads(0, 100));
            List<List<Message<byte[]>>> lists = Service.receiveShared(consumers, 100);
            TreeSet<String> seen = new TreeSet<>();
            lists.forEach(list -> list.forEach(message -> seen.add(Service.text(message))));
            Service.checkEqual(seen, new TreeSet<>(Service.payloads(0, 100)), "messages");
            Service.checkEqual(lists.get(0).size() + lists.get(1).size(), 100, "number of messages");
            Service.check(lists.stream().noneMatch(List::isEmpty), "one of the two consumers got nothing");
        }
        closeAll(consumers);
    }

    static void failover(Service service) throws Exception {
        String topic = service.topic("failover");
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (String name : List.of("a", "b")) {
            consumers.add(service.consumer(topic, SubscriptionType.Failover).consumerName(name).subscribe());
        }
        try (Producer<byte[]> producer = service.client.newProducer().topic(topic).create()) {
            Service.sendAll(producer, Service.payloads(0, 20));
            List<List<Message<byte[]>>> lists = Service.receiveShared(consumers, 20);
            int active = lists.get(0).isEmpty() ? 1 : 0;
            Service.checkEqual(lists.get(active).stream().map(Service::text).toList(), Service.payloads(0, 20),
                    "messages of the active consumer");
            Service.check(lists.get(1 - active).isEmpty(), "the waiting consumer got messages");
            consumers.get(active).close();
            Service.sendAll(producer, Service.payloads(20, 20));
            Service.checkEqual(Service.receive(consumers.get(1 - active), 20), Service.payloads(20, 20),
                    "messages after the switch");
            consumers.get(1 - active).close();
        }
    }

    static void keyShared(Service service) throws Exception {
        String topic = service.topic("key-shared");
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (int index = 0; index < 2; index++) {
            consumers.add(service.consumer(topic, SubscriptionType.Key_Shared).subscribe());
        }
        try (Producer<byte[]> producer = service.client.newProducer().topic(topic)
                .batcherBuilder(BatcherBuilder.KEY_BASED).create()) {
            Map<String, List<String>> sent = sendKeyed(producer, 20, 10);
            List<List<Message<byte[]>>> lists = Service.receiveShared(consumers, 200);
            Map<String, Integer> owners = new HashMap<>();
            Map<String, List<String>> seen = new TreeMap<>();
            for (int index = 0; index < 2; index++) {
                for (Message<byte[]> message : lists.get(index)) {
                    Integer owner = owners.put(message.getKey(), index);
                    Service.check(owner == null || owner == index, message.getKey() + " went to both consumers");
                    seen.computeIfAbsent(message.getKey(), key -> new ArrayList<>()).add(Service.text(message));
                }
            }
            Service.check(new HashSet<>(owners.values()).size() == 2, "one of the two consumers got no key");
            Service.checkEqual(seen, sent, "messages by key");
        }
        closeAll(consumers);
    }

    private static void closeAll(List<Consumer<byte[]>> consumers) throws Exception {
        for (Consumer<byte[]> consumer : consumers) {
            consumer.close();
        }
    }

    static void batched(Service service) throws Exception {
        String topic = service.topic("batched");
        try (Consumer<byte[]> consumer = service.consumer(topic, SubscriptionType.Exclusive).subscribe();
                Producer<byte[]> producer = service.client.newProducer().topic(topic).batchingMaxMessages(50)
                        .batchingMaxPublishDelay(200, TimeUnit.MILLISECONDS).create()) {
            Service.sendAll(producer, Service.payloads(0, 200));
            int largest = -1;
            for (String content : Service.payloads(0, 200)) {
                Message<byte[]> message = Service.next(consumer);
                Service.checkEqual(Service.text(message), content, "message");
                largest = Math.max(largest, ((MessageIdAdv) message.getMessageId()).getBatchIndex());
                consumer.acknowledge(message);
            }
            Service.check(largest > 0, "nothing was batched");
        }
    }

    static void unbatched(Service service) throws Exception {
        String topic = service.topic("unbatched");
        try (Consumer<byte[]> consumer = service.consumer(topic, SubscriptionType.Exclusive).subscribe();
                Producer<byte[]> producer = service.client.newProducer().topic(topic).enableBatching(false).create()) {
            Service.sendAll(producer, Service.payloads(0, 200));
            for (String content : Service.payloads(0, 200)) {
                Message<byte[]> message = Service.next(consumer);
                Service.checkEqual(Service.text(message), content, "message");
                Service.checkEqual(((MessageIdAdv) message.getMessageId()).getBatchIndex(), -1, "batch index");
                consumer.acknowledgeCumulative(message);
            }
        }
    }

    static void compressed(Service service, CompressionType codec) throws Exception {
        String topic = service.topic("compression-" + codec.name().toLowerCase());
        List<String> contents = new ArrayList<>();
        for (int index = 0; index < 20; index++) {
            contents.add(("line " + index + " ").repeat(500));
        }
        try (Consumer<byte[]> consumer = service.consumer(topic, SubscriptionType.Exclusive).subscribe()) {
            for (boolean batching : new boolean[] {false, true}) {
                try (Producer<byte[]> producer = service.client.newProducer().topic(topic).compressionType(codec)
                        .enableBatching(batching).create()) {
                    Service.sendAll(producer, contents);
                    Service.checkEqual(Service.receive(consumer, 20), contents, "messages");
                }
            }
        }
    }

    static void chunked(Service service) throws Exception {
        String topic = service.topic("chunked");
        byte[] content = new byte[20 * 1024 * 1024];
        new Random(20).nextBytes(content);
        try (Consumer<byte[]> consumer = service.consumer(topic, SubscriptionType.Exclusive).subscribe();
                Producer<byte[]> producer = service.client.newProducer().topic(topic).enableBatching(false)
                        .enableChunking(true).sendTimeout(60, SECONDS).create()) {
            producer.send(content);
            producer.send(Service.bytes("after"));
            Message<byte[]> message = Service.next(consumer);
            Service.check(Arrays.equals(message.getData(), content), message.size() + " other bytes came back");
            consumer.acknowledge(message);
            Service.checkEqual(Service.receive(consumer, 1), List.of("after"), "message after it");
        }
    }

    static void reader(Service service) throws Exception {
        String topic = service.topic("reader");
        List<MessageId> ids;
        try (Producer<byte[]> producer = service.client.newProducer().topic(topic).create()) {
            ids = Service.sendAll(producer, Service.payloads(0, 20));
        }
        try (Reader<byte[]> reader = service.client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
            Service.checkEqual(read(reader, 20), Service.payloads(0, 20), "from the start");
            Service.check(!reader.hasMessageAvailable(), "more messages at the end");
        }
        try (Reader<byte[]> reader = service.client.newReader().topic(topic).startMessageId(ids.get(9)).create()) {
            Service.checkEqual(read(reader, 10), Service.payloads(10, 10), "after the tenth");
        }
    }

    private static List<String> read(Reader<byte[]> reader, int count) throws Exception {
        List<String> contents = new ArrayList<>();
        for (int index = 0; index < count; index++) {
            Message<byte[]> message = reader.readNext(Service.RECEIVE_SECONDS, SECONDS);
            Service.check(message != null, "the reader got nothing");
            contents.add(Service.text(message));
        }
        return contents;
    }

    static void seekById(Service service) throws Exception {
        String topic = service.topic("seek-id");
        try (Consumer<byte[]> consumer = service.consumer(topic, SubscriptionType.Exclusive).subscribe();
                Producer<byte[]> producer = service.client.newProducer().topic(topic).enableBatching(false).create()) {
            List<MessageId> ids = Service.sendAll(producer, Service.payloads(0, 20));
            Service.checkEqual(Service.receive(consumer, 20), Service.payloads(0, 20), "messages");
            consumer.seek(ids.get(5));
            Service.checkEqual(Service.receive(consumer, 14), Service.payloads(6, 14), "messages after the seek");
            consumer.seek(MessageId.earliest);
            Service.checkEqual(Service.receive(consumer, 20), Service.payloads(0, 20), "messages from the start");
        }
    }

    static void seekByTime(Service service) throws Exception {
        String topic = service.topic("seek-time");
        try (Consumer<byte[]> consumer = service.consumer(topic, SubscriptionType.Exclusive).subscribe();
                Producer<byte[]> producer = service.client.newProducer().topic(topic).enableBatching(false).create()) {
            Service.sendAll(producer, Service.payloads(0, 10));
            Thread.sleep(500);
            long middle = System.currentTimeMillis();
            Thread.sleep(500);
            Service.sendAll(producer, Service.payloads(10, 10));
            Service.checkEqual(Service.receive(consumer, 20), Service.payloads(0, 20), "messages");
            consumer.seek(middle);
            Service.checkEqual(Service.receive(consumer, 10), Service.payloads(10, 10), "messages after the seek");
        }
    }

    static void pattern(Service service) throws Exception {
        Set<String> expected = new TreeSet<>();
        for (int index = 0; index < 3; index++) {
            try (Producer<byte[]> producer = service.client.newProducer().topic(service.topic("pattern-" + index)).create()) {
                producer.send(Service.bytes("message " + index));
                expected.add("message " + index);
            }
        }
        try (Consumer<byte[]> consumer = service.client.newConsumer().topicsPattern(service.topic("pattern-.*"))
                .subscriptionName("subscription").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe()) {
            Service.checkEqual(new TreeSet<>(Service.receive(consumer, 3)), expected, "messages of all topics");
        }
    }
}
