"""What an operator runs into: a folder or port in use, a missing model, Ctrl-C while answers run."""

import json
import http.client
import signal
import socket
import threading
import time

import pytest

from gateway_process import Gateway, MODEL_NAME, chat, model_file, run

PATH = "/v1/chat/completions"


@pytest.fixture
def gateway(tmp_path):
    server = Gateway(tmp_path / "data").start()
    yield server
    if server.process.poll() is None:
        server.kill()


def serve(data, *arguments, listen="127.0.0.1:0"):
    return run("serve", "--listen", listen, "--data", str(data), *arguments)


def refused(result, *texts):
    code, out, err = result
    assert code == 2, result
    assert out == ""
    lines = [l for l in err.splitlines() if "loading" not in l]
    assert len(lines) == 1, err
    for text in texts:
        assert text in lines[0], lines[0]


def test_a_second_server_on_the_folder_is_refused(gateway):
    model = f"{MODEL_NAME}={model_file()}"
    refused(serve(gateway.data, "--model", model), gateway.data, str(gateway.process.pid))
    assert gateway.ask("POST", PATH, chat("Still there?")).status == 200


def test_a_port_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        refused(
            serve(tmp_path / "data", "--model", f"m={model_file()}", listen=listen),
            listen, "in use", "--listen",
        )


def test_bad_invocations(tmp_path):
    data = tmp_path / "data"
    model = f"m={model_file()}"
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    config = tmp_path / "config.yaml"
    config.write_text("server:\n  port: 80\n")
    refused(serve(data), "--model NAME=FILE")
    refused(serve(data, "--model", "m"), "NAME=FILE")
    refused(serve(data, "--model", f"m={tmp_path}/none.gguf"), "none.gguf", "--model")
    refused(serve(data, "--model", f"m={broken}"), "broken.gguf")
    refused(serve(data, "--model", model, listen="0.0.0.0:0"), "API keys")
    refused(serve(data, "--model", model, "--device", "cuda:0"), "CPU only")
    refused(serve(data, "--model", model, "--tp", "2"), "CPU only")
    refused(serve(data, "--config", str(config)), "config.yaml:2")


def test_health_says_503_until_generation_is_served(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    server = Gateway(tmp_path / "data")
    server.command[server.command.index("--listen") + 1] = f"127.0.0.1:{port}"
    seen = []
    done = threading.Event()

    def poll():
        while not done.is_set():
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/healthz")
                seen.append(connection.getresponse().status)
                connection.close()
            except OSError:
                pass
            time.sleep(0.005)

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        server.start()
        assert server.ask("GET", "/healthz").status == 200
    finally:
        done.set()
        poller.join()
        if server.process.poll() is None:
            server.stop()
    assert 503 in seen
    assert 200 not in seen[: seen.index(503)]


def stream(gateway, tokens):
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    body = chat("Tell me a very long story.", max_tokens=tokens, stream=True)
    connection.request("POST", PATH, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    response.read(10)
    return connection, response


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(gateway, sent):
    idle = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    idle.request("GET", "/healthz")
    idle.getresponse().read()
    connection, response = stream(gateway, 100)
    gateway.process.send_signal(sent)
    rest = response.read()
    assert rest.endswith(b"data: [DONE]\n\n")
    connection.close()
    assert gateway.process.wait(timeout=30) == 0
    with pytest.raises(OSError):
        gateway.ask("GET", "/healthz")
    assert run("fsck", "--data", gateway.data)[0] == 0


def test_a_second_ctrl_c_ends_at_once(gateway):
    connection, response = stream(gateway, 1500)
    gateway.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert gateway.process.poll() is None
    gateway.process.send_signal(signal.SIGINT)
    gateway.process.wait(timeout=5)
    connection.close()
    assert gateway.start().stop() == 0
    assert run("fsck", "--data", gateway.data)[0] == 0
