"""An upstream that does what a test says: by default each call gets an answer of its own.

A request is found by the first word of its last message (or of its prompt or input): `script(word,
step, ...)` plays the steps one by one for the requests with that word, and the last of them from
then on. A step is a function of (handler, seen); those below make the usual ones.
"""

import collections
import dataclasses
import http.server
import json
import socket
import threading
import time

JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}


@dataclasses.dataclass
class Seen:
    path: str
    headers: dict  # names lower-case
    body: bytes
    number: int  # of this word's calls, from 1
    at: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def json(self):
        return json.loads(self.body)


def word_of(body):
    """What a request is scripted by; "" where it is no request with a text."""
    try:
        request = json.loads(body)
        text = request.get("prompt") or request.get("input") or ""
        if "messages" in request:
            text = request["messages"][-1]["content"]
        if isinstance(text, list):
            text = text[0]
        if isinstance(text, dict):
            text = text["text"] if "text" in text else text["content"]
        return text.split()[0] if text.split() else ""
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ""


def chat_answer(text, model="m", finish_reason="stop", **message):
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, **message},
                "finish_reason": finish_reason,
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }


def event(value):
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def chunk(delta, finish_reason=None):
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        }
    )


def chat_events(*texts, finish_reason="stop"):
    parts = [chunk({"role": "assistant", "content": texts[0]})]
    parts += [chunk({"content": text}) for text in texts[1:]]
    parts.append(chunk({}, finish_reason))
    usage = {"prompt_tokens": 3, "completion_tokens": len(texts), "total_tokens": 3 + len(texts)}
    parts.append(
        event(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "m",
                "choices": [],
                "usage": usage,
            }
        )
    )
    return [*parts, event(b"[DONE]")]


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "bonjour"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2},
}


def message_events():
    begin = {**MESSAGE, "content": [], "stop_reason": None}
    events = [
        {"type": "message_start", "message": begin},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
        {"type": "ping"},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "bon"},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "jour"},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 2},
        },
        {"type": "message_stop"},
    ]
    return [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]


def whole(body, status=200, headers=None):
    """A step: this body, of the announced length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def step(handler, _):
        handler.send_response(status)
        for name, value in {**JSON, **(headers or {})}.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return step


def fails(status, **headers):
    return whole(
        {"error": {"message": f"scripted {status}", "type": "server_error", "code": None}},
        status,
        {name.replace("_", "-"): value for name, value in headers.items()},
    )


def streams(parts, *, ends="well", headers=None, gate=None, pause=0.0):
    """A step: these parts as chunks. ends: "well", or "reset" instead of the body's end. gate: an
    event to wait for after the first part. pause: seconds after each."""

    def step(handler, _):
        handler.send_response(200)
        for name, value in {**EVENTS, **(headers or {})}.items():
            handler.send_header(name, value)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for number, part in enumerate(parts):
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            if gate is not None and number == 0:
                gate.wait(30)
            if pause:
                time.sleep(pause)
        if ends == "well":
            handler.wfile.write(b"0\r\n\r\n")
        else:
            reset(handler, None)

    return step


def reset(handler, _):
    """A step: RST instead of a reply."""
    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.close_connection = True
    handler.connection.close()
    handler.rfile.close()  # holds the socket too


def after(event_or_seconds, step):
    """A step that waits first."""

    def waits(handler, seen):
        if isinstance(event_or_seconds, threading.Event):
            event_or_seconds.wait(30)
        else:
            time.sleep(event_or_seconds)
        step(handler, seen)

    return waits


def own_answer(handler, seen):
    """The default: the word and the number of the call."""
    word = word_of(seen.body)
    request = seen.json
    text = f"{word} {seen.number}"
    if seen.path.split("?")[0].endswith("/messages"):
        if request.get("stream"):
            return streams(message_events())(handler, seen)
        return whole(MESSAGE)(handler, seen)
    if request.get("stream"):
        return streams(chat_events(word, f" {seen.number}"))(handler, seen)
    return whole(chat_answer(text, request.get("model", "m")))(handler, seen)


class ScriptedUpstream:
    """Serves from threads of its own, on a port of the system's choice."""

    def __init__(self):
        self.lock = threading.Lock()
        self.calls = collections.defaultdict(list)  # word -> what was seen
        self.steps = {}  # word -> steps left
        self.gone = collections.Counter()  # word -> replies that nobody took
        upstream = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def do_POST(self):
                upstream.answer(self)

            do_GET = do_PUT = do_PATCH = do_DELETE = do_POST

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_):
                pass  # the gateway hung up, or a step did

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def script(self, word, *steps):
        with self.lock:
            self.steps[word] = list(steps)

    def seen(self, word):
        with self.lock:
            return list(self.calls[word])

    def count(self, word):
        return len(self.seen(word))

    def answer(self, handler):
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        word = word_of(body)
        with self.lock:
            seen = Seen(
                handler.path,
                {"x-method": handler.command}
                | {k.lower(): v for k, v in handler.headers.items()},
                body,
                len(self.calls[word]) + 1,
            )
            self.calls[word].append(seen)
            steps = self.steps.get(word, [own_answer])
            step = steps.pop(0) if len(steps) > 1 else steps[0]
        try:
            step(handler, seen)
        except OSError:
            with self.lock:
                self.gone[word] += 1
            handler.close_connection = True
