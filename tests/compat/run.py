#!/usr/bin/env python3
"""Run the official clients against a two-broker Apache Pulsar cluster: through the gateway, directly, or through the
Apache proxy. Prints one table and `N passed, N failed`; everything that was started is stopped again by pid.

    run.py --gateway-bin target/release/pulsegate              through the gateway
    run.py --via direct --via apache-proxy                     what the clients do without it
    run.py --via direct --language go --case chunked_20mb      one program, one case
    run.py --case disturbance --unloads 50 --kills 5           more of what happens to brokers while clients work
"""

import argparse
import contextlib
import pathlib
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time

import programs
from gateway import gateway
from programs import ROOT

import pulsar
from processes import PeerError, end_process, raise_on_signals

SECONDS_BETWEEN_UNLOADS = 1.0
CASE_SECONDS = 300
RESULT = re.compile(r"(PASS|FAIL) (\w+)[ :]?(.*)")
DISTURBANCE = "disturbance"


class Results:
    """Outcomes by column (via and language) and case, printed as they come."""

    def __init__(self):
        self.table = {}
        self.failures = []

    def add(self, column, case, passed, note):
        """Note one outcome."""
        self.table.setdefault(case, {})[column] = passed
        print(f"{'PASS' if passed else 'FAIL'} {column} {case} {note.strip()}", flush=True)
        if not passed:
            self.failures.append(f"{column} {case}: {note.strip()}")

    def print_table(self):
        """All outcomes: a row per case, a column per program and way."""
        columns = sorted({column for row in self.table.values() for column in row})
        width = max(map(len, self.table), default=0)
        print("\n" + " " * width, *columns, sep="  ")
        for case, row in self.table.items():
            marks = ({True: "pass", False: "FAIL", None: "-"}[row.get(column)].ljust(len(column)) for column in columns)
            print(case.ljust(width), *marks, sep="  ")
        for failure in self.failures:
            print(f"failed: {failure}")
        outcomes = [passed for row in self.table.values() for passed in row.values()]
        print(f"{sum(outcomes)} passed, {len(outcomes) - sum(outcomes)} failed", flush=True)
        return bool(outcomes) and all(outcomes)


class Program:
    """A running client program whose standard output is read line by line."""

    def __init__(self, column, command, log):
        self.column, self.outcomes = column, {}
        self.log = open(log, "ab")
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.log, text=True, start_new_session=True)
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def wait_for(self, text, seconds):
        """Wait for a line; False when the program ends or the time is over first."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                line = self.lines.get(timeout=left)
            except queue.Empty:
                break
            if line is None:
                self.lines.put(None)
                return False
            if outcome := RESULT.fullmatch(line):
                self.outcomes[outcome[2]] = (outcome[1] == "PASS", outcome[3])
            if line == text:
                return True
        return False

    def finish(self, expected, results, seconds, names=None):
        """Tell the program to stop, wait for its end, and note one outcome for each expected case; some under other names."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("stop\n")
            self.process.stdin.close()
        self.wait_for(None, seconds)
        ended = self.process.poll() is not None or self._ends_soon()
        self.close()
        for case in expected:
            missing = (False, f"no result; exit status {self.process.returncode}" if ended else "no result in time")
            results.add(self.column, (names or {}).get(case, case), *self.outcomes.get(case, missing))

    def _ends_soon(self):
        try:
            self.process.wait(10)
            return True
        except subprocess.TimeoutExpired:
            return False

    def close(self):
        """End the program if it still runs."""
        end_process(self.process, 2)
        self.log.close()


def list_cases(arguments):
    """The cases that were asked for; default all of the programs."""
    source = (programs.HERE / "go/main.go").read_text()
    known = re.findall(r'^\t\{"(\w+)",', source, re.MULTILINE)
    unknown = [case for case in arguments.case if case not in known]
    if unknown:
        raise PeerError(f"unknown case {', '.join(unknown)}; there are {', '.join(known)}")
    return arguments.case or known


def disturb(peer, namespace, watched, unloads, kills):
    """Unload each bundle of a namespace so many times, each time to the other broker; between that, at even distances,
    kill the owner of a topic and start it again."""
    bundles = peer.admin.bundles(namespace)
    kill_at = {(2 * number + 1) * unloads // (2 * kills) for number in range(kills)}
    moves = killed = 0
    for round_number in range(unloads):
        if round_number in kill_at:
            owner = peer.admin.owner(watched)
            name = next(broker["name"] for broker in peer.brokers if broker["service_url"] == owner)
            peer.kill(name)
            killed += 1
            print(f"  killed {name}", flush=True)
            time.sleep(1)
            peer.start(name)
            print(f"  started {name} again", flush=True)
            time.sleep(3)
        targets = {bundle: retried(move, peer, namespace, bundle) for bundle in bundles}
        time.sleep(SECONDS_BETWEEN_UNLOADS)
        owners = retried(peer.bundle_owners, namespace)
        moves += sum(owners.get(bundle) == target for bundle, target in targets.items())
    print(f"  {unloads} unloads of each of {len(bundles)} bundles of {namespace}: {moves} of {unloads * len(bundles)} seen on the "
          f"other broker {SECONDS_BETWEEN_UNLOADS:g} s later; {killed} kills", flush=True)
    time.sleep(2)
    # Ownership may go back between the unload and the look, so not every move is seen.
    wanted = unloads * len(bundles) // 4
    return moves >= wanted and killed == kills, f"{moves} of {wanted} moves, {killed} of {kills} kills"


def move(peer, namespace, bundle):
    """Unload one bundle and name the broker that is to have it; returns that broker's name."""
    owner = peer.bundle_owners(namespace).get(bundle)
    target = next(broker for broker in peer.brokers if broker["name"] != owner)
    peer.admin.unload(namespace, bundle, target["admin_url"].removeprefix("http://"))
    return target["name"]


def retried(call, *arguments):
    """Make an admin call. While a killed broker's ownership is being taken over it may fail for a moment."""
    end = time.monotonic() + 60
    while True:
        try:
            return call(*arguments)
        except PeerError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def run_disturbance(via, commands, options, peer, arguments, folder, results):
    """Run the disturbance case of all programs at the same time under one disturbance."""
    namespace = f"public/disturbed-{via}"
    peer.admin.create_namespace(namespace, bundles=2)
    started = []
    try:
        for language, command in commands.items():
            started.append(Program(f"{via}/{language}", [*command, *options, "--namespace", namespace, DISTURBANCE],
                                   folder / f"{via}-{language}-disturbance.log"))
        steady = all([program.wait_for("RUNNING " + DISTURBANCE, 90) for program in started])
        if steady:
            language = next(iter(commands))
            watched = f"persistent://{namespace}/{language}-disturbance-exclusive-{options[-1]}"
            results.add(f"{via}/brokers", "disturbed", *disturb(peer, namespace, watched, arguments.unloads, arguments.kills))
        for program in started:
            program.finish([DISTURBANCE], results, CASE_SECONDS)
    finally:
        for program in started:
            program.close()


def judge_end(front, results, column, lookups=False):
    """All clients are gone: what the gateway still holds, and how it ends."""
    left = front.left_over(lookups)
    results.add(column, "no_connection_left", not any(left), str(left))
    orderly = front.stop()
    results.add(column, "stops_on_sigterm", orderly, f"exit status {front.exit_status}")


@contextlib.contextmanager
def way_in(via, peer, arguments, folder, results):
    """Start what stands between clients and brokers, and yield the service URL of it."""
    if via == "direct":
        yield peer.service_url
    elif via == "apache-proxy":
        with pulsar.proxy(folder / "proxy", of=peer) as front:
            yield front.service_url
    else:
        with gateway(arguments.gateway_bin, peer.service_url, peer.admin_url, folder) as front:
            yield front.service_url
            judge_end(front, results, "gateway/itself", arguments.lookups_end)


def run_via(via, peer, commands, arguments, folder, results):
    """Run all chosen cases one way."""
    cases = list_cases(arguments)
    calm = [case for case in cases if case != DISTURBANCE]
    with way_in(via, peer, arguments, folder, results) as service_url:
        options = ["--service-url", service_url, "--admin-url", peer.admin_url, "--run", f"{via}-{time.time_ns() // 10**6}"]
        for language, command in commands.items() if calm else ():
            further = [] if arguments.case else programs.further_cases(language)
            asked = calm + [case for case in further if case not in calm]
            program = Program(f"{via}/{language}", [*command, *options, *asked], folder / f"{via}-{language}.log")
            try:
                program.finish(asked, results, CASE_SECONDS)
            finally:
                program.close()
        if DISTURBANCE in cases:
            run_disturbance(via, commands, options, peer, arguments, folder, results)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--via", action="append", choices=["gateway", "direct", "apache-proxy"])
    parser.add_argument("--gateway-bin", type=pathlib.Path, default=ROOT / "target/release/pulsegate")
    parser.add_argument("--language", action="append", choices=list(programs.LANGUAGES))
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("--unloads", type=int, default=10, help="of each bundle, in the case disturbance (default 10)")
    parser.add_argument("--kills", type=int, default=1, help="of a broker, in the same case (default 1)")
    parser.add_argument("--lookups-end", action="store_true",
                        help="wait also for the end of connections for lookups, which the gateway keeps for a minute")
    parser.add_argument("--cluster", metavar="DIR", help="a running cluster of tests/peers/pulsar.py instead of a new one")
    parser.add_argument("--folder", type=pathlib.Path, help="where logs and data go (kept); default a temporary folder")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    ways = arguments.via or ["gateway"]
    if "gateway" in ways and not arguments.gateway_bin.exists():
        sys.exit(f"run.py: there is no {arguments.gateway_bin}; build it or name it with --gateway-bin")
    results = Results()
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-")))
        folder.mkdir(parents=True, exist_ok=True)
        commands = {language: programs.LANGUAGES[language]()
                    for language in arguments.language or programs.LANGUAGES}
        if arguments.cluster:
            peer = pulsar.Peer(arguments.cluster)
        else:
            peer = stack.enter_context(pulsar.cluster(folder / "cluster"))
        for via in ways:
            run_via(via, peer, commands, arguments, folder, results)
        passed = results.print_table()
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    raise_on_signals()
    try:
        main()
    except (PeerError, programs.BuildError, programs.jars.JarsError, OSError) as problem:
        sys.exit(f"run.py: {problem}")
