import pytest

import gateway_process
from scripted_upstream import ScriptedUpstream


@pytest.fixture(scope="session")
def gateway(tmp_path_factory):
    """One gateway with the default policy for all tests of the session."""
    if gateway_process.model_file() is None:
        pytest.skip("no model: run tools/fetch-model, or set VERBATIM_MODEL")
    server = gateway_process.Gateway(tmp_path_factory.mktemp("gateway") / "data").start()
    yield server
    assert server.stop() == 0, server.errors[-10:]


@pytest.fixture(scope="module")
def upstream():
    """What scripted_gateway.py's stand in front of, where a file has no other."""
    with ScriptedUpstream() as upstream:
        yield upstream
