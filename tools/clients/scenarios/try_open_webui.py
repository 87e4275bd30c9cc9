"""Open WebUI against weft: its own server, which asks weft by OpenAI's chats and by Ollama's API.

Starts Open WebUI with an empty database, signs in as its page does, and sends what its page sends.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from scenario import MODEL, PLAIN, PLAIN_ANSWER, URL, check, main, same, scenario

PORT = 13577
OWN = f"http://127.0.0.1:{PORT}"
START_S = 600
KEY = {}


def send(path, body=None, timeout=300):
    headers = {"Content-Type": "application/json"} | KEY
    request = urllib.request.Request(OWN + path, body and json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read().decode()


def start(folder):
    env = os.environ | {
        "DATA_DIR": folder, "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "none", "OFFLINE_MODE": "true",
        "OPENAI_API_BASE_URL": f"{URL}/v1", "OPENAI_API_KEY": "none", "OLLAMA_BASE_URL": URL,
        "ANONYMIZED_TELEMETRY": "false",
    }
    program = Path(sys.executable).with_name("open-webui")
    command = [program, "serve", "--host", "127.0.0.1", "--port", str(PORT)]
    server = subprocess.Popen(
        command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        try:
            send("/health", timeout=10)
            return server
        except OSError:
            check(server.poll() is None, "Open WebUI ended")
            time.sleep(1)
    server.terminate()
    raise AssertionError(f"Open WebUI did not start in {START_S} s")


@scenario("signs in, and lists the model")
def models():
    token = json.loads(send("/api/v1/auths/signin", {"email": "", "password": ""}))["token"]
    KEY["Authorization"] = f"Bearer {token}"
    names = [model["id"] for model in json.loads(send("/api/models"))["data"]]
    check(MODEL in names, f"models: {names}")
    return names


def question(model, **more):
    return {"model": model, "messages": [{"role": "user", "content": PLAIN}], "temperature": 0} | more


@scenario("plain, chats")
def plain():
    answer = json.loads(send("/api/chat/completions", question(MODEL, stream=False)))
    text = answer["choices"][0]["message"]["content"]
    same(text.strip(), PLAIN_ANSWER)
    return text.strip()


@scenario("stream, chats")
def stream():
    lines = send("/api/chat/completions", question(MODEL, stream=True)).splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    parts = [choice["delta"].get("content") or "" for event in events for choice in event.get("choices", [])]
    same("".join(parts).strip(), PLAIN_ANSWER)
    return f"{len(events)} events"


@scenario("models and a stream, Ollama")
def ollama():
    names = [model["model"] for model in json.loads(send("/ollama/api/tags"))["models"]]
    lines = send("/ollama/api/chat", question(names[0], stream=True)).splitlines()
    parts = [json.loads(line)["message"]["content"] for line in lines if line]
    same("".join(parts).strip(), PLAIN_ANSWER)
    return f"{names[0]}, {len(parts)} lines"


@scenario("vectors, Ollama")
def vectors():
    answer = json.loads(send("/ollama/api/embed", {"model": MODEL, "input": ["a cat", "a ship"]}))
    same(len(answer["embeddings"]), 2)
    return f"{len(answer['embeddings'][0])} values each"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        server = start(folder)
        try:
            main()
        finally:
            server.terminate()
            server.wait()
