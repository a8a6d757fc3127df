"""Starts, kills and asks a real `verbatim serve`, for the tests in this folder and in tests/fault.

VERBATIM_BINARY names the program (default build/verbatim), VERBATIM_MODEL a GGUF file (default the
one that tools/fetch-model keeps).
"""

import dataclasses
import http.client
import json
import os
import pathlib
import queue
import signal
import subprocess
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("VERBATIM_BINARY", str(ROOT / "build" / "verbatim"))
MODEL_NAME = "smollm2-135m"
START_LIMIT = 120.0  # seconds; sanitizer builds load slowly
ASK_LIMIT = 120.0


def model_file():
    """The model's path, or None where it is absent."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    default = cache / "verbatim" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path = pathlib.Path(os.environ.get("VERBATIM_MODEL") or default)
    return path if path.is_file() else None


@dataclasses.dataclass
class Answer:
    status: int
    headers: dict
    body: bytes  # de-chunked
    whole: bool = True  # False: the connection broke before the end

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def cache(self):
        return self.headers.get("verbatim-cache", "")

    def events(self):
        """The data of each server-sent event."""
        text = self.body.decode()
        assert text.endswith("\n\n"), text[-200:]
        events = text[:-2].split("\n\n")
        assert all(e.startswith("data: ") for e in events), events
        return [e[len("data: ") :] for e in events]


class Gateway:
    """A server process on a port of the system's choice."""

    def __init__(self, data, *arguments, model=None):
        self.data = str(data)
        self.command = [BINARY, "serve", "--listen", "127.0.0.1:0", "--data", self.data]
        self.command += ["--model", f"{MODEL_NAME}={model or model_file()}", *arguments]
        self.process = None
        self.port = 0
        self.serves = ""  # the line that says so

    def start(self):
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.errors = []
        lines = queue.Queue()
        threading.Thread(target=self._read_errors, daemon=True).start()
        threading.Thread(
            target=lambda: [lines.put(line) for line in self.process.stdout] + [lines.put("")],
            daemon=True,
        ).start()
        try:
            line = lines.get(timeout=START_LIMIT)
        except queue.Empty:
            line = ""
        if not line.startswith("verbatim serves http://"):
            self.kill()
            raise RuntimeError(f"the gateway did not start: {line!r} {self.errors[-5:]}")
        self.serves = line.rstrip()
        self.port = int(line.split(",")[0].rsplit(":", 1)[1])
        return self

    def _read_errors(self):
        for line in self.process.stderr:
            self.errors.append(line.rstrip())

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def kill(self):
        """SIGKILL: nothing gets a chance to finish."""
        self.process.kill()
        self.process.wait(timeout=30)

    def stop(self, limit=40):
        """SIGTERM, and the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def ask(self, method, path, body=None, headers=None, limit=ASK_LIMIT):
        """One request on a connection of its own. An answer that broke off has whole=False; one that
        never began raises OSError or http.client.HTTPException."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit)
        try:
            fields = {"content-type": "application/json"} if body is not None else {}
            fields.update(headers or {})
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, fields)
            response = connection.getresponse()
            names = [name.lower() for name, _ in response.getheaders()]
            own = [name for name in names if name.startswith(("verbatim-", "x-ratelimit-"))]
            assert len(own) == len(set(own)), f"given twice: {sorted(own)}"
            answer = Answer(
                response.status, {k.lower(): v for k, v in response.getheaders()}, b"", False
            )
            try:
                answer.body = response.read()
                answer.whole = True
            except http.client.IncompleteRead as e:
                answer.body = e.partial
            except OSError:
                pass
            return answer
        finally:
            connection.close()

    def metric(self, name, **labels):
        """The sum of a metric's samples that have these labels."""
        total = 0.0
        for line in self.ask("GET", "/metrics").body.decode().splitlines():
            head = line.split(" ")[0]
            if head.split("{")[0] != name:
                continue
            if all(f'{k}="{v}"' in head for k, v in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total


def run(*arguments, limit=120):
    """A verbatim command that ends by itself: (exit status, stdout, stderr)."""
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=limit)
    return done.returncode, done.stdout, done.stderr


def chat(text, **fields):
    """A chat request's body."""
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 8,
    }
    body.update(fields)
    return body
