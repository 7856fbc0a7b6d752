#!/bin/sh
# Makes a Python environment in the folder $1 with what building the CUDA plugin needs and a bare machine lacks: nvcc,
# its headers, the static run-time library, NCCL, cuBLAS and CUPTI. Needs no GPU and no driver.
set -eu
folder=$1
wanted=$(cat "$(dirname "$0")/cuda_requirements.txt")
if [ -x "$folder/bin/python" ] && [ "$wanted" = "$(cat "$folder/requirements.txt" 2>/dev/null)" ]; then
    exit 0
fi
if [ "${DEPS:-1}" = 0 ]; then
    echo "cuda: $folder is missing or old, and DEPS=0 forbids to install; the CUDA plugin needs nvcc, NCCL and cuBLAS" >&2
    exit 1
fi
echo "cuda: installing into $folder: $(echo "$wanted" | tr '\n' ' ')"
"${PYTHON:-python3}" -m venv --clear "$folder"
"$folder/bin/python" -m pip install -q -r "$(dirname "$0")/cuda_requirements.txt"
printf '%s\n' "$wanted" > "$folder/requirements.txt"
