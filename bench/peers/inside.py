"""The half of bench/watch-peers that runs in the guest: builds `vxlan`, and drives
netperf through it beside each tool, in blocks with the arms in random order. Prints a line of
JSON per sample.
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

BLOCKS, SECONDS = int(sys.argv[1]), int(sys.argv[2])
WORKLOADS = {
    "udp_stream 64 B": ["-t", "UDP_STREAM", "--", "-m", "64", "-R", "1"],
    "tcp_rr": ["-t", "TCP_RR"],
}
# An unused address.
OTHER = "192.0.2.1"
# Output file and standard output of each tool.
WRITTEN, SAID = "/tmp/written", "/tmp/said"
# How long a tool may take to begin, and to end (s): in emulation a thousand probes are slow.
LIMIT = 120
# A tool has settled after STILL seconds without output, and at the latest after SETTLE seconds.
STILL, SETTLE = 0.6, 15


def arms(target):
    """For each tool: its filter, its command, and its message once it has started."""
    overlane = lambda *words: ["overlane", *words]
    pwru = lambda *words: ["pwru", "--output-file", f"{WRITTEN}/events", *words]
    retis = lambda *words: ["retis", "collect", "--out", f"{WRITTEN}/events", *words]
    tracing, listening, loaded = "tracing: ", "Listening for events", "probe(s) loaded"
    drops = "^(kfree_skb_reason|sk_skb_reason_drop)$"
    return {
        ("overlane watch", "everything"):
            (overlane("watch", "--json", "--interval", "500ms"), None),
        ("overlane trace", "drops"): (overlane("trace", "--drops-only"), tracing),
        ("overlane trace", "the load's flow"): (overlane("trace", "--flow", target), tracing),
        ("overlane trace", "another flow"): (overlane("trace", "--flow", OTHER), tracing),
        ("pwru", "drops"): (pwru("--filter-func", drops), listening),
        ("pwru", "the load's flow"): (pwru("host", target), listening),
        ("pwru", "the same, in the tunnel too"):
            (pwru("--filter-track-skb", "host", target), listening),
        ("pwru", "another flow"): (pwru("host", OTHER), listening),
        ("retis", "drops"): (retis("--collectors", "skb,skb-drop"), loaded),
        ("retis", "the load's flow"): (retis("--filter-packet", f"host {target}"), loaded),
        ("retis", "another flow"): (retis("--filter-packet", f"host {OTHER}"), loaded),
    }


def tell(**what):
    print(json.dumps(what), flush=True)


def text(path):
    with open(path, errors="replace") as file:
        return file.read()


def size():
    """Bytes that the tool has written."""
    return sum(entry.stat().st_size for entry in os.scandir(WRITTEN))


class Tool:
    """A tool at work."""

    def __init__(self, command, marker):
        shutil.rmtree(WRITTEN, ignore_errors=True)
        os.mkdir(WRITTEN)
        start = time.monotonic()
        with open(f"{WRITTEN}/out", "w") as out, open(SAID, "w") as said:
            self.child = subprocess.Popen(command, stdout=out, stderr=said,
                                          stdin=subprocess.DEVNULL)
        self.name = command[0]
        # `watch` says nothing but its intervals: it has begun when the first one begins.
        has_begun = lambda: marker in text(SAID) if marker else os.path.getsize(f"{WRITTEN}/out")
        while not has_begun():
            if self.child.poll() is not None or time.monotonic() > start + LIMIT:
                self.child.kill()
                self.child.wait()
                raise RuntimeError(f"it did not begin: {text(SAID).strip()[-600:]}")
            time.sleep(0.02)
        self.start = time.monotonic() - start - (0 if marker else 0.5)

    def settle(self):
        """Waits until it has processed its input."""
        still, before, end = time.monotonic(), size(), time.monotonic() + SETTLE
        # `watch` writes at all times, and puts nothing off.
        while time.monotonic() < min(still + STILL, end) and not self.is_watch():
            time.sleep(0.1)
            if (now := size()) != before:
                still, before = time.monotonic(), now

    def is_watch(self):
        return self.name == "overlane" and os.path.getsize(SAID) == 0

    def end(self):
        """Numbers of its reports and of its reported losses; none if it does not report them."""
        self.child.send_signal(signal.SIGINT)
        try:
            self.child.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise RuntimeError(f"it did not end within {LIMIT} s") from None
        return READ[self.name](text(SAID))


def of_overlane(said):
    if reported := re.search(r"(\d+) packets reported,.* (\d+) events lost", said):
        return int(reported[1]), int(reported[2])
    lines = [json.loads(line) for line in text(f"{WRITTEN}/out").splitlines()]
    return sum(line["events"] for line in lines), sum(line["events_lost"] for line in lines)


def of_pwru(said):
    """It reports the probes that the kernel did not run, but not the overflows of its queue."""
    reported = 0
    for entry in os.scandir(WRITTEN):
        with open(entry.path, "rb") as file:
            reported += sum(line.startswith(b"0x") for line in file)
    missed = re.search(r"recursion misses.*total=(\d+)", said)
    return reported, int(missed[1]) if missed else None


def of_retis(said):
    reported = re.search(r"(\d+) event\(s\) processed", said)
    lost = re.search(r"total events lost: (\d+)", said)
    return int(reported[1]) if reported else None, int(lost[1]) if lost else 0


READ = {"overlane": of_overlane, "pwru": of_pwru, "retis": of_retis}


def rate(within, target, workload):
    """Datagrams or transactions a second, of what arrived."""
    options = ["-H", target, "-l", str(SECONDS), "-P", "0", "-T", "0,1"]
    words = [*within, "netperf", *options, *WORKLOADS[workload]]
    run = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT)
    # A guest without names of protocols has a line about that before the figures.
    lines = [line.split() for line in run.stdout.splitlines() if line[:1].isdigit()]
    try:
        if workload.startswith("udp"):
            # The second line is the receiver's: socket's room, seconds, datagrams, megabits.
            return float(lines[1][2]) / float(lines[1][1])
        return float(lines[0][-1])
    except (IndexError, ValueError):
        raise RuntimeError(f"{' '.join(words)}: {run.stdout}{run.stderr}") from None


def sample(block, arm, of_arm, within, target):
    tool, found = None, {}
    if of_arm:
        tool = Tool(*of_arm)
    try:
        for workload in WORKLOADS:
            found[workload] = rate(within, target, workload)
            if tool:
                tool.settle()
    except BaseException:
        if tool:
            tool.child.kill()
            tool.child.wait()
        raise
    reported, lost = tool.end() if tool else (None, None)
    tell(block=block, arm=arm, rates=found, start=tool and tool.start, reported=reported, lost=lost)


def main():
    versions = {}
    for name in ("overlane", "pwru", "retis"):
        if path := shutil.which(name):
            out = subprocess.run([path, "--version"], capture_output=True, text=True)
            versions[name] = (out.stdout + out.stderr).strip().splitlines()[0]
    up = subprocess.run(["overlane", "lab", "up", "vxlan", "--name", "peers", "--json"],
                        capture_output=True, text=True)
    if up.returncode:
        sys.exit(f"overlane lab up vxlan: {up.stderr.strip()}")
    bed = json.loads(up.stdout)
    netns = {host["name"]: f"--net={host['netns']}" for host in bed["hosts"]}
    within = lambda host: ["nsenter", netns[bed[host]]]
    target = bed["target"].rsplit(":", 1)[0].strip("[]")
    subprocess.run([*within("server"), "netserver"], capture_output=True, check=True)
    tell(kernel=os.uname().release, versions=versions, target=target)
    all_arms = {"|".join(arm): of for arm, of in arms(target).items()
                if arm[0].split()[0] in versions}
    all_arms |= {"nothing": None, "nothing|A/A": None}
    for workload in WORKLOADS:
        rate(within("client"), target, workload)
    for block in range(BLOCKS):
        order = list(all_arms)
        random.shuffle(order)
        for arm in order:
            try:
                sample(block, arm, all_arms[arm], within("client"), target)
            except (RuntimeError, subprocess.SubprocessError) as error:
                # It is left out from here on, and said.
                tell(arm=arm, failed=str(error))
                del all_arms[arm]
    tell(done=True)


main()
