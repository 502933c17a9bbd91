#!/usr/bin/env python3
"""Capture real frames between the official clients and Apache Pulsar into tests/golden/frames.txt.

    capture.py [--out FILE]

Starts Apache standalone behind a tap (twice: plain, and with token authentication and broker entry metadata), runs the
compat programs and the programs beside this file through it, and keeps one frame of each shape: same client, direction
and command, same fields present, same enum values and flags. Each line of the file is `direction client command hex`:
`>` from the client, `<` from the broker; the hex is the whole frame with its length field.
"""

import argparse
import asyncio
import base64
import contextlib
import getpass
import hashlib
import hmac
import json
import pathlib
import re
import socket
import sys
import tempfile
import time

from proto import Schema, fields
from tap import Tap, client_of, split_frame

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "compat"))

import programs  # noqa: E402

import pulsar  # noqa: E402
from processes import free_ports, raise_on_signals  # noqa: E402

# Signs tokens of the throw-away broker only.
TOKEN_SECRET = b"golden frames: a key for nothing else than this"
PROGRAM_SECONDS = 420
MAGIC_ENTRY, MAGIC_CHECKSUM = b"\x0e\x02", b"\x0e\x01"


class Collection:
    """One frame of each shape."""

    def __init__(self):
        self.schema = Schema()
        self.clients = {}
        self.frames = {}
        self.private = private_words()

    def add(self, direction, connection, frame):
        """Look at one frame; keep it when its shape is new and nothing in it tells about this machine."""
        command, rest = split_frame(frame)
        name = self.schema.command_name(command)
        if name == "CONNECT":
            self.clients[connection] = client_of(command)
        client = self.clients.get(connection, "unknown")
        shape = (direction, client, name, *self.schema.shape("BaseCommand", command), *self.payload_shape(rest))
        if shape not in self.frames and not any(word in frame for word in self.private):
            self.frames[shape] = frame

    def payload_shape(self, rest):
        """The parts of a payload and the fields of its metadata."""
        parts = []
        if rest[:2] == MAGIC_ENTRY:
            size = int.from_bytes(rest[2:6], "big")
            parts += ["entry " + path for path in self.schema.shape("BrokerEntryMetadata", rest[6:6 + size])]
            rest = rest[6 + size:]
        if rest[:2] == MAGIC_CHECKSUM:
            parts.append("checksum")
            rest = rest[6:]
        if rest:
            size = int.from_bytes(rest[:4], "big")
            metadata, payload = rest[4:4 + size], rest[4 + size:]
            parts += ["metadata " + path for path in self.schema.shape("MessageMetadata", metadata)]
            parts.append("payload" if payload else "no payload")
            parts += self.batch_shape(metadata, payload)
        return parts

    def batch_shape(self, metadata, payload):
        """The fields of the first message of an uncompressed, unencrypted batch."""
        present = {self.schema.messages["MessageMetadata"][field][0]: value for field, _, value in fields(metadata)
                   if field in self.schema.messages["MessageMetadata"]}
        if "num_messages_in_batch" not in present or present.get("compression") or "encryption_keys" in present:
            return []
        size = int.from_bytes(payload[:4], "big")
        return ["single " + path for path in self.schema.shape("SingleMessageMetadata", payload[4:4 + size])]

    def lines(self):
        """The lines of the file, sorted by command so that a new capture is easy to compare."""
        ordered = sorted(self.frames.items(), key=lambda item: (item[0][2], item[0]))
        return [f"{shape[0]} {shape[1]} {shape[2]} {frame.hex()}" for shape, frame in ordered]


def private_words():
    """What must not stand in a checked-in frame: names of this machine, its user and its folders."""
    words = {socket.gethostname(), getpass.getuser(), str(pathlib.Path.home()), str(programs.ROOT), tempfile.gettempdir()}
    with contextlib.suppress(OSError):
        words |= {address[4][0] for address in socket.getaddrinfo(socket.gethostname(), None)}
    # Shorter words turn up by chance, in random bytes and in base64.
    return [word.encode() for word in words if len(word) > 3 and not word.startswith("127.") and word != "localhost"]


def token(role, seconds):
    """A JSON web token for a role, signed with HS256."""
    def part(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")
    head = part(json.dumps({"alg": "HS256"}).encode())
    body = part(json.dumps({"sub": role, "exp": int(time.time()) + seconds}).encode())
    return b".".join([head, body, part(hmac.new(TOKEN_SECRET, head + b"." + body, hashlib.sha256).digest())]).decode()


async def run_program(command, log):
    """Run one client program to its end; what it says is for whoever watches."""
    process = await asyncio.create_subprocess_exec(*map(str, command), stdin=asyncio.subprocess.DEVNULL,
                                                   stdout=asyncio.subprocess.PIPE, stderr=log)
    try:
        output, _ = await asyncio.wait_for(process.communicate(), PROGRAM_SECONDS)
        print(re.sub(r"^PASS.*\n", "", output.decode(errors="replace"), flags=re.MULTILINE), end="", flush=True)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def tapped_standalone(folder, collection, settings):
    """Apache standalone that advertises the address of a tap in front of it."""
    port, = free_ports(1)
    tap = Tap(("127.0.0.1", port), collection.add)
    await tap.start()
    address = f"pulsar://127.0.0.1:{tap.port}"
    settings = {"brokerServicePort": port, "advertisedListeners": f"tap:{address}", "internalListenerName": "tap",
                "acknowledgmentAtBatchIndexLevelEnabled": "true", "keepAliveIntervalSeconds": "2"} | settings
    peer = pulsar.Peer(folder)
    try:
        # The broker's own client connects through the tap while it starts, so the relay has to run meanwhile.
        await asyncio.to_thread(peer.start_standalone, settings)
        yield address, peer.admin_url
    finally:
        tap.server.close()
        await asyncio.to_thread(peer.stop)


async def capture(collection, folder):
    """Run everything."""
    compat = {language: build() for language, build in programs.LANGUAGES.items()}
    class_path = programs.compile_java(HERE / "java", programs.BUILD / "tap-java")
    java_frames = programs.java_launcher(class_path, "Frames")
    python_frames = [compat["python"][0], HERE / "python/frames.py"]
    with open(folder / "programs.log", "wb") as log:
        plain = {"transactionCoordinatorEnabled": "true"}
        async with tapped_standalone(folder / "plain", collection, plain) as (service_url, admin_url):
            for command in compat.values():
                await run_program([*command, "--service-url", service_url, "--admin-url", admin_url], log)
            await run_program([*python_frames, service_url, admin_url], log)
            await run_program([*java_frames, service_url, admin_url], log)
            print(f"{len(collection.frames)} shapes so far", flush=True)
        admin = token("admin", 3600)
        plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
        interceptors = "org.apache.pulsar.common.intercept."
        guarded = {
            "authenticationEnabled": "true", "authorizationEnabled": "true", "superUserRoles": "admin",
            "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
            "tokenSecretKey": "data:;base64," + base64.b64encode(TOKEN_SECRET).decode(),
            "authenticationRefreshCheckSeconds": "1",
            "brokerClientAuthenticationPlugin": plugin, "brokerClientAuthenticationParameters": f"token:{admin}",
            "brokerEntryMetadataInterceptors": f"{interceptors}AppendBrokerTimestampMetadataInterceptor,"
                                               f"{interceptors}AppendIndexMetadataInterceptor",
            "exposingBrokerEntryMetadataToClientEnabled": "true"}
        async with tapped_standalone(folder / "guarded", collection, guarded) as (service_url, admin_url):
            # Several that expire soon: which connection is the first to ask is not ours to say.
            tokens = ",".join([admin, *(token("admin", seconds) for seconds in (12, 14, 16))])
            await run_program([*java_frames, service_url, admin_url, tokens], log)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=programs.ROOT / "tests/golden/frames.txt")
    parser.add_argument("--folder", type=pathlib.Path, help="where logs and data go (kept); default a temporary folder")
    arguments = parser.parse_args()
    collection = Collection()
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="capture-")))
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(capture(collection, folder))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text("\n".join(collection.lines()) + "\n")
    commands = {shape[2] for shape in collection.frames}
    print(f"{len(collection.frames)} frames of {len(commands)} commands in {arguments.out}")


if __name__ == "__main__":
    raise_on_signals()
    main()
