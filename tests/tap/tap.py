#!/usr/bin/env python3
"""A relay between Pulsar clients and a broker that writes down every frame of both directions, whole.

    tap.py --broker HOST:PORT [--listen PORT] [--out FILE]

Prints `listening on 127.0.0.1:PORT`, then relays until it is stopped. Each line of FILE (default standard output) is
`direction connection command hex`; direction is `>` from the client and `<` from the broker. A lookup answers the
broker's own address, so a broker whose frames are wanted has to advertise the tap's address; capture.py does that.
"""

import argparse
import asyncio
import contextlib
import sys

from proto import Schema, fields

READ_BYTES = 64 * 1024


class Tap:
    """Relays connections; hands every frame to `on_frame(direction, connection, frame)`.

    The payload of a frame beyond `keep` bytes in all is relayed, but the frame is not handed on.
    """

    def __init__(self, broker, on_frame, keep=8 * 1024):
        self.broker, self.on_frame, self.keep = broker, on_frame, keep
        self.count = 0
        self.server = None
        self.port = None

    async def start(self, port=0):
        """Listen on 127.0.0.1."""
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def _serve(self, reader, writer):
        self.count += 1
        connection = self.count
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*self.broker)
        except OSError:
            writer.close()
            return
        pumps = [asyncio.ensure_future(self._pump(">", connection, reader, broker_writer)),
                 asyncio.ensure_future(self._pump("<", connection, broker_reader, writer))]
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        for each in (writer, broker_writer):
            each.close()

    async def _pump(self, direction, connection, reader, writer):
        splitter = Splitter(self.keep)
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                for frame in splitter.feed(data):
                    self.on_frame(direction, connection, frame)
                writer.write(data)
                await writer.drain()


class Splitter:
    """Cuts a byte stream into frames, length field included; drops those longer than `keep`."""

    def __init__(self, keep):
        self.keep = keep
        self.buffer = bytearray()
        self.skip = 0

    def feed(self, data):
        """Take the next bytes; returns the frames that are complete now."""
        frames = []
        if self.skip:
            taken = min(self.skip, len(data))
            self.skip -= taken
            data = data[taken:]
        self.buffer += data
        while len(self.buffer) >= 4:
            length = 4 + int.from_bytes(self.buffer[:4], "big")
            if length > self.keep:
                self.skip = max(0, length - len(self.buffer))
                del self.buffer[:length]
            elif len(self.buffer) >= length:
                frames.append(bytes(self.buffer[:length]))
                del self.buffer[:length]
            else:
                break
        return frames


def split_frame(frame):
    """The encoded BaseCommand of a frame and what follows it."""
    size = int.from_bytes(frame[4:8], "big")
    return frame[8:8 + size], frame[8 + size:]


def client_of(connect):
    """`python`, `java` or `go`: who sent this CONNECT; other clients by their own name."""
    sub_message = dict((number, value) for number, _, value in fields(connect))[2]
    version = next(value for number, _, value in fields(sub_message) if number == 1).decode()
    for name, mark in (("python", "-CPP-"), ("java", "-Java-"), ("go", "-Go-")):
        if mark in version:
            return name
    return version.replace(" ", "-")


async def relay(arguments):
    """Relay until the task is cancelled."""
    schema = Schema()
    host, _, port = arguments.broker.rpartition(":")
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open(arguments.out, "w")) if arguments.out else sys.stdout

        def write(direction, connection, frame):
            name = schema.command_name(split_frame(frame)[0])
            print(direction, connection, name, frame.hex(), file=out, flush=True)

        tap = Tap((host, int(port)), write)
        await tap.start(arguments.listen)
        print(f"listening on 127.0.0.1:{tap.port}", file=sys.stderr)
        await tap.server.serve_forever()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", required=True, metavar="HOST:PORT")
    parser.add_argument("--listen", type=int, default=0, metavar="PORT")
    parser.add_argument("--out", metavar="FILE")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(relay(parser.parse_args()))


if __name__ == "__main__":
    main()
