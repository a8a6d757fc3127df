import pytest

import gateway_process


@pytest.fixture(scope="session")
def gateway(tmp_path_factory):
    """One gateway with the default policy for all tests of the session."""
    if gateway_process.model_file() is None:
        pytest.skip("no model: run tools/fetch-model, or set VERBATIM_MODEL")
    server = gateway_process.Gateway(tmp_path_factory.mktemp("gateway") / "data").start()
    yield server
    assert server.stop() == 0, server.errors[-10:]
