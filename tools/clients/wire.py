"""A proxy on loopback that stands between a client and the server, and scripts what a model says.

The client is unchanged and so is the server. The proxy adds one field to a request, `structured_outputs`
with a single choice, so that the model writes exactly the text that the script has for this turn. All else
goes through as it is: the client's request with its tools and results, and the server's bytes, streamed.
It keeps a line about each exchange for the evidence.
"""

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCRIPTED = ("/v1/messages", "/v1/responses", "/v1/chat/completions")
HOP_BY_HOP = ("connection", "content-length", "host", "transfer-encoding", "accept-encoding")


def call(name, arguments):
    """A call as Qwen's models write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def results(body):
    """The texts of all tool results in a request, in any dialect."""
    found = []
    for item in [*body.get("messages", []), *listed(body.get("input"))]:
        if item.get("role") == "tool" or item.get("type") in OUTPUTS:
            found.append(text_of(item.get("content") or item.get("output")))
        for block in listed(item.get("content")):
            if block.get("type") == "tool_result":
                found.append(text_of(block.get("content")))
    return found


OUTPUTS = ("function_call_output", "custom_tool_call_output")


def listed(value):
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text_of(content):
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content if isinstance(content, str) else ""


class Wire:
    """The proxy. `script` takes a request's body and returns the text that the model must say, or None."""

    def __init__(self, port, script=None):
        self.exchanges, self.script = [], script
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self, port))
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def scripted(self, path, raw):
        """The body to send, with what the model must say if the script knows."""
        if not self.script or path.split("?")[0] not in SCRIPTED:
            return raw, None
        body = json.loads(raw)
        text = self.script(body)
        if text is None:
            return raw, None
        return json.dumps(body | {"structured_outputs": {"choice": [text]}}).encode(), text


def handler(wire, port):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self):
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            sent, text = wire.scripted(self.path, raw)
            server = http.client.HTTPConnection("127.0.0.1", port)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            server.request(self.command, self.path, sent, headers)
            response = server.getresponse()
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            received = bytearray()
            while part := response.read1(65536):
                received += part
                self.wfile.write(part)
                self.wfile.flush()
            self.close_connection = True
            wire.exchanges.append(about(self, raw, text, response.status, bytes(received)))

        do_GET = do_POST = do_DELETE = do_HEAD = forward

        def log_message(self, *_):
            pass

    return Handler


def about(request, raw, text, status, received):
    """A line of evidence: what was asked in numbers, what was scripted, how the answer began and ended."""
    line = {"request": f"{request.command} {request.path}", "bytes": len(raw), "status": status}
    if raw[:1] == b"{":
        body = json.loads(raw)
        line |= {
            "model": body.get("model"),
            "streamed": bool(body.get("stream")),
            "tools": len(body.get("tools") or []),
            "tool_results": len(results(body)),
        }
    if text is not None:
        line["scripted"] = text[:300]
    words = received.decode(errors="replace")
    if status != 200:
        line["answer"] = words[:600]
    elif "event:" in words:
        line["events"] = events(words)
    return line


def events(text):
    """The names of a stream's events in order; of those that repeat, the first."""
    names = [line[7:] for line in text.splitlines() if line.startswith("event: ")]
    return list(dict.fromkeys(names))
