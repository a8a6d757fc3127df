import pytest

import gateway_process


@pytest.fixture(autouse=True)
def model():
    if gateway_process.model_file() is None:
        pytest.skip("no model: run tools/fetch-model, or set VERBATIM_MODEL")
