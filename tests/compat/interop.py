#!/usr/bin/env python3
"""What one client writes, the others read equal: our own client, the official Python and the official Java client.

For each specification (codec, batched or not, chunked, with a schema) each client writes the messages to a topic of its
own, and each client reads every topic. All readers have to see what was written: payload, key, ordering key, properties,
event time, and the same schema version. Prints one line per writer and specification, and `N passed, N failed`.

    tests/compat/interop.py [--via direct|gateway] [--client own] [--spec NAME]
"""

import argparse
import contextlib
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import programs
from gateway import gateway
from programs import BUILD, HERE, ROOT

import pulsar
from processes import PeerError, raise_on_signals

PROGRAM_SECONDS = 240
SCHEMA = json.dumps({"type": "record", "name": "Point", "fields": [
    {"name": "name", "type": ["null", "string"], "default": None}, {"name": "x", "type": "int"}]})


def small_messages():
    """Messages that differ in everything that a client can set."""
    messages = []
    for index in range(60):
        message = {"payload": f"payload {index} ".encode().hex(), "repeat": 1 + index % 7 * 40, "properties": {}}
        if index % 2:
            message["key"] = f"key {index % 5} \u00e4"
        if index % 3 == 0:
            message["properties"] = {"name": f"value {index}", "empty": "", "unicode \u2713": "\u20ac"}
        if index % 5 == 0:
            message["event_time"] = 1_600_000_000_000 + index
        if index % 7 == 0:
            message["ordering_key"] = f"order {index}"
        messages.append(message)
    # An empty payload is a message like any other.
    messages.append({"payload": "", "repeat": 1, "properties": {"empty": "payload"}})
    return messages


def large_messages():
    """Messages above the broker's limit of 5 MiB, between small ones."""
    return [{"payload": bytes([index + 1, 7, 255]).hex(), "repeat": repeat, "properties": {"index": str(index)}}
            for index, repeat in enumerate([1, 2_000_000, 5, 7_000_000, 3])]


def schema_messages(kind):
    """Payloads that fit the schema."""
    texts = [json.dumps({"name": f"point {index}", "x": index}) if kind == "JSON" else f"text {index}" for index in range(20)]
    return [{"payload": text.encode().hex(), "repeat": 1, "properties": {}} for text in texts]


def specifications():
    """All that is written and read, by name."""
    specs = {}
    for codec in ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"):
        for mode in ("batched", "unbatched"):
            # The official Python client cannot inflate an empty payload (as Java writes it, too) outside a batch.
            last = -1 if (codec, mode) == ("ZLIB", "unbatched") else None
            specs[f"{codec.lower()}_{mode}"] = {"codec": codec, "mode": mode, "messages": small_messages()[:last]}
    for codec in ("NONE", "LZ4", "ZSTD"):
        specs[f"{codec.lower()}_chunked"] = {"codec": codec, "mode": "chunked", "messages": large_messages()}
    for kind in ("STRING", "JSON"):
        schema = {"type": kind} | ({"definition": SCHEMA} if kind == "JSON" else {})
        specs[f"schema_{kind.lower()}"] = {"codec": "LZ4", "mode": "batched", "schema": schema,
                                          "messages": schema_messages(kind)}
    return specs


def expected_lines(spec):
    """What every reader has to see, but for the schema version and the way of decoding."""
    lines = []
    for message in spec["messages"]:
        content = bytes.fromhex(message["payload"]) * message["repeat"]
        lines.append({"length": len(content), "sha256": hashlib.sha256(content).hexdigest(), "key": message.get("key"),
                      "ordering_key": message.get("ordering_key"), "properties": message["properties"],
                      "event_time": message.get("event_time"), "batched": spec["mode"] == "batched"})
    return lines


def clients():
    """The command line of each client."""
    python = programs.python()[0]
    class_path = programs.compile_java(HERE / "interop", BUILD / "interop-java")
    return {"own": programs.example("interop"), "python": [python, HERE / "interop/interop.py"],
            "java": programs.java_launcher(class_path, "Interop")}


def run(command, action, service_url, topic, spec_file):
    """Run one client; returns what it printed."""
    done = subprocess.run([*map(str, command), action, "--service-url", service_url, "--topic", topic, "--spec", spec_file],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    if done.returncode != 0:
        raise AssertionError(f"{action} ended with {done.returncode}: {(done.stderr + done.stdout)[-600:].strip()}")
    return done.stdout


def check(readings, spec):
    """All readers saw what was written, and the same schema version."""
    expected = expected_lines(spec)
    versions = {}
    for reader, output in readings.items():
        lines = [json.loads(line) for line in output.splitlines()]
        versions[reader] = {line.pop("schema_version") for line in lines}
        if "schema" in spec:
            for line, message in zip(lines, spec["messages"]):
                decoded = line.pop("decoded", None)
                if decoded is not None and spec["schema"]["type"] == "JSON":
                    assert json.loads(decoded) == json.loads(bytes.fromhex(message["payload"])), f"{reader} decoded {decoded}"
        for index, (seen, wanted) in enumerate(zip(lines, expected)):
            assert seen == wanted, f"{reader} read message {index} as {seen}, written was {wanted}"
        assert len(lines) == len(expected), f"{reader} read {len(lines)} of {len(expected)} messages"
    assert len({frozenset(seen) for seen in versions.values()}) == 1, f"schema versions differ: {versions}"
    if "schema" in spec:
        assert all(seen != {""} for seen in versions.values()), "no schema version was carried"


def run_all(commands, writers, specs, service_url, folder):
    """Every writer, every specification, every reader; returns the outcomes."""
    outcomes = []
    for name, spec in specs.items():
        spec_file = folder / f"{name}.json"
        spec_file.write_text(json.dumps(spec))
        for writer in writers:
            topic = f"persistent://public/default/interop-{name}-{writer}-{time.time_ns()}"
            try:
                run(commands[writer], "produce", service_url, topic, spec_file)
                check({reader: run(command, "consume", service_url, topic, spec_file)
                       for reader, command in commands.items()}, spec)
                problem = None
            except (AssertionError, subprocess.TimeoutExpired) as error:
                problem = error
            outcomes.append(problem is None)
            print(f"{'FAIL' if problem else 'PASS'} {name} written by {writer}{f': {problem}' if problem else ''}", flush=True)
    return outcomes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--via", choices=["direct", "gateway"], default="direct")
    parser.add_argument("--gateway-bin", type=pathlib.Path, default=ROOT / "target/release/pulsegate")
    parser.add_argument("--client", action="append", help="only these write; all read")
    parser.add_argument("--spec", action="append", help="only these specifications")
    parser.add_argument("--without", action="append", default=[], help="leave a client out altogether")
    arguments = parser.parse_args()
    specs = {name: spec for name, spec in specifications().items() if not arguments.spec or name in arguments.spec}
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="interop-")))
        commands = {name: command for name, command in clients().items() if name not in arguments.without}
        peer = stack.enter_context(pulsar.standalone(folder / "standalone"))
        service_url = peer.service_url
        if arguments.via == "gateway":
            service_url = stack.enter_context(
                gateway(arguments.gateway_bin, peer.service_url, peer.admin_url, folder)).service_url
        outcomes = run_all(commands, arguments.client or list(commands), specs, service_url, folder)
    print(f"{sum(outcomes)} passed, {len(outcomes) - sum(outcomes)} failed", flush=True)
    sys.exit(0 if outcomes and all(outcomes) else 1)


if __name__ == "__main__":
    raise_on_signals()
    try:
        main()
    except (PeerError, programs.BuildError, programs.jars.JarsError, OSError) as problem:
        sys.exit(f"interop.py: {problem}")
