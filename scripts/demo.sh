#!/bin/sh
# The first thing to see: gpt2 with Adam on 4 ranks, then buffered against direct I/O as a comparison.
# usage: scripts/demo.sh [BUILD]     without it: build/, or where the installed command is
# DEMO_STORE=FOLDER for another place (default .): all is in its ckptbench-demo
set -eu
build=${1:-build}
[ -x "$build/ckptbench" ] || build=$(dirname "$(command -v ckptbench)")
store=${DEMO_STORE:-.}/ckptbench-demo
mkdir -p "$store"
show() { printf '\n$ %s\n' "$(echo "$*" | sed "s|^$build/||")"; "$@"; }
show "$build/ckptbench" run model=gpt2 ranks=4 tp=2 dp=2 store="$store" iterations=5
printf '\nTwo ways of writing, 6 runs each, in turn:\n'
show "$build/ckptbench" run model=gpt2 layers=6 ranks=2 tp=2 store="$store" io.direct=true,false repeat=6 iterations=1 warmup=0 ops=save verify=none baseline=false keep=false name=demo
show "$build/ckptbench" compare LATEST --by io.direct || verdict=$?
case ${verdict:-0} in 0 | 5) ;; *) exit "$verdict" ;; esac # 5 is worse: an answer too
rm -rf "$store"
printf '\nnext: ckptbench list, ckptbench show LATEST, ckptbench options, ckptbench doctor\n'
