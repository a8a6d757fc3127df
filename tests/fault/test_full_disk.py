"""A full disk gives clients an error, never a wrong answer; with room again, a restart is clean."""

import http.client
import os
import subprocess

import pytest

from gateway_process import Gateway, chat, run

PATH = "/v1/chat/completions"
SIZE_MIB = 32


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, with few megabytes."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount the small file system that this test fills")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path):
    """Takes all the room that is left."""
    with open(path, "wb") as f:
        block = bytes(65536)
        try:
            while True:
                f.write(block)
                f.flush()
        except OSError:
            pass
    with open(path, "ab", buffering=0) as f:
        try:
            while True:
                f.write(b"\0")
        except OSError:
            pass


def ask(gateway, request):
    try:
        return gateway.ask("POST", PATH, request, limit=60)
    except (OSError, http.client.HTTPException):
        return None


def test_full_disk(small_disk):
    gateway = Gateway(small_disk / "data").start()
    try:
        kept = gateway.ask("POST", PATH, chat("Before the disk is full."))
        assert kept.status == 200
        ballast = small_disk / "ballast"
        fill(ballast)
        complete, failed = [], 0
        # The write-ahead log's file may still have room that it reserved, so the first answers may
        # be kept; from some point on every one must fail.
        for i in range(60):
            for streamed in (False, True):
                request = chat(f"On a full disk {i} {streamed}", max_tokens=3, stream=streamed,
                               user="x" * 2_000_000)
                answer = ask(gateway, request)
                done = answer is not None and answer.whole and answer.status == 200
                if done and streamed:
                    done = answer.body.endswith(b"data: [DONE]\n\n")
                if done:
                    complete.append((request, answer.body))
                    continue
                failed += 1
                if answer is not None and not streamed:
                    assert answer.status >= 500, answer
                    assert answer.json["error"]["type"] == "server_error", answer
            if failed >= 6:
                break
        assert failed >= 6, "the disk never became full enough for an append to fail"

        gateway.stop()
        ballast.unlink()
        gateway.start()
        for request, body in [(chat("Before the disk is full."), kept.body), *complete]:
            answer = gateway.ask("POST", PATH, request)
            assert answer.cache.startswith("hit"), (answer.cache, request["messages"])
            assert answer.body == body
        fresh = gateway.ask("POST", PATH, chat("Room again."))
        assert (fresh.status, fresh.cache) == (200, "miss")
        code, out, err = run("fsck", "--data", gateway.data)
        assert code == 0, (out, err)
        assert gateway.stop() == 0
    finally:
        if gateway.process.poll() is None:
            gateway.kill()
