"""Tests of the process handling that need no Java: run with `python3 -m unittest discover tests/peers`."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from processes import Folder, PeerError, free_ports, start_time  # noqa: E402
from pulsar import parse_overrides  # noqa: E402

LISTEN = "import socket,sys,time; s=socket.create_server(('127.0.0.1',int(sys.argv[1]))); time.sleep(600)"
IGNORE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + LISTEN


class FolderTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Folder(temporary.name)
        self.folder.create("test")
        self.addCleanup(self.folder.stop)
        self.port, = free_ports(1)

    def launch(self, name="server", program=LISTEN):
        self.folder.launch(name, [sys.executable, "-c", program, self.port], self.port)
        return self.folder.info()["pids"][name]

    def test_another_process_stops_what_the_first_one_started(self):
        pid = self.launch()
        Folder(self.folder.path).stop()
        self.assertIsNone(start_time(pid))

    def test_a_killed_server_starts_again_on_its_port(self):
        first = self.launch()
        self.folder.kill("server")
        self.assertFalse(self.folder.is_running("server"))
        self.folder.start("server")
        self.assertNotEqual(first, self.folder.info()["pids"]["server"])

    def test_a_recycled_pid_is_never_signalled(self):
        self.launch()
        self.folder.kill("server")
        stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.addCleanup(stranger.wait)
        self.addCleanup(stranger.kill)
        self.folder.state["processes"]["server"]["pid"] = stranger.pid
        self.assertFalse(self.folder.is_running("server"))
        self.folder.stop()
        self.assertIsNone(stranger.poll())

    def test_a_server_that_ignores_sigterm_is_killed(self):
        import processes
        self.addCleanup(setattr, processes, "STOP_SECONDS", processes.STOP_SECONDS)
        processes.STOP_SECONDS = 0.2
        pid = self.launch(program=IGNORE)
        self.folder.stop()
        self.assertIsNone(start_time(pid))

    def test_a_server_that_ends_at_start_is_reported_with_its_log(self):
        with self.assertRaisesRegex(PeerError, "no such setting"):
            self.launch(program="raise SystemExit('no such setting')")

    def test_a_folder_in_use_is_refused(self):
        self.launch()
        with self.assertRaisesRegex(PeerError, "stop them first"):
            Folder(self.folder.path).create("test")

    def test_an_unknown_name_is_an_error(self):
        with self.assertRaisesRegex(PeerError, "has no broker7"):
            self.folder.start("broker7")


class CommandTest(unittest.TestCase):
    def test_a_signal_stops_servers_of_a_with_block(self):
        with tempfile.TemporaryDirectory() as temporary:
            script = (f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
                      "import processes\nprocesses.raise_on_signals()\n"
                      f"with processes.running([sys.executable, '-c', 'import time; time.sleep(600)'], {temporary!r}, 'x') as p:\n"
                      "    print(p.pid, flush=True); p.wait()\n")
            parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            pid = int(parent.stdout.readline())
            parent.send_signal(signal.SIGTERM)
            self.assertEqual(parent.wait(30), 128 + signal.SIGTERM)
            parent.stdout.close()
            self.assertIsNone(start_time(pid))

    def test_overrides_are_key_value_pairs(self):
        self.assertEqual(parse_overrides(["a.b=c=d", "e="]), {"a.b": "c=d", "e": ""})
        for wrong in ("novalue", "=x", "a b=c"):
            with self.assertRaises(PeerError):
                parse_overrides([wrong])

    def test_free_ports_differ(self):
        self.assertEqual(len(set(free_ports(20))), 20)


if __name__ == "__main__":
    unittest.main()
