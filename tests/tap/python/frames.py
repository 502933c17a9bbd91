"""Makes the Python client send and receive many kinds of frames: `frames.py SERVICE_URL ADMIN_URL`. It judges nothing."""

import datetime
import re
import sys
import time
import urllib.request

import pulsar
from pulsar.schema import BytesSchema, Integer, JsonSchema, Record, String, StringSchema

NAMESPACE = "public/default"
SUBSCRIPTION = "s"


class Point(Record):
    """A record for the schema frames."""

    x = Integer()
    name = String()


def consumers(client, topic, _admin):
    for kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared, pulsar.ConsumerType.Failover,
                 pulsar.ConsumerType.KeyShared):
        consumer = client.subscribe(topic, kind.name, consumer_type=kind, consumer_name="c", properties={"p": "v"},
                                    initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=2,
                                    negative_ack_redelivery_delay_ms=100, batch_index_ack_enabled=True,
                                    replicate_subscription_state_enabled=kind == pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic, producer_name=f"named-{kind.name}", properties={"p": "v"},
                                          batching_enabled=True, batching_max_publish_delay_ms=50)
        for index in range(6):
            producer.send_async(b"m", None, partition_key=f"k{index}", ordering_key="o", event_timestamp=5,
                                properties={"p": "v"})
        producer.flush()
        messages = [consumer.receive(10_000) for _ in range(6)]
        consumer.negative_acknowledge(messages[1])
        consumer.acknowledge(messages[2])
        if kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover):
            consumer.acknowledge_cumulative(messages[5])
        time.sleep(0.5)
        consumer.redeliver_unacknowledged_messages()
        consumer.get_last_message_id()
        producer.close()
        consumer.unsubscribe()


def producers(client, topic, _admin):
    client.create_producer(topic, initial_sequence_id=5, access_mode=pulsar.ProducerAccessMode.Exclusive).send(b"x")
    client.create_producer(topic.replace("persistent", "non-persistent") + "-np").send(b"x")
    for codec in (pulsar.CompressionType.LZ4, pulsar.CompressionType.ZSTD):
        producer = client.create_producer(topic + "-codec", compression_type=codec, batching_enabled=False)
        producer.send(b"x" * 100, deliver_after=datetime.timedelta(milliseconds=10))
        producer.send(b"y", replication_clusters=["a", "b"], sequence_id=9)
        producer.send(b"z", disable_replication=True)


def schemas(client, topic, _admin):
    for number, schema in enumerate((JsonSchema(Point), StringSchema(), BytesSchema())):
        consumer = client.subscribe(f"{topic}-{number}", SUBSCRIPTION, schema=schema)
        producer = client.create_producer(f"{topic}-{number}", schema=schema)
        producer.send((Point(x=1, name="n"), "text", b"bytes")[number])
        consumer.acknowledge(consumer.receive(10_000))


def patterns(client, topic, _admin):
    client.create_producer(topic + "-a")
    consumer = client.subscribe(pulsar_pattern(topic), SUBSCRIPTION, pattern_auto_discovery_period=1)
    client.create_producer(topic + "-b").send(b"x")
    time.sleep(2)
    client.subscribe([topic + "-a", topic + "-b"], "many").close()
    consumer.close()


def pulsar_pattern(topic):
    """The pattern of all topics whose names begin like this one."""
    return re.compile(topic + "-.*")


def readers(client, topic, _admin):
    producer = client.create_producer(topic)
    ids = [producer.send(b"x", partition_key="k") for _ in range(4)]
    reader = client.create_reader(topic, ids[1], start_message_id_inclusive=True, reader_name="r",
                                  subscription_role_prefix="role")
    while reader.has_message_available():
        reader.read_next(10_000)
    reader.seek(ids[0])
    reader.seek(1)
    client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True).close()
    client.create_table_view(topic).close()


def chunks(client, topic, _admin):
    consumer = client.subscribe(topic, SUBSCRIPTION, max_pending_chunked_message=2)
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(b"c" * 6_000_000)
    consumer.acknowledge(consumer.receive(10_000))


def closing(client, topic, admin):
    consumer = client.subscribe(topic, SUBSCRIPTION)
    producer = client.create_producer(topic)
    producer.send(b"x")
    request = urllib.request.Request(f"{admin}/admin/v2/{topic.replace('://', '/')}/unload", method="PUT")
    urllib.request.urlopen(request, timeout=30).close()
    producer.send(b"y")
    consumer.receive(10_000)
    consumer.receive(10_000)


def refusals(client, topic, _admin):
    client.subscribe(topic, SUBSCRIPTION)
    client.create_producer(topic, producer_name="taken")
    for attempt in (lambda: client.subscribe(topic, SUBSCRIPTION),
                    lambda: client.create_producer(topic, producer_name="taken"),
                    lambda: client.create_producer("persistent://public/missing/topic"),
                    lambda: client.create_producer(topic + "-typed", schema=StringSchema()),
                    lambda: client.create_producer(topic + "-typed", schema=JsonSchema(Point))):
        try:
            attempt()
        except pulsar.PulsarException as refused:
            print("refused", type(refused).__name__)


def main(service_url, admin_url):
    client = pulsar.Client(service_url, operation_timeout_seconds=10,
                           logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for step in (consumers, producers, schemas, patterns, readers, chunks, closing, refusals):
        try:
            step(client, f"persistent://{NAMESPACE}/python-{step.__name__}", admin_url)
            print("did", step.__name__, flush=True)
        except Exception as problem:
            print("cut short", step.__name__, repr(problem), flush=True)
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
