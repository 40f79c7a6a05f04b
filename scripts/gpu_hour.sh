#!/usr/bin/env bash
# What a GPU has to show, in ten minutes, with one report: benchmarks/gpu_hour.py says what and how (--help).
# Runs in the checkout's environment where there is one, else in python3 with what that has.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python
"$python" -c 'import torch' 2>/dev/null || python=python3
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" "$root/benchmarks/gpu_hour.py" "$@"
