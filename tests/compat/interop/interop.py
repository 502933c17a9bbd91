"""Writes or reads the messages of a specification with the official Python client. See README.md beside this file."""

import argparse
import hashlib
import json
import sys

import _pulsar
import pulsar
from pulsar.schema import Schema

CODECS = {"NONE": pulsar.CompressionType.NONE, "LZ4": pulsar.CompressionType.LZ4, "ZLIB": pulsar.CompressionType.ZLib,
          "ZSTD": pulsar.CompressionType.ZSTD, "SNAPPY": pulsar.CompressionType.SNAPPY}
SCHEMA_TYPES = {"STRING": _pulsar.SchemaType.STRING, "JSON": _pulsar.SchemaType.JSON, "AVRO": _pulsar.SchemaType.AVRO}
RECEIVE_MILLIS = 60_000


class GivenSchema(Schema):
    """A schema of which only the declaration matters: payloads are bytes already."""

    def __init__(self, kind, definition):
        super().__init__(bytes, SCHEMA_TYPES[kind], definition, "given")

    def encode(self, obj):
        """Payloads go out as they are."""
        return obj

    def decode(self, data):
        """Payloads come in as they are."""
        return data


def produce(client, topic, spec):
    """Send all messages of the specification and wait for their receipts."""
    options = {"compression_type": CODECS[spec["codec"]], "block_if_queue_full": True,
               "batching_enabled": spec["mode"] == "batched", "batching_max_publish_delay_ms": 50,
               "chunking_enabled": spec["mode"] == "chunked"}
    if "schema" in spec:
        definition = spec["schema"].get("definition")
        options["schema"] = GivenSchema(spec["schema"]["type"], json.loads(definition) if definition else None)
    producer = client.create_producer(topic, **options)
    failures = []

    def on_receipt(result, _):
        if result != pulsar.Result.Ok:
            failures.append(str(result))

    for message in spec["messages"]:
        producer.send_async(bytes.fromhex(message["payload"]) * message["repeat"], on_receipt,
                            properties=message["properties"] or None, partition_key=message.get("key"),
                            event_timestamp=message.get("event_time"),
                            ordering_key=message.get("ordering_key"))
    producer.flush()
    producer.close()
    if failures:
        sys.exit(f"{len(failures)} messages were refused, the first with {failures[0]}")


def consume(client, topic, spec):
    """Print one line for each message, in order."""
    consumer = client.subscribe(topic, "python", initial_position=pulsar.InitialPosition.Earliest)
    for _ in spec["messages"]:
        message = consumer.receive(RECEIVE_MILLIS)
        consumer.acknowledge(message)
        content = message.data()
        line = {"length": len(content), "sha256": hashlib.sha256(content).hexdigest(),
                "key": message.partition_key() or None, "ordering_key": message.ordering_key() or None,
                "properties": message.properties(), "event_time": message.event_timestamp() or None,
                "batched": message.message_id().batch_index() >= 0,
                "schema_version": (message.schema_version() or "").encode("latin-1").hex()}
        print(json.dumps(line, sort_keys=True))
    consumer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["produce", "consume"])
    parser.add_argument("--service-url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--spec", required=True)
    arguments = parser.parse_args()
    with open(arguments.spec, encoding="utf-8") as file:
        spec = json.load(file)
    client = pulsar.Client(arguments.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    {"produce": produce, "consume": consume}[arguments.action](client, arguments.topic, spec)
    client.close()


if __name__ == "__main__":
    main()
