"""Starts the gateway binary for a `with` block, finds out where it listens, and counts the connections that it holds."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.request
from typing import NamedTuple

import programs  # noqa: F401 (puts tests/peers on the path)

from processes import PeerError, running

READY = re.compile(r"ready( [\w-]+=\S+)+\n")
STOP_SECONDS = 60
# How long connections may take to end once all clients are gone: a relay waits 5 s for the other side's last bytes, and
# the connections of lookups are kept for a minute.
RELAY_SECONDS, LOOKUP_SECONDS = 20, 80
LISTEN = "0A"
GAUGES = ("pulsar_proxy_active_connections", "pulsegate_gateway_broker_connections")


class Connections(NamedTuple):
    """What a gateway holds: by its gauges (clients, relays), and by the system (sockets of clients, sockets to brokers)."""

    clients: int
    relays: int
    client_sockets: int
    broker_sockets: int


class Gateway:
    """A running gateway. `exit_status` is set once it has been told to stop: 0 after an orderly end."""

    def __init__(self, process, addresses):
        self.process = process
        self.service_url, self.http_url = addresses.get("broker"), addresses.get("http")
        self.tls_service_url = addresses.get("broker-tls")
        self.exit_status = None

    def stop(self):
        """Ask the gateway to end and wait for it; returns whether it ran until then and ended well."""
        was_running = self.process.poll() is None
        self.process.send_signal(signal.SIGTERM)
        self.exit_status = self.process.wait(STOP_SECONDS)
        return was_running and self.exit_status == 0

    def connections(self):
        """Those of this moment."""
        with urllib.request.urlopen(f"{self.http_url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        gauges = [int(re.search(rf"^{name}{{.*}} (\d+)$", text, re.MULTILINE)[1]) for name in GAUGES]
        listening = [int(url.rpartition(":")[2]) for url in (self.service_url, self.tls_service_url) if url]
        # Without the one of this scrape.
        ports = [local for local in self._socket_ports() if local != int(self.http_url.rpartition(":")[2])]
        from_clients = sum(local in listening for local in ports)
        return Connections(*gauges, from_clients, len(ports) - from_clients)

    def left_over(self, lookups=False):
        """What is held once all clients are gone: nothing, if nothing leaks. Waits for it, since ends take a moment and the
        brokers are probed now and then. `lookups`: including the connections to brokers that outlive their clients."""
        end = time.monotonic() + (LOOKUP_SECONDS if lookups else RELAY_SECONDS)
        while True:
            left = self.connections() if lookups else self.connections()._replace(broker_sockets=0)
            if not any(left) or time.monotonic() > end:
                return left
            time.sleep(0.1)

    def _socket_ports(self):
        """The local port of each of its TCP sockets that does not listen."""
        ports = {}
        for table in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] != LISTEN:
                    ports[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
        found = []
        for entry in pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir():
            # It may be closed meanwhile.
            with contextlib.suppress(FileNotFoundError):
                if (target := os.readlink(entry)) in ports:
                    found.append(ports[target])
        return found


@contextlib.contextmanager
def gateway(binary, service_url, admin_url, folder, settings=None):
    """`with gateway(BINARY, BROKERS, WEB, FOLDER) as front:` its log goes to FOLDER/gateway.log. `settings` come on top."""
    settings = {"brokerServiceURL": service_url, "brokerWebServiceURL": admin_url, "servicePort": 0, "webServicePort": 0,
                "bindAddress": "127.0.0.1"} | (settings or {})
    command = [binary, "gateway"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    with running(command, folder, "gateway", stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        if not READY.fullmatch(line):
            raise PeerError(f"the gateway did not say that it is ready but {line!r}; its log ends:\n"
                            + (folder / "gateway.log").read_text(errors="replace")[-2000:])
        yield Gateway(process, dict(part.split("=", 1) for part in line.split()[1:]))
