"""Starts the gateway binary for a `with` block and finds out where it listens."""

import contextlib
import re
import signal
import subprocess

import programs  # noqa: F401 (puts tests/peers on the path)

from processes import PeerError, running

READY = re.compile(r"ready broker=(pulsar://\S+) http=(http://\S+)\n")
STOP_SECONDS = 60


class Gateway:
    """A running gateway. `exit_status` is set once it has been told to stop: 0 after an orderly end."""

    def __init__(self, process, service_url, http_url):
        self.process, self.service_url, self.http_url = process, service_url, http_url
        self.exit_status = None

    def stop(self):
        """Ask the gateway to end and wait for it; returns whether it ran until then and ended well."""
        was_running = self.process.poll() is None
        self.process.send_signal(signal.SIGTERM)
        self.exit_status = self.process.wait(STOP_SECONDS)
        return was_running and self.exit_status == 0


@contextlib.contextmanager
def gateway(binary, service_url, admin_url, folder):
    """`with gateway(BINARY, BROKERS, WEB, FOLDER) as front:` its log goes to FOLDER/gateway.log."""
    command = [binary, "gateway", "--broker", service_url, "--web", admin_url,
               "--port", "0", "--http-port", "0", "--bind", "127.0.0.1"]
    with running(command, folder, "gateway", stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        ready = READY.fullmatch(line)
        if not ready:
            raise PeerError(f"the gateway did not say that it is ready but {line!r}; its log ends:\n"
                            + (folder / "gateway.log").read_text(errors="replace")[-2000:])
        yield Gateway(process, ready[1], ready[2])
