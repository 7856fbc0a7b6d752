"""Runs one of examples/ as trainings one after the other, each in ranks of its own.

usage: example_ranks.py EXAMPLE 'RANKS words…' …       prints "== NUMBER" before what each of them prints
With --stock among the words, the framework saves and loads in its own way instead of the example's class Checkpoint…."""
import importlib
import shlex
import sys

from forked_ranks import run_ranks


def train(example, words):
    if "--stock" in words:
        words.remove("--stock")
        (ours,) = (name for name in vars(example) if name.startswith("Checkpoint"))
        setattr(example, ours, getattr(example, ours).__base__)
    sys.argv[1:] = words
    example.main()


def main():
    if sys.argv[1] == "hf_trainer":
        from accelerate_on_cpu import patch_trainer
        patch_trainer()
    example = importlib.import_module(sys.argv[1])
    for number, words in enumerate(sys.argv[2:]):
        print("==", number, flush=True)
        ranks, *words = shlex.split(words)
        run_ranks(int(ranks), train, example, words)


if __name__ == "__main__":
    main()
