"""The command `ckptbench` of an installed wheel: the controller beside this file."""
import os
import pathlib
import sys


def main():
    program = pathlib.Path(__file__).resolve().parent / "bin" / "ckptbench"
    os.execv(program, [str(program), *sys.argv[1:]])
