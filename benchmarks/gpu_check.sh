#!/usr/bin/env bash
# Everything that needs a GPU, in one run of under ten minutes; nothing is installed or built.
#
#     benchmarks/gpu_check.sh --json benchmarks/results/gpu_check.json
#     benchmarks/gpu_check.sh --cpu-dry-run
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=".:export:runtime:apps${PYTHONPATH:+:$PYTHONPATH}"
exec timeout --kill-after=10 590 "${PYTHON:-python3}" benchmarks/gpu_check.py "$@"
