"""A gateway in front of scripted_upstream.py, with any configuration and no model of its own."""

import contextlib
import signal
import time

import pytest

import gateway_process


# Of a configuration: upstreams beside one of OpenAI's kind.
OTHER_KINDS = """\
  azure:
    kind: azure
    url: {url}
    api_version: 2024-10-21
    models: {{"az-*": "dep-*"}}
    breaker: {{failures: 0}}
  anthropic:
    kind: anthropic
    url: {url}/v1
    models: ["claude-*"]
    breaker: {{failures: 0}}
"""


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not come")


class ScriptedGateway(gateway_process.Gateway):
    """`config`: a format string with {url}, the upstream's address, and {more}."""

    def __init__(self, folder, upstream, config, more=""):
        super().__init__(folder / "data", model="none")
        self.folder = folder
        self.upstream = upstream
        self.template = config
        self.config = folder / "verbatim.yaml"
        self.configure(more)
        at = self.command.index("--model")
        self.command[at:] = ["--config", str(self.config)]
        self.key = None  # what requests show where a test says nothing else
        self.asked = []  # x-request-id of the answer to every POST, None where none came

    def configure(self, more):
        # The default policy asks upstreams again now and then, which spoils counting their calls.
        if "policy:" not in more:
            more += "policy: {verify: {rate: 0}}\n"
        self.config.write_text(self.template.format(url=self.upstream.url, more=more))

    def reload(self, more="", says="was reloaded"):
        self.configure(more)
        self.hang_up(says)

    def hang_up(self, says):
        """SIGHUP; waits for the line about it."""
        seen = len(self.errors)
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for line in self.errors[seen:]:
                if "the configuration was" in line:
                    assert says in line, line
                    return
            time.sleep(0.01)
        raise AssertionError(self.errors[seen:])

    def ask(self, method, path, body=None, headers=None, limit=30):
        fields = dict(headers or {})
        names = {name.lower() for name in fields}
        if self.key and not names & {"authorization", "x-api-key", "api-key", "x-forwarded-user"}:
            fields["authorization"] = f"Bearer {self.key}"
        id = None
        try:
            answer = super().ask(method, path, body, fields, limit)
            id = answer.headers["x-request-id"]
            return answer
        finally:
            if method == "POST":
                self.asked.append(id)

    def chat(self, text, headers=None, key=None, **fields):
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0}
        body.update(fields)
        headers = dict(headers or {})
        if key:
            headers["authorization"] = f"Bearer {key}"
        return self.ask("POST", "/v1/chat/completions", body, headers)

    def raw(self, body, headers=None, path="/v1/chat/completions"):
        """A request of exactly these bytes."""
        data = body if isinstance(body, bytes) else body.encode()
        return self.ask("POST", path, data, headers)

    def entry(self, n, payload=False):
        answer = self.ask("GET", f"/verbatim/v1/entries/{n}" + ("?payload=1" if payload else ""))
        return answer.json if answer.status == 200 else None

    def receipt_of(self, answer):
        id = answer.headers["x-request-id"]
        # Refusals by limits are answered without waiting for their entry.
        for _ in range(100):
            receipt = self.ask("GET", f"/verbatim/v1/receipts/{id}?wait=5")
            if receipt.status != 404:
                break
            time.sleep(0.02)
        assert receipt.status == 200, receipt.body
        return receipt.json

    def entry_of(self, answer, payload=False):
        """The entry of the request that got this answer."""
        return self.entry(self.receipt_of(answer)["entry"], payload)

    def reason_of(self, answer):
        """Kind and reason that the ledger has for it."""
        leaf = self.entry_of(answer)["leaf_json"]
        return leaf["kind"], leaf.get("detail", {}).get("reason") or leaf["outcome"]

    def leaves(self, since=0):
        leaves = []
        while entry := self.entry(since + len(leaves)):
            leaves.append(entry["leaf_json"])
        return leaves


def secret(name):
    return f"secret-of-{name}-0123456789"


@contextlib.contextmanager
def keyed_gateway(folder, upstream, config, names):
    """A gateway whose keys stand in files, "file:NAME"; requests have the first one's by default."""
    for name in names:
        (folder / name).write_text(secret(name))
    gateway = ScriptedGateway(folder, upstream, config)
    gateway.key = secret(names[0]) if names else None
    gateway.start()
    yield gateway
    assert gateway.stop() == 0, gateway.errors[-10:]


def module_gateway(config, names=(), environment=None):
    """The fixture `gateway` of a file whose tests share one; as keyed_gateway."""

    @pytest.fixture(scope="module", name="gateway")
    def started(upstream, tmp_path_factory):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (environment or {}).items():
                patch.setenv(name, value)
            with keyed_gateway(tmp_path_factory.mktemp("gateway"), upstream, config, names) as gateway:
                yield gateway

    return started
