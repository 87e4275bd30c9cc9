"""Starts `weft serve` on a free port of loopback with its own folders, and ends it."""

import socket
import subprocess
import time
import urllib.request

START_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, weft, folder, *arguments):
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.arguments = [str(word) for word in arguments]
        folders = ["--cache-dir", folder / "kv", "--chunk-dir", folder / "chunks"]
        command = [weft, "serve", *arguments, "--port", self.port, "--no-resident", *folders]
        self.log = open(folder / "log", "w")
        self.process = subprocess.Popen([str(word) for word in command], stderr=self.log, stdout=self.log)
        self.wait()

    def wait(self):
        for _ in range(START_S * 10):
            try:
                urllib.request.urlopen(f"{self.url}/health").close()
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        self.close()
        raise SystemExit(f"the server did not start: see {self.log.name}")

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
