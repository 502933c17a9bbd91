"""Server processes of one folder: started, found again by pid, killed, started again, stopped.

The state of a folder is `state.json` in it, so that one command can stop what another one started. A process is known by
its pid and its start time: a pid that the system gave to somebody else since is never signalled.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

HOST = "127.0.0.1"
STOP_SECONDS = 20


class PeerError(Exception):
    """A server did not start, ended by itself, or is not there."""


def free_ports(count):
    """`count` different free ports of 127.0.0.1.

    They lie below the range that the system hands to outgoing connections, so that a server that is killed and
    started again does not find its port taken by some client's connection.
    """
    with contextlib.ExitStack() as held:
        ports = []
        for port in random.SystemRandom().sample(range(15_000, 32_000), 2_000):
            listener = held.enter_context(socket.socket())
            try:
                listener.bind((HOST, port))
            except OSError:
                continue
            ports.append(port)
            if len(ports) == count:
                return ports
    raise PeerError("no free ports")


def start_time(pid):
    """The start time of a running process in clock ticks; None when there is none, or only a zombie."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def raise_on_signals():
    """Turn SIGTERM, SIGHUP and SIGINT into SystemExit, so that `with` blocks end and stop their servers."""
    def leave(number, _frame):
        for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        print(f"stopping after {signal.Signals(number).name}", file=sys.stderr)
        raise SystemExit(128 + number)
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(each, leave)


@contextlib.contextmanager
def running(command, folder, name, **options):
    """Run any program for the length of a `with` block, its output in FOLDER/NAME.log; yields the Popen."""
    with open(pathlib.Path(folder) / f"{name}.log", "ab") as log:
        process = subprocess.Popen([str(part) for part in command],
                                   **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log,
                                      "start_new_session": True} | options)
    try:
        yield process
    finally:
        end_process(process)


def end_process(process, seconds=STOP_SECONDS):
    """Ask a child to end; kill it when it has not ended in time."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Folder:
    """The servers of one folder. `state` is what is written to `state.json`."""

    def __init__(self, path):
        self.path = pathlib.Path(path).resolve()
        self.state = {"kind": None, "processes": {}, "urls": {}}
        self.children = {}
        saved = self.path / "state.json"
        if saved.exists():
            self.state = json.loads(saved.read_text())

    def create(self, kind):
        """Make the folder ready for new servers; refuses one whose servers still run."""
        if any(self.is_running(name) for name in self.state["processes"]):
            raise PeerError(f"servers run in {self.path}; stop them first")
        self.path.mkdir(parents=True, exist_ok=True)
        self.state = {"kind": kind, "processes": {}, "urls": {}}
        self.save()

    def save(self):
        """Write the state so that no reader ever sees half of it."""
        partial = self.path / "state.json.new"
        partial.write_text(json.dumps(self.state, indent=1))
        partial.replace(self.path / "state.json")

    def is_running(self, name):
        """Whether the process of that name runs now."""
        process = self.state["processes"].get(name)
        return bool(process and process["pid"] and start_time(process["pid"]) == process["started"])

    def launch(self, name, command, ready):
        """Start a server and wait until it is ready: `ready` is a port number or an URL that must answer."""
        self.state["processes"][name] = {"pid": None, "started": None, "ready": ready,
                                         "command": [str(part) for part in command]}
        self.spawn(name)
        self.wait_ready(name)

    def spawn(self, name):
        """Start a server (again) with its recorded command and do not wait for it."""
        process = self.state["processes"].get(name)
        if process is None:
            raise PeerError(f"{self.path} has no {name}; it has {', '.join(self.state['processes']) or 'nothing'}")
        if self.is_running(name):
            raise PeerError(f"{name} runs already")
        with open(self.path / f"{name}.log", "ab") as log:
            child = subprocess.Popen(process["command"], cwd=self.path, stdin=subprocess.DEVNULL, stdout=log,
                                     stderr=log, start_new_session=True)
        self.children[name] = child
        process["pid"], process["started"] = child.pid, start_time(child.pid)
        self.save()

    def wait_ready(self, name, seconds=180):
        """Wait until a server answers; fails at once when it ends."""
        ready = self.state["processes"][name]["ready"]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if answers(ready):
                return
            if not self.is_running(name):
                raise PeerError(f"{name} ended while it started:\n{self.log_tail(name)}")
            time.sleep(0.1)
        raise PeerError(f"{name} did not answer {ready} within {seconds} s:\n{self.log_tail(name)}")

    def log_tail(self, name, lines=25):
        """The last lines of a server's log."""
        log = self.path / f"{name}.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"

    def start(self, name):
        """Start a server that was killed or stopped, with its data, configuration and ports; waits for it."""
        self.spawn(name)
        self.wait_ready(name)

    def kill(self, name):
        """End a server with SIGKILL and wait until it is gone. Its data and ports stay its own."""
        if not self.is_running(name):
            raise PeerError(f"{name} does not run in {self.path}")
        self._signal(name, signal.SIGKILL)
        self._wait_gone(name, 30)

    def stop(self):
        """Stop all servers, the one started last first; kill those that do not end in time."""
        names = [name for name in self.state["processes"] if self.is_running(name)]
        for name in reversed(names):
            self._signal(name, signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS
        for name in reversed(names):
            if not self._wait_gone(name, end - time.monotonic()):
                self._signal(name, signal.SIGKILL)
                self._wait_gone(name, 30)
        for name in [name for name in self.children if not self.is_running(name)]:
            self.children.pop(name).wait()

    def info(self):
        """What a user of the servers wants to know: kind, folder, URLs, pids of what runs."""
        pids = {name: process["pid"] for name, process in self.state["processes"].items() if self.is_running(name)}
        return {"kind": self.state["kind"], "folder": str(self.path), **self.state["urls"], "pids": pids}

    def _signal(self, name, number):
        if self.is_running(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.state["processes"][name]["pid"], number)

    def _wait_gone(self, name, seconds):
        end = time.monotonic() + seconds
        while self.is_running(name):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        if name in self.children:
            self.children.pop(name).wait()
        return True


def answers(ready):
    """Whether a port takes connections, or an URL answers something other than a server error."""
    try:
        if isinstance(ready, int):
            socket.create_connection((HOST, ready), timeout=1).close()
        else:
            urllib.request.urlopen(ready, timeout=3).close()
        return True
    except urllib.error.HTTPError as refusal:
        return refusal.code in (401, 403)
    except OSError:
        return False
