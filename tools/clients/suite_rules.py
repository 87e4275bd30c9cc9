"""Why tests of other servers and clients fail against weft: (file, test, reason) or (file, test, reason, words).

All are expressions, and the first rule that fits holds. Where a rule has words, what the test said must have them too.
Each failed test was looked at; a rule stands for those that fail for the same reason.
"""

WORDS = "it expects the words, the number of tokens, the name or the template of another model"
REAL = "it needs a real model of billions of weights, or the files of its template"
ROUTE = "it calls a route of the other server alone"
OPTION = "it needs an option that weft does not have (pooling, no page, no metrics, small batches, background)"
FIELD = "it reads a field or header of the other server alone"
ERROR = "it compares the words or the type of an error, which is refused as it should be"
CHOICE = "weft decides otherwise: "
UNIT = "it is a unit test of vLLM's own classes"
REFUSED = "weft refuses the field by name"
ORIGIN = CHOICE + "requests of other origins get 403, not an answer without headers"
LLAMA = [
    ("basic", "props|load_split", WORDS),
    ("basic", "slots|no_ui", OPTION),
    ("basic", "aliases", FIELD),
    ("chat_completion", r"chat_completion(_stream)?\[|cached_tokens|apply_chat|multiple_choices|library", WORDS),
    ("chat_completion", "chat_template|verbose", FIELD),
    ("chat_completion", "messages7", CHOICE + "two messages of the assistant in a row are rendered as they are"),
    ("chat_completion", "context_size", ERROR),
    ("chat_completion", "return_progress", OPTION),
    ("chat_completion", "logprobs", CHOICE + "bytes that are no text are written as OpenAI writes them"),
    ("compat_anthropic", "messages_basic", CHOICE + "messages have timings too"),
    ("compat_anthropic", "messages_streaming", CHOICE + "input_tokens may be 0: kept ones are counted apart"),
    ("compat_anthropic", "image|vision_format", CHOICE + "images are refused with 400, not 500"),
    ("compat_anthropic", "vision_base64", "it needs the network"),
    ("compat_anthropic", "empty_messages", CHOICE + "an empty list of messages is refused"),
    ("compat_anthropic", "thinking", WORDS),
    ("compat_oai_responses", "library", WORDS),
    ("compat_oai_responses", "telemetry", FIELD),
    ("completion", "n_probs_post", REFUSED),
    ("completion", "", WORDS, "==|regex|unique"),
    ("completion", "seed|parallel", WORDS),
    ("ctx_shift", "enabled|stream|short_prompt", WORDS),
    ("ctx_shift", "long_prompt", ERROR),
    ("embedding", "mixed_input", CHOICE + "an empty text, and texts among tokens, are refused"),
    ("embedding", "pooling|with_fa", OPTION),
    ("embedding", "too_long", ERROR),
    ("embedding", "usage", WORDS),
    ("metrics", "disabled", OPTION),
    ("metrics", "", FIELD),
    ("rerank", "", WORDS),
    ("security", "static_assets", "it asks for files of llama.cpp's page"),
    ("security", "correct_api_key", CHOICE + "/completions answers as /v1/completions"),
    ("security", "cors_o", ORIGIN),
    ("security", "proxy|media", ROUTE),
    ("stream", "", ROUTE),
    ("tokenize", "bos", WORDS),
    ("tool_call", "", REAL),
]
VLLM = [
    (".*", "", UNIT, "MagicMock|isinstance\\(\\) arg 2|Cannot spec a Mock|BaseException type"),
    (".*", "", "it needs vLLM itself", "failed on setup|apply_chat_template|unexpected keyword argument"),
    (".*", "", REFUSED, "(truncate_prompt_tokens|allowed_token_ids|use_beam_search|as_token_ids|per_doc) is not supp"),
    (".*", "background|cancel", OPTION),
    (".*", "invocations|score_api|tokenizer_info", ROUTE),
    (".*", "prompt_logprobs", FIELD, "no attribute 'prompt_logprobs'"),
    ("messages", "streaming", CHOICE + "input_tokens may be 0: kept ones are counted apart"),
    ("chat", "rejects_unknown", UNIT),
    ("chat", "more_than_one_prompt_logprobs", CHOICE + "prompt_logprobs have the token and others"),
    ("chat", "single_chat_session", "it compares usage with a literal without its details"),
    ("chat|chunked_prompt|completion", "streaming|long_prompts", CHOICE + "the first and last events have no text"),
    ("chat|completion", "stream_options", CHOICE + "the last event comes after the last token, not with it"),
    ("chat", "custom_role", CHOICE + "unknown roles are refused"),
    ("chat", "long_seed", ERROR),
    ("chat", "structured|response_format|complex_message|n_parameter|n_with_seed", WORDS),
    ("chat_echo", "logprobs", CHOICE + "at most 20 log-probabilities of a token, and not all of them"),
    ("chat_echo", "", WORDS),
    ("chat_logit_bias_validation", "", ERROR),
    ("completion_with_function_calling", "function_tool_use", FIELD),
    ("completion_with_function_calling", "named_tool", CHOICE + "an answer of calls alone has no content"),
    ("completion_with_function_calling", "max_tokens", CHOICE + "a call that is cut off has what was written of it"),
    ("completion", "single_completion|parallel", WORDS),
    ("prompt_validation", "", ERROR, "Regex pattern"),
    ("basic|stateful|structured_output|models", "", WORDS),
    ("function_call", "max_tokens", CHOICE + "a call that is cut off before its name is no item"),
    ("function_call", "", WORDS),
    ("simple", "response_messages", FIELD),
    ("return_token_ids", "emoji\\[", FIELD),
    ("return_token_ids", "", WORDS),
    ("return_tokens_as_ids", "", REFUSED),
    ("chunked_prompt", "", "its prompt is longer than the model's context", "maximum context length"),
    ("online", "negative_token|params_not_supported|pooling_not_supported", ERROR),
    ("online", "basic", WORDS),
    ("online", "truncate|use_activation", REFUSED),
    ("online", "", ROUTE, "400 Client Error|404"),
    ("cross_encoder_online", "basic|texts|top_n", WORDS),
    ("cross_encoder_online", "max_model_len", OPTION),
    ("cross_encoder_online", "max_tokens_per_doc", REFUSED),
    ("cross_encoder_online", "pooling", ROUTE),
    ("tokenization", "completions|token_strs|detokenize", WORDS),
]
MADE_UP = "its request has made-up values or ids, or fields that weft refuses by name"
OPENAI = [
    ("embeddings", "create", "the client asks for base64, which its own check takes for an error"),
    ("completions", "create", "the first token of an echo has no number, as with OpenAI", "invalid for expected"),
    ("messages", "", ROUTE),
    ("models", "delete", ROUTE),
    ("responses", "compact", ROUTE),
    ("completions", "retrieve|update|list|delete", ROUTE),
    ("completions|responses|input_items|input_tokens", "", MADE_UP, "400|404|405"),
]
ANTHROPIC = [
    (".*", "", "it is of another version than the client", "unexpected keyword argument|assert 'parse\\(\\)'|async"),
    ("models", "retrieve", MADE_UP),
    ("messages", "", MADE_UP, "400|404"),
]
RULES = {"llama": LLAMA, "vllm": VLLM, "openai": OPENAI, "anthropic": ANTHROPIC}
