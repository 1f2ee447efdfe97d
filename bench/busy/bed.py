"""Two network namespaces over veth, with `measure serve` in one; `try` from the other."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from .loads import sh, until

# A token bucket's effect depends only on its rate, not on CPU load.
RATE = "tc qdisc replace dev nic0 root tbf rate {}mbit burst 256k latency 50ms"
FOUND = 300


def worth(gain):
    """A change with this gain, and its inverse."""
    return RATE.format(round(FOUND * (1 + gain))), RATE.format(FOUND)


NOTHING = ("ip link set dev nic0 txqueuelen 1001", "ip link set dev nic0 txqueuelen 1000")


class Bed:
    """Stands from `with` to its end. The namespaces have this process's id in their names."""

    there = "10.77.0.2"

    def __init__(self, overlane):
        # An end by SIGTERM, as of `timeout`, takes everything down, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.overlane = os.path.abspath(overlane)
        self.names = [f"busy{os.getpid()}{end}" for end in "ab"]
        self.server = None

    def __enter__(self):
        self.directory = tempfile.mkdtemp(prefix="bench-busy-")
        os.chmod(self.directory, 0o755)
        self.token = os.path.join(self.directory, "token")
        self.journal = os.path.join(self.directory, "journal")
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def build(self):
        with open(os.open(self.token, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            file.write("a secret of the benchmark")
        a, b = self.names
        for name in self.names:
            sh("ip", "netns", "add", name)
        sh("ip", "-n", a, "link", "add", "nic0", "type", "veth", "peer", "name", "nic0", "netns", b)
        for name, address in ((a, "10.77.0.1/24"), (b, f"{self.there}/24")):
            sh("ip", "-n", name, "addr", "add", address, "dev", "nic0")
            for device in ("lo", "nic0"):
                sh("ip", "-n", name, "link", "set", device, "up")
        sh(*self.inside(a), *worth(0)[1].split())
        self.server = subprocess.Popen(
            [*self.inside(b), self.overlane, "measure", "serve", "--bind", self.there, "--token", self.token],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until("measure serve listens", 30, lambda: self.there in sh(*self.inside(b), "ss", "-Hltn"))

    def __exit__(self, *_):
        if self.server:
            self.server.terminate()
            self.server.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def inside(self, name):
        return ["ip", "netns", "exec", name]

    def measure(self, *options):
        """Runs `measure run`; returns its JSON, its seconds and its log."""
        return self.ended([*self.inside(self.names[0]), self.overlane, "measure", "run", self.there,
                           "--token", self.token, "--json", *options])

    def command(self, change, *options):
        command, inverse = change
        return [*self.inside(self.names[0]), self.overlane, "try", command, "--undo-with", inverse,
                "--against", self.there, "--token", self.token, "--journal", self.journal,
                "--keep", "never", "--json", *options]

    def tried(self, change, *options):
        """Runs `try` of a change; returns its JSON, its seconds and its log."""
        return self.ended(self.command(change, *options))

    def ended(self, command):
        begun = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = time.monotonic() - begun
        # Nothing is printed where it could not begin.
        return json.loads(done.stdout) if done.stdout.strip() else None, seconds, done.stderr

    def beside(self, *options):
        """A `try` of nothing; entered when it sends, and interrupted at the end."""
        return Beside(self.command(NOTHING, *options), os.path.join(self.directory, "beside"))


class Beside:
    def __init__(self, command, log):
        self.command, self.log = command, log

    def __enter__(self):
        with open(self.log, "w", encoding="utf-8") as log:
            self.child = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=log,
                                          env={**os.environ, "OVERLANE_LOG": "debug"})
        # The second sample: everything before it is done.
        until("a try sends", 60, lambda: self.said().count("sampling ") >= 2)
        return self

    def said(self):
        """Its log; an error if it has ended."""
        with open(self.log, encoding="utf-8") as log:
            said = log.read()
        if self.child.poll() is not None:
            raise RuntimeError(f"the try beside the load ended: {said}")
        return said

    def go(self, on, server):
        """Continues or stops it and its server."""
        for child in (self.child, server):
            child.send_signal(signal.SIGCONT if on else signal.SIGSTOP)

    def __exit__(self, *_):
        # It takes the change back.
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGINT)
        self.child.wait()
