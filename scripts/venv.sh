#!/bin/sh
# Makes the Python environment that the tests use (pytest, NumPy, PyTorch for the CPU) in the folder $1.
set -eu
folder=$1
tests=$(dirname "$0")/../tests
wanted=$(cat "$tests/requirements.txt" "$tests/requirements-alone.txt")
if [ -x "$folder/bin/python" ] && [ "$wanted" = "$(cat "$folder/requirements.txt" 2>/dev/null)" ]; then
    exit 0
fi
if [ "${DEPS:-1}" = 0 ]; then
    echo "venv: $folder is missing or old, and DEPS=0 forbids to install" >&2
    exit 1
fi
echo "venv: installing into $folder: $(echo "$wanted" | tr '\n' ' ')"
"${PYTHON:-python3}" -m venv --clear "$folder"
"$folder/bin/python" -m pip install -q -r "$tests/requirements.txt"
# Most of what these packages want (services, data sets) the tests do not use.
"$folder/bin/python" -m pip install -q --no-deps -r "$tests/requirements-alone.txt"
printf '%s\n' "$wanted" > "$folder/requirements.txt"
