#!/usr/bin/env python3
"""Run the client programs through the gateway with TLS on both sides of it, in front of Apache Pulsar that authenticates
everybody and decides itself who may do what. Prints one table and `N passed, N failed`.

    secured.py                                       everything
    secured.py --language java --way password        one program, one way

The gateway is one of the broker's `proxyRoles`, and names the client's role to it. Ways:

    token         all kinds of subscriptions, and roles that may not do everything
    password      the same contents with a password instead of a token
    certificate   with a client certificate
    forwarded     with a broker that wants the client's credential itself, too, passed on by the gateway
"""

import argparse
import contextlib
import json
import pathlib
import sys
import tempfile
import time

import programs
from gateway import gateway
from programs import ROOT
from run import Program, Results, judge_end

import pulsar
from credentials import PASSWORD, Credentials
from processes import PeerError, raise_on_signals

NAMESPACE = "public/default"
PLUGINS = "org.apache.pulsar.client.impl.auth.Authentication"
CASES = ["produce_consume", "partitioned", "exclusive", "shared", "failover", "key_shared", "reader", "pattern"]
ROLES = {"client": ["produce", "consume"], "writer": ["produce"], "reader": ["consume"]}
# What each role may not do is refused; the second one takes what the first one sent.
ROLE_CASES = {"writer": "produce_only", "reader": "consume_only", "stranger": "stranger"}
WAYS = ("token", "password", "certificate", "forwarded")
SECONDS = 180


def plugin(way, language, credentials, role):
    """The options that let a program show a role. Each client wants them in a form of its own."""
    if way == "password":
        name, values = "Basic", {"userId": role, "username": role, "password": PASSWORD}
    elif way == "certificate":
        name, values = "Tls", {"tlsCertFile": f"{credentials.path / role}.pem", "tlsKeyFile": f"{credentials.path / role}.key"}
    else:
        name, values = "Token", {"token": credentials.token(role)}
    if language == "go" or way == "password":
        text = json.dumps(values)
    else:
        text = ",".join(f"{key}:{value}" for key, value in values.items())
    return ["--auth-plugin", PLUGINS + name, "--auth-params", text]


class Scene:
    """One broker, the gateway before it, and what is needed to run programs there."""

    def __init__(self, peer, front, credentials, commands, folder, results):
        self.peer, self.front, self.credentials = peer, front, credentials
        self.commands, self.folder, self.results = commands, folder, results

    def judge(self, way, language, role, cases, run, names=None):
        """Run some cases of a program in a role and note what came of them."""
        command = [*self.commands[language], "--service-url", self.front.tls_service_url,
                   "--admin-url", self.peer.admin_url, "--admin-token", self.credentials.token("admin"),
                   "--trust", self.credentials.path / "ca.pem", "--namespace", NAMESPACE, "--run", run,
                   *plugin(way, language, self.credentials, role), *cases]
        program = Program(f"{way}/{language}", command, self.folder / f"{way}-{language}.log")
        try:
            program.finish(cases, self.results, SECONDS, names)
        finally:
            program.close()

    def judge_grant(self, way, language, run):
        """A role that is refused is let in once the broker was told so: it was the broker's decision."""
        role = f"later-{language}"
        self.judge(way, language, role, ["stranger"], run, {"stranger": "before_grant"})
        grant(self.peer.admin, role, ["produce", "consume"])
        self.judge(way, language, role, ["produce_consume"], f"{run}-later", {"produce_consume": "after_grant"})


def grant(admin, role, actions):
    """Let a role do this. The broker makes the namespace after it answers, so this waits for it."""
    end = time.monotonic() + 30
    while True:
        try:
            return admin.call("POST", f"/admin/v2/namespaces/{NAMESPACE}/permissions/{role}", actions)
        except PeerError as refusal:
            if "HTTP 404" not in str(refusal) or time.monotonic() > end:
                raise
            time.sleep(0.2)


@contextlib.contextmanager
def scene(name, forwarded, arguments, commands, folder, results):
    """A standalone, and the gateway before it. `forwarded`: the broker wants the client's own credential."""
    flag = str(forwarded).lower()
    folder = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    credentials = Credentials(folder / "credentials")
    # Without a plain port nobody can reach the broker but by TLS; its own client included.
    broker = {"authorizationEnabled": "true", "authenticateOriginalAuthData": flag, "brokerServicePort": "",
              "brokerClientTlsEnabled": "true"}
    with pulsar.standalone(folder / "standalone", credentials, **broker) as peer:
        for role, actions in ROLES.items():
            grant(peer.admin, role, actions)
        settings = credentials.proxy_settings(0, peer.state["urls"]) | {
            "servicePort": "", "brokerServiceURL": "", "forwardAuthorizationCredentials": flag,
            "authenticateMetricsEndpoint": "false"}
        with gateway(arguments.gateway_bin, "", peer.admin_url, folder, settings) as front:
            yield Scene(peer, front, credentials, commands, folder, results)
            judge_end(front, results, f"gateway/{name}")


def run_ways(arguments, commands, folder, results):
    """All ways that were asked for; those that want the same of the broker share one."""
    ways = arguments.way or WAYS
    run = f"{time.time_ns() // 10**6}"
    if named := [way for way in ways if way != "forwarded"]:
        with scene("named", False, arguments, commands, folder, results) as here:
            for language in commands:
                for way in named:
                    here.judge(way, language, "client", CASES if way == "token" else CASES[:2], f"{way}-{run}")
                if "token" in named:
                    for role, case in ROLE_CASES.items():
                        here.judge("token", language, role, [case], f"token-{run}")
                    here.judge_grant("token", language, f"token-{run}")
    if "forwarded" in ways:
        with scene("forwarded", True, arguments, commands, folder, results) as here:
            for language in commands:
                here.judge("forwarded", language, "client", CASES[:2], f"forwarded-{run}")
                here.judge("forwarded", language, "stranger", ["stranger"], f"forwarded-{run}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway-bin", type=pathlib.Path, default=ROOT / "target/release/pulsegate")
    parser.add_argument("--language", action="append", choices=list(programs.LANGUAGES))
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--folder", type=pathlib.Path, help="where logs and data go (kept); default a temporary folder")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if not arguments.gateway_bin.exists():
        sys.exit(f"secured.py: there is no {arguments.gateway_bin}; build it or name it with --gateway-bin")
    results = Results()
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-secured-")))
        commands = {language: programs.LANGUAGES[language]()
                    for language in arguments.language or programs.LANGUAGES}
        run_ways(arguments, commands, folder, results)
        passed = results.print_table()
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    raise_on_signals()
    try:
        main()
    except (PeerError, programs.BuildError, programs.jars.JarsError, OSError) as problem:
        sys.exit(f"secured.py: {problem}")
