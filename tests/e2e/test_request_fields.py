"""Every field that the official clients' types have: honoured, refused by name, or said to be ignored.

A new version of a client with a field that is not here fails this test until somebody has decided
what the engine makes of it.
"""

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_tokens_params
from anthropic.types.beta import message_create_params as beta_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params

from gateway_process import MODEL_NAME

TURN = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}

# What is done with each, and a value that would change the answer if it could.
CHAT = {
    "honoured": {
        "messages": TURN,
        "model": MODEL_NAME,
        "frequency_penalty": 0.5,
        "logit_bias": {"5": 1},
        "max_completion_tokens": 1,
        "max_tokens": 1,
        "presence_penalty": 0.5,
        "prompt_cache_options": {},
        "seed": 4,
        "stop": ["x"],
        "stream": False,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "top_p": 0.5,
    },
    "ignored": {
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "safety_identifier": "s",
        "service_tier": "flex",
        "store": True,
        "user": "u",
    },
    "refused": {
        "audio": {"voice": "x"},
        "function_call": {"name": "f"},
        "functions": [{"name": "f"}],
        "logprobs": True,
        "modalities": ["text", "audio"],
        "moderation": {"model": "m"},
        "n": 2,
        "prediction": {"type": "content", "content": "x"},
        "reasoning_effort": "high",
        "response_format": {"type": "json_object"},
        "tool_choice": "required",
        "tools": [TOOL],
        "top_logprobs": 2,
        "verbosity": "low",
        "web_search_options": {},
    },
}
COMPLETIONS = {
    "honoured": {
        "model": MODEL_NAME,
        "prompt": "Hi",
        "frequency_penalty": 0.5,
        "logit_bias": {"5": 1},
        "max_tokens": 1,
        "presence_penalty": 0.5,
        "seed": 4,
        "stop": ["x"],
        "stream": False,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "top_p": 0.5,
    },
    "ignored": {"user": "u"},
    "refused": {"best_of": 2, "echo": True, "logprobs": 1, "n": 2, "suffix": "x"},
}
RESPONSES = {
    "honoured": {
        "input": "Hi",
        "instructions": "Be brief.",
        "max_output_tokens": 1,
        "model": MODEL_NAME,
        "prompt_cache_options": {},
        "reasoning": {},
        "stream": False,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}},
        "top_p": 0.5,
    },
    "ignored": {
        "access_programs": {"cyber": "standard"},
        "background_options": {},
        "image": {"context_compression": "auto"},
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "safety_identifier": "s",
        "service_tier": "flex",
        "store": True,
        "stream_options": {"include_obfuscation": True},
        "user": "u",
    },
    "refused": {
        "background": True,
        "context_management": [{"type": "compaction"}],
        "conversation": "conv_1",
        "include": ["message.output_text.logprobs"],
        "moderation": {"model": "m"},
        "previous_response_id": "resp_1",
        "prompt": {"id": "pmpt_1"},
        "tool_choice": "required",
        "tools": [{"type": "web_search"}],
        "top_logprobs": 2,
        "truncation": "auto",
    },
    "refused members": {
        "prompt_cache_options.prewarm": {"prewarm": True},
        "reasoning.effort": {"effort": "high"},
        "reasoning.summary": {"summary": "auto"},
        "text.format": {"format": {"type": "json_object"}},
        "text.verbosity": {"verbosity": "low"},
    },
}
COUNT_TOKENS = {
    "honoured": {
        "messages": TURN,
        "model": MODEL_NAME,
        "output_config": {},
        "system": "Be brief.",
    },
    "ignored": {
        "billing_policy": {},
        "cache_control": {"type": "ephemeral"},
        "speed": "fast",
    },
    "refused": {
        "compaction": {"type": "x"},
        "context_management": {"edits": [{"type": "x"}]},
        "mcp_servers": [{"type": "url", "name": "n", "url": "https://host.example"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tool_choice": {"type": "any"},
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    },
    "refused members": {
        "output_config.effort": {"effort": "low"},
        "output_config.format": {"format": {"type": "json_schema", "schema": {}}},
    },
}
MESSAGES = {
    "honoured": {
        **COUNT_TOKENS["honoured"],
        "max_tokens": 1,
        "stop_sequences": ["x"],
        "stream": False,
    },
    "ignored": {
        **COUNT_TOKENS["ignored"],
        "diagnostics": {"previous_message_id": None},
        "fallback_credit_token": "t",
        "inference_geo": "us",
        "metadata": {"user_id": "u"},
        "service_tier": "standard_only",
    },
    "refused": {
        **COUNT_TOKENS["refused"],
        "container": "container_1",
        "fallbacks": [{"model": "m"}],
        "thread": {"type": "create"},
    },
    "refused members": COUNT_TOKENS["refused members"],
}
EMBEDDINGS = {
    "refused": {
        "input": "Hi",
        "model": MODEL_NAME,
        "dimensions": 3,
        "encoding_format": "float",
        "user": "u",
    }
}
# These the clients send as headers.
HEADERS = {"betas", "user_profile_id", "workspace_id"}

ENDPOINTS = {
    "/v1/chat/completions": (
        CHAT,
        [chat_params.CompletionCreateParamsNonStreaming],
        {"model": MODEL_NAME, "messages": TURN, "max_tokens": 1},
    ),
    "/v1/completions": (
        COMPLETIONS,
        [completion_create_params.CompletionCreateParamsNonStreaming],
        {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 1},
    ),
    "/v1/responses": (
        RESPONSES,
        [response_create_params.ResponseCreateParamsNonStreaming],
        {"model": MODEL_NAME, "input": "Hi", "max_output_tokens": 1},
    ),
    "/v1/messages": (
        MESSAGES,
        [
            message_create_params.MessageCreateParamsNonStreaming,
            beta_create_params.MessageCreateParamsNonStreaming,
        ],
        {"model": MODEL_NAME, "messages": TURN, "max_tokens": 1},
    ),
    "/v1/messages/count_tokens": (
        COUNT_TOKENS,
        [
            message_count_tokens_params.MessageCountTokensParams,
            beta_count_tokens_params.MessageCountTokensParams,
        ],
        {"model": MODEL_NAME, "messages": TURN},
    ),
    "/v1/embeddings": (EMBEDDINGS, [embedding_create_params.EmbeddingCreateParams], {}),
}


@pytest.mark.parametrize("path", ENDPOINTS)
def test_every_field_is_decided(path):
    decided, types, _ = ENDPOINTS[path]
    listed = {name for kind in ("honoured", "ignored", "refused") for name in decided.get(kind, {})}
    for typed_dict in types:
        fields = typed_dict.__required_keys__ | typed_dict.__optional_keys__
        assert "model" in fields
        undecided = fields - listed - HEADERS
        assert not undecided, f"{path}: {sorted(undecided)}"


def cases(kind):
    return [
        pytest.param(path, name, value, id=f"{path}-{name}")
        for path, (decided, _, _) in ENDPOINTS.items()
        if path != "/v1/embeddings"
        for name, value in decided.get(kind, {}).items()
    ]


def ignored(answer):
    return answer.headers.get("verbatim-ignored", "").split(", ")


@pytest.mark.parametrize("path, name, value", cases("honoured"))
def test_honoured(gateway, path, name, value):
    base = dict(ENDPOINTS[path][2])
    if name == "max_completion_tokens":
        del base["max_tokens"]
    answer = gateway.ask("POST", path, {**base, name: value})
    assert answer.status == 200, answer.body
    assert name not in ignored(answer)


@pytest.mark.parametrize("path, name, value", cases("ignored"))
def test_ignored(gateway, path, name, value):
    answer = gateway.ask("POST", path, {**ENDPOINTS[path][2], name: value})
    assert answer.status == 200, answer.body
    assert name in ignored(answer)


@pytest.mark.parametrize("path, name, value", cases("refused") + cases("refused members"))
def test_refused(gateway, path, name, value):
    answer = gateway.ask("POST", path, {**ENDPOINTS[path][2], name.split(".")[0]: value})
    assert answer.status == 400, answer.body
    error = answer.json["error"]
    assert f"'{name}'" in error["message"]
    if "param" in error:
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    # Null is as good as nothing.
    nothing = {name.split(".")[1]: None} if "." in name else None
    assert gateway.ask("POST", path, {**ENDPOINTS[path][2], name.split(".")[0]: nothing}).status == 200


def test_an_engine_has_no_embeddings(gateway):
    answer = gateway.ask("POST", "/v1/embeddings", EMBEDDINGS["refused"])
    assert (answer.status, answer.json["error"]["code"]) == (400, "unsupported_endpoint")
