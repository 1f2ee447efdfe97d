"""Measures the effect of a `try` on the duration of a load's own requests.

Machines vary from minute to minute by more than this effect. So one `try` runs during a whole
round, and is stopped and continued (SIGSTOP, SIGCONT). One client of the load sends requests
meanwhile. Each request counts for the time at which it was answered.

A `try` is stopped in short turns. With `--impact` it sends in pulses with rests in between: it is
stopped in rests only, so that number and length of pulses are those of an undisturbed `try`. It is
continued before it changes the setting for the next pulse.
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

# Seconds of a turn, and of its start, which still shows the previous turn. In a rest, a `try`
# works twice a second: work that a turn has delayed is done in the next one.
TURN, REST_TURN, SETTLE = 0.2, 0.5, 0.02
# The `try` is stopped; stopped again, for the difference of two equal kinds; continued.
KINDS = ("alone", "again", "beside")
# Log lines of a `try` for a changed setting, the start of a pulse and the start of a rest with
# its seconds.
LINE = re.compile(r"(\S+)\.(\d+)Z DEBUG overlane::progress: .*?(setting|sampling|resting)(?: ([\d.]+) s)?")
# A `try` changes settings this time before the end of its rest, and is continued before that.
MARGIN = 1.1
# Seconds of a rest that is long enough for a turn of each kind.
LEAST = MARGIN + 2 * len(KINDS) * REST_TURN
# Delay from the end of a rest until the log is read, and the interval from then on: a long one,
# because reading takes CPU time from the load, too.
PULSE, LOOK = 0.5, 0.25
# Parts of a pulse and of the time before it, seconds since the line of the log.
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


class Round:
    """A `try` beside a load, while one client of the load sends requests."""

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
    """A [`Round`] of the given seconds."""
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


def sleep_until(at):
    time.sleep(max(at - time.time(), 0))


def turn(this, kind, seconds):
    """A turn of a `try`; returns its time, without the part that shows the previous turn."""
    this.go(kind == "beside")
    begun = time.time()
    sleep_until(begun + seconds)
    return begun + SETTLE, time.time(), kind


def round_of_turns(bed, load, options, turns):
    """So many turns of each kind: the 99th percentile of each, µs; how many requests that was;
    and what share of all CPUs the `try` and its server had when let go."""
    took, had = [], 0.0
    with a_round(bed, load, options, round(len(KINDS) * turns * TURN) + 2) as this:
        time.sleep(1)
        for _ in range(turns):
            for kind in random.sample(KINDS, len(KINDS)):
                before = this.cpu_seconds()
                took.append(turn(this, kind, TURN))
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


def turns_in_rest(this, until):
    """Turns of each kind, as many as there is time for; the `try` is let go after them."""
    turns = []
    while time.time() + len(KINDS) * REST_TURN < until:
        turns += [turn(this, kind, REST_TURN) for kind in random.sample(KINDS, len(KINDS))]
    this.go(True)
    return turns


def parts_of_pulses(log, requests, usual):
    """Requests in each of [`PARTS`], and the number that took longer than usual."""
    parts = [[0, 0] for _ in PARTS]
    for part, (line, low, high) in zip(parts, PARTS):
        begins = [at for at, what, _ in log.events if what == line]
        for at, micros in requests:
            which = bisect.bisect_right(begins, at - low) - 1
            if which >= 0 and at - begins[which] < high:
                part[0] += 1
                part[1] += micros > usual
    return parts


def by_kind(log, rests, requests):
    """Times of requests: in turns of each kind; in rests before and after them; and in pulses,
    and since the `try` changed the setting for them."""
    of = {kind: [] for kind in (*KINDS, "rest", "pulse")}
    turns = [turn for turns in rests for turn in turns]
    begins, times = [since for since, *_ in turns], [at for at, *_ in log.events]
    # From the first turn of a rest to its last one.
    spans = [(turns[0][0] - SETTLE, turns[-1][1]) for turns in rests]
    for at, micros in requests:
        which, span = bisect.bisect_right(begins, at) - 1, bisect.bisect_right(spans, (at,)) - 1
        event = bisect.bisect_right(times, at) - 1
        if which >= 0 and at < turns[which][1]:
            of[turns[which][2]].append(micros)
        elif span >= 0 and at < spans[span][1]:
            # Shows the turn before.
            continue
        elif event >= 0:
            began, what, _ = log.events[event]
            # Requests that a pulse has delayed may be answered after it.
            of["rest" if what == "resting" and at > began + SETTLE else "pulse"].append(micros)
    return of


def round_of_pulses(bed, load, options, seconds):
    """A `try` under `--impact` for so long. The 99th percentile of requests, µs: in the rests'
    turns in which it was held (`alone`, `again`); in its rests (`rest`), and in pulses and rests
    (`beside`), where a turn in which it was let go counts for the two others, too. How many
    requests and pulses that was; its parts; and what share of all CPUs the `try` and its server
    had."""
    rests = []
    with a_round(bed, load, options, seconds) as this:
        log = Log(this.beside.log)
        begun, before = time.time(), this.cpu_seconds()
        while time.time() < begun + seconds:
            at, what, rest = log.last()
            # The first one may be nearly over, and a short one has no room for turns.
            if what == "resting" and rest > LEAST and time.time() < at + rest / 4:
                rests.append(turns_in_rest(this, min(at + rest - MARGIN, begun + seconds)))
                sleep_until(at + rest + PULSE)
            else:
                time.sleep(LOOK)
        share = (this.cpu_seconds() - before) / (time.time() - begun) / os.cpu_count()
    rests = [turns for turns in rests if turns]
    if not rests:
        raise RuntimeError(f"{load.name}: no rest in {seconds} s that has room for turns")
    log.last()
    of = by_kind(log, rests, this.requests)
    rest = of["rest"] + len(KINDS) * of["beside"]
    return {"alone": p99(of["alone"]), "again": p99(of["again"]), "rest": p99(rest),
            "beside": p99(of["pulse"] + rest), "requests": len(this.requests), "pulses": len(rests),
            "parts": parts_of_pulses(log, this.requests, p99(rest)), "share": round(share, 4)}
