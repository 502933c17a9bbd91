"""Starts the gateway binary for a `with` block and finds out where it listens."""

import contextlib
import re
import signal
import subprocess

import programs  # noqa: F401 (puts tests/peers on the path)

from processes import PeerError, running

READY = re.compile(r"ready( [\w-]+=\S+)+\n")
STOP_SECONDS = 60


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


@contextlib.contextmanager
def gateway(binary, service_url, admin_url, folder, settings=None):
    """`with gateway(BINARY, BROKERS, WEB, FOLDER) as front:` its log goes to FOLDER/gateway.log. `settings` are further ones."""
    command = [binary, "gateway", "--broker", service_url, "--web", admin_url,
               "--port", "0", "--http-port", "0", "--bind", "127.0.0.1"]
    for key, value in (settings or {}).items():
        command += ["--set", f"{key}={value}"]
    with running(command, folder, "gateway", stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        if not READY.fullmatch(line):
            raise PeerError(f"the gateway did not say that it is ready but {line!r}; its log ends:\n"
                            + (folder / "gateway.log").read_text(errors="replace")[-2000:])
        yield Gateway(process, dict(part.split("=", 1) for part in line.split()[1:]))
