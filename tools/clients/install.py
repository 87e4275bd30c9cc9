"""Installs the clients at fixed versions into a folder: one virtual environment each, and one npm folder."""

import shutil
import subprocess
import sys

PYTHON = {
    "langchain": [
        "langchain==1.4.7", "langchain-openai==1.7.3", "langchain-anthropic==1.7.7", "langchain-ollama==1.1.0",
    ],
    "llama_index": [
        "llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0",
        # Its model for Anthropic does not start with newer versions of the SDK.
        "llama-index-llms-anthropic==0.12.3", "anthropic==0.93.0",
    ],
    "pydantic_ai": ["pydantic-ai-slim[openai,anthropic]==2.66.0"],
    "instructor": ["instructor[anthropic]==1.17.0"],
    "litellm": ["litellm==1.106.2", "mcp==2.3.0"],
    "llm": ["llm==0.36"],
    "openai_agents": ["openai-agents==0.24.0"],
    "open_webui": ["open-webui==0.12.4"],
    "sdks": ["openai==3.49.0", "anthropic==2.9.0", "ollama==0.6.3"],
}
NODE = [
    "@anthropic-ai/claude-code@2.1.197", "@openai/codex@0.169.0", "ai@6.0.326", "@ai-sdk/openai@3.0.139",
    "@ai-sdk/anthropic@3.0.138", "@ai-sdk/openai-compatible@2.0.87", "@anthropic-ai/sdk@1.9.0", "openai@6.49.0",
    "zod@4.6.7",
]


def run(*command, **more):
    subprocess.run([str(word) for word in command], check=True, **more)


def marked(folder, wanted):
    """Whether a folder has just this already."""
    mark = folder / "installed.txt"
    return mark.exists() and mark.read_text() == "\n".join(wanted)


def mark(folder, wanted):
    (folder / "installed.txt").write_text("\n".join(wanted))


def python(folder, name):
    """The virtual environment of a client; made if it is not there."""
    venv, wanted = folder / name, PYTHON[name]
    if not marked(venv, wanted):
        tool = folder / "uv"
        if not (tool / "bin/uv").exists():
            run(sys.executable, "-m", "venv", tool)
            run(tool / "bin/pip", "install", "-q", "uv")
        run(tool / "bin/uv", "venv", "-q", "--clear", venv)
        run(tool / "bin/uv", "pip", "install", "-q", "--python", venv / "bin/python", *wanted)
        mark(venv, wanted)
    return venv


def node(folder):
    """The folder with the npm packages; made if it is not there."""
    packages = folder / "node"
    if not marked(packages, NODE):
        shutil.rmtree(packages, ignore_errors=True)
        packages.mkdir(parents=True)
        (packages / "package.json").write_text('{"name": "clients", "private": true, "type": "module"}')
        run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *NODE, cwd=packages)
        # npm may be set to run no scripts of packages; this one puts the binary in its place.
        run("node", "install.cjs", cwd=packages / "node_modules/@anthropic-ai/claude-code")
        mark(packages, NODE)
    return packages
