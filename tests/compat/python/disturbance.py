"""Producers and consumers that go on while brokers are disturbed; afterwards nothing may be lost or out of order.

The case says `RUNNING disturbance` when messages flow, then runs until a line (or the end) comes on standard input.
"""

import sys
import threading
import time

import pulsar
from pulsar import BatchingType, ConsumerType

SECONDS_BETWEEN_MESSAGES = 0.01
DRAIN_SECONDS = 90
KEYS = 8


class Flow:
    """One topic: a producer, consumers, and what was sent, acknowledged by the broker and received.

    A stream is what has to stay in order: all messages of the topic, or those of one key.
    """

    def __init__(self, service, name, consumer_type, consumers=1, partitions=0, keyed=False, ordered=True, **producing):
        self.name, self.ordered, self.keyed = name, ordered, keyed
        topic = service.topic(f"disturbance-{name}", partitions=partitions)
        self.lock = threading.Lock()
        self.receipted, self.received, self.errors, self.repeats = set(), {}, [], 0
        self.last, self.pause = None, 0.0
        self.sent = 0
        self.stopping = threading.Event()
        self.drained = threading.Event()
        self.consumers = [service.subscribe(topic, consumer_type, consumer_name=f"{name}-{index}")
                          for index in range(consumers)]
        self.producer = service.client.create_producer(topic, send_timeout_millis=0, block_if_queue_full=True,
                                                       **producing)
        self.threads = [threading.Thread(target=self.consume, args=(consumer,), daemon=True) for consumer in self.consumers]
        self.sender = threading.Thread(target=self.produce, daemon=True)
        for thread in [*self.threads, self.sender]:
            thread.start()

    def produce(self):
        """Send numbered messages until told to stop, then wait for the receipts."""
        while not self.stopping.wait(SECONDS_BETWEEN_MESSAGES):
            number, key = self.sent, f"k{self.sent % KEYS}" if self.keyed else "all"
            self.sent += 1
            try:
                self.producer.send_async(f"{key}:{number}".encode(),
                                         lambda result, _id, number=number: self.on_receipt(result, number),
                                         partition_key=key if self.keyed else None)
            except pulsar.PulsarException as problem:
                self.errors.append(f"send: {problem!r}")
        try:
            self.producer.flush()
        except pulsar.PulsarException as problem:
            self.errors.append(f"flush: {problem!r}")

    def on_receipt(self, result, number):
        """Note the outcome of one send."""
        with self.lock:
            if result == pulsar.Result.Ok:
                self.receipted.add(number)
            else:
                self.errors.append(f"receipt: {result}")

    def consume(self, consumer):
        """Receive, note, acknowledge, until all that was sent has come."""
        while not self.drained.is_set():
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                continue
            except pulsar.PulsarException as problem:
                self.errors.append(f"receive: {problem!r}")
                return
            stream, number = message.data().decode().split(":")
            stream = f"{message.topic_name()} {stream}"
            with self.lock:
                now = time.monotonic()
                self.pause = max(self.pause, now - (self.last or now))
                self.last = now
                numbers = self.received.setdefault(stream, {})
                if int(number) in numbers:
                    self.repeats += 1
                else:
                    # A dict keeps the order of the first arrivals; a resend's repeat does not count.
                    numbers[int(number)] = None
            try:
                consumer.acknowledge(message)
            except pulsar.PulsarException as problem:
                self.errors.append(f"acknowledge: {problem!r}")

    def missing(self):
        """Receipted messages that no consumer has seen yet."""
        with self.lock:
            return self.receipted - {number for numbers in self.received.values() for number in numbers}

    def problems(self):
        """All that went wrong, as text."""
        found = [f"{self.name}: client error {error}" for error in self.errors[:3]]
        if lost := sorted(self.missing()):
            found.append(f"{self.name}: {len(lost)} acknowledged messages lost, first {lost[:5]}")
        if unsent := self.sent - len(self.receipted):
            found.append(f"{self.name}: {unsent} messages never got a receipt")
        for stream, numbers in self.received.items() if self.ordered else ():
            order = list(numbers)
            swapped = next(((a, b) for a, b in zip(order, order[1:]) if a > b), None)
            if swapped:
                found.append(f"{self.name}: order lost in {stream}: {swapped[0]} came before {swapped[1]}")
        return found


def disturbance(service):
    """Keep four kinds of subscriptions busy while the harness unloads bundles and kills a broker."""
    flows = [
        Flow(service, "exclusive", ConsumerType.Exclusive, batching_enabled=True),
        Flow(service, "failover", ConsumerType.Failover, consumers=2, partitions=2, batching_enabled=False),
        Flow(service, "shared", ConsumerType.Shared, consumers=2, ordered=False, batching_enabled=True),
        Flow(service, "key-shared", ConsumerType.KeyShared, consumers=2, keyed=True, batching_enabled=True,
             batching_type=BatchingType.KeyBased),
    ]
    print("RUNNING disturbance", flush=True)
    sys.stdin.readline()
    for flow in flows:
        flow.stopping.set()
    end = time.monotonic() + DRAIN_SECONDS
    for flow in flows:
        flow.sender.join(max(0.0, end - time.monotonic()))
    while any(flow.missing() for flow in flows) and time.monotonic() < end:
        time.sleep(0.1)
    for flow in flows:
        flow.drained.set()
    for flow in flows:
        for thread in flow.threads:
            thread.join()
    problems = [problem for flow in flows for problem in flow.problems()]
    if problems:
        raise AssertionError("; ".join(problems))
    return (f"{sum(flow.sent for flow in flows)} messages, {sum(flow.repeats for flow in flows)} repeats, "
            f"longest pause {max(flow.pause for flow in flows):.1f} s")
