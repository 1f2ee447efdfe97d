"""What a `try` does to how long a load's own requests take.

Machines differ from minute to minute by more than what is looked for. So one `try` stands for
a whole round, and is held and let go. One client of the load sends requests meanwhile. Each
request is of the time in which it was answered.

A `try` without `--impact` is held in short turns. One with it sends in pulses and rests
between them: it is held in half of each rest only, so that pulses are as long and as many as
those of a `try` that nobody holds. It is let go before it changes the setting for the next pulse.
"""
import bisect
import calendar
import contextlib
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
# Where a setting is changed, a pulse begins and a rest begins, in the log of a `try`; and the
# rest's seconds.
LINE = re.compile(r"(\S+)\.(\d+)Z DEBUG overlane::progress: .*?(setting|sampling|resting)(?: ([\d.]+) s)?")
# A `try` changes settings so long before the end of its rest, and is let go before that.
MARGIN = 1.1
# Seconds of a rest that is long enough for that.
LEAST = 2 * MARGIN
# The log is read so long after the end of a rest, and so often from then on: rarely, as that
# takes a CPU from the load, too.
PULSE, LOOK = 0.5, 0.25
# Parts of a pulse and of what comes before it, seconds since the line of the log.
PARTS = (("setting", -0.1, 0), ("setting", 0, 0.075), ("setting", 0.075, 0.15),
         ("sampling", -0.1, 0), ("sampling", 0, 0.075), ("sampling", 0.075, 0.15),
         ("sampling", 0.15, 0.3), ("sampling", 0.3, 0.4))


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
    return p99(whole + half + half)


class Round:
    """A `try` beside a load, of which one client sends requests meanwhile."""

    def __init__(self, beside, server):
        self.beside, self.server = beside, server
        # When each request was answered (s since 1970), and its time (µs): there at the end.
        self.requests = None

    def go(self, on):
        self.beside.go(on, self.server)

    def cpu_seconds(self):
        return cpu_seconds((self.beside.child, self.server))


@contextlib.contextmanager
def a_round(bed, load, options, seconds):
    """A [`Round`] of so many seconds."""
    directory = tempfile.mkdtemp(dir=load.directory)
    try:
        with bed.beside(*options) as beside:
            this = Round(beside, bed.server)
            try:
                client = load.client(seconds, directory)
                yield this
            finally:
                this.go(True)
            # It must not have ended before.
            beside.said()
            if client.wait() != 0:
                raise RuntimeError(f"{load.name}: its client ended with {client.returncode}")
        this.requests = load.requests(directory)
    finally:
        shutil.rmtree(directory)


def round_of_turns(bed, load, options, turns):
    """So many turns of each kind: the 99th percentile of each, µs; how many requests that was;
    and what share of all CPUs the `try` and its server had when let go."""
    took, had = [], 0.0
    with a_round(bed, load, options, round(len(KINDS) * turns * TURN) + 2) as this:
        time.sleep(1)
        for _ in range(turns):
            for kind in random.sample(KINDS, len(KINDS)):
                before = this.cpu_seconds()
                this.go(kind == "beside")
                begun = time.time()
                time.sleep(TURN)
                took.append((begun + SETTLE, time.time(), kind))
                if kind == "beside":
                    had += this.cpu_seconds() - before
    of = {kind: [] for kind in KINDS}
    for begun, ended, kind in took:
        of[kind] += [micros for at, micros in this.requests if begun <= at < ended]
    return {**{kind: p99(of[kind]) for kind in KINDS},
            "requests": sum(map(len, of.values())), "share": round(had / (turns * TURN * os.cpu_count()), 4)}


class Log:
    """Pulses and rests that a `try` has logged: when each began (s since 1970), and the seconds
    of a rest."""

    def __init__(self, path):
        self.file, self.events, self.begun = open(path, encoding="utf-8"), [], ""

    def last(self):
        """The last one by now."""
        *lines, self.begun = (self.begun + self.file.read()).split("\n")
        for line in lines:
            if found := LINE.match(line):
                day, fraction, what, seconds = found.groups()
                at = calendar.timegm(time.strptime(day, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{fraction}")
                self.events.append((at, what, float(seconds or 0)))
        return self.events[-1]


def sleep_until(at):
    time.sleep(max(at - time.time(), 0))


def held_in_half(this, at, rest):
    """Holds a `try` in one half of its rest; when that was, without what it shows of before."""
    half, until = at + (rest - MARGIN) / 2, at + rest - MARGIN
    if random.random() < 0.5:
        until = half
    else:
        sleep_until(half)
    this.go(False)
    since = time.time() + SETTLE
    sleep_until(until)
    # It ends before the `try` is let go.
    ended = time.time()
    this.go(True)
    return since, ended


def parts_of_pulses(log, requests, usual):
    """Of each of [`PARTS`]: requests, and those that took longer than usual."""
    parts = [[0, 0] for _ in PARTS]
    for part, (line, low, high) in zip(parts, PARTS):
        begins = [at for at, what, _ in log.events if what == line]
        for at, micros in requests:
            which = bisect.bisect_right(begins, at - low) - 1
            if which >= 0 and at - begins[which] < high:
                part[0] += 1
                part[1] += micros > usual
    return parts


def by_kind(log, held, requests):
    """Times of requests: while the `try` was held, in every second rest and in the others; while
    it rested; and in its pulses, and since it changed the setting for them."""
    of = {kind: [] for kind in ("alone", "again", "rest", "pulse")}
    begins, times = [since for since, _ in held], [at for at, *_ in log.events]
    for at, micros in requests:
        which = bisect.bisect_right(begins, at) - 1
        event = bisect.bisect_right(times, at) - 1
        if which >= 0 and at < held[which][1]:
            of[KINDS[which % 2]].append(micros)
        elif event >= 0:
            began, what, _ = log.events[event]
            # What a pulse has delayed may be answered after it.
            of["rest" if what == "resting" and at > began + SETTLE else "pulse"].append(micros)
    return of


def round_of_pulses(bed, load, options, seconds):
    """A `try` under `--impact` for so long. The 99th percentile of requests, µs: while it was
    held, in every second rest (`alone`) and in the others (`again`); and of all others, those
    in rests counted twice for the half in which it was held (`beside`). How many requests and
    pulses that was; its parts; and what share of all CPUs the `try` and its server had."""
    held = []
    with a_round(bed, load, options, seconds) as this:
        log = Log(this.beside.log)
        begun, before = time.time(), this.cpu_seconds()
        while time.time() < begun + seconds:
            at, what, rest = log.last()
            # The first one may be nearly over, and a short one has no halves.
            if what == "resting" and rest > LEAST and time.time() < at + rest / 4:
                held.append(held_in_half(this, at, rest))
                sleep_until(at + rest + PULSE)
            else:
                time.sleep(LOOK)
        share = (this.cpu_seconds() - before) / (time.time() - begun) / os.cpu_count()
    if len(held) < 2:
        raise RuntimeError(f"{load.name}: {len(held)} rests in {seconds} s, and two are needed")
    log.last()
    of = by_kind(log, held, this.requests)
    return {"alone": p99(of["alone"]), "again": p99(of["again"]),
            "beside": p99_of_both(of["pulse"], of["rest"]), "rest": p99(of["rest"]),
            "requests": len(this.requests), "pulses": len(held),
            "parts": parts_of_pulses(log, this.requests, p99(of["rest"])), "share": round(share, 4)}
