"""kill -9 under load: no answer that a client has fully received is lost, and fsck is clean.

Client threads ask for new and for repeated answers, plain and streamed, and remember every answer
that arrived whole. The server is killed at a random moment and started again on the same folder;
each remembered answer must then be a hit with the same bytes and have its receipt.
"""

import http.client
import os
import random
import threading
import time

from gateway_process import Gateway, chat, run

KILLS = int(os.environ.get("VERBATIM_KILLS", "50"))
CLIENTS = 4
LOAD_LIMIT = 30.0  # seconds
PATH = "/v1/chat/completions"


class Load:
    """Clients that ask until they are stopped, and what they fully received."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.received = {}  # (question, streamed): (bytes, [request ids])
        self.differences = []
        self.asked = 0

    def _next(self):
        with self.lock:
            new = self.asked == 0 or self.random.random() < 0.6
            question = self.asked if new else self.random.randrange(self.asked)
            self.asked += new
            return question, self.random.random() < 0.5

    @staticmethod
    def request(question, streamed):
        return chat(f"Question {question}?", max_tokens=3 + question % 5, stream=streamed)

    def _client(self, gateway, stop):
        while not stop.is_set():
            question, streamed = self._next()
            try:
                answer = gateway.ask("POST", PATH, self.request(question, streamed), limit=30)
            except (OSError, http.client.HTTPException):
                continue
            if answer.whole and answer.status == 200:
                self._remember(question, streamed, answer)

    def _remember(self, question, streamed, answer):
        with self.lock:
            body, ids = self.received.setdefault((question, streamed), (answer.body, []))
            ids.append(answer.headers["x-request-id"])
            if body != answer.body:
                self.differences.append((question, streamed, body, answer.body))

    def run_until_killed(self, gateway):
        """Kills the server at a random moment after a random number of whole answers."""
        answers, delay = self.random.randrange(1, 10), self.random.uniform(0, 0.3)
        stop = threading.Event()
        clients = [
            threading.Thread(target=self._client, args=(gateway, stop)) for _ in range(CLIENTS)
        ]
        for c in clients:
            c.start()
        deadline = time.monotonic() + LOAD_LIMIT
        while sum(len(ids) for _, ids in list(self.received.values())) < answers:
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        time.sleep(delay)
        gateway.kill()
        stop.set()
        for c in clients:
            c.join(timeout=60)
            assert not c.is_alive()


def check_everything_received(gateway, received):
    for (question, streamed), (body, ids) in received.items():
        answer = gateway.ask("POST", PATH, Load.request(question, streamed))
        where = (question, streamed, answer.cache)
        assert (answer.status, answer.whole) == (200, True), where
        assert answer.cache.startswith("hit"), f"an answer that was received is lost: {where}"
        assert answer.body == body, f"the bytes differ: {where}"
        for request_id in ids:
            receipt = gateway.ask("GET", f"/verbatim/v1/receipts/{request_id}")
            assert receipt.status == 200, f"no receipt of {request_id}: {where} {receipt.body}"


def test_kill(tmp_path):
    seed = int(os.environ.get("VERBATIM_KILL_SEED", str(random.randrange(10**6))))
    print(f"VERBATIM_KILL_SEED={seed}")
    load = Load(seed)
    gateway = Gateway(tmp_path / "data").start()
    checked = 0
    try:
        for kill in range(KILLS):
            load.run_until_killed(gateway)
            assert not load.differences, load.differences[0]
            gateway.start()
            check_everything_received(gateway, load.received)
            checked += len(load.received)
            # What was just checked is forgotten, so that the rounds stay short; questions go on
            # being repeated.
            load.received.clear()
            code, out, err = run("fsck", "--data", gateway.data)
            assert code == 0, f"kill {kill}: {out} {err}"
        assert gateway.stop() == 0
        code, out, err = run("fsck", "--data", gateway.data)
        assert code == 0, (out, err)
    finally:
        if gateway.process.poll() is None:
            gateway.kill()
    print(f"{KILLS} kills, {checked} answers checked after them")
    assert checked >= KILLS, "the load was too light to say anything"
