#!/usr/bin/env python3
"""Run the differential protocol suite through the gateway in front of Apache Pulsar standalone.

    conformance.py --suite DIR [--gateway-bin PATH] [--tls] | --direct

DIR is the folder of the suite's `conform.py`. Scenarios named in `known-failures` beside this file have to fail, all
others to pass. With --tls both sides of the gateway have TLS; relays give it to the suite and
the broker, which have none. Ends with `N passed, N failed`, where a known failure that failed counts as neither.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import os
import pathlib
import re
import ssl
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/compat"))

from gateway import gateway  # noqa: E402

import pulsar  # noqa: E402
from credentials import Credentials  # noqa: E402
from jars import JarsError  # noqa: E402
from processes import PeerError, end_process, raise_on_signals  # noqa: E402

# What the suite was recorded with.
BROKER = {
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "transactionCoordinatorEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
    "systemTopicEnabled": "true",
}
RESULT = re.compile(r"(PASS|FAIL)\s+([\w.]+)")


@contextlib.contextmanager
def relay(address, listening=None, connecting=None):
    """The address of a relay to `address`; `listening` and `connecting` are the TLS contexts of its sides, None: no TLS."""
    host, _, port = address.rpartition(":")

    async def copy(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        # TLS cannot end one direction alone.
        writer.close()

    tasks = set()

    async def serve(reader, writer):
        # Nobody else holds on to a task that serves a connection.
        tasks.add(asyncio.current_task())
        try:
            there = await asyncio.open_connection(host, int(port), ssl=connecting, server_hostname=connecting and host)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    async def run(started, stop):
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=listening)
        started.set_result(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(stop.wait)

    started, stop = concurrent.futures.Future(), threading.Event()
    # Ends the connections that are left by cancelling them.
    thread = threading.Thread(target=lambda: asyncio.run(run(started, stop)))
    thread.start()
    try:
        yield f"127.0.0.1:{started.result(10)}"
    finally:
        stop.set()
        thread.join()


def known_failures():
    """The scenario names of `known-failures`, each with its reason."""
    names = {}
    for line in pathlib.Path(__file__).with_name("known-failures").read_text().splitlines():
        name, _, reason = line.partition("#")
        if name.strip():
            if not reason.strip():
                raise PeerError(f"known-failures: {name.strip()} has no reason")
            names[name.strip()] = reason.strip()
    return names


def run_suite(suite, address, admin_url, via, jobs):
    """Run the suite against an address; returns scenario name -> passed, printing what it prints."""
    command = [sys.executable, suite / "conform.py", "run", "--broker", address, "--admin", admin_url, "--profile", "main",
               "--jobs", jobs, "--slow", "2", "--retries", "2"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"} | ({"CONFORM_VIA": via} if via else {})
    process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env=environment, cwd=suite)
    outcomes = {}
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            if outcome := RESULT.match(line):
                outcomes[outcome[2]] = outcome[1] == "PASS"
        process.wait()
    finally:
        end_process(process)
    return outcomes


def judge(outcomes, known):
    """Compare with the known failures; returns the number passed and what is wrong."""
    wrong = [f"{name} failed" for name, passed in outcomes.items() if not passed and name not in known]
    wrong += [f"{name} is listed in known-failures but passed" for name in known if outcomes.get(name)]
    wrong += [f"{name} is listed in known-failures but did not run" for name in known if name not in outcomes]
    if not outcomes:
        wrong.append("no scenario ran")
    return sum(outcomes.values()), wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=pathlib.Path, required=True)
    parser.add_argument("--gateway-bin", type=pathlib.Path, default=ROOT / "target/release/pulsegate")
    parser.add_argument("--direct", action="store_true", help="without a gateway, to see whether the suite and the broker agree")
    parser.add_argument("--tls", action="store_true", help="TLS on both sides of the gateway")
    parser.add_argument("--jobs", default="4")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-")))
        peer = stack.enter_context(pulsar.standalone(folder / "standalone", **BROKER))
        broker = peer.service_url.removeprefix("pulsar://")
        settings = {}
        if arguments.tls:
            # Given to the broker from outside: one with a TLS port of its own names that in its answers.
            credentials = Credentials(folder / "credentials").path
            server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            server.load_cert_chain(credentials / "server.pem", credentials / "server.key")
            broker = stack.enter_context(relay(broker, listening=server))
            settings = {"servicePortTls": 0, "tlsCertificateFilePath": credentials / "server.pem",
                        "tlsKeyFilePath": credentials / "server.key", "tlsEnabledWithBroker": "true",
                        "brokerClientTrustCertsFilePath": credentials / "ca.pem"}
        if arguments.direct:
            passed, wrong = judge(run_suite(arguments.suite, broker, peer.admin_url, None, arguments.jobs), {})
        else:
            service_url = f"pulsar+ssl://{broker}" if arguments.tls else peer.service_url
            front = stack.enter_context(gateway(arguments.gateway_bin, service_url, peer.admin_url, folder, settings))
            address = front.service_url.removeprefix("pulsar://")
            if arguments.tls:
                client = ssl.create_default_context(cafile=credentials / "ca.pem")
                secured = front.tls_service_url.removeprefix("pulsar+ssl://")
                address = stack.enter_context(relay(secured, connecting=client))
            outcomes = run_suite(arguments.suite, address, peer.admin_url, broker, arguments.jobs)
            passed, wrong = judge(outcomes, known_failures())
            if not front.stop():
                wrong.append(f"the gateway did not end in order: exit status {front.exit_status}")
    for problem in wrong:
        print(f"wrong: {problem}")
    print(f"{passed} passed, {len(wrong)} failed")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    raise_on_signals()
    try:
        main()
    except (PeerError, JarsError, OSError) as problem:
        sys.exit(f"conformance.py: {problem}")
