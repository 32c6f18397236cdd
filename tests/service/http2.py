"""A peer that speaks just enough HTTP/2 to misbehave: it sends what it likes, when it likes, and reads only if asked to."""

import socket
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 1, 4
MAX_CONCURRENT_STREAMS = 3
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SERVICE, FRAMES = "/replaysvc.v1.ReplayService/", "/replaysvc.v1.ReplayFrames/"


def frame(kind, flags, stream, payload=b""):
    """Returns one frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _text(text):
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    assert len(data) < 127 + 128
    return bytes([127, len(data) - 127]) + data


def headers(path, **metadata):
    """Returns the header block of a call: literals without indexing."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    fields |= {"content-type": "application/grpc"} | {name.replace("_", "-"): str(value) for name, value in metadata.items()}
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())


def message(body):
    """Returns a gRPC message as it stands in DATA frames."""
    return b"\0" + struct.pack(">I", len(body)) + body


class Peer:
    """One connection of its own; a context manager that closes it. Its windows stay as they are: 64 KiB, once."""

    def __init__(self, port, *, hello=True):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._streams = 0
        if hello:
            self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))

    def begin(self, path, **metadata):
        """Begins a call and sends no body; returns its stream."""
        self._streams += 1
        stream = 2 * self._streams - 1
        self.socket.sendall(frame(HEADERS, END_HEADERS, stream, headers(path, **metadata)))
        return stream

    def send(self, stream, data, *, end=False):
        """Sends a part of a body, up to 16 KiB."""
        self.socket.sendall(frame(DATA, END_STREAM if end else 0, stream, data))

    def call(self, path, request, **metadata):
        """Makes a whole call, the answer of which nobody reads; returns its stream."""
        stream = self.begin(path, **metadata)
        self.send(stream, message(request.SerializeToString()), end=True)
        return stream

    def read(self):
        """Returns the next frame, (kind, flags, stream, payload); None at the end of the connection."""
        head = self._read(9)
        if head is None:
            return None
        size, stream = int.from_bytes(head[:3], "big"), int.from_bytes(head[5:9], "big")
        return head[3], head[4], stream, self._read(size)

    def _read(self, size):
        data = b""
        while len(data) < size:
            try:
                more = self.socket.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return data

    def wait_for(self, kind, stream):
        """Reads up to a frame of this kind on the stream, and returns its payload. Fails at the end of the connection."""
        while (found := self.read()) is not None:
            if found[0] == kind and found[2] == stream:
                return found[3]
        raise AssertionError("the connection ended")

    def wait_for_end(self):
        """Reads until the server closes the connection; a test that hangs here fails by its timeout."""
        while self.read() is not None:
            pass

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
