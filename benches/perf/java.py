#!/usr/bin/env python3
"""`pulsegate perf produce` beside Apache's `pulsar-perf produce`, both against one null broker, in interleaved rounds.

    cargo build --release --locked
    benches/perf/java.py [--rounds 5] [--seconds 10] [--size 1024] [--json]

What counts is what a generator itself can do: messages for each CPU second of its process. Of the JVM the first ten seconds,
in which it compiles, are left out, and so is the warm-up of pulsegate. Needs Java 17 and, once, Maven.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/peers"))

import jars  # noqa: E402  (found through the path above)

TICKS = os.sysconf("SC_CLK_TCK")
# pulsar-perf tells how many messages it has sent in this interval, whatever its flags say. What comes before the first time
# is left out: there the JVM's compiler is busy.
JVM_INTERVAL_SECONDS = 10
# As users run it, unlike the small heap and the first compiler of the test servers.
JVM_OPTIONS = "-XX:+UseG1GC -XX:TieredStopAtLevel=4 -Xmx2g -XX:MaxDirectMemorySize=2g"
PROGRESS = re.compile(r"Throughput produced:\s*(\d+) msg\s*---")
LOG_CONFIG = """<Configuration><Appenders><Console name="out" target="SYSTEM_OUT"><PatternLayout pattern="%m%n"/></Console>
</Appenders><Loggers><Root level="info"><AppenderRef ref="out"/></Root></Loggers></Configuration>"""


def cpu_seconds(pid):
    """User and system time of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextlib.contextmanager
def null_broker(binary):
    """A running null broker: its process and its URL."""
    process = subprocess.Popen([binary, "perf", "null-broker", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        yield process, process.stdout.readline().strip().removeprefix("ready broker=")
    finally:
        process.terminate()
        process.wait(20)


def run_pulsegate(binary, broker, url, options):
    """One run of pulsegate's generator: messages per second, per CPU second of it and of the null broker."""
    command = [binary, "perf", "produce", "-u", url, "-r", "0", "-db", "-s", str(options.size), "-o", str(options.window),
               "-time", str(options.seconds + 1), "-i", "0", "--json", "--watch-pid", str(broker.pid), "bench"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=options.seconds + 60).stdout)
    return {
        "rate": report["messages_per_second"],
        "per_cpu_second": report["generator"]["messages_per_cpu_second"],
        "broker_per_cpu_second": report["watched"][0]["messages_per_cpu_second"],
    }


def run_java(folder, broker, url, options):
    """One run of pulsar-perf, measured from its first line of progress to its last."""
    client_conf = folder / "client.conf"
    client_conf.write_text(f"brokerServiceUrl={url}\nwebServiceUrl=http://127.0.0.1:1\n")
    log_config = folder / "log4j2.xml"
    log_config.write_text(LOG_CONFIG)
    intervals = max(1, round(options.seconds / JVM_INTERVAL_SECONDS))
    command = jars.java_command(
        "org.apache.pulsar.testclient.PulsarPerfTestTool",
        [client_conf, "produce", "-u", url, "-r", "100000000", "-db", "-s", options.size, "-o", options.window,
         "-time", (intervals + 2) * JVM_INTERVAL_SECONDS, "bench"], log_config=log_config)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seen = []
    try:
        for line in process.stdout:
            if found := PROGRESS.search(line):
                seen.append((int(found[1]), time.monotonic(), cpu_seconds(process.pid), cpu_seconds(broker.pid)))
            if len(seen) > intervals:
                break
    finally:
        process.kill()
        process.wait(20)
    if len(seen) <= intervals:
        sys.exit("pulsar-perf told too little of its progress")
    messages, seconds, own, brokers = (last - first for first, last in zip(seen[0], seen[-1]))
    return {
        "rate": messages / seconds,
        "per_cpu_second": messages / own,
        "broker_per_cpu_second": messages / max(brokers, 1 / TICKS),
    }


def summary(values):
    """Median, least and greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main():
    """Run the rounds and print what they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--window", type=int, default=1000, help="messages of a producer without receipt, of both generators")
    parser.add_argument("--binary", default=str(ROOT / "target/release/pulsegate"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("PULSEGATE_PEER_JAVA_OPTIONS", JVM_OPTIONS)
    results = {"pulsegate": [], "pulsar-perf": []}
    with tempfile.TemporaryDirectory() as folder, null_broker(options.binary) as (broker, url):
        runs = {
            "pulsegate": lambda: run_pulsegate(options.binary, broker, url, options),
            "pulsar-perf": lambda: run_java(pathlib.Path(folder), broker, url, options),
        }
        for number in range(options.rounds):
            for name in sorted(runs, reverse=number % 2 == 1):
                results[name].append(runs[name]())
                print(f"round {number + 1} {name}: " + ", ".join(f"{key} {value:,.0f}" for key, value in results[name][-1].items()),
                      file=sys.stderr, flush=True)
    ratios = {
        key: summary([ours[key] / theirs[key] for ours, theirs in zip(results["pulsegate"], results["pulsar-perf"])])
        for key in ("rate", "per_cpu_second")
    }
    if options.json:
        print(json.dumps({"runs": results, "ratios": ratios}, indent=1))
        return
    for name, runs in results.items():
        for key in runs[0]:
            of = summary([run[key] for run in runs])
            print(f"{name:12} {key:22} median {of['median']:>12,.0f}  min {of['min']:>12,.0f}  max {of['max']:>12,.0f}")
    for key, of in ratios.items():
        print(f"pulsegate / pulsar-perf {key:15} median {of['median']:.2f}  min {of['min']:.2f}  max {of['max']:.2f}")


if __name__ == "__main__":
    main()
