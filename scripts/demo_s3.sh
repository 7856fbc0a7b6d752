#!/bin/sh
# What S3 costs against the disk, with a real server in memory: starts Ceph RGW, saves and loads on both, compares, stops it.
# usage: scripts/demo_s3.sh [BUILD]     DEMO_STORE=FOLDER for another place on disk (default .)
set -eu
build=${1:-build}
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
store=${DEMO_STORE:-.}/ckptbench-demo-s3
server=$(mktemp -d)
stop() { "$python" "$here/tests/services/rgw.py" stop "$server"; rm -rf "$store"; }
trap stop EXIT
trap 'exit 130' INT TERM
echo "starting Ceph RGW in memory (about 15 s)"
variables=$("$python" "$here/tests/services/rgw.py" start "$server")
eval "$variables"
export AWS_ENDPOINT_URL="$CKPTBENCH_TEST_S3" AWS_ACCESS_KEY_ID="$CKPTBENCH_TEST_S3_ACCESS_KEY" AWS_SECRET_ACCESS_KEY="$CKPTBENCH_TEST_S3_SECRET_KEY" AWS_REGION=us-east-1
"$python" "$here/tests/services/s3_client.py" make-bucket demo
mkdir -p "$store"
show() { printf '\n$ %s\n' "$(echo "$*" | sed "s|^$build/||")"; "$@"; }
show "$build/ckptbench" doctor store=s3://demo/bench | grep -E '^\$|s3 |^$'
show "$build/ckptbench" run model=gpt2 layers=4 ranks=2 tp=2 store=s3://demo/bench iterations=3
printf '\nDisk and bucket, 4 runs each, in turn:\n'
show "$build/ckptbench" run model=gpt2 layers=2 ranks=2 tp=2 store="$store,s3://demo/bench" repeat=4 iterations=1 warmup=0 verify=none baseline=false name=demo-s3
show "$build/ckptbench" compare LATEST --by store || [ $? -eq 5 ]
printf '\nnext: ckptbench s3 clean s3://BUCKET/PREFIX, ckptbench export LATEST --s3benchmark, experiments/s3-dcp-fsdp.yaml\n'
