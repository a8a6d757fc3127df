"""A local API of others: plays the recorded answers of vectors/streams and vectors/sse.

The request's model chooses what is played and how: "NAME", "NAME@MODE" or "NAME@MODE.SEED". NAME is
a recording's ("groq-stream-after-failure") or "sse-NUMBER". MODE is one of

  whole   in one piece (the default)
  bytes   byte by byte, each a packet and a chunk of its own
  random  cut into packets at random places, by SEED
  crlf    LF turned into CRLF, in random packets
  gzip    content-encoding: gzip, in random packets
  slow    a pause between the events
  cut     broken off at a random byte, by SEED: the connection closes inside the chunked body
  short   likewise, but the transfer ends well

A plain request (`stream` not true) for a recorded stream gets the recording all the same, since
nothing else is recorded. Every request is kept in `requests`, and `fail` and `hang` script what
comes before the answer.
"""

import base64
import collections
import dataclasses
import gzip
import http.server
import json
import os
import pathlib
import random
import re
import socket
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
VECTORS = pathlib.Path(os.environ.get("VERBATIM_VECTORS") or ROOT.parent / "shared" / "vectors")


@dataclasses.dataclass
class Recording:
    name: str
    api: str  # "chat", "completions", "responses", "messages", "count_tokens"
    status: int
    headers: dict
    body: bytes
    cacheable: bool
    assembled: dict
    request: dict  # the recorded request's body, or {}

    @property
    def streamed(self):
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def path(self):
        return {
            "chat": "/v1/chat/completions",
            "completions": "/v1/completions",
            "responses": "/v1/responses",
            "messages": "/v1/messages",
            "count_tokens": "/v1/messages/count_tokens",
        }[self.api]

    @property
    def choices(self):
        return max(1, len((self.assembled or {}).get("choices", {})))


def stream_recordings():
    all_of_them = {}
    for file in sorted((VECTORS / "streams").glob("*.json")):
        if file.stem == "INDEX":
            continue
        recorded = json.loads(file.read_text())
        request = recorded.get("request") or {}
        api = recorded["api"]
        if "count_tokens" in request.get("path", ""):
            api = "count_tokens"
        all_of_them[file.stem] = Recording(
            name=file.stem,
            api=api,
            status=recorded["response"]["status"],
            headers=recorded["response"]["headers"],
            body=recorded["response"]["body"].encode(),
            cacheable=bool(recorded.get("cacheable")),
            assembled=recorded.get("assembled") or {},
            request=request.get("body") or {},
        )
    return all_of_them


@dataclasses.dataclass
class EventStream:
    """A case of vectors/sse."""

    name: str
    chunks: list
    events: list  # {"event", "data", "id"}


def event_streams():
    file = VECTORS / "sse" / "sse-vectors.json"
    if not file.exists():
        return {}
    return {
        f"sse-{i}": EventStream(
            case["name"], [base64.b64decode(c) for c in case["chunks_b64"]], case["events"]
        )
        for i, case in enumerate(json.loads(file.read_text())["cases"])
    }


@dataclasses.dataclass
class Seen:
    path: str
    headers: dict  # names lower-case
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


def packets(body, rng, most=200):
    at = 0
    while at < len(body):
        length = rng.randint(1, most)
        yield body[at : at + length]
        at += length


class VectorUpstream:
    """Serves from a thread of its own, on a port of the system's choice."""

    def __init__(self):
        self.recordings = stream_recordings()
        self.event_streams = event_streams()
        self.requests = []
        self.calls = collections.Counter()  # by the request's model
        self.failures = {}  # model -> list of (status, headers), played before its answer
        self.hanging = {}  # model -> an Event that ends the wait
        self.lock = threading.Lock()
        upstream = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def do_POST(self):
                upstream.answer(self)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_):
                pass  # the gateway hung up

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        for event in self.hanging.values():
            event.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def fail(self, model, *answers):
        """The next requests for `model` get these (status, headers) first."""
        with self.lock:
            self.failures[model] = list(answers)

    def hang(self, model):
        """Requests for `model` get nothing until the event that this returns is set."""
        event = threading.Event()
        with self.lock:
            self.hanging[model] = event
        return event

    def seen(self, model):
        with self.lock:
            return [r for r in self.requests if r.json.get("model") == model]

    def answer(self, handler):
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        seen = Seen(handler.path, {k.lower(): v for k, v in handler.headers.items()}, body)
        model = seen.json.get("model", "")
        with self.lock:
            self.requests.append(seen)
            self.calls[model] += 1
            failure = self.failures[model].pop(0) if self.failures.get(model) else None
            hanging = self.hanging.get(model)
        if hanging is not None:
            hanging.wait()
        if failure is not None:
            status, headers = failure
            return self.send_whole(handler, status, headers, b'{"error":{"message":"scripted"}}')
        name, _, how = model.partition("@")
        mode, _, seed = how.partition(".")
        rng = random.Random(f"{name} {seed}")
        if name in self.event_streams:
            chunks = self.event_streams[name].chunks
            return self.send(handler, 200, {"content-type": "text/event-stream"}, chunks, mode, rng)
        recording = self.recordings.get(name)
        if recording is None:
            return self.send_whole(handler, 404, {}, b'{"error":{"message":"no such recording"}}')
        headers = {k: v for k, v in recording.headers.items() if k != "transfer-encoding"}
        if not recording.streamed and mode in ("", "whole"):
            return self.send_whole(handler, recording.status, headers, recording.body)
        self.send(handler, recording.status, headers, [recording.body], mode, rng)

    @staticmethod
    def send_whole(handler, status, headers, body):
        handler.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    @staticmethod
    def played(chunks, mode, rng):
        """The body's packets, and whether its transfer ends well."""
        body = b"".join(chunks)
        if mode in ("", "whole"):
            return (chunks, True)
        if mode == "bytes":
            return ([body[i : i + 1] for i in range(len(body))], True)
        if mode == "random":
            return (packets(body, rng), True)
        if mode == "crlf":
            return (packets(body.replace(b"\n", b"\r\n"), rng), True)
        if mode == "gzip":
            return (packets(gzip.compress(body, mtime=0), rng), True)
        if mode == "slow":
            return (re.findall(rb".*?\n\n|.+$", body, re.DOTALL), True)
        if mode in ("cut", "short"):
            # Somewhere before the last event, which ends it.
            end = body.rstrip().rfind(b"\n\n") + 2
            return (packets(body[: rng.randrange(0, max(1, end))], rng), mode == "short")
        raise ValueError(mode)

    def send(self, handler, status, headers, chunks, mode, rng):
        parts, ends_well = self.played(chunks, mode, rng)
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if mode == "gzip":
            handler.send_header("content-encoding", "gzip")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        handler.wfile.flush()
        for part in parts:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            if mode == "slow":
                time.sleep(0.02)
        if ends_well:
            handler.wfile.write(b"0\r\n\r\n")
        else:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
