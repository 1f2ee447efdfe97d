"""Programs of others that keep a machine busy, and their own 99th percentile."""
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time


def sh(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def until(what, seconds, condition):
    """Waits for a condition; an error names what did not come."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.05)


class Load:
    """A program, in a process group of its own. This one is none."""

    name, needs, has_p99 = "idle", [], False

    def __init__(self, directory):
        self.directory, self.groups = directory, []

    def start(self, *words, **more):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **more}
        child = subprocess.Popen(words, start_new_session=True, **quiet)
        self.groups.append(child)
        return child

    def begin(self):
        """Starts it; it is under way when this returns."""

    def p99(self, seconds):
        """The 99th percentile of one more client over so many seconds."""
        raise NotImplementedError(self.name)

    def end(self):
        for child in reversed(self.groups):
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
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
    name, needs, has_p99 = "nginx under wrk", ["nginx", "wrk"], True
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
        # Half a CPU or so, all the time.
        self.start("wrk", "-t1", "-c4", "-d100h", self.page)

    def p99(self, seconds):
        text = sh("wrk", "-t1", "-c1", f"-d{seconds}s", "--latency", self.page)
        for line in text.splitlines():
            if line.strip().startswith("99%"):
                value = line.split()[1]
                for unit, factor in (("us", 1), ("ms", 1e3), ("s", 1e6)):
                    if value.endswith(unit):
                        return float(value[: -len(unit)]) * factor
        raise ValueError(f"wrk says no 99th percentile: {text}")


class Pgbench(Load):
    name, needs, has_p99 = "pgbench", ["pgbench", "initdb", "postgres", "setpriv"], True

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

    def p99(self, seconds):
        with tempfile.TemporaryDirectory(dir=self.directory) as d:
            os.chmod(d, 0o777)
            sh(*self.bench, "-c", "1", "-T", str(seconds), "-l", "postgres", cwd=d)
            times = []
            for name in os.listdir(d):
                with open(os.path.join(d, name), encoding="utf-8") as file:
                    times += [float(line.split()[2]) for line in file]
        return statistics.quantiles(times, n=100)[98]


# Those of the table, in its order.
LOADS = [Load, StressNg, Compiler, Nginx, Pgbench]


def missing(load):
    """Programs of a load that are not installed. Debian keeps PostgreSQL's off the path."""
    own = "/usr/lib/postgresql"
    for version in sorted(os.listdir(own)) if os.path.isdir(own) else []:
        if f"{own}/{version}/bin" not in os.environ["PATH"].split(":"):
            os.environ["PATH"] += f":{own}/{version}/bin"
    return [program for program in load.needs if not shutil.which(program)]
