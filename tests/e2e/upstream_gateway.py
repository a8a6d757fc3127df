"""A server with one upstream and no model of its own, and an upstream that answers, or does not."""

import http.server
import json
import threading

import gateway_process

CONFIG = """\
upstreams:
  vendor:
    url: {url}/v1
    models: [m, n]
    credentials: {{from: none}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
{more}"""

ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello"},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


class Upstream:
    """Answers each chat request, but hangs where the prompt says so. Keeps what it was sent."""

    def __init__(self):
        self.requests = []  # (headers, body)
        self.arrived = threading.Semaphore(0)
        self.end = threading.Event()
        upstream = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {k.lower(): v for k, v in self.headers.items()}
                upstream.requests.append((headers, body))
                upstream.arrived.release()
                if b"hang" in body:
                    upstream.end.wait(60)
                    return
                data = json.dumps(ANSWER).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.end.set()
        self.server.shutdown()
        self.server.server_close()


class UpstreamGateway(gateway_process.Gateway):
    def __init__(self, folder, upstream, more=""):
        super().__init__(folder / "data", model="none")
        self.config = folder / "verbatim.yaml"
        self.upstream = upstream
        self.configure(more)
        self.command = [
            gateway_process.BINARY,
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--data",
            self.data,
            "--config",
            str(self.config),
        ]

    def configure(self, more):
        self.config.write_text(CONFIG.format(url=self.upstream.url, more=more))

    def chat(self, text, headers=None, **fields):
        body = gateway_process.chat(text, model="m", **fields)
        return self.ask("POST", "/v1/chat/completions", body, headers)

    def leaves(self):
        """All entries' leaves."""
        leaves = []
        while True:
            answer = self.ask("GET", f"/verbatim/v1/entries/{len(leaves)}")
            if answer.status == 404:
                return leaves
            assert answer.status == 200, answer.body
            leaves.append(answer.json["leaf_json"])
