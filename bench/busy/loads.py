"""Foreign programs that keep a machine busy, and the durations of their requests."""
import os
import shutil
import signal
import subprocess
import sys
import time


def sh(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def until(what, seconds, condition):
    """Waits for a condition; the error names it."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.05)


class Load:
    """A program, in a process group of its own. This one is none."""

    name, needs, has_latency = "idle", [], False

    def __init__(self, directory):
        self.directory, self.groups = directory, []

    def start(self, *words, **more):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **more}
        child = subprocess.Popen(words, start_new_session=True, **quiet)
        self.groups.append(child)
        return child

    def begin(self):
        """Starts it, and waits until it works."""

    def client(self, seconds, directory):
        """Starts one more client for the given seconds; returns its process."""
        raise NotImplementedError(self.name)

    def requests(self, directory):
        """The answer times of that client's requests (s since 1970), and their durations (µs)."""
        raise NotImplementedError(self.name)

    def end(self):
        for child in reversed(self.groups):
            # The number of one that has ended may be another's by now.
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


class OneCpu(Load):
    name, needs = "one of the CPUs", ["taskset"]

    def begin(self):
        self.start("taskset", "-c", "0", "sh", "-c", "while :; do :; done")


class StressNg(Load):
    name, needs = "stress-ng", ["stress-ng"]

    def begin(self):
        self.start("stress-ng", "--cpu", "1", "--cpu-load", "70", "--vm", "1", "--vm-bytes", "64M")


class Compiler(Load):
    name, needs = "compiler", ["gcc"]

    def begin(self):
        source = os.path.join(self.directory, "load.c")
        with open(source, "w", encoding="utf-8") as file:
            for at in range(3000):
                file.write(f"int f{at}(int x) {{ int s = 0; for (int i = 0; i < x; i++) s += i * {at} ^ x; return s; }}\n")
        self.start("sh", "-c", f"while :; do gcc -O2 -c -o /dev/null '{source}'; done")


class Nginx(Load):
    name, needs, has_latency = "nginx under wrk", ["nginx", "wrk"], True
    page = "http://127.0.0.1:18080/index.html"

    def begin(self):
        d = self.directory
        with open(f"{d}/index.html", "w", encoding="utf-8") as file:
            file.write("x" * 1000)
        os.chmod(d, 0o755)
        with open(f"{d}/nginx.conf", "w", encoding="utf-8") as file:
            file.write(
                f"daemon off; pid {d}/pid; error_log {d}/error;\nevents {{}}\nhttp {{ access_log off;"
                f" client_body_temp_path {d}/b; proxy_temp_path {d}/p; fastcgi_temp_path {d}/f;"
                f" uwsgi_temp_path {d}/u; scgi_temp_path {d}/s;"
                f" server {{ listen 127.0.0.1:18080; root {d}; }} }}\n")
        self.start("nginx", "-p", d, "-c", f"{d}/nginx.conf", "-e", f"{d}/error")
        until("nginx listens", 30, lambda: "127.0.0.1:18080" in sh("ss", "-Hltn"))
        # With one more client, it leaves nothing of two CPUs.
        self.start("wrk", "-t1", "-c4", "-d100h", self.page)

    def client(self, seconds, directory):
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "requests.py")
        return self.start(sys.executable, program, "127.0.0.1", "18080", "/index.html",
                          str(seconds), f"{directory}/requests")

    def requests(self, directory):
        with open(f"{directory}/requests", encoding="utf-8") as file:
            return [tuple(float(word) for word in line.split()) for line in file]


class Pgbench(Load):
    name, needs, has_latency = "pgbench", ["pgbench", "initdb", "postgres", "setpriv"], True

    def as_user(self, *words):
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *words]

    def begin(self):
        d = self.directory
        os.chmod(d, 0o777)
        sh(*self.as_user("initdb", "-D", f"{d}/db", "-A", "trust"), cwd=d)
        options = ["-D", f"{d}/db", "-k", d, "-c", "listen_addresses=", "-c", "fsync=off"]
        self.start(*self.as_user("postgres", *options), cwd=d)
        self.bench = self.as_user("pgbench", "-h", d, "-U", "postgres")
        fill = [*self.bench, "-i", "-q", "postgres"]
        until("postgres answers", 60,
              lambda: subprocess.run(fill, capture_output=True, cwd=d).returncode == 0)
        self.start(*self.bench, "-c", "2", "-T", "360000", "postgres", cwd=d)

    def client(self, seconds, directory):
        os.chmod(directory, 0o777)
        return self.start(*self.bench, "-c", "1", "-T", str(seconds), "-l", "postgres", cwd=directory)

    def requests(self, directory):
        requests = []
        for name in os.listdir(directory):
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                for line in file:
                    _, _, took, _, seconds, micros = line.split()[:6]
                    requests.append((int(seconds) + int(micros) / 1e6, float(took)))
        return requests


# Loads of the table, in its order.
LOADS = [Load, StressNg, Compiler, Nginx, Pgbench]


def missing(load):
    """Programs of a load that are not installed. Debian keeps PostgreSQL's off the path."""
    own = "/usr/lib/postgresql"
    for version in sorted(os.listdir(own)) if os.path.isdir(own) else []:
        if f"{own}/{version}/bin" not in os.environ["PATH"].split(":"):
            os.environ["PATH"] += f":{own}/{version}/bin"
    return [program for program in load.needs if not shutil.which(program)]
