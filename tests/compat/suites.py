#!/usr/bin/env python3
"""Run the suites of the official Python and Rust clients against Apache Pulsar: directly or through the gateway.

    suites.py python CHECKOUT --python VENV/bin/python [--via direct|gateway|apache-proxy]
    suites.py rust TEST_BINARY [--via ...]

CHECKOUT is a checkout of pulsar-client-python (with pulsar-client, fastavro, requests and protobuf in VENV), TEST_BINARY what
`cargo test --lib --features admin-api --no-run` builds in the package of the crate `pulsar`; neither is part of this repository.
The suites want fixed ports and a network without a way out, so this program runs itself again in a network namespace of its own
(needs root). Every test of the Python suite has a process of its own. Ends with `N passed, N failed`.
"""

import argparse
import ast
import base64
import contextlib
import hashlib
import hmac
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import programs  # noqa: F401 (puts tests/peers on the path)
from programs import ROOT

import jars
import pulsar
from processes import PeerError, raise_on_signals, running

INSIDE = "PULSEGATE_SUITES_INSIDE"
# The files of the Python suite, in the order of its own script; what is left out needs containers or an identity provider.
PYTHON_FILES = ("custom_logger_test", "debug_logger_test", "interrupted_test", "pulsar_test", "schema_test",
                "table_view_test", "reader_test", "asyncio_test")
TEST_SECONDS = 60
PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
TOKEN_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
PUBLIC = (6650, 6651, 8080)
BEHIND = (16650, 16651, 18080)


def base64url(data):
    """Base64 as in tokens."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(key, role):
    """A token signed with HS256 that does not expire."""
    text = base64url(b'{"alg":"HS256"}') + "." + base64url(json.dumps({"sub": role}).encode())
    return f"{text}.{base64url(hmac.new(key, text.encode(), hashlib.sha256).digest())}"


def common_settings(configuration, key):
    """What broker and proxy have in common for the Python suite."""
    return {
        "advertisedAddress": "localhost", "bindAddress": "127.0.0.1",
        "tlsCertificateFilePath": configuration / "broker-cert.pem", "tlsKeyFilePath": configuration / "broker-key.pem",
        "tlsTrustCertsFilePath": configuration / "cacert.pem",
        "authenticationEnabled": "true",
        "authenticationProviders": ",".join(PROVIDER + kind for kind in ("Tls", "Token", "Basic")),
        "tokenSecretKey": f"data:;base64,{base64.b64encode(key).decode()}",
        "basicAuthConf": (configuration / ".htpasswd").as_uri(),
        "anonymousUserRole": "anonymous", "superUserRoles": "localhost,superUser,admin,proxy",
    }


class SuiteCredentials:
    """The broker's part of what the Python suite presumes, in the form of `credentials.Credentials`."""

    def __init__(self, configuration, key, place):
        self.configuration, self.key, self.place = configuration, key, place

    def token(self, _role):
        """A token of the superuser that makes the metadata."""
        return token(self.key, "superUser")

    def broker_settings(self, _tls_port, web_tls_port):
        """All settings of the broker that are not the kit's own."""
        binary, tls, web = self.place
        return common_settings(self.configuration, self.key) | {
            "brokerServicePort": binary, "brokerServicePortTls": tls, "webServicePort": web,
            "webServicePortTls": web_tls_port,
            "authorizationEnabled": "true", "proxyRoles": "proxy", "maxMessageSize": 1024000,
            "acknowledgmentAtBatchIndexLevelEnabled": "true", "managedLedgerDefaultMarkDeleteRateLimit": "0.1",
            "brokerClientAuthenticationPlugin": TOKEN_PLUGIN,
            "brokerClientAuthenticationParameters": f"token:{self.token('superUser')}"}


def gateway_settings(configuration, key):
    """A proxy.conf for the Python suite's ports, as it was measured with the Apache proxy."""
    binary, tls, web = PUBLIC
    return common_settings(configuration, key) | {
        "servicePort": binary, "servicePortTls": tls, "webServicePort": web,
        "brokerServiceURL": f"pulsar://localhost:{BEHIND[0]}", "brokerWebServiceURL": f"http://localhost:{BEHIND[2]}",
        "brokerClientAuthenticationPlugin": TOKEN_PLUGIN,
        "brokerClientAuthenticationParameters": f"token:{token(key, 'proxy')}",
        "forwardAuthorizationCredentials": "true", "clusterName": "standalone",
        "brokerProxyAllowedTargetPorts": BEHIND[0],
    }


@contextlib.contextmanager
def in_front(via, binary, folder, settings):
    """The gateway, the Apache proxy, or nothing, in front of the broker."""
    if via == "direct":
        yield
        return
    configuration = pulsar.write_properties(folder / "proxy.conf", settings)
    if via == "gateway":
        command = [binary, "gateway", "--config", configuration]
    else:
        logging = folder / "log4j2.xml"
        logging.write_text(pulsar.LOGGING)
        command = jars.java_command("org.apache.pulsar.proxy.server.ProxyServiceStarter", ["--config", configuration],
                                    log_config=logging)
    with running(command, folder, "front", stdout=subprocess.PIPE) as process:
        if via == "gateway" and not process.stdout.readline().startswith(b"ready "):
            raise PeerError("the gateway does not start:\n" + (folder / "front.log").read_text(errors="replace")[-2000:])
        if via != "gateway":
            time.sleep(15)
        yield


def make_metadata(admin):
    """Tenants and namespaces that the Python suite presumes."""
    for tenant, roles in (("public", ["anonymous"]), ("private", [])):
        body = {"adminRoles": roles, "allowedClusters": ["standalone"]}
        make(admin, f"/admin/v2/tenants/{tenant}", body, ("POST", f"/admin/v2/tenants/{tenant}", body))
    for namespace, role in (("public/default", "anonymous"), ("public/default-2", "anonymous"),
                            ("private/auth", "token-principal")):
        actions = ["produce", "consume"]
        make(admin, f"/admin/v2/namespaces/{namespace}",
             {"auth_policies": {"namespace_auth": {role: actions}}, "replication_clusters": ["standalone"]},
             ("POST", f"/admin/v2/namespaces/{namespace}/permissions/{role}", actions))


def make(admin, path, body, otherwise):
    """PUT something; where it is there already, change it by another call."""
    try:
        admin.call("PUT", path, body)
    except PeerError as refusal:
        if "HTTP 409" not in str(refusal):
            raise
        admin.call(*otherwise)


def python_tests(folder):
    """The names of all tests, in the order of the source."""
    for name in PYTHON_FILES:
        tree = ast.parse((folder / f"{name}.py").read_text())
        cases = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        for case in cases:
            for node in case.body:
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
                    yield f"{name}.{case.name}.{node.name}"


def run_python(arguments, folder):
    """The Python suite; yields the name, whether it passed, and what it said."""
    tests = arguments.suite.resolve() / "tests"
    configuration = tests / "test-conf"
    key = hashlib.sha256(os.urandom(32)).digest()
    (tests / ".test-token.txt").write_text(token(key, "token-principal"))
    place = PUBLIC if arguments.via == "direct" else BEHIND
    peer = pulsar.Peer(folder / "pulsar")
    with contextlib.ExitStack() as stack:
        stack.callback(peer.stop)
        peer.start_standalone({}, SuiteCredentials(configuration, key, place))
        make_metadata(peer.admin)
        stack.enter_context(in_front(arguments.via, arguments.gateway_bin, folder, gateway_settings(configuration, key)))
        for test in python_tests(tests):
            if arguments.only and arguments.only not in test:
                continue
            try:
                done = subprocess.run([arguments.python, "-m", "unittest", test], cwd=tests, timeout=TEST_SECONDS,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
                # The client sometimes aborts at the end of its process, after the test said that it was well.
                passed = done.returncode == 0 or bool(re.search(rb"^OK$", done.stdout, re.M))
                yield test, passed, done.stdout.decode(errors="replace")
            except subprocess.TimeoutExpired as late:
                yield test, False, f"more than {TEST_SECONDS} s\n" + (late.stdout or b"").decode(errors="replace")


def run_rust(arguments, folder):
    """The Rust suite, as `run_python`."""
    place = PUBLIC if arguments.via == "direct" else BEHIND
    binary, _, web = place
    peer = pulsar.Peer(folder / "pulsar")
    with contextlib.ExitStack() as stack:
        stack.callback(peer.stop)
        peer.start_standalone({"brokerServicePort": binary, "webServicePort": web, "advertisedAddress": "localhost",
                               "topicLevelPoliciesEnabled": "true", "systemTopicEnabled": "true"})
        stack.enter_context(in_front(arguments.via, arguments.gateway_bin, folder, {
            "servicePort": PUBLIC[0], "webServicePort": PUBLIC[2], "bindAddress": "127.0.0.1", "clusterName": "standalone",
            "brokerServiceURL": f"pulsar://localhost:{BEHIND[0]}", "brokerWebServiceURL": f"http://localhost:{BEHIND[2]}",
            "brokerProxyAllowedTargetPorts": BEHIND[0]}))
        command = [arguments.suite.resolve(), "--test-threads=1"] + ([arguments.only] if arguments.only else [])
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, check=False)
        text = done.stdout.decode(errors="replace")
        for name, outcome in re.findall(r"^test (\S+) \.\.\..*?(ok|FAILED)$", text, re.M | re.S):
            yield name, outcome == "ok", text if outcome != "ok" else ""


def inside_a_namespace():
    """Run this program again where its ports are free and packets to the world vanish."""
    if os.environ.get(INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["ip", "route", "add", "default", "dev", "lo"], check=True)
        return
    os.execvpe("unshare", ["unshare", "--net", sys.executable, *sys.argv], os.environ | {INSIDE: "1"})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("language", choices=("python", "rust"))
    parser.add_argument("suite", type=pathlib.Path)
    parser.add_argument("--via", default="gateway", choices=("direct", "gateway", "apache-proxy"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--gateway-bin", default=str(ROOT / "target/release/pulsegate"))
    parser.add_argument("--only", help="tests with this in their name")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for logs, kept")
    arguments = parser.parse_args()
    inside_a_namespace()
    raise_on_signals()
    passed = failed = 0
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        run = run_python if arguments.language == "python" else run_rust
        for name, good, text in run(arguments, folder):
            passed, failed = passed + good, failed + (not good)
            print(f"{'PASS' if good else 'FAIL'} {name}", flush=True)
            if not good:
                print("\n".join("    " + line for line in text.splitlines()[-25:]), flush=True)
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 and passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PeerError as problem:
        sys.exit(f"suites.py: {problem}")
