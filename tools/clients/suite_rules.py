"""Why tests of other servers fail against weft: (file, test, reason) or (file, test, reason, words), by expression.

The first rule that fits holds. Where a rule has words, what the test said must have them too.
"""

MODEL = "it expects the words, tokens, names or template of another test model"
ROUTE = "it calls a route of llama.cpp alone (/completion, /chat/completions/input_tokens, streams to resume)"
OPTION = "it needs a server that was started with other options (key, context, pooling, page, metrics)"
FIELD = "it reads a field of llama.cpp alone (__verbose, aliases, headers of /metrics, timings of /completion)"
CHOICE = "weft decides otherwise: "
UNIT = "it is a unit test of vLLM's own classes"
REFUSED = "weft refuses the field by name"
LLAMA = [
    ("basic", "props|server_models|load_split", MODEL),
    ("basic", "slots|no_ui", OPTION),
    ("basic", "aliases", FIELD),
    ("chat_completion", r"chat_completion(_stream)?\[|cached_tokens|openai_library|apply_chat|multiple_choices", MODEL),
    ("chat_completion", "chat_template|verbose", FIELD),
    ("chat_completion", "messages7", CHOICE + "two messages of the assistant in a row are rendered as they are"),
    ("chat_completion", "context_size|return_progress", OPTION),
    ("chat_completion", "token_count", ROUTE),
    ("compat_anthropic", "messages_basic", CHOICE + "messages have timings too"),
    ("compat_anthropic", "messages_streaming", CHOICE + "input_tokens may be 0: kept ones are counted apart"),
    ("compat_anthropic", "image|vision_format", CHOICE + "images are refused with 400, not 500"),
    ("compat_anthropic", "vision_base64", "it needs the network"),
    ("compat_anthropic", "empty_messages", CHOICE + "an empty list of messages is refused"),
    ("compat_anthropic", "thinking", MODEL),
    ("compat_oai_responses", "library", MODEL),
    ("compat_oai_responses", "telemetry", FIELD),
    ("completion", "openai_library", MODEL),
    ("completion", "", ROUTE, "404|KeyError: 'content'"),
    ("embedding", "mixed_input", CHOICE + "an empty text, and texts and tokens in one list, are refused"),
    ("embedding", "pooling", OPTION),
    ("embedding", "too_long", OPTION),
    ("embedding", "usage", MODEL),
    ("ignore_eos", "", ROUTE, "404"),
    ("metrics", "disabled", OPTION),
    ("metrics", "format|embedding", FIELD),
    ("metrics", "", ROUTE, "404|KeyError: 'timings'"),
    ("rerank", "tei", "it sends the request of another server (TEI), which weft does not take"),
    ("rerank", "", MODEL),
    ("security", "static_assets", "it asks for files of llama.cpp's page"),
    ("security", "api_key", OPTION),
    ("security", "rejects|cors_options", CHOICE + "requests of other origins get 403, not an answer without headers"),
    ("security", "reflects|defaults", "it looks for a header's name in capital letters", "KeyError"),
    ("security", "proxy|media", ROUTE),
    ("stream", "", ROUTE, "404|StopIteration"),
    ("tokenize", "bos", MODEL),
]
VLLM = [
    (".*", "", UNIT, "MagicMock|isinstance\\(\\) arg 2|Cannot spec a Mock|first argument must be a string"),
    (".*", "", "it needs a fixture of vLLM's tree", "failed on setup"),
    (".*", "", REFUSED, "(prompt_logprobs|truncate_prompt_tokens|allowed_token_ids|use_beam_search) is not supported"),
    (".*", "background|cancel", CHOICE + "responses do not run in the background"),
    ("chat", "rejects_unknown", UNIT),
    (".*", "prompt_logprobs", "it reads prompt_logprobs: null, which weft leaves out"),
    ("chat", "single_chat_session", "it compares usage with a literal without details, which weft has"),
    ("chat", "chat_streaming", "it expects content in every event, the last one too"),
    ("chat|completion", "stream_options", "it asks for continuous_usage_stats, which weft does not send"),
    ("chat", "custom_role", CHOICE + "unknown roles are refused"),
    ("chat", "invocations", "it calls a route of SageMaker"),
    ("chat", "response_format|complex_message|n_parameter|n_with_seed", MODEL),
    ("completion_with_function_calling", "function_tool_use", "it reads `reasoning`; weft writes reasoning_content"),
    ("completion_with_function_calling", "max_tokens", CHOICE + "a call that is cut off has what was written of it"),
    ("completion", "single_completion|completion_streaming|parallel", MODEL),
    ("prompt_validation", "", "it compares the words of an error", "Regex pattern"),
    ("basic|stateful|structured_output", "", MODEL),
    ("function_call", "max_tokens", CHOICE + "a call that is cut off before its name is no item"),
    ("function_call", "", MODEL),
    ("simple", "response_messages", "it reads a field of vLLM alone (input_messages)"),
    ("return_token_ids", "", "it decodes by vLLM's tokenizer, or reads null in fields that weft leaves out"),
    ("chunked_prompt", "", "its prompt is longer than the model's context", "maximum context length"),
]
RULES = {"llama": LLAMA, "vllm": VLLM}
