#!/bin/sh
# A real Slurm cluster of four nodes on this machine, to play with: a shell in which sbatch and `ckptbench submit` reach
# it. Leaving the shell takes it away. Without a terminal: a sweep is submitted, awaited and compared instead.
# usage: scripts/demo_slurm.sh [BUILD]
set -eu
build=$(cd "${1:-build}" && pwd)
folder=$(mktemp -d /tmp/ckptbench-slurm-XXXXXX)
leave() {
    python3 tests/services/slurm.py stop "$folder" || true
    rm -rf "$folder"
}
trap leave EXIT
trap 'exit 1' INT TERM HUP
python3 tests/services/slurm.py start "$folder" >/dev/null
export SLURM_CONF="$folder/slurm.conf" CKPTBENCH_HOME="$folder/home" PATH="$build:$PATH"
export OMPI_MCA_btl=self,tcp # the four nodes share one kernel: shared memory between two of them crashes Open MPI
unset MAKELEVEL MAKEFLAGS MFLAGS # a shell that make has started is not in it
mkdir "$folder/store"
echo "Slurm with four nodes is up: partitions train, scavenge (preempted by) urgent, and sleepy (for warm pools)."
echo "Runs and history are in $folder, which goes with the cluster. For example:"
if [ -t 0 ] && [ -t 1 ]; then
    echo "  ckptbench submit model=gpt2-tiny nodes=1,2,4 ranks_per_node=2 store=$folder/store repeat=2"
    echo "  ckptbench status --watch        sinfo        squeue"
    echo "  ckptbench warm start POOL nodes=2 for=10m slurm.partition=sleepy"
    echo "Leave with exit or Ctrl-D."
    case ${SHELL:-} in *bash) set -- --norc ;; *) set -- ;; esac # whose prompt would hide where one is
    PS1='slurm-demo$ ' "${SHELL:-/bin/sh}" "$@" -i || true
else
    show() { printf '\n$ %s\n' "$*"; "$@"; }
    show sinfo
    show ckptbench submit model=gpt2-tiny nodes=1,2,4 ranks_per_node=2 store="$folder/store" iterations=3 --wait
    show ckptbench status
fi
