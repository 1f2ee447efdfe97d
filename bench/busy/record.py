"""Results of tries beside other programs, one line of JSON each, and their table.

Two kinds of lines: a try (`change`, `verdict`, `width`, `seconds`, `blocks`), and a round of
turns (`way`: beside what; `p99`: a load's own 99th percentile alone, alone again, beside it).
"""
import json
import os
import statistics
import subprocess
import time

from order_statistics import interval

from .loads import LOADS
from .turns import PARTS


def facts(overlane):
    """Program, commit and machine of a run: fields that all its lines have in common."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    here = os.path.dirname(os.path.abspath(__file__))
    commit = subprocess.run(["git", "-C", here, "describe", "--always", "--dirty"], capture_output=True, text=True)
    version = subprocess.run([overlane, "--version"], capture_output=True, text=True, check=True).stdout
    return {"version": version.strip(), "commit": commit.stdout.strip() or None,
            "kernel": os.uname().release, "cpu": cpu, "cpus": os.cpu_count()}


class Record:
    """The lines, kept in a file if one is given, so that a later run continues."""

    def __init__(self, path, common=None):
        self.path, self.common, self.lines = path, common or {}, []
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.lines = [json.loads(line) for line in file]

    def add(self, load, **what):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"load": load, "time": now, **self.common, **what}
        self.lines.append(line)
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def of(self, load):
        return [line for line in self.lines if line["load"] == load]

    def tries(self, load, change=None):
        tries = [line for line in self.of(load) if "change" in line]
        return [line for line in tries if change in (None, line["change"])]

    def rounds(self, load, way=None):
        rounds = [line for line in self.of(load) if "p99" in line and way in (None, line.get("way"))]
        return [line["p99"] for line in rounds]


def share(count, of):
    return f"{count} of {of}" if of else "–"


# Fewer ratios have no interval of 95%: 2 of 2^5 fall on one side of the truth.
LEAST = 6


def against(rounds, kind, base="alone"):
    """Ratio of two 99th percentiles of the same round: median and 95% interval."""
    ratios = [p99[kind] / p99[base] for p99 in rounds if base in p99]
    if not ratios:
        return "–"
    median, low, high = (f"{(ratio - 1) * 100:+.1f}%" for ratio in interval(ratios))
    return f"{median} ({low} to {high})" if len(ratios) >= LEAST else median


def row(name, record):
    worth, nothing = record.tries(name, "worth"), record.tries(name, "nothing")
    both, beside = worth + nothing, [record.rounds(name, way) for way in ("try", "impact")]
    rounds = sum(beside, [])
    found = sum(line["verdict"] == "better" for line in worth)
    false = sum(line["verdict"] in ("better", "worse") for line in nothing)
    widths = [line["width"] for line in both if line["width"] is not None]
    seconds = [line["seconds"] for line in both]
    unmeasured = sum(line["verdict"] in (None, "unmeasured") for line in both)
    return (f"| {name} | {share(found, len(worth))} | {share(false, len(nothing))}"
            f" | {f'±{statistics.median(widths) * 100:.1f}%' if widths else '–'}"
            f" | {f'{statistics.median(seconds):.0f} s ({max(seconds):.0f})' if seconds else '–'}"
            f" | {unmeasured} | {len(rounds) or '–'} | {against(rounds, 'again')}"
            f" | {against(beside[0], 'beside')} | {against(beside[1], 'beside')} |")


def table(record):
    """Markdown: one line per load, and the machines."""
    head = ("| load | +10% found | nothing falsely proven | interval | time of a try (longest)"
            " | not measured | rounds | own p99: again | beside `try` | beside `--impact 5%` |")
    rows = [row(load.name, record) for load in LOADS]
    machines = sorted({f"{line['cpu']}, {line['cpus']} CPUs, Linux {line['kernel']}" for line in record.lines})
    days = sorted(line["time"][:10] for line in record.lines)
    when = "" if not days else days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    said = "; ".join(machines) + f"; {when}." if machines else "Nothing is measured yet."
    return "\n".join([head, "|" + " --- |" * 10, *rows, "", said])


def pulses(record):
    """Markdown: in which part of a pulse requests take longer than 99% of those in rests."""
    loads = [(load.name, record.rounds(load.name, "impact")) for load in LOADS if load.has_latency]
    loads = [(name, rounds) for name, rounds in loads if rounds]
    head = "| since | ms | " + " | ".join(name for name, _ in loads) + " |"
    since = {"setting": "a setting is changed", "sampling": "a pulse begins"}
    rows = []
    for at, (line, low, high) in enumerate(PARTS):
        cells = []
        for _, rounds in loads:
            requests, over = (sum(p99["parts"][at][kind] for p99 in rounds) for kind in (0, 1))
            cells.append(f"{over / requests * 100:.1f}% of {requests:,}" if requests else "–")
        rows.append(f"| {since[line]} | {low * 1e3:.0f} to {high * 1e3:.0f} | " + " | ".join(cells) + " |")
    # Beyond their parts, 1% of requests is late: that is what late means.
    late = []
    for _, rounds in loads:
        requests, over = (sum(part[kind] for p99 in rounds for part in p99["parts"]) for kind in (0, 1))
        whole = sum(p99["requests"] for p99 in rounds)
        late.append(f"{(over + (whole - requests) / 100) / whole * 100:.2f}% of {whole:,}")
    rows.append("| all | | " + " | ".join(late) + " |")
    p99 = [f"{against(rounds, 'beside', 'rest')}, {sum('rest' in each for each in rounds)} rounds"
           for _, rounds in loads]
    rows.append("| 99th percentile, pulses and rests to rests | | " + " | ".join(p99) + " |")
    count = ", ".join(f"{name}: {sum(p99['pulses'] for p99 in rounds)} pulses" for name, rounds in loads)
    return "\n".join([head, "|" + " --- |" * (2 + len(loads)), *rows, "", count + "."]) if loads else ""
