#!/usr/bin/env python3
"""Reads the samples of results files into one data frame, and prints medians.

    samples.py [--parquet FILE] RESULTS.json...

Needs pandas; --parquet also needs pyarrow. OVERLANE names the program [default: overlane].
"""
import argparse
import io
import os
import subprocess

import pandas


def samples(path):
    """Returns a row per sample, with the name of the file."""
    program = os.environ.get("OVERLANE", "overlane")
    command = [program, "report", path, "--format", "csv-samples"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return pandas.read_csv(io.StringIO(done.stdout)).assign(file=path)


def summary(frame):
    """Returns medians of the valid samples of each cell, as overlane does."""
    cell = ["file", "workload", "message_bytes", "flows", "beside", "offload", "setting", "mode", "role"]
    # dropna: an empty setting is a group of its own.
    cells = frame[frame["valid"]].groupby(cell, dropna=False, sort=False)
    medians = cells.agg(
        samples=("value", "size"),
        value=("value", "median"),
        ratio=("ratio", "median"),
        latency_p99_us=("latency_p99_us", "median"),
    )
    return medians.reset_index()


def main():
    arguments = argparse.ArgumentParser(description="Samples of results files in pandas.")
    arguments.add_argument("--parquet", metavar="FILE")
    arguments.add_argument("results", nargs="+")
    arguments = arguments.parse_args()
    frame = pandas.concat([samples(path) for path in arguments.results], ignore_index=True)
    if arguments.parquet:
        frame.to_parquet(arguments.parquet)
    print(summary(frame).to_csv(index=False), end="")


if __name__ == "__main__":
    main()
