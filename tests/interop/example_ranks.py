"""Runs one of examples/ as trainings one after the other, each in ranks of its own.

usage: example_ranks.py EXAMPLE 'RANKS words…' …       prints "== NUMBER" before what each of them prints"""
import importlib
import shlex
import sys

from forked_ranks import run_ranks


def main():
    example = importlib.import_module(sys.argv[1])
    for number, words in enumerate(sys.argv[2:]):
        print("==", number, flush=True)
        ranks, *sys.argv[1:] = shlex.split(words)
        run_ranks(int(ranks), example.main)


if __name__ == "__main__":
    main()
