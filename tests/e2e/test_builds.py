"""Another build of the program serves what this one recorded: an upgrade that keeps the numerics hits.

VERBATIM_OTHER_BINARY names the other build; tools/test runs this with a sanitizer build beside the
release build.
"""

import contextlib
import os

import pytest
from gateway_process import BINARY, MODEL_NAME, Gateway, model_file

PATH = "/v1/chat/completions"
OTHER = os.environ.get("VERBATIM_OTHER_BINARY", "")


@contextlib.contextmanager
def running(data, binary=BINARY):
    gateway = Gateway(data)
    gateway.command[0] = binary
    gateway.start()
    try:
        yield gateway
        assert gateway.stop() == 0
    finally:
        gateway.kill()


@pytest.mark.skipif(model_file() is None, reason="no model; tools/fetch-model fetches it")
@pytest.mark.skipif(not os.path.exists(OTHER), reason=f"no other build at {OTHER!r}")
def test_another_build_still_hits(tmp_path):
    request = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": "Does the build matter?"}],
        "max_tokens": 16,
        "temperature": 0.8,
        "seed": 7,
    }
    data = tmp_path / "data"
    with running(data, OTHER) as gateway:
        recorded = gateway.ask("POST", PATH, request)
        manifest = gateway.ask("GET", "/verbatim/v1/manifest").json
        assert (recorded.status, recorded.cache) == (200, "miss")
    with running(data) as gateway:
        assert gateway.ask("GET", "/verbatim/v1/manifest").json != manifest
        again = gateway.ask("POST", PATH, request)
        assert (again.cache, again.body) == ("hit", recorded.body)
        forced = gateway.ask("POST", PATH, request, {"cache-control": "no-cache"})
        assert (forced.cache, forced.json["choices"]) == ("miss", recorded.json["choices"])
