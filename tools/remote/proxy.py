"""An HTTP proxy between weft and an object store, which does what networks and servers do wrong.

It reads a whole request, sends it on, reads the whole response, and damages it as it is told. The
request is passed on byte for byte, so signatures of S3 stay valid.
"""

import random
import socket
import struct
import threading
import time


def read_message(sock, is_response, method=b""):
    """A whole HTTP message: its head and its body. None if the connection ended before it."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(65536)
        if not part:
            return None
        data += part
    head, body = data.split(b"\r\n\r\n", 1)
    lines = head.split(b"\r\n")
    fields = {}
    for line in lines[1:]:
        name, value = line.split(b":", 1)
        fields[name.strip().lower()] = value.strip()
    status = int(lines[0].split()[1]) if is_response else 0
    if is_response and (method == b"HEAD" or status in (204, 304) or status < 200):
        return head, b"", True
    if fields.get(b"transfer-encoding") == b"chunked":
        while not body.endswith(b"0\r\n\r\n"):
            part = sock.recv(65536)
            if not part:
                break
            body += part
        return head, body, True
    if b"content-length" in fields:
        length = int(fields[b"content-length"])
        while len(body) < length:
            part = sock.recv(65536)
            if not part:
                break
            body += part
        return head, body, True
    if is_response:
        while part := sock.recv(65536):
            body += part
    return head, body, False


class Proxy:
    """Listens on a port of loopback. `fault` and `share` may change while it runs."""

    def __init__(self, target, seed=1):
        self.target = target
        self.fault = None
        self.share = 1.0
        self.done = 0
        self.random = random.Random(seed)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            with client:
                while self.exchange(client):
                    pass
        except OSError:
            pass

    def exchange(self, client):
        """One request and its response; whether the connection stays."""
        request = read_message(client, False)
        if request is None:
            return False
        head, body, _ = request
        method = head.split(b" ", 1)[0]
        fault = self.fault if self.random.random() < self.share else None
        if fault:
            self.done += 1
        if fault == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if fault == "500":
            client.sendall(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n")
            return True
        if fault == "silence":
            time.sleep(60)
            return False
        if fault == "latency":
            time.sleep(0.3)
        with socket.create_connection(self.target, timeout=60) as server:
            server.sendall(head + b"\r\n\r\n" + body)
            response = read_message(server, True, method)
        if response is None:
            return False
        head, body, is_framed = response
        if fault == "truncate" and body:
            client.sendall(head + b"\r\n\r\n" + body[: self.random.randrange(len(body))])
            return False
        if fault == "flip" and method == b"GET" and body:
            body = bytearray(body)
            bit = self.random.randrange(8 * len(body))
            body[bit // 8] ^= 1 << bit % 8
            body = bytes(body)
        client.sendall(head + b"\r\n\r\n" + body)
        return is_framed and b"connection: close" not in head.lower()
