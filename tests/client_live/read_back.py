#!/usr/bin/env python3
"""Reads with the official Python client what `client_live` wrote, and compares.

    read_back.py --service-url URL < output of client_live

Every line `WROTE {json}` is checked; prints `PASS topic` or `FAIL topic: why` and ends with 1 if one failed.
"""
import argparse
import json
import logging
import sys

import pulsar


def read(client, topic):
    consumer = client.subscribe(topic, "read-back", initial_position=pulsar.InitialPosition.Earliest)
    messages = []
    try:
        while True:
            message = consumer.receive(timeout_millis=3000)
            messages.append(message)
            consumer.acknowledge(message)
    except pulsar.Timeout:
        pass
    consumer.close()
    return messages


def index_of(message):
    text = message.data().decode().rstrip(".")
    key, _, index = text.rpartition(":")
    return key, int(index)


def check(messages, wrote):
    expect = wrote["expect"]
    found = [index_of(message) for message in messages]
    present = {index for _, index in found}
    missing = [index for index in wrote["indices"] if index not in present]
    if missing:
        return f"{len(missing)} acknowledged messages are missing, the first is {missing[0]} ({len(found)} found)"
    if expect.get("once") and len(found) != len(wrote["indices"]):
        return f"{len(found)} messages instead of {len(wrote['indices'])}"
    if expect.get("deduplicated") and len(found) != len(present):
        return "messages twice"
    last = {}
    seen = set()
    for message, (key, index) in zip(messages, found):
        if index in seen:
            continue
        seen.add(index)
        stream = (key if expect.get("by_key") else "", message.topic_name())
        if index < last.get(stream, -1) and not (expect.get("by_key") and not key):
            return f"{index} came after {last[stream]}"
        last[stream] = index
    if "length" in expect and any(len(message.data()) != expect["length"] for message in messages):
        return "a message of another length"
    if "batched" in expect:
        batched = sum(message.message_id().batch_index() >= 0 for message in messages)
        if (batched > len(messages) // 2) != expect["batched"]:
            return f"{batched} messages in batches"
    if expect.get("one_key_per_batch"):
        keys = {}
        for message, (key, _) in zip(messages, found):
            keys.setdefault((message.message_id().ledger_id(), message.message_id().entry_id()), set()).add(key)
        if any(len(of_batch) > 1 for of_batch in keys.values()):
            return "a batch of several keys"
    if expect.get("metadata"):
        for message, (_, index) in zip(messages, found):
            is_right = (
                message.partition_key() == f"key-{index}"
                and message.ordering_key() == f"order-{index}"
                and message.properties() == {"index": str(index)}
                and message.event_timestamp() == 1_000_000 + index
                and message.producer_name() == "named"
            )
            if not is_right:
                return f"wrong metadata of message {index}"
    return None


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--service-url", required=True)
    arguments = arguments.parse_args()
    quiet = logging.getLogger("pulsar")
    quiet.setLevel(logging.CRITICAL)
    client = pulsar.Client(arguments.service_url, logger=quiet)
    failed = False
    for line in sys.stdin:
        if not line.startswith("WROTE "):
            print(line, end="")
            failed |= line.startswith("FAIL")
            continue
        wrote = json.loads(line.removeprefix("WROTE "))
        messages = read(client, wrote["topic"])
        problem = check(messages, wrote)
        failed |= problem is not None
        repeated = len(messages) - len(wrote["indices"])
        print(f"FAIL {wrote['topic']}: {problem}" if problem else f"PASS {wrote['topic']} ({len(messages)} messages, {repeated} repeated)")
    client.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
