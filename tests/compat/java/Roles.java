import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Cases of roles that may not do everything. Each returns the words of the refusal: they are the broker's own.
 *
 * <p>They have a topic in common: the first one fills it, the second one takes from it.
 */
final class Roles {
    private interface Attempt {
        AutoCloseable run() throws PulsarClientException;
    }

    private Roles() {
    }

    static String produceOnly(Service service) throws Exception {
        String topic = service.topic("roles");
        try (Producer<byte[]> producer = service.client.newProducer().topic(topic).create()) {
            Service.sendAll(producer, Service.payloads(0, 10));
        }
        return refused(() -> service.consumer(topic, SubscriptionType.Exclusive).subscribe());
    }

    static String consumeOnly(Service service) throws Exception {
        String topic = service.topic("roles");
        try (Consumer<byte[]> consumer = service.consumer(topic, SubscriptionType.Exclusive).subscribe()) {
            Service.checkEqual(Service.receive(consumer, 10), Service.payloads(0, 10), "messages");
        }
        return refused(() -> service.client.newProducer().topic(topic).create());
    }

    static String stranger(Service service) throws Exception {
        String topic = service.topic("roles");
        refused(() -> service.client.newProducer().topic(topic).create());
        refused(() -> service.client.newReader().topic(topic).startMessageId(MessageId.earliest).create());
        return refused(() -> service.consumer(topic, SubscriptionType.Shared).subscribe());
    }

    private static String refused(Attempt attempt) throws Exception {
        try (AutoCloseable opened = attempt.run()) {
            throw new AssertionError(opened + " was opened without the right to it");
        } catch (PulsarClientException.AuthorizationException refusal) {
            return Service.shortened(refusal.getMessage());
        }
    }
}
