#!/usr/bin/env python3
"""What a proxy costs: the gateway, HAProxy and Apache's proxy, each in front of a null broker, in interleaved rounds.

    cargo build --release --locked
    benches/perf/proxies.py [--rounds 5] [--seconds 4] [--only CASE]... [--proxy NAME]... [--json]

What counts is the CPU time of the proxy's process alone. Client, broker and proxy share the machine's cores, so rates only say
who starves whom. The cases, each plain and (`tls-...`) with TLS towards the client:

    publish-1k, publish-64k    one producer, unbatched, as fast as it goes: CPU seconds per GB
    consume-1k                 one consumer: CPU seconds per GB
    latency-1000, -50000       messages of 1 KiB at this rate: p50 and p99 in ms, from the time at which each was due
    set-up                     1,000 clients, each with a lookup, a connection and a producer: CPU ms for each
    idle                       8,000 connections that have carried a message: memory for each, and of the process before

HAProxy forwards TCP, with buffers of 128 KiB; a lookup leads through it because its null broker says so. Needs haproxy,
openssl, Java 17 and, once, Maven; a proxy that is not there is left out, and the report says so.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/compat"), str(ROOT / "tests/peers")]

import jars  # noqa: E402  (found through the paths above)
from credentials import Credentials  # noqa: E402
from processes import running  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
# As users run it, unlike the small heap and the first compiler of the test servers.
JVM_OPTIONS = "-XX:+UseG1GC -XX:TieredStopAtLevel=4 -Xmx1g -XX:MaxDirectMemorySize=1g"
OURS = "gateway"
JVM_WARM_SECONDS = 5
CLIENTS = 1_000
IDLE_THREADS = 8
IDLE_CONNECTIONS = 8_000


def free_port():
    """A port that nobody listens at now; HAProxy and Apache's proxy cannot say which they took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cpu_seconds(pid):
    """User and system time of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_bytes(pid):
    """Resident memory of a process now."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_sockets(pid):
    """Sockets of a process now."""
    count = 0
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += os.readlink(link).startswith("socket:")
    return count


class Front:
    """A proxy that runs: its process, and where clients find it."""

    def __init__(self, pid, plain, tls):
        self.pid, self.urls = pid, {"plain": plain, "tls": tls}


@contextlib.contextmanager
def null_broker(binary, folder, *flags):
    """A null broker; yields its `host:port`."""
    command = [binary, "perf", "null-broker", "--listen", "127.0.0.1:0", *flags]
    with running(command, folder, "null-broker", stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip().removeprefix("ready broker=pulsar://")


def wait_for_port(port, seconds=60):
    """Returns once somebody listens there."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > end:
            sys.exit(f"nobody listens at port {port} after {seconds} s")
        time.sleep(0.1)


@contextlib.contextmanager
def gateway(binary, folder, files):
    with null_broker(binary, folder) as broker:
        settings = {"tlsCertificateFilePath": files / "server.pem", "tlsKeyFilePath": files / "server.key",
                    "servicePortTls": 0}
        command = [binary, "gateway", "--broker", f"pulsar://{broker}", "--bind", "127.0.0.1", "--port", "0",
                   "--http-port", "0", "--log-level", "warn"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        with running(command, folder, "gateway", stdout=subprocess.PIPE, text=True) as process:
            ready = dict(part.split("=", 1) for part in process.stdout.readline().split()[1:])
            yield Front(process.pid, ready["broker"], ready["broker-tls"])


@contextlib.contextmanager
def haproxy(binary, folder, files):
    """One process with two listeners, and for each a null broker that names it."""
    ports = {"plain": free_port(), "tls": free_port()}
    (folder / "both.pem").write_text((files / "server.pem").read_text() + (files / "server.key").read_text())
    tls = f" ssl crt {folder / 'both.pem'}"
    with contextlib.ExitStack() as stack:
        parts = ["global\n  tune.bufsize 131072\n  maxconn 9500\n  nosplice\ndefaults\n  mode tcp\n  maxconn 9500\n"
                 "  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n"]
        for kind, port in ports.items():
            (folder / kind).mkdir()
            scheme = "pulsar+ssl" if kind == "tls" else "pulsar"
            broker = stack.enter_context(
                null_broker(binary, folder / kind, "--advertised", f"{scheme}://127.0.0.1:{port}"))
            parts.append(f"listen {kind}\n  bind 127.0.0.1:{port}{tls if kind == 'tls' else ''}\n  server broker {broker}\n")
        (folder / "haproxy.cfg").write_text("".join(parts))
        process = stack.enter_context(running(["haproxy", "-db", "-q", "-f", folder / "haproxy.cfg"], folder, "haproxy"))
        for port in ports.values():
            wait_for_port(port)
        yield Front(process.pid, f"pulsar://127.0.0.1:{ports['plain']}", f"pulsar+ssl://127.0.0.1:{ports['tls']}")


@contextlib.contextmanager
def apache_proxy(binary, folder, files):
    plain, tls, web = free_port(), free_port(), free_port()
    with null_broker(binary, folder) as broker:
        settings = {
            "clusterName": "bench", "brokerServiceURL": f"pulsar://{broker}", "brokerWebServiceURL": "http://127.0.0.1:1",
            "servicePort": plain, "servicePortTls": tls, "webServicePort": web, "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1", "tlsCertificateFilePath": files / "server.pem",
            "tlsKeyFilePath": files / "server.key",
            "brokerProxyAllowedTargetPorts": "*", "brokerProxyAllowedIPAddresses": "127.0.0.0/8",
            "maxConcurrentInboundConnections": 20000, "maxConcurrentLookupRequests": 50000,
        }
        (folder / "proxy.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = jars.java_command("org.apache.pulsar.proxy.server.ProxyServiceStarter", ["-c", folder / "proxy.conf"])
        with running(command, folder, "apache-proxy") as process:
            for port in (plain, tls):
                wait_for_port(port)
            yield Front(process.pid, f"pulsar://127.0.0.1:{plain}", f"pulsar+ssl://127.0.0.1:{tls}")


def perf_command(options, front, kind, verb, *flags):
    """The command line of the load generator, against one proxy."""
    return [options.binary, "perf", verb, "-u", front.urls[kind], "--trust-cert-file", str(options.ca), "-i", "0", "--json",
            "--watch-pid", str(front.pid), *map(str, flags), f"bench-{verb}"]


def perf(options, front, kind, verb, *flags):
    """One run of the load generator; its report."""
    command = perf_command(options, front, kind, verb, *flags)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=180)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}{done.stdout[-2000:]}")
    return json.loads(done.stdout)


def throughput(verb, size):
    """A case: CPU seconds of the proxy for each GB of payload, and GB per second."""
    def case(options, front, kind):
        flags = ["-r", 0, "-db", "-s", size, "-o", 64 if size > 10_000 else 1000] if verb == "produce" else []
        report = perf(options, front, kind, verb, *flags, "-time", options.seconds + 1, "--warmup-time", 1)
        gigabytes = report["megabytes_per_second"] * report["seconds"] / 1e3
        return {"cpu_s_per_gb": report["watched"][0]["cpu_seconds"] / gigabytes, "gb_per_s": gigabytes / report["seconds"]}
    return case


def latency(rate):
    """A case: how long messages take at a fixed rate."""
    def case(options, front, kind):
        report = perf(options, front, kind, "produce", "-r", rate, "-db", "-s", 1024, "-time", options.seconds + 1)
        return {key: report["latency"][key] for key in ("p50_ms", "p99_ms")}
    return case


def set_up(options, front, kind):
    """CPU time of the proxy for one client's lookup connection, lookup, connection and producer."""
    before = cpu_seconds(front.pid)
    perf(options, front, kind, "produce", "-threads", CLIENTS, "-r", CLIENTS // 10, "-time", 3, "-s", 16)
    return {"cpu_ms": (cpu_seconds(front.pid) - before) * 1000 / CLIENTS}


def idle(options, front, kind):
    """Memory of the proxy before, and for each connection that has carried a message and is silent."""
    before = resident_bytes(front.pid)
    each = IDLE_CONNECTIONS // IDLE_THREADS
    command = perf_command(options, front, kind, "produce", "-threads", IDLE_THREADS, "-t", each, "-c", each,
                           "-r", IDLE_CONNECTIONS // 4, "-s", 1024, "-db", "-time", 600)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + 120
            while open_sockets(front.pid) < 2 * IDLE_CONNECTIONS:
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit(f"{open_sockets(front.pid)} sockets instead of {2 * IDLE_CONNECTIONS}")
                time.sleep(0.5)
            # Every producer has its turn each 4 s.
            time.sleep(10)
            process.send_signal(signal.SIGSTOP)
            time.sleep(3)
            after = resident_bytes(front.pid)
        finally:
            process.kill()
    return {"start_mb": before / 1e6, "kib_each": (after - before) / 1024 / IDLE_CONNECTIONS}


CASES = {
    "publish-1k": throughput("produce", 1024),
    "publish-64k": throughput("produce", 65536),
    "consume-1k": throughput("consume", 1024),
    "latency-1000": latency(1_000),
    "latency-50000": latency(50_000),
    "set-up": set_up,
    "idle": idle,
}


STARTERS = {OURS: gateway, "haproxy": haproxy, "apache-proxy": apache_proxy}


class Proxies:
    """The proxies of a run, each with a null broker behind it; started when they are first needed."""

    def __init__(self, options, folder, stack):
        self.options, self.folder, self.stack = options, folder, stack
        self.fronts = {}

    @contextlib.contextmanager
    def fresh(self, name):
        """A proxy that has done nothing yet."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix=name, dir=self.folder))
        with STARTERS[name](self.options.binary, folder, self.options.ca.parent) as front:
            yield front

    def warm(self, name):
        """A proxy that has had traffic of every kind: the JVM's compiler and the allocators have done their first work."""
        if name not in self.fronts:
            front = self.fronts[name] = self.stack.enter_context(self.fresh(name))
            seconds = JVM_WARM_SECONDS if name == "apache-proxy" else 1
            for kind in ("plain", "tls"):
                for verb in ("produce", "consume"):
                    perf(self.options, front, kind, verb, *(["-r", 0, "-db"] if verb == "produce" else []), "-time", seconds,
                         "--warmup-time", 0)
                set_up(self.options, front, kind)
        return self.fronts[name]


def wanted(options):
    """Name, case and kind of connection of all that is to be measured."""
    for kind in ("plain", "tls"):
        for case in CASES:
            name = case if kind == "plain" else f"tls-{case}"
            if name in options.only or not options.only:
                yield name, case, kind


def measure(options, proxies):
    """`{case: {proxy: {metric: [the value of each round]}}}`."""
    results = {}
    for name, case, kind in wanted(options):
        for number in range(1 if case == "idle" else options.rounds):
            for proxy in sorted(options.proxy, reverse=number % 2 == 1):
                if case == "idle":
                    with proxies.fresh(proxy) as front:
                        values = CASES[case](options, front, kind)
                else:
                    values = CASES[case](options, proxies.warm(proxy), kind)
                told = ", ".join(f"{metric} {value:.3f}" for metric, value in values.items())
                print(f"{name} round {number + 1} {proxy}: {told}", file=sys.stderr, flush=True)
                for metric, value in values.items():
                    results.setdefault(name, {}).setdefault(proxy, {}).setdefault(metric, []).append(value)
    return results


def summary(values):
    """Median, least and greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def tables(results):
    """The medians of each proxy, and the ratios of the gateway to the others in the same round."""
    for case, proxies in results.items():
        for proxy, metrics in proxies.items():
            for metric, values in metrics.items():
                line = "{median:10.3f}  ({min:.3f} to {max:.3f})".format(**summary(values))
                ours = proxies.get(OURS, {}).get(metric)
                if ours and proxy != OURS:
                    ratio = summary([one / other for one, other in zip(ours, values) if other])
                    line += "   gateway / this {median:.2f}  ({min:.2f} to {max:.2f})".format(**ratio)
                print(f"{case:18} {proxy:13} {metric:13}{line}")


def main():
    """Run the rounds and print what they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--only", action="append", default=[], metavar="CASE")
    parser.add_argument("--proxy", action="append", choices=STARTERS)
    parser.add_argument("--binary", default=str(ROOT / "target/release/pulsegate"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.proxy = options.proxy or list(STARTERS)
    if not shutil.which("haproxy") and "haproxy" in options.proxy:
        print("haproxy is not installed: left out", file=sys.stderr)
        options.proxy.remove("haproxy")
    unknown = set(options.only) - {f"{tls}{case}" for tls in ("", "tls-") for case in CASES}
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    os.environ.setdefault("PULSEGATE_PEER_JAVA_OPTIONS", JVM_OPTIONS)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        folder = pathlib.Path(folder)
        options.ca = Credentials(folder / "credentials").path / "ca.pem"
        results = measure(options, Proxies(options, folder, stack))
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        tables(results)


if __name__ == "__main__":
    main()
