#!/usr/bin/env python3
"""Start real Apache Pulsar 4.0.8 on 127.0.0.1 for tests.

    pulsar.py fetch                                  download the jars into the cache folder
    pulsar.py standalone DIR [KEY=VALUE ...]         broker, bookie and metadata in one process
    pulsar.py cluster DIR [--brokers N] [KEY=VALUE ...]
                                                     ZooKeeper, one bookie and N brokers (2)
    pulsar.py proxy DIR --of PEERDIR [KEY=VALUE ...] the Apache proxy in front of a standalone or a cluster
    pulsar.py info DIR                               URLs and pids as JSON
    pulsar.py kill DIR NAME                          kill -9 one process (standalone, zookeeper, bookie, broker0, proxy ...)
    pulsar.py start DIR NAME                         start it again: same data, configuration, ports
    pulsar.py unload DIR NAMESPACE [BUNDLE]          unload a namespace, or one bundle of it
    pulsar.py stop DIR                               stop all processes of DIR
    pulsar.py credentials CREDENTIALS                make certificates, tokens and passwords (credentials.py says which)
    pulsar.py token CREDENTIALS ROLE [SECONDS]       print a token of a role, one that expires in so many seconds

standalone and proxy take `--secure CREDENTIALS`: TLS beside the plain port, and authentication by token, certificate and
password. The proxy then speaks TLS to its broker, too.

DIR keeps data, logs and configuration. KEY=VALUE sets any key of broker.conf or proxy.conf; a port may be fixed with
brokerServicePort, webServicePort or servicePort, else it is picked free. See README.md beside this file for the Python use.
"""

import argparse
import contextlib
import json
import pathlib
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import jars  # noqa: E402
from credentials import Credentials  # noqa: E402
from processes import HOST, Folder, PeerError, free_ports, raise_on_signals  # noqa: E402

LOGGING = """\
<Configuration status="WARN">
  <Appenders><Console name="console"><PatternLayout pattern="%d{HH:mm:ss.SSS} %p [%t] %c{1.} - %m%n"/></Console></Appenders>
  <Loggers><Root level="info"><AppenderRef ref="console"/></Root></Loggers>
</Configuration>
"""

# A broker's largest entry, 5 MiB, and its metadata have to fit into one frame of the bookie.
BOOKIE_FRAME_BYTES = 5 * 1024 * 1024 + 10 * 1024


class Admin:
    """The REST calls that tests need, against one web service URL."""

    def __init__(self, web_url, token=None):
        self.web_url = web_url.rstrip("/")
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def call(self, method, path, body=None, timeout=60):
        """Send one request; returns the decoded JSON answer or None. HTTP errors are raised as PeerError."""
        url = self.web_url + path
        for _ in range(5):
            request = urllib.request.Request(url, method=method, data=None if body is None else json.dumps(body).encode(),
                                             headers=self.headers)
            try:
                with urllib.request.urlopen(request, timeout=timeout) as answer:
                    text = answer.read()
                break
            except urllib.error.HTTPError as refusal:
                # A broker sends a request for a bundle to its owner; urllib follows that for GET only.
                if refusal.code != 307:
                    reason = refusal.read().decode(errors="replace")
                    raise PeerError(f"{method} {path}: HTTP {refusal.code} {reason}") from refusal
                url = refusal.headers["Location"]
            except OSError as problem:
                raise PeerError(f"{method} {path}: {problem}") from problem
        else:
            raise PeerError(f"{method} {path}: redirected too often")
        try:
            return json.loads(text) if text else None
        except ValueError:
            return text.decode(errors="replace")

    def create_namespace(self, namespace, bundles=4):
        """Create a namespace with that many bundles."""
        self.call("PUT", f"/admin/v2/namespaces/{namespace}", {"bundles": {"numBundles": bundles}})

    def bundles(self, namespace):
        """The bundle ranges of a namespace, such as `0x00000000_0x40000000`."""
        limits = self.call("GET", f"/admin/v2/namespaces/{namespace}/bundles")["boundaries"]
        return [f"{low}_{high}" for low, high in zip(limits, limits[1:])]

    def unload(self, namespace, bundle=None, to=None):
        """Unload a namespace or one of its bundles: its topics close and are looked up anew. `to`: the broker that is to
        have the bundle then, as host:port of its web service."""
        part = f"/{bundle}" if bundle else ""
        query = f"?destinationBroker={to}" if to else ""
        self.call("PUT", f"/admin/v2/namespaces/{namespace}{part}/unload{query}")

    def owner(self, topic):
        """The `pulsar://` URL of the broker that serves a topic (`persistent://tenant/namespace/name`)."""
        path = topic.replace("://", "/")
        return self.call("GET", f"/lookup/v2/topic/{urllib.parse.quote(path)}")["brokerUrl"]


def write_properties(path, values):
    """Write a key=value configuration file and return its path."""
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


def broker_settings(cluster_name, ports, overrides):
    """Settings of a broker for a small test machine. `ports` = binary port, web port."""
    return {
        "clusterName": cluster_name,
        "bindAddress": HOST,
        "advertisedAddress": HOST,
        "brokerServicePort": ports[0],
        "webServicePort": ports[1],
        "managedLedgerDefaultEnsembleSize": 1,
        "managedLedgerDefaultWriteQuorum": 1,
        "managedLedgerDefaultAckQuorum": 1,
        "managedLedgerCacheSizeMB": 48,
        "functionsWorkerEnabled": "false",
        "webSocketServiceEnabled": "false",
        "numIOThreads": 2,
        "numHttpServerThreads": 8,
        "numExecutorThreadPoolSize": 2,
        "numCacheExecutorThreadPoolSize": 2,
    } | overrides


class Peer(Folder):
    """Apache Pulsar in one folder. Used as a context manager it stops everything at the end of the block."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def admin(self):
        """REST calls against the (first) broker, or the proxy."""
        return Admin(self.state["urls"]["admin_url"], self.state.get("admin_token"))

    @property
    def brokers(self):
        """One dict per broker: name, service_url, admin_url."""
        return self.state["urls"].get("brokers", [])

    @property
    def service_url(self):
        """`pulsar://host:port` of all brokers, comma separated, or of the proxy."""
        return self.state["urls"]["service_url"]

    @property
    def admin_url(self):
        """`http://host:port` of the first broker, or of the proxy."""
        return self.state["urls"]["admin_url"]

    def bundle_owners(self, namespace):
        """The names of the brokers that have the bundles of a namespace, by bundle; those that nobody has are missing."""
        owners = {}
        for broker in self.brokers:
            place = broker["admin_url"].removeprefix("http://")
            owned = Admin(broker["admin_url"]).call("GET", f"/admin/v2/brokers/{self.state['kind']}/{place}/ownedNamespaces")
            owners |= {name.rpartition("/")[2]: broker["name"] for name in owned if name.startswith(f"{namespace}/")}
        return owners

    def java(self, main_class, arguments, **sizes):
        """A java command line that logs to this folder."""
        logging = self.path / "log4j2.xml"
        logging.write_text(LOGGING)
        return jars.java_command(main_class, arguments, log_config=logging, **sizes)

    def start_standalone(self, overrides, secure=None):
        """Start broker, bookie and metadata in one process. `secure` = Credentials: with TLS and authentication."""
        self.create("standalone")
        *ports, bookie_port, tls_port, web_tls_port = free_ports(5)
        if secure:
            overrides = secure.broker_settings(tls_port, web_tls_port) | overrides
            self.state["admin_token"] = secure.token("admin")
        settings = broker_settings("standalone", ports, {"nettyMaxFrameSizeBytes": BOOKIE_FRAME_BYTES} | overrides)
        data = self.path / "data"
        command = self.java("org.apache.pulsar.PulsarStandaloneStarter", [
            "--config", write_properties(self.path / "standalone.conf", settings),
            "--no-functions-worker", "--no-stream-storage", "--bookkeeper-port", bookie_port,
            "--bookkeeper-dir", data / "bookkeeper", "--metadata-dir", data / "metadata"], heap="512m", direct="384m")
        self._record_brokers({"standalone": settings})
        if secure:
            self.state["urls"] |= {"tls_service_url": f"pulsar+ssl://{HOST}:{settings['brokerServicePortTls']}",
                                   "tls_admin_url": f"https://{HOST}:{settings['webServicePortTls']}"}
        self.launch("standalone", command, f"{self.admin_url}/admin/v2/namespaces/public/default")

    def start_cluster(self, brokers, overrides):
        """Start ZooKeeper, one bookie and `brokers` brokers."""
        self.create("cluster")
        zookeeper_port, bookie_port, *ports = free_ports(2 + 2 * brokers)
        self._start_zookeeper(zookeeper_port)
        metadata = f"zk:{HOST}:{zookeeper_port}"
        settings = {}
        for index in range(brokers):
            settings[f"broker{index}"] = broker_settings("cluster", ports[2 * index:], {
                "metadataStoreUrl": metadata,
                "configurationMetadataStoreUrl": metadata,
                # A killed broker is forgotten after this time instead of 30 s, so that tests need not wait for it.
                "metadataStoreSessionTimeoutMillis": 10_000,
                # Ownership moves when a test says so, not because a test machine is busy.
                "loadBalancerSheddingEnabled": "false",
                "loadBalancerAutoBundleSplitEnabled": "false",
            } | overrides)
        self._record_brokers(settings)
        self.state["urls"]["metadata_url"] = metadata
        self._initialize_cluster(metadata)
        self._start_bookie(bookie_port, metadata)
        for name, values in settings.items():
            command = self.java("org.apache.pulsar.PulsarBrokerStarter",
                                ["--broker-conf", write_properties(self.path / f"{name}.conf", values)])
            ready = f"http://{HOST}:{values['webServicePort']}/admin/v2/brokers/ready"
            self.state["processes"][name] = {"pid": None, "started": None, "ready": ready, "command": command}
            self.spawn(name)
        for name in settings:
            self.wait_ready(name)

    def start_proxy(self, of, overrides, secure=None):
        """Start the Apache proxy in front of another folder's standalone or cluster. `secure` as of the standalone."""
        self.create("proxy")
        binary_port, web_port, tls_port = free_ports(3)
        if secure:
            overrides = secure.proxy_settings(tls_port, of.state["urls"]) | overrides
            self.state["admin_token"] = secure.token("admin")
        settings = {
            "clusterName": of.state["kind"], "bindAddress": HOST, "advertisedAddress": HOST,
            "servicePort": binary_port, "webServicePort": web_port,
            "brokerProxyAllowedTargetPorts": "*", "brokerProxyAllowedIPAddresses": f"{HOST}/8",
        }
        if "metadata_url" in of.state["urls"]:
            metadata = of.state["urls"]["metadata_url"]
            settings |= {"metadataStoreUrl": metadata, "configurationMetadataStoreUrl": metadata}
        else:
            settings |= {"brokerServiceURL": of.service_url, "brokerWebServiceURL": of.admin_url}
        settings |= overrides
        self.state["urls"] = {"service_url": f"pulsar://{HOST}:{settings['servicePort']}",
                              "admin_url": f"http://{HOST}:{settings['webServicePort']}"}
        if secure:
            self.state["urls"]["tls_service_url"] = f"pulsar+ssl://{HOST}:{settings['servicePortTls']}"
        command = self.java("org.apache.pulsar.proxy.server.ProxyServiceStarter",
                            ["--config", write_properties(self.path / "proxy.conf", settings)])
        self.launch("proxy", command, int(settings["webServicePort"]))

    def _start_zookeeper(self, port):
        configuration = write_properties(self.path / "zookeeper.conf", {
            "dataDir": self.path / "data/zookeeper", "clientPort": port, "clientPortAddress": HOST,
            "tickTime": 1000, "admin.enableServer": "false", "maxClientCnxns": 0})
        command = self.java("org.apache.zookeeper.server.quorum.QuorumPeerMain", [configuration],
                            heap="160m", direct="64m")
        self.launch("zookeeper", command, port)

    def _initialize_cluster(self, metadata):
        first = self.brokers[0]
        command = self.java("org.apache.pulsar.PulsarClusterMetadataSetup", [
            "--cluster", "cluster", "--metadata-store", metadata, "--configuration-metadata-store", metadata,
            "--web-service-url", first["admin_url"], "--broker-service-url", first["service_url"]],
            heap="160m", direct="64m")
        # It runs to its end; while it runs it is one of the folder's processes, so `stop` finds it.
        self.state["processes"]["setup"] = {"pid": None, "started": None, "ready": None, "command": command}
        self.spawn("setup")
        code = self.children.pop("setup").wait(180)
        if code != 0:
            raise PeerError(f"the cluster's metadata could not be set up:\n{self.log_tail('setup')}")
        del self.state["processes"]["setup"]

    def _start_bookie(self, port, metadata):
        data = self.path / "data"
        configuration = write_properties(self.path / "bookie.conf", {
            "bookiePort": port, "advertisedAddress": HOST, "listeningInterface": "lo", "allowLoopback": "true",
            "metadataServiceUri": f"{metadata.replace('zk:', 'zk+null://')}/ledgers",
            "journalDirectories": data / "journal", "ledgerDirectories": data / "ledgers",
            "nettyMaxFrameSizeBytes": BOOKIE_FRAME_BYTES,
            # A disk that is nearly full is no reason for a test bookie to become read-only.
            "diskUsageThreshold": "0.99", "diskUsageWarnThreshold": "0.98",
            "httpServerEnabled": "false", "enableStatistics": "false"})
        command = self.java("org.apache.bookkeeper.server.Main", ["--conf", configuration])
        self.launch("bookie", command, port)

    def _record_brokers(self, settings):
        brokers = [{"name": name, "service_url": f"pulsar://{HOST}:{values['brokerServicePort']}",
                    "admin_url": f"http://{HOST}:{values['webServicePort']}"} for name, values in settings.items()]
        addresses = ",".join(broker["service_url"].removeprefix("pulsar://") for broker in brokers)
        self.state["urls"] = {"service_url": f"pulsar://{addresses}", "admin_url": brokers[0]["admin_url"],
                              "brokers": brokers}


@contextlib.contextmanager
def _started(path, start):
    peer = Peer(path)
    try:
        start(peer)
        yield peer
    finally:
        peer.stop()


def standalone(path, secure=None, **overrides):
    """`with standalone(DIR, key=value) as peer:` Apache Pulsar in one process for the length of the block."""
    return _started(path, lambda peer: peer.start_standalone(overrides, secure))


def cluster(path, brokers=2, **overrides):
    """`with cluster(DIR) as peer:` ZooKeeper, a bookie and brokers for the length of the block."""
    return _started(path, lambda peer: peer.start_cluster(brokers, overrides))


def proxy(path, of, secure=None, **overrides):
    """`with proxy(DIR, of=peer) as front:` the Apache proxy in front of `peer` for the length of the block."""
    return _started(path, lambda peer: peer.start_proxy(of, overrides, secure))


def parse_overrides(pairs):
    """Turn `KEY=VALUE` arguments into a dict."""
    overrides = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[\w.]+", key):
            raise PeerError(f"{pair!r} is not KEY=VALUE")
        overrides[key] = value
    return overrides


def parse_arguments():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("fetch")
    for verb in ("standalone", "cluster", "proxy", "info", "stop", "kill", "start", "unload"):
        sub = verbs.add_parser(verb)
        sub.add_argument("folder", metavar="DIR")
        if verb in ("standalone", "cluster", "proxy"):
            sub.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
        if verb == "cluster":
            sub.add_argument("--brokers", type=int, default=2)
        if verb == "proxy":
            sub.add_argument("--of", required=True, metavar="PEERDIR")
        if verb in ("standalone", "proxy"):
            sub.add_argument("--secure", type=Credentials, metavar="CREDENTIALS")
        if verb in ("kill", "start"):
            sub.add_argument("name")
        if verb == "unload":
            sub.add_argument("namespace")
            sub.add_argument("bundle", nargs="?")
    for verb in ("credentials", "token"):
        sub = verbs.add_parser(verb)
        sub.add_argument("credentials", type=Credentials, metavar="CREDENTIALS")
        if verb == "token":
            sub.add_argument("role")
            sub.add_argument("seconds", nargs="?", type=int)
    return parser.parse_args()


def run(arguments):
    """Carry out one command of the command line."""
    if arguments.verb == "fetch":
        print(jars.ensure())
        return
    if arguments.verb == "credentials":
        print(arguments.credentials.path)
        return
    if arguments.verb == "token":
        print(arguments.credentials.token(arguments.role, arguments.seconds))
        return
    peer = Peer(arguments.folder)
    if arguments.verb in ("standalone", "cluster", "proxy"):
        overrides = parse_overrides(arguments.overrides)
        try:
            if arguments.verb == "standalone":
                peer.start_standalone(overrides, arguments.secure)
            elif arguments.verb == "cluster":
                peer.start_cluster(arguments.brokers, overrides)
            else:
                peer.start_proxy(Peer(arguments.of), overrides, arguments.secure)
        except BaseException:
            peer.stop()
            raise
    elif arguments.verb == "stop":
        peer.stop()
    elif arguments.verb == "kill":
        peer.kill(arguments.name)
    elif arguments.verb == "start":
        peer.start(arguments.name)
    elif arguments.verb == "unload":
        peer.admin.unload(arguments.namespace, arguments.bundle)
    print(json.dumps(peer.info(), indent=1))


if __name__ == "__main__":
    raise_on_signals()
    began = time.monotonic()
    try:
        run(parse_arguments())
    except (PeerError, jars.JarsError, OSError) as problem:
        sys.exit(f"pulsar.py: {problem} (after {time.monotonic() - began:.0f} s)")
