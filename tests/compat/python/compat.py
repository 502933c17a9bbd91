"""Drives a Pulsar service with the official Python client and checks what comes back. See ../README.md."""

import argparse
import hashlib
import re
import sys
import time
import traceback
import urllib.request

import pulsar
from pulsar import BatchingType, CompressionType, ConsumerType, InitialPosition

from disturbance import disturbance

RECEIVE_MILLIS = 60_000
QUIET_MILLIS = 1_500
CASES = {}


def case(function):
    """Register a case under its function's name."""
    CASES[function.__name__] = function
    return function


class Service:
    """What a case needs: a client, unique topic names, and the few admin calls."""

    def __init__(self, arguments):
        self.arguments = arguments
        secured = {}
        if arguments.trust:
            secured = {"tls_trust_certs_file_path": arguments.trust, "tls_validate_hostname": True}
        if arguments.auth_plugin:
            secured["authentication"] = pulsar.Authentication(arguments.auth_plugin, arguments.auth_params)
        self.client = pulsar.Client(arguments.service_url, operation_timeout_seconds=60,
                                    logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **secured)

    def topic(self, name, partitions=0):
        """A topic of this run, created by the client, or here when it is to have partitions."""
        local = f"python-{name}-{self.arguments.run}"
        if partitions:
            request = urllib.request.Request(
                f"{self.arguments.admin_url}/admin/v2/persistent/{self.arguments.namespace}/{local}/partitions",
                method="PUT", data=str(partitions).encode(), headers={"Content-Type": "application/json"})
            if self.arguments.admin_token:
                request.add_header("Authorization", f"Bearer {self.arguments.admin_token}")
            urllib.request.urlopen(request, timeout=60).close()
        return f"persistent://{self.arguments.namespace}/{local}"

    def subscribe(self, topic, consumer_type=ConsumerType.Exclusive, **options):
        """Subscribe to everything the topic has."""
        return self.client.subscribe(topic, "subscription", consumer_type=consumer_type,
                                     initial_position=InitialPosition.Earliest, **options)


def check_equal(seen, expected, what):
    """Fail unless both are equal."""
    if seen != expected:
        raise AssertionError(f"{what}: expected {str(expected)[:300]}, got {str(seen)[:300]}")


def payloads(count, start=0):
    """Distinct payloads."""
    return [f"message {index}".encode() for index in range(start, start + count)]


def send_all(producer, contents, **options):
    """Send without waiting in between, then wait for every receipt."""
    results = []
    for content in contents:
        producer.send_async(content, lambda result, _id: results.append(result), **options)
    producer.flush()
    check_equal([str(result) for result in results if result != pulsar.Result.Ok], [], "send results")
    check_equal(len(results), len(contents), "receipts")


def receive(consumer, count):
    """Receive and acknowledge that many messages; returns their payloads in order."""
    contents = []
    for _ in range(count):
        message = consumer.receive(RECEIVE_MILLIS)
        contents.append(message.data())
        consumer.acknowledge(message)
    return contents


def expect_nothing(consumer):
    """Fail when one more message comes."""
    try:
        message = consumer.receive(QUIET_MILLIS)
    except pulsar.Timeout:
        return
    raise AssertionError(f"unexpected message {message.data()[:80]!r}")


def receive_shared(consumers, count):
    """Receive from several consumers in turn until that many came; returns one list per consumer."""
    lists = [[] for _ in consumers]
    end = time.monotonic() + RECEIVE_MILLIS / 1000
    while sum(map(len, lists)) < count and time.monotonic() < end:
        for consumer, contents in zip(consumers, lists):
            try:
                while True:
                    message = consumer.receive(50)
                    contents.append((message.partition_key(), message.data()))
                    consumer.acknowledge(message)
            except pulsar.Timeout:
                pass
    return lists


@case
def produce_consume(service):
    topic = service.topic("plain")
    consumer = service.subscribe(topic)
    producer = service.client.create_producer(topic)
    for content in payloads(10):
        producer.send(content, properties={"p": "v"}, partition_key="k", event_timestamp=12345)
    message = consumer.receive(RECEIVE_MILLIS)
    check_equal((message.data(), message.properties(), message.partition_key(), message.event_timestamp()),
                (b"message 0", {"p": "v"}, "k", 12345), "first message")
    consumer.acknowledge(message)
    check_equal(receive(consumer, 9), payloads(10)[1:], "messages")
    expect_nothing(consumer)


@case
def partitioned(service):
    topic = service.topic("partitioned", partitions=3)
    check_equal(len(service.client.get_topic_partitions(topic)), 3, "partitions")
    consumer = service.subscribe(topic)
    producer = service.client.create_producer(topic)
    sent = {f"key {key}": payloads(10, 100 * key) for key in range(6)}
    for index in range(10):
        for key, contents in sent.items():
            producer.send_async(contents[index], None, partition_key=key)
    producer.flush()
    seen, partitions = {}, set()
    for _ in range(60):
        message = consumer.receive(RECEIVE_MILLIS)
        seen.setdefault(message.partition_key(), []).append(message.data())
        partitions.add(message.topic_name())
        consumer.acknowledge(message)
    check_equal(seen, sent, "messages by key")
    assert len(partitions) > 1, "all keys went to one partition"


@case
def exclusive(service):
    topic = service.topic("exclusive")
    consumer = service.subscribe(topic)
    try:
        service.subscribe(topic)
        raise AssertionError("a second exclusive consumer was let in")
    except pulsar.ConsumerBusy:
        pass
    send_all(service.client.create_producer(topic), payloads(20))
    check_equal(receive(consumer, 20), payloads(20), "messages")


@case
def shared(service):
    topic = service.topic("shared")
    consumers = [service.subscribe(topic, ConsumerType.Shared, receiver_queue_size=5) for _ in range(2)]
    send_all(service.client.create_producer(topic, batching_enabled=False), payloads(100))
    lists = receive_shared(consumers, 100)
    check_equal(sorted(content for contents in lists for _, content in contents), sorted(payloads(100)), "messages")
    assert all(lists), "one of the two consumers got nothing"


@case
def failover(service):
    topic = service.topic("failover")
    consumers = [service.subscribe(topic, ConsumerType.Failover, consumer_name=name) for name in "ab"]
    producer = service.client.create_producer(topic)
    send_all(producer, payloads(20))
    lists = receive_shared(consumers, 20)
    active = 0 if lists[0] else 1
    check_equal([content for _, content in lists[active]], payloads(20), "messages of the active consumer")
    check_equal(lists[1 - active], [], "messages of the waiting consumer")
    consumers[active].close()
    send_all(producer, payloads(20, 20))
    check_equal(receive(consumers[1 - active], 20), payloads(20, 20), "messages after the switch")


@case
def key_shared(service):
    topic = service.topic("key-shared")
    consumers = [service.subscribe(topic, ConsumerType.KeyShared) for _ in range(2)]
    producer = service.client.create_producer(topic, batching_enabled=True, batching_type=BatchingType.KeyBased)
    sent = {f"key {key}": payloads(10, 100 * key) for key in range(20)}
    for index in range(10):
        for key, contents in sent.items():
            producer.send_async(contents[index], None, partition_key=key)
    producer.flush()
    lists = receive_shared(consumers, 200)
    by_consumer = [{key for key, _ in contents} for contents in lists]
    check_equal(by_consumer[0] & by_consumer[1], set(), "keys that both consumers got")
    assert all(by_consumer), "one of the two consumers got no key"
    seen = {}
    for key, content in lists[0] + lists[1]:
        seen.setdefault(key, []).append(content)
    check_equal(seen, sent, "messages by key")


@case
def batched(service):
    topic = service.topic("batched")
    consumer = service.subscribe(topic)
    producer = service.client.create_producer(topic, batching_enabled=True, batching_max_messages=50,
                                              batching_max_publish_delay_ms=200)
    send_all(producer, payloads(200))
    indices = set()
    for content in payloads(200):
        message = consumer.receive(RECEIVE_MILLIS)
        check_equal(message.data(), content, "message")
        indices.add(message.message_id().batch_index())
        consumer.acknowledge(message)
    assert max(indices) > 0, "nothing was batched"


@case
def unbatched(service):
    topic = service.topic("unbatched")
    consumer = service.subscribe(topic)
    send_all(service.client.create_producer(topic, batching_enabled=False), payloads(200))
    for content in payloads(200):
        message = consumer.receive(RECEIVE_MILLIS)
        check_equal((message.data(), message.message_id().batch_index()), (content, -1), "message")
        consumer.acknowledge_cumulative(message)


def compressed(service, codec, name):
    topic = service.topic(f"compression-{name}")
    consumer = service.subscribe(topic)
    contents = [(f"line {index} " * 500).encode() for index in range(20)]
    for batching in (False, True):
        producer = service.client.create_producer(topic, compression_type=codec, batching_enabled=batching)
        send_all(producer, contents)
        check_equal(receive(consumer, 20), contents, "messages")


CASES |= {f"compression_{name}": lambda service, codec=codec, name=name: compressed(service, codec, name)
          for name, codec in {"none": CompressionType.NONE, "lz4": CompressionType.LZ4, "zlib": CompressionType.ZLib,
                              "zstd": CompressionType.ZSTD, "snappy": CompressionType.SNAPPY}.items()}


@case
def chunked_20mb(service):
    topic = service.topic("chunked")
    consumer = service.subscribe(topic)
    producer = service.client.create_producer(topic, batching_enabled=False, chunking_enabled=True,
                                              send_timeout_millis=60_000)
    content = b"".join(hashlib.sha256(str(index).encode()).digest() for index in range(20 * 1024 * 1024 // 32))
    producer.send(content)
    producer.send(b"after")
    message = consumer.receive(RECEIVE_MILLIS)
    assert message.data() == content, f"{len(message.data())} bytes came back, not the 20 MB that were sent"
    consumer.acknowledge(message)
    check_equal(receive(consumer, 1), [b"after"], "message after it")


@case
def reader(service):
    topic = service.topic("reader")
    producer = service.client.create_producer(topic)
    ids = [producer.send(content) for content in payloads(20)]
    everything = service.client.create_reader(topic, pulsar.MessageId.earliest)
    check_equal([everything.read_next(RECEIVE_MILLIS).data() for _ in range(20)], payloads(20), "from the start")
    check_equal(everything.has_message_available(), False, "more messages at the end")
    tail = service.client.create_reader(topic, ids[9])
    check_equal([tail.read_next(RECEIVE_MILLIS).data() for _ in range(10)], payloads(10, 10), "after the tenth")


@case
def seek_by_id(service):
    topic = service.topic("seek-id")
    consumer = service.subscribe(topic)
    producer = service.client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(content) for content in payloads(20)]
    check_equal(receive(consumer, 20), payloads(20), "messages")
    consumer.seek(ids[5])
    first = consumer.receive(RECEIVE_MILLIS).data()
    assert first in payloads(2, 5), f"{first!r} came after the seek"
    consumer.seek(pulsar.MessageId.earliest)
    check_equal(receive(consumer, 20), payloads(20), "messages after the seek to the start")


@case
def seek_by_time(service):
    topic = service.topic("seek-time")
    consumer = service.subscribe(topic)
    producer = service.client.create_producer(topic, batching_enabled=False)
    send_all(producer, payloads(10))
    time.sleep(0.5)
    middle = int(time.time() * 1000)
    time.sleep(0.5)
    send_all(producer, payloads(10, 10))
    check_equal(receive(consumer, 20), payloads(20), "messages")
    consumer.seek(middle)
    check_equal(receive(consumer, 10), payloads(10, 10), "messages after the seek")


@case
def pattern(service):
    for index, content in enumerate(payloads(3)):
        service.client.create_producer(service.topic(f"pattern-{index}")).send(content)
    consumer = service.subscribe(re.compile(service.topic("pattern-.*")))
    check_equal(sorted(receive(consumer, 3)), payloads(3), "messages of all topics")


CASES["disturbance"] = disturbance
# Only when named: they want a broker that authorizes, and a role of their own. Each returns the words of the refusal.
# They have a topic in common: the first one fills it, the second one takes from it.
ROLE_CASES = {}


def role_case(function):
    """Register a case of a role under its function's name."""
    ROLE_CASES[function.__name__] = function
    return function


def refused(attempt, *arguments, **options):
    """Fail unless the broker refuses this for want of a right."""
    try:
        opened = attempt(*arguments, **options)
    except pulsar.AuthorizationError as refusal:
        return repr(refusal)
    raise AssertionError(f"{opened} was opened without the right to it")


@role_case
def produce_only(service):
    topic = service.topic("roles")
    send_all(service.client.create_producer(topic), payloads(10))
    return refused(service.subscribe, topic)


@role_case
def consume_only(service):
    topic = service.topic("roles")
    check_equal(receive(service.subscribe(topic), 10), payloads(10), "messages")
    return refused(service.client.create_producer, topic)


@role_case
def stranger(service):
    topic = service.topic("roles")
    refused(service.client.create_producer, topic)
    refused(service.client.create_reader, topic, pulsar.MessageId.earliest)
    return refused(service.subscribe, topic)


def run_case(name, service):
    """Run one case, print its line, and return whether it passed."""
    began = time.monotonic()
    try:
        note = (CASES | ROLE_CASES)[name](service)
    except Exception as problem:
        at = traceback.extract_tb(problem.__traceback__)[-1]
        print(f"FAIL {name}: {type(problem).__name__} {problem} (line {at.lineno})", flush=True)
        return False
    print(f"PASS {name} ({time.monotonic() - began:.1f} s){f' {note}' if note else ''}", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service-url", required=True)
    parser.add_argument("--admin-url", required=True)
    parser.add_argument("--admin-token")
    parser.add_argument("--namespace", default="public/default")
    parser.add_argument("--run", default=str(int(time.time())), help="part of every topic name")
    parser.add_argument("--trust", metavar="FILE", help="certificates that are trusted, for TLS")
    parser.add_argument("--auth-plugin", metavar="CLASS")
    parser.add_argument("--auth-params", default="")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all but those of roles")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.cases if name not in CASES | ROLE_CASES]
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}; there are {', '.join(CASES | ROLE_CASES)}")
    service = Service(arguments)
    names = arguments.cases or list(CASES)
    failed = sum(not run_case(name, service) for name in names)
    service.client.shutdown()
    print(f"{len(names) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
