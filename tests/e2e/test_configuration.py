"""What the configuration file changes: policies, the software lock, and what changes no answer."""

import time

import pytest

from gateway_process import Gateway, chat, model_file

PATH = "/v1/chat/completions"


@pytest.fixture
def start(tmp_path):
    """Starts a gateway with this configuration; all of one test share a data folder."""
    if model_file() is None:
        pytest.skip("no model: run tools/fetch-model, or set VERBATIM_MODEL")
    running = []

    def starter(yaml):
        config = tmp_path / "config.yaml"
        config.write_text(yaml)
        running.append(Gateway(tmp_path / "data", "--config", str(config)).start())
        return running[-1]

    yield starter
    for gateway in running:
        if gateway.process.poll() is None:
            gateway.kill()


def test_another_instruction_set_and_thread_count_still_hit(start):
    request = chat("Does the machine matter?")
    first = start("engine: {threads: 2}\n")
    recorded = first.ask("POST", PATH, request)
    assert (recorded.status, recorded.cache) == (200, "miss")
    assert first.stop() == 0
    second = start("engine: {threads: 1, isa: scalar}\n")
    assert "scalar" in second.serves
    again = second.ask("POST", PATH, request)
    assert (again.cache, again.body) == ("hit", recorded.body)
    # Run again there, it gives the same answer.
    forced = second.ask("POST", PATH, request, {"cache-control": "no-cache"})
    assert forced.cache == "miss"
    assert forced.json["choices"] == recorded.json["choices"]


def test_strict_policy(start):
    gateway = start("policy: strict\n")
    warm = gateway.ask("POST", PATH, chat("Be strict.", temperature=1.7, seed=4))
    cold = gateway.ask("POST", PATH, chat("Be strict.", temperature=0, seed=5))
    assert (warm.status, warm.cache) == (200, "miss")
    # Temperature and seed are the policy's, so both asked for the same thing.
    assert (cold.cache, cold.body) == ("hit", warm.body)
    # A hit has its own entry at once, and every answer is executed again.
    receipt = gateway.ask("GET", f"/verbatim/v1/receipts/{cold.headers['x-request-id']}").json
    assert receipt["status"] != "pending", receipt
    deadline = time.monotonic() + 60
    while gateway.metric("verbatim_verifications_total", outcome="equal") < 1:
        assert time.monotonic() < deadline, "no answer was executed again"
        time.sleep(0.1)
    assert gateway.metric("verbatim_verifications_total", outcome="diverged") == 0


def test_the_software_lock(start):
    gateway = start('policy: {software_lock: {components: {rocksdb: "0.0.1"}}}\n')
    answer = gateway.ask("POST", PATH, chat("Are you locked?"))
    assert answer.status == 503
    assert "rocksdb" in answer.json["error"]["message"]
    assert gateway.ask("GET", "/healthz").status == 503
    assert gateway.stop() == 0


def test_limits_of_the_configuration(start):
    gateway = start("server: {limits: {body_bytes: 2000, header_count: 10}}\n")
    assert gateway.ask("POST", PATH, chat("a" * 3000)).status == 413
    assert gateway.ask("GET", "/healthz", headers={f"x-{i}": "1" for i in range(10)}).status == 431
    assert gateway.ask("POST", PATH, chat("short")).status == 200
