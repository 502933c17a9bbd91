#!/usr/bin/env python3
"""Run the cases of client_live against Apache Pulsar: directly, through the gateway, and through the Apache proxy.

    cargo build && cargo test --test client_live --no-run
    tests/client_live/run.py [--via direct|gateway|apache-proxy]... [CASE ...]

It starts a standalone, what is in front of it, and stops both again. The exit status is not 0 when a case failed.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "tests/compat"), str(ROOT / "tests/peers")]

import programs  # noqa: E402
import pulsar  # noqa: E402
from gateway import gateway  # noqa: E402
from processes import raise_on_signals  # noqa: E402

WAYS = ("direct", "gateway", "apache-proxy")


def test_program():
    """The newest build of the test target, as cargo names it."""
    command = ["cargo", "test", "--test", "client_live", "--no-run", "--message-format", "json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    messages = map(json.loads, filter(lambda line: line.startswith("{"), lines))
    programs_built = [message["executable"] for message in messages
                      if message.get("executable") and message["target"]["name"] == "client_live"]
    return programs_built[-1]


@contextlib.contextmanager
def in_front(way, peer, folder, binary):
    """The service URL of a cluster by way of `way`."""
    if way == "direct":
        yield peer.service_url
    elif way == "gateway":
        with gateway(binary, peer.service_url, peer.admin_url, folder) as front:
            yield front.service_url
    else:
        with pulsar.proxy(folder / "proxy", of=peer) as front:
            yield front.service_url


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--via", action="append", choices=WAYS)
    parser.add_argument("--gateway-bin", default=str(ROOT / "target/debug/pulsegate"))
    parser.add_argument("--test-bin", help="the built test target; built when it is not given")
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    raise_on_signals()
    program = arguments.test_bin or test_program()
    python = programs.python()[0]
    failed = []
    with tempfile.TemporaryDirectory(prefix="client-live-") as folder:
        folder = pathlib.Path(folder)
        with pulsar.standalone(folder / "standalone", acknowledgmentAtBatchIndexLevelEnabled="true") as peer:
            environment = {**os.environ, "CLIENT_LIVE_PYTHON": str(python),
                           "CLIENT_LIVE_PEER": f"{folder / 'standalone'}:standalone"}
            for way in arguments.via or WAYS:
                print(f"{way}:", flush=True)
                (folder / way).mkdir()
                with in_front(way, peer, folder / way, arguments.gateway_bin) as service_url:
                    command = [program, service_url, peer.admin_url, *arguments.cases]
                    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as writing:
                        # Passes on what the cases print, and reads what they wrote with the official client.
                        reading = subprocess.run([python, HERE / "read_back.py", "--service-url", peer.service_url],
                                                 stdin=writing.stdout)
                    if writing.returncode != 0 or reading.returncode != 0:
                        failed.append(way)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


main()
