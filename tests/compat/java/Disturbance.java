import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Producers and consumers that go on while brokers are disturbed; afterwards nothing may be lost or out of order.
 * Says "RUNNING disturbance" when messages flow, then runs until a line (or the end) comes on standard input.
 */
final class Disturbance {
    private static final int MILLIS_BETWEEN_MESSAGES = 10;
    private static final int DRAIN_SECONDS = 90;
    private static final int KEYS = 8;

    private Disturbance() {
    }

    static String run(Service service) throws Exception {
        String partitioned = service.partitionedTopic("disturbance-failover", 2);
        List<Flow> flows = List.of(
                new Flow(service, service.topic("disturbance-exclusive"), SubscriptionType.Exclusive, 1, true),
                new Flow(service, partitioned, SubscriptionType.Failover, 2, false),
                new Flow(service, service.topic("disturbance-shared"), SubscriptionType.Shared, 2, true),
                new Flow(service, service.topic("disturbance-key-shared"), SubscriptionType.Key_Shared, 2, true));
        System.out.println("RUNNING disturbance");
        while (true) {
            int character = System.in.read();
            if (character == '\n' || character < 0) {
                break;
            }
        }
        flows.forEach(flow -> flow.stopping = true);
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(DRAIN_SECONDS);
        for (Flow flow : flows) {
            flow.sender.join(Math.max(1, TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime())));
        }
        while (flows.stream().anyMatch(flow -> !flow.missing().isEmpty()) && System.nanoTime() < end) {
            Thread.sleep(100);
        }
        List<String> problems = new ArrayList<>();
        int sent = 0;
        int repeats = 0;
        long pause = 0;
        for (Flow flow : flows) {
            flow.finish();
            problems.addAll(flow.problems());
            sent += flow.sent;
            repeats += flow.repeats;
            pause = Math.max(pause, flow.pause);
        }
        Service.check(problems.isEmpty(), String.join("; ", problems));
        return "%d messages, %d repeats, longest pause %.1f s".formatted(sent, repeats, pause / 1e9);
    }

    /** One topic: a producer, consumers, and what was sent, acknowledged by the broker and received. */
    private static final class Flow {
        final SubscriptionType type;
        final Thread sender;
        volatile boolean stopping;
        volatile int sent;
        int repeats;
        /** The longest time between two messages, and when the newest one came, in nanoseconds. */
        long pause;
        private long last;
        private volatile boolean drained;
        private final Producer<byte[]> producer;
        private final List<Thread> receivers = new ArrayList<>();
        private final Set<Integer> receipted = new TreeSet<>();
        private final List<String> errors = new ArrayList<>();
        /** What has to stay in order (all messages of a partition, or of one key) with first arrivals in order. */
        private final Map<String, LinkedHashSet<Integer>> received = new LinkedHashMap<>();

        Flow(Service service, String topic, SubscriptionType type, int consumers, boolean batching) throws Exception {
            this.type = type;
            for (int index = 0; index < consumers; index++) {
                Consumer<byte[]> consumer = service.consumer(topic, type).consumerName(type + "-" + index).subscribe();
                receivers.add(daemon(() -> consume(consumer)));
            }
            ProducerBuilder<byte[]> builder = service.client.newProducer().topic(topic)
                    .sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(true).enableBatching(batching);
            if (type == SubscriptionType.Key_Shared) {
                builder.batcherBuilder(BatcherBuilder.KEY_BASED);
            }
            producer = builder.create();
            sender = daemon(this::produce);
            receivers.forEach(Thread::start);
            sender.start();
        }

        private static Thread daemon(Runnable body) {
            Thread thread = new Thread(body);
            thread.setDaemon(true);
            return thread;
        }

        private void produce() {
            try {
                while (!stopping) {
                    int number = sent++;
                    String key = type == SubscriptionType.Key_Shared ? "k" + number % KEYS : null;
                    var message = producer.newMessage().value(Service.bytes((key == null ? "all" : key) + ":" + number));
                    if (key != null) {
                        message.key(key);
                    }
                    message.sendAsync().whenComplete((id, problem) -> onReceipt(number, problem));
                    Thread.sleep(MILLIS_BETWEEN_MESSAGES);
                }
                producer.flush();
            } catch (PulsarClientException | InterruptedException problem) {
                note("send: " + problem);
            }
        }

        private synchronized void onReceipt(int number, Throwable problem) {
            if (problem == null) {
                receipted.add(number);
            } else {
                note("receipt: " + problem);
            }
        }

        private void consume(Consumer<byte[]> consumer) {
            while (!drained) {
                try {
                    Message<byte[]> message = consumer.receive(500, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        onMessage(message.getTopicName(), Service.text(message).split(":"));
                        consumer.acknowledge(message);
                    }
                } catch (PulsarClientException problem) {
                    note("receive: " + problem);
                }
            }
        }

        private synchronized void onMessage(String topic, String[] content) {
            long now = System.nanoTime();
            pause = Math.max(pause, last == 0 ? 0 : now - last);
            last = now;
            boolean fresh = received.computeIfAbsent(topic + " " + content[0], stream -> new LinkedHashSet<>())
                    .add(Integer.valueOf(content[1]));
            repeats += fresh ? 0 : 1;
        }

        private synchronized void note(String error) {
            errors.add(error);
        }

        /** Receipted messages that no consumer has seen yet. */
        synchronized Set<Integer> missing() {
            Set<Integer> left = new TreeSet<>(receipted);
            received.values().forEach(left::removeAll);
            return left;
        }

        void finish() throws InterruptedException {
            drained = true;
            for (Thread receiver : receivers) {
                receiver.join(10_000);
            }
        }

        synchronized List<String> problems() {
            List<String> found = new ArrayList<>();
            errors.stream().limit(3).forEach(error -> found.add(type + ": client error " + error));
            Set<Integer> lost = missing();
            if (!lost.isEmpty()) {
                found.add(type + ": " + lost.size() + " acknowledged messages lost, first " + lost.iterator().next());
            }
            if (receipted.size() < sent) {
                found.add(type + ": " + (sent - receipted.size()) + " messages never got a receipt");
            }
            if (type != SubscriptionType.Shared) {
                received.forEach((stream, numbers) -> {
                    int previous = -1;
                    for (int number : numbers) {
                        if (number < previous) {
                            found.add(type + ": order lost in " + stream + ": " + previous + " came before " + number);
                            return;
                        }
                        previous = number;
                    }
                });
            }
            return found;
        }
    }
}
