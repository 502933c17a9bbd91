"""What the cases of client_live need of others: the official Python client to publish, and the admin API.

    helper.py SERVICE_URL ADMIN_URL produce TOPIC COUNT [--batch N] [--compression NAME] [--size BYTES] [--chunked]
              [--key FORMAT] [--from N] [--pause SECONDS] [--null]
    helper.py SERVICE_URL ADMIN_URL admin METHOD PATH [JSON]
"""

import argparse
import sys
import time
import urllib.request


def produce(arguments):
    import pulsar
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(arguments.service_url, logger=logger)
    options = {}
    if arguments.batch > 1:
        options.update(batching_enabled=True, batching_max_messages=arguments.batch,
                       batching_max_allowed_size_in_bytes=128 << 20, batching_max_publish_delay_ms=10000)
    if arguments.chunked:
        options.update(chunking_enabled=True)
    producer = client.create_producer(
        arguments.topic, compression_type=getattr(pulsar.CompressionType, arguments.compression),
        block_if_queue_full=True, send_timeout_millis=0, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, **options)
    failures = []

    def sent(result, _id):
        if result != pulsar.Result.Ok:
            failures.append(result)

    for number in range(arguments.start, arguments.start + arguments.count):
        content = f"message-{number}"
        if arguments.size:
            content = (content + "-").ljust(arguments.size, "x")
        more = {"partition_key": arguments.key % number} if arguments.key else {}
        if arguments.null:
            content = ""
        if arguments.pause:
            time.sleep(arguments.pause)
        producer.send_async(content.encode(), sent, properties={"number": str(number)},
                            event_timestamp=1000 + number, **more)
    producer.flush()
    client.close()
    if failures:
        sys.exit(f"not sent: {failures[:3]}")


def admin(arguments):
    request = urllib.request.Request(arguments.admin_url + arguments.path, method=arguments.method,
                                     data=arguments.json.encode() if arguments.json else None,
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(answer.read().decode())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("service_url")
    parser.add_argument("admin_url")
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("produce")
    verb.set_defaults(run=produce)
    verb.add_argument("topic")
    verb.add_argument("count", type=int)
    verb.add_argument("--batch", type=int, default=1)
    verb.add_argument("--compression", default="NONE")
    verb.add_argument("--size", type=int)
    verb.add_argument("--chunked", action="store_true")
    verb.add_argument("--key")
    verb.add_argument("--from", type=int, default=0, dest="start")
    verb.add_argument("--null", action="store_true")
    verb.add_argument("--pause", type=float)
    verb = verbs.add_parser("admin")
    verb.set_defaults(run=admin)
    verb.add_argument("method")
    verb.add_argument("path")
    verb.add_argument("json", nargs="?")
    arguments = parser.parse_args()
    arguments.run(arguments)


main()
