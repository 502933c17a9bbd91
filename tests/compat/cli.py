#!/usr/bin/env python3
"""`pulsegate produce | consume | read` beside Apache Pulsar's own `pulsar-client`, against a real broker.

    cli.py                                   all cases through the gateway
    cli.py --via direct --case chunked       one case without it
    cli.py --via apache-proxy                all cases through the Apache proxy

In most cases both tools send the same to one topic, then both take everything from it, each with a subscription of its own:
what they print must be the same, byte for byte, and what one sent must look like what the other sent. Prints a line per case
and `N passed, N failed`; everything that was started is stopped again.
"""

import argparse
import contextlib
import hashlib
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import programs
from gateway import gateway
from programs import ROOT

import jars
import pulsar
from processes import PeerError, raise_on_signals

BOUNDARY = "----- got message -----\n"
SECONDS = 120
PUBLISH_TIME = re.compile(r"publishTime:\[\d+\]")
RECORD = json.dumps({"type": "record", "name": "User", "fields": [
    {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}, {"name": "score", "type": "double"},
    {"name": "home", "type": {"type": "record", "name": "Home", "fields": [{"name": "city", "type": "string"}]}}]})
KEY = json.dumps({"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]})
# The log goes to standard error, so that standard output is messages only.
LOGGING = """\
<Configuration status="WARN">
  <Appenders><Console name="console" target="SYSTEM_ERR"><PatternLayout pattern="%p %m%n"/></Console></Appenders>
  <Loggers><Root level="info"><AppenderRef ref="console"/></Root></Loggers>
</Configuration>
"""


class CaseFailed(Exception):
    """A case does not hold; the text says why."""


def check(holds, why):
    """Fail the case unless something holds."""
    if not holds:
        raise CaseFailed(why)


class Tool:
    """One of the two command line tools; both take the same arguments."""

    def __init__(self, name, command):
        self.name, self.command = name, [str(part) for part in command]

    def start(self, *arguments):
        """Start it; its standard output is a pipe."""
        return subprocess.Popen([*self.command, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def run(self, *arguments, code=0):
        """Run it to its end; returns what it wrote to standard output."""
        process = self.start(*arguments)
        try:
            out, error = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise CaseFailed(f"{self.name} {arguments[0]} did not end") from None
        finally:
            process.kill()
            process.wait()
        check(process.returncode == code, f"{self.name} {' '.join(map(str, arguments))[:200]}: exit status "
              f"{process.returncode}: {error.decode(errors='replace')[-1500:]}")
        return out

    def messages(self, *arguments):
        """Take messages; returns what is printed of each."""
        text = self.run(*arguments).decode()
        if self.name == "pulsegate":
            # The summary is the last line here; the other tool logs it.
            text = text[:text.rindex("\n", 0, -1) + 1]
        empty, *messages = text.split(BOUNDARY)
        # With auto_consume, the other tool prints a schema before the first message.
        check(self.name != "pulsegate" or not empty, f"{self.name} printed {empty[:200]!r} before the first message")
        return messages


class Case:
    """What a case needs: both tools, the admin calls, a folder, and names of its own."""

    def __init__(self, ours, real, admin, folder, run):
        self.ours, self.real, self.admin, self.folder, self.run = ours, real, admin, folder, run

    def topic(self, name):
        """A topic of this run."""
        return f"persistent://public/default/cli-{name}-{self.run}"

    def send(self, topic, *arguments):
        """Let both send the same."""
        for tool in (self.real, self.ours):
            tool.run("produce", topic, *arguments)

    def take(self, topic, count, *arguments, real=(), ours=()):
        """Let both take `count` messages; what they print must be the same. Returns it."""
        common = [topic, "-p", "Earliest", "-n", count, *arguments]
        theirs = self.real.messages("consume", *common, "-s", "real", *real)
        own = self.ours.messages("consume", *common, "-s", "ours", *ours)
        same(theirs, own)
        return own

    def halves(self, messages):
        """What the first tool sent must look like what the second one sent."""
        plain = [PUBLISH_TIME.sub("publishTime:[]", message) for message in messages]
        half = len(plain) // 2
        same(plain[:half], plain[half:])
        return plain[:half]

    def file(self, name, content):
        """A file with this content."""
        path = self.folder / name
        path.write_bytes(content)
        return path


def same(expected, actual):
    """Two lists of messages must be equal."""
    check(len(expected) == len(actual), f"{len(expected)} messages against {len(actual)}")
    for number, (one, other) in enumerate(zip(expected, actual)):
        check(one == other, f"message {number}: {one[:300]!r} against {other[:300]!r}")


def plain(case):
    topic = case.topic("plain")
    case.send(topic, "-m", "a,,b,,", "-m", "ä", "-n", "2", "-k", "key", "-p", "k1=v1")
    first = case.halves(case.take(topic, 16))
    contents = [message.rpartition("content:")[2].rstrip("\n") for message in first]
    check(contents == ["a", "", "b", "ä"] * 2, f"the contents are {contents}")
    check(all("key:[key], properties:[k1=v1]" in message for message in first), first[0])


def metadata(case):
    topic = case.topic("metadata")
    case.send(topic, "-m", "a,b", "-s", ";", "-db")
    case.take(topic, 2, "-mp")


def binary_file(case):
    topic = case.topic("binary")
    case.send(topic, "-f", case.file("binary", bytes(range(256)) + "ü€".encode() + b"\xe2\x82"), "-f", case.file("one", b"1"))
    case.halves(case.take(topic, 4))


def hex_dump(case):
    topic = case.topic("hex")
    case.send(topic, "-f", case.file("binary", bytes(range(256)) + b"and seven"))
    # The other tool dumps nothing while it pools messages.
    case.take(topic, 2, "--hex", real=("-pm", "false"))


def string_schema(case):
    topic = case.topic("string")
    case.send(topic, "-m", "hello", "-vs", "string")
    case.halves(case.take(topic, 2))
    read_by_schema(case, topic, "{value=hello, type=class java.lang.String}")


def json_schema(case):
    topic = case.topic("json")
    value = {"id": 1, "name": "x", "score": 1.5, "home": {"city": "Bonn"}}
    case.send(topic, "-s", "#", "-m", json.dumps(value), "-vs", f"json:{RECORD}")
    case.halves(case.take(topic, 2))
    read_by_schema(case, topic, "{id=1, name=x, score=1.5, home={city=Bonn}}", ordered=False)
    check(case.ours.run("produce", topic, "-m", "nojson", "-vs", f"json:{RECORD}", code=64) == b"", "it sent what is no JSON")


def avro_schema(case):
    topic = case.topic("avro")
    values = [{"id": 1, "name": {"string": "x"}, "score": 1.5, "home": {"city": "Bonn"}},
              {"id": -(2**40), "name": None, "score": 0.25, "home": {"city": "Köln"}}]
    texts = [part for value in values for part in ("-m", json.dumps(value))]
    case.send(topic, "-s", "#", *texts, "-vs", f"avro:{RECORD}")
    case.halves(case.take(topic, 4))
    read_by_schema(case, topic, "{id=1, name=x, score=1.5, home={city=Bonn}}", ordered=False)


def read_by_schema(case, topic, expected, ordered=True):
    """Show the first message by its schema with both tools."""
    by_schema = ["read", topic, "-m", "earliest", "-n", "1", "-st", "auto_consume"]
    shown = []
    for tool in (case.real, case.ours):
        [message] = tool.messages(*by_schema)
        shown.append(message.rpartition("content:")[2].strip())
    # The other tool prints fields in the order of a hash table.
    form = (lambda text: text) if ordered else (lambda text: sorted(re.findall(r"\w+=[^,{}]*", text)))
    check([form(text) for text in shown] == [form(expected)] * 2, f"{shown} are not {expected!r}")


def key_value(case):
    for encoding in ("separated", "inline"):
        topic = case.topic(f"key-value-{encoding}")
        case.send(topic, "-m", "v", "-kvet", encoding, "-kvk", "k", "-vs", "string")
        case.halves(case.take(topic, 2))
        text = "type=class java.lang.String}"
        read_by_schema(case, topic, f"{{key={{value=k, {text}, value={{value=v, {text}}}")
    topic = case.topic("key-value-typed")
    case.send(topic, "-m", '{"id":4}', "-kvet", "separated", "-kvkf", case.file("key.json", b'{"id":3}'),
              "-ks", f"json:{KEY}", "-vs", f"avro:{KEY}")
    case.halves(case.take(topic, 2))
    read_by_schema(case, topic, "{key={id=3}, value={id=4}}")


def chunked(case):
    topic = case.topic("chunked")
    content = random.Random(1).randbytes(10 * 1024 * 1024).hex().encode()
    path = case.file("large", content)
    case.send(topic, "-f", path, "-c")
    for message in case.halves(case.take(topic, 2)):
        received = message.rpartition("content:")[2].rstrip("\n").encode()
        check(hashlib.sha256(received).digest() == hashlib.sha256(content).digest(), "the content is another one")
    error = case.ours.start("produce", topic, "-f", path)
    _, text = error.communicate(timeout=SECONDS)
    check(error.returncode == 1 and b"error while producing messages" in text, f"without -c: {text!r}")


def partitioned(case):
    topic = case.topic("partitioned")
    case.admin.call("PUT", f"/admin/v2/{topic.replace('://', '/')}/partitions", 4)
    # Both tools must choose the same partition for a key; the id names it.
    for key in ("a", "b", "c", "d"):
        case.ours.run("produce", topic, "-m", "x", "-k", key)
    case.real.run("produce", topic, "-m", "x,x", "-k", "c")
    common = [topic, "-p", "Earliest", "-n", 6, "-mp"]
    theirs = case.real.messages("consume", *common, "-s", "real")
    own = case.ours.messages("consume", *common, "-s", "ours")
    same(sorted(theirs), sorted(own))
    places = {re.search(r"message-id:\d+:\d+:(\d+)", message)[1] for message in own if "key:[c]" in message}
    check(len(places) == 1, f"one key is in the partitions {places}")


def regex(case):
    for name in ("regex-one", "regex-two"):
        case.send(case.topic(name), "-m", name)
    pattern = case.topic("regex-.*")
    common = [pattern, "--regex", "-p", "Earliest", "-n", 4]
    theirs = case.real.messages("consume", *common, "-s", "real")
    own = case.ours.messages("consume", *common, "-s", "ours")
    same(sorted(theirs), sorted(own))


def read_from_id(case):
    topic = case.topic("read")
    case.ours.run("produce", topic, "-m", "1,2,3,4,5")
    every = case.ours.messages("read", topic, "-m", "earliest", "-n", 5, "-mp")
    same(case.real.messages("read", topic, "-m", "earliest", "-n", 5, "-mp"), every)
    second = re.search(r"message-id:(\d+:\d+):", every[1])[1]
    for tool in (case.real, case.ours):
        same(every[2:], tool.messages("read", topic, "-m", second, "-n", 3, "-mp"))
        same(every[1:], tool.messages("read", topic, "-m", second, "-i", "-n", 4, "-mp"))


def subscriptions(case):
    topic = case.topic("subscriptions")
    case.ours.run("produce", topic, "-m", "1,2,3")
    for kind in ("Exclusive", "Shared", "Failover", "Key_Shared"):
        # What one tool has acknowledged, the other one does not get.
        common = ["consume", topic, "-s", kind, "-t", kind, "-p", "Earliest"]
        [first] = case.ours.messages(*common, "-n", 1)
        [second] = case.real.messages(*common, "-n", 1)
        [third] = case.ours.messages(*common, "-n", 1)
        contents = [message.strip()[-1] for message in (first, second, third)]
        check(contents == ["1", "2", "3"], f"{kind}: {contents}")


def time_range(case):
    topic = case.topic("time")
    case.ours.run("produce", topic, "-m", "1,2,3,4", "-r", "20")
    every = case.ours.messages("read", topic, "-m", "earliest", "-n", 4)
    second, third = (re.search(r"publishTime:\[(\d+)\]", message)[1] for message in every[1:3])
    for tool in (case.real, case.ours):
        common = ["consume", topic, "-s", tool.name, "-p", "Earliest", "-n", 0, "-stp", second, "-etp", third]
        same(every[1:3], tool.messages(*common))


def rates(case):
    topic = case.topic("rates")
    begin = time.monotonic()
    case.ours.run("produce", topic, "-m", "x", "-n", 11, "-r", 10)
    middle = time.monotonic()
    case.ours.run("consume", topic, "-s", "s", "-p", "Earliest", "-n", 11, "-r", 5)
    sent, taken = middle - begin, time.monotonic() - middle
    check(1.0 <= sent < 3 and 2.0 <= taken < 5, f"sent in {sent:.2f} s, taken in {taken:.2f} s")


def objects(case):
    topic = case.topic("objects")
    [receipt] = case.ours.run("produce", topic, "-m", "x", "-k", "key", "-p", "a=b", "--json").splitlines()
    case.ours.run("produce", topic, "-f", case.file("bytes", b"\xff"), "--quiet")
    common = ["-n", 2, "--json"]
    read = [json.loads(line) for line in case.ours.run("read", topic, "-m", "earliest", *common).splitlines()]
    consumed = [json.loads(line) for line in
                case.ours.run("consume", topic, "-s", "s", "-p", "Earliest", *common).splitlines()]
    check(read == consumed and len(read) == 2, f"{read} against {consumed}")
    check(json.loads(receipt) == {"topic": topic, "messageId": read[0]["messageId"], "size": 1}, receipt)
    check(read[0]["payload"] == "x" and read[0]["key"] == "key" and read[0]["properties"] == {"a": "b"}, f"{read[0]}")
    check(read[1]["payloadBase64"] == "/w==" and "payload" not in read[1], f"{read[1]}")


def interrupted(case):
    topic = case.topic("interrupted")
    case.ours.run("produce", topic, "-m", "1,2")
    process = case.ours.start("consume", topic, "-s", "s", "-p", "Earliest", "-n", 0)
    lines = [process.stdout.readline() for _ in range(4)]
    process.send_signal(signal.SIGINT)
    rest, error = process.communicate(timeout=SECONDS)
    check(process.returncode == 0 and rest == b"2 messages successfully consumed\n", f"{lines} {rest} {error}")
    case.ours.run("produce", topic, "-m", "3")
    [message] = case.real.messages("consume", topic, "-s", "s", "-n", 1)
    check(message.strip().endswith("content:3"), f"what was consumed before came again: {message}")


CASES = {function.__name__: function for function in (
    plain, metadata, binary_file, hex_dump, string_schema, json_schema, avro_schema, key_value, chunked, partitioned, regex,
    read_from_id, subscriptions, time_range, rates, objects, interrupted)}


def tools(binary, service_url, folder):
    """Both tools, set to a service URL: ours before, theirs after the subcommand's name."""
    logging = folder / "log4j2.xml"
    logging.write_text(LOGGING)
    conf = folder / "client.conf"
    conf.write_text(f"brokerServiceUrl={service_url}\nwebServiceUrl=http://127.0.0.1:1/\n")
    real = jars.java_command("org.apache.pulsar.client.cli.PulsarClientTool", [conf], heap="700m", direct="512m",
                             log_config=logging)
    # What Java prints has to be UTF-8 wherever this runs.
    real[1:1] = ["-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", "-Dsun.stdout.encoding=UTF-8", "-Dsun.jnu.encoding=UTF-8"]
    return Tool("pulsegate", [binary, "--url", service_url]), Tool("pulsar-client", real)


def run_cases(names, case):
    """Run the cases; returns how many passed and failed."""
    passed = failed = 0
    for name in names:
        begin = time.monotonic()
        try:
            CASES[name](case)
            passed += 1
            print(f"PASS {name} ({time.monotonic() - begin:.0f} s)", flush=True)
        except (CaseFailed, PeerError, ValueError, OSError) as problem:
            failed += 1
            print(f"FAIL {name}: {type(problem).__name__} {problem}", flush=True)
    return passed, failed


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--via", action="append", choices=["gateway", "direct", "apache-proxy"])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "target/release/pulsegate")
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--peer", metavar="DIR", help="a running standalone or cluster of tests/peers/pulsar.py")
    parser.add_argument("--folder", type=pathlib.Path, help="where logs and data go (kept); default a temporary folder")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if not arguments.bin.exists():
        sys.exit(f"cli.py: there is no {arguments.bin}; build it or name it with --bin")
    passed = failed = 0
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-cli-")))
        folder.mkdir(parents=True, exist_ok=True)
        peer = pulsar.Peer(arguments.peer) if arguments.peer else stack.enter_context(pulsar.standalone(folder / "peer"))
        for via in arguments.via or ["gateway"]:
            with contextlib.ExitStack() as way:
                service_url = peer.service_url
                if via == "gateway":
                    front = way.enter_context(gateway(arguments.bin, peer.service_url, peer.admin_url, folder))
                    service_url = front.service_url
                elif via == "apache-proxy":
                    service_url = way.enter_context(pulsar.proxy(folder / "proxy", of=peer)).service_url
                print(f"via {via}:", flush=True)
                ours, real = tools(arguments.bin, service_url, folder)
                case = Case(ours, real, peer.admin, folder, f"{via}-{time.time_ns() // 10**6}")
                counts = run_cases(arguments.case or CASES, case)
                passed, failed = passed + counts[0], failed + counts[1]
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(0 if passed and not failed else 1)


if __name__ == "__main__":
    raise_on_signals()
    try:
        main()
    except (PeerError, programs.jars.JarsError, OSError) as problem:
        sys.exit(f"cli.py: {problem}")
