"""As much of S3 as weft uses, in memory: get, put, delete and list. It checks no signature, only who
signs, and is there for machines that have no real server."""

import http.server
import threading
import time
import urllib.parse
from email.utils import formatdate
from xml.sax.saxutils import escape

ACCESS_KEY = "weft"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b"", **fields):
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), str(value))
        if "Content_Length" not in fields:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def place(self):
        """The key of the object, or None after the request was refused."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if f"Credential={ACCESS_KEY}/" not in self.headers.get("Authorization", ""):
            self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            return None
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        return urllib.parse.unquote(url.path).removeprefix("/shelf").removeprefix("/")

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        key = self.place()
        if key is None:
            return
        if not key:
            self.list()
            return
        found = self.server.objects.get(key)
        if found is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        body, modified = found
        fields = {"ETag": f'"{hash(body)}"', "Last_Modified": formatdate(modified, usegmt=True)}
        wanted = self.headers.get("Range", "").removeprefix("bytes=")
        if not wanted:
            self.answer(200, body, Content_Length=len(body), **fields)
            return
        first, last = (int(text) for text in wanted.split("-"))
        if first >= len(body):
            self.answer(416, b"<Error><Code>InvalidRange</Code></Error>")
            return
        part = body[first : last + 1]
        fields["Content_Range"] = f"bytes {first}-{first + len(part) - 1}/{len(body)}"
        self.answer(206, part, Content_Length=len(part), **fields)

    def do_PUT(self):
        key = self.place()
        if key is None:
            return
        if self.headers.get("If-None-Match") == "*" and key in self.server.objects:
            self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        self.server.objects[key] = (self.body, time.time())
        self.answer(200, ETag=f'"{hash(self.body)}"')

    def do_POST(self):
        """Several deletes at once."""
        if self.place() is None:
            return
        keys = [part.split("</Key>")[0] for part in self.body.decode().split("<Key>")[1:]]
        for key in keys:
            self.server.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def do_DELETE(self):
        key = self.place()
        if key is not None:
            self.server.objects.pop(key, None)
            self.answer(204)

    def list(self):
        prefix = self.query.get("prefix", "")
        text = "<ListBucketResult><IsTruncated>false</IsTruncated>"
        for key, (body, modified) in sorted(self.server.objects.items()):
            if key.startswith(prefix):
                date = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(modified))
                text += f"<Contents><Key>{escape(key)}</Key><LastModified>{date}</LastModified>"
                text += f'<ETag>"{hash(body)}"</ETag><Size>{len(body)}</Size></Contents>'
        self.answer(200, (text + "</ListBucketResult>").encode())

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


def start():
    """Starts a server, and returns its port."""
    server = Server(("127.0.0.1", 0), Handler)
    server.objects = {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]
