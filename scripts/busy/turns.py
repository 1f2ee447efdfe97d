"""What a `try` does to how long a load's own requests take.

Machines differ from minute to minute by more than what is looked for. So one `try` stands for
a whole round, and is held and let go. One client of the load sends requests meanwhile. Each
request is of the time in which it was answered.

A `try` without `--impact` is held in short turns. One with it sends in pulses and rests
between them: it is held in half of each rest only, so that pulses are as long and as many as
those of a `try` that nobody holds.
"""
import bisect
import calendar
import os
import random
import re
import shutil
import statistics
import tempfile
import time

# Seconds of a turn, and how much of its beginning still shows the turn before.
TURN, SETTLE = 0.2, 0.02
# The `try` is held; held as well, which tells what two equal kinds differ by; let go.
KINDS = ("alone", "again", "beside")


# Where a pulse begins and a rest begins, in the log of a `try`; and the rest's seconds.
LINE = re.compile(r"(\S+)\.(\d+)Z DEBUG overlane::progress: .*?(sampling|resting) (?:([\d.]+) s)?")
# A `try` is let go so long before the end of its rest.
MARGIN = 0.1
# Parts of a pulse, seconds since its beginning.
PARTS = ((-0.1, 0), (0, 0.075), (0.075, 0.15), (0.15, 0.3), (0.3, 0.4))


def cpu_seconds(children):
    """CPU time that processes have had."""
    total = 0
    for child in children:
        with open(f"/proc/{child.pid}/stat", encoding="utf-8") as file:
            words = file.read().rpartition(")")[2].split()
        total += int(words[11]) + int(words[12])
    return total / os.sysconf("SC_CLK_TCK")


def p99(requests):
    return round(statistics.quantiles(requests, n=100)[98], 1)


def p99_of_both(whole, half):
    """The 99th percentile of requests, those of `half` counted twice."""
    counted = sorted([(micros, 1) for micros in whole] + [(micros, 2) for micros in half])
    left = 0.01 * (len(whole) + 2 * len(half))
    for micros, count in reversed(counted):
        left -= count
        if left <= 0:
            return micros
    raise RuntimeError("no requests")


def round_of_turns(bed, load, options, turns):
    """So many turns of each kind: the 99th percentile of each, µs; how many requests that was;
    and what share of all CPUs the `try` and its server had when let go."""
    directory = tempfile.mkdtemp(dir=load.directory)
    took, had = [], 0.0
    try:
        with bed.beside(*options) as beside:
            try:
                client = load.client(round(len(KINDS) * turns * TURN) + 2, directory)
                time.sleep(1)
                for _ in range(turns):
                    for kind in random.sample(KINDS, len(KINDS)):
                        before = cpu_seconds((beside.child, bed.server))
                        beside.go(kind == "beside", bed.server)
                        begun = time.time()
                        time.sleep(TURN)
                        took.append((begun + SETTLE, time.time(), kind))
                        if kind == "beside":
                            had += cpu_seconds((beside.child, bed.server)) - before
            finally:
                beside.go(True, bed.server)
            # It must not have ended before.
            beside.said()
            if client.wait() != 0:
                raise RuntimeError(f"{load.name}: its client ended with {client.returncode}")
        requests = load.requests(directory)
    finally:
        shutil.rmtree(directory)
    of = {kind: [] for kind in KINDS}
    for begun, ended, kind in took:
        of[kind] += [micros for at, micros in requests if begun <= at < ended]
    return {**{kind: p99(of[kind]) for kind in KINDS},
            "requests": sum(map(len, of.values())), "share": round(had / (turns * TURN * os.cpu_count()), 4)}


class Log:
    """Pulses and rests that a `try` has logged: when each began (s since 1970), and the seconds
    of a rest."""

    def __init__(self, beside):
        self.beside, self.file = beside, open(beside.log, encoding="utf-8")
        self.events, self.begun = [], ""

    def last(self):
        """The last one by now; an error where the `try` has ended."""
        if self.beside.child.poll() is not None:
            self.beside.said()
        *lines, self.begun = (self.begun + self.file.read()).split("\n")
        for line in lines:
            if found := LINE.match(line):
                day, fraction, what, seconds = found.groups()
                at = calendar.timegm(time.strptime(day, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{fraction}")
                self.events.append((at, what, float(seconds or 0)))
        return self.events[-1]


def parts_of_pulses(log, requests, usual):
    """Of each of [`PARTS`]: requests, and those that took longer than usual."""
    begins = [at for at, what, _ in log.events if what == "sampling"]
    parts = [[0, 0] for _ in PARTS]
    for at, micros in requests:
        # The pulse that has begun, or begins within the first part.
        which = bisect.bisect_right(begins, at - PARTS[0][0]) - 1
        since = at - begins[which] if which >= 0 else None
        for part, (low, high) in zip(parts, PARTS):
            if since is not None and low <= since < high:
                part[0] += 1
                part[1] += micros > usual
    return parts


def round_of_pulses(bed, load, options, seconds):
    """A `try` under `--impact` for so long. The 99th percentile of requests, µs: while it was
    held, in every second rest (`alone`) and in the others (`again`); and of all others, those
    in rests counted twice for the half in which it was held (`beside`). How many requests and
    pulses that was; and what share of all CPUs the `try` and its server had."""
    directory = tempfile.mkdtemp(dir=load.directory)
    held, count = [], 0
    try:
        with bed.beside(*options) as beside:
            try:
                log = Log(beside)
                client = load.client(seconds, directory)
                begun, before = time.time(), cpu_seconds((beside.child, bed.server))
                while (left := begun + seconds - time.time()) > 0:
                    at, what, rest = log.last()
                    until = at + rest - MARGIN
                    if what != "resting" or time.time() > at + rest / 4:
                        time.sleep(min(0.02, left))
                        continue
                    half = at + rest / 2
                    if random.random() < 0.5:
                        until = half
                    else:
                        time.sleep(max(half - time.time(), 0))
                    beside.go(False, bed.server)
                    since = time.time()
                    time.sleep(max(until - since, 0))
                    # It ends before the `try` is let go.
                    held.append((since + SETTLE, time.time(), KINDS[count % 2]))
                    beside.go(True, bed.server)
                    count += 1
                    time.sleep(max(at + rest - time.time(), 0))
                had = cpu_seconds((beside.child, bed.server)) - before
                took = time.time() - begun
            finally:
                beside.go(True, bed.server)
            log.last()
            if client.wait() != 0:
                raise RuntimeError(f"{load.name}: its client ended with {client.returncode}")
        requests = load.requests(directory)
    finally:
        shutil.rmtree(directory)
    of = {kind: [] for kind in ("alone", "again", "rest", "pulse")}
    times, begins = [at for at, *_ in log.events], [since for since, *_ in held]
    for at, micros in requests:
        which = bisect.bisect_right(begins, at) - 1
        event = bisect.bisect_right(times, at) - 1
        if which >= 0 and at < held[which][1]:
            of[held[which][2]].append(micros)
        elif event >= 0:
            # What a pulse has delayed may be answered after it.
            rests = log.events[event][1] == "resting" and at > log.events[event][0] + SETTLE
            of["rest" if rests else "pulse"].append(micros)
    return {"alone": p99(of["alone"]), "again": p99(of["again"]),
            "beside": p99_of_both(of["pulse"], of["rest"]), "requests": len(requests), "pulses": count,
            "parts": parts_of_pulses(log, requests, p99(of["rest"])),
            "share": round(had / (took * os.cpu_count()), 4)}
