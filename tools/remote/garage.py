"""Three garage nodes on loopback with replication 3: a real distributed store, of which a node may
die.

Needs the program `garage`:

    cargo install garage --version 2.5.0 --no-default-features --features bundled-libs,sqlite
"""

import contextlib
import pathlib
import secrets
import signal
import socket
import subprocess
import tempfile
import time

NODES = (1, 2, 3)
CONFIG = """
metadata_dir = "{folder}/meta"
data_dir = "{folder}/data"
db_engine = "sqlite"
replication_factor = 3
rpc_bind_addr = "127.0.0.1:{rpc}"
rpc_public_addr = "127.0.0.1:{rpc}"
rpc_secret = "{secret}"
[s3_api]
s3_region = "garage"
api_bind_addr = "127.0.0.1:{s3}"
root_domain = ".s3.garage.localhost"
[admin]
api_bind_addr = "127.0.0.1:{admin}"
"""


def free_ports(count):
    with contextlib.ExitStack() as stack:
        listen = lambda: stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listeners = [listen() for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


class Cluster:
    """A running cluster with an empty bucket `shelf`."""

    def __init__(self, binary, folder):
        self.binary, self.folder = binary, pathlib.Path(folder)
        self.processes = {}
        secret, ports = secrets.token_hex(32), iter(free_ports(3 * len(NODES)))
        self.s3 = {}
        for node in NODES:
            own = self.folder / str(node)
            own.mkdir()
            self.s3[node] = next(ports)
            own_ports = {"s3": self.s3[node], "rpc": next(ports), "admin": next(ports)}
            config = CONFIG.format(folder=own, secret=secret, **own_ports)
            (own / "garage.toml").write_text(config.strip() + "\n")
            self.start(node)
        ids = {node: self.until("node", "id", "-q", node=node).strip() for node in NODES}
        for node in NODES[1:]:
            self.until("node", "connect", ids[node])
        for node in NODES:
            of_node = ids[node].split("@")[0]
            self.until("layout", "assign", "-z", f"z{node}", "-c", "1G", of_node)
        self.until("layout", "apply", "--version", "1")
        self.until("bucket", "create", "shelf")
        said = self.until("key", "create", "weft").splitlines()
        key = {line.split(":")[0].strip(): line.split()[-1] for line in said if ":" in line}
        self.cli("bucket", "allow", "--read", "--write", "--owner", "shelf", "--key", "weft")
        self.environment = {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self.s3[1]}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "garage",
            "AWS_ACCESS_KEY_ID": key["Key ID"],
            "AWS_SECRET_ACCESS_KEY": key["Secret key"],
        }

    def start(self, node):
        own = self.folder / str(node)
        with open(own / "log", "a") as log:
            command = [self.binary, "-c", str(own / "garage.toml"), "server"]
            self.processes[node] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, node):
        self.processes[node].send_signal(signal.SIGKILL)
        self.processes[node].wait()

    def restart(self, node):
        """Starts a node again and waits until all know one another."""
        self.start(node)
        for _ in range(300):
            with contextlib.suppress(RuntimeError):
                said = [self.cli("status", node=each) for each in NODES]
                if not any("FAILED" in text for text in said):
                    return
            time.sleep(0.2)
        raise RuntimeError(f"node {node} did not come back")

    def cli(self, *args, node=1):
        command = [self.binary, "-c", str(self.folder / str(node) / "garage.toml"), *args]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"garage {' '.join(args)}: {done.stderr[-500:]}")
        return done.stdout

    def until(self, *args, node=1):
        """The same, tried for a while: nodes take a moment to start and to find one another."""
        for _ in range(100):
            with contextlib.suppress(RuntimeError):
                return self.cli(*args, node=node)
            time.sleep(0.2)
        return self.cli(*args, node=node)

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


@contextlib.contextmanager
def cluster(binary):
    with tempfile.TemporaryDirectory() as folder:
        nodes = Cluster(binary, folder)
        try:
            yield nodes
        finally:
            nodes.close()
