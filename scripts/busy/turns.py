"""What a `try` does to how long a load's own requests take.

Machines differ from minute to minute by more than what is looked for. So one `try` stands for
a whole round, and is held and let go in short turns. One client of the load sends requests
meanwhile. Each request is of the turn in which it was answered. The `try` rests on while it is
held: when let go it takes more than it would alone, as `share` says. A bound of `--impact` is
therefore divided by the number of kinds.
"""
import os
import random
import shutil
import statistics
import tempfile
import time

# Seconds of a turn, and how much of its beginning still shows the turn before.
TURN, SETTLE = 0.2, 0.02
# The `try` is held; held as well, which tells what two equal kinds differ by; let go.
KINDS = ("alone", "again", "beside")


def cpu_seconds(children):
    """CPU time that processes have had."""
    total = 0
    for child in children:
        with open(f"/proc/{child.pid}/stat", encoding="utf-8") as file:
            words = file.read().rpartition(")")[2].split()
        total += int(words[11]) + int(words[12])
    return total / os.sysconf("SC_CLK_TCK")


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
    return {**{kind: round(statistics.quantiles(of[kind], n=100)[98], 1) for kind in KINDS},
            "requests": sum(map(len, of.values())), "share": round(had / (turns * TURN * os.cpu_count()), 4)}
