#!/bin/sh
# Makes the Python environment that the tests use (pytest, NumPy, PyTorch for the CPU) in the folder $1.
set -eu
folder=$1
wanted=$(cat "$(dirname "$0")/../tests/requirements.txt")
if [ -x "$folder/bin/python" ] && [ "$wanted" = "$(cat "$folder/requirements.txt" 2>/dev/null)" ]; then
    exit 0
fi
if [ "${DEPS:-1}" = 0 ]; then
    echo "venv: $folder is missing or old, and DEPS=0 forbids to install" >&2
    exit 1
fi
echo "venv: installing into $folder: $(echo "$wanted" | tr '\n' ' ')"
"${PYTHON:-python3}" -m venv --clear "$folder"
"$folder/bin/python" -m pip install -q -r "$(dirname "$0")/../tests/requirements.txt"
printf '%s\n' "$wanted" > "$folder/requirements.txt"
