#!/usr/bin/env bash
# Everything that needs a GPU, in one run of under ten minutes; nothing is installed or built.
#
#     benchmarks/gpu_check.sh                          the card; writes gpu_check.json
#     benchmarks/gpu_check.sh --json FILE              writes FILE
#     benchmarks/gpu_check.sh --cpu-dry-run            the same code on torch's CPU, in small
#
# Needs python3 (or $PYTHON) with numpy, array-api-compat, torch, pytest and hypothesis; cupy, timm
# and the packages of the base install are used where they are there and named where not.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=".:export:runtime:apps${PYTHONPATH:+:$PYTHONPATH}"
exec timeout --kill-after=10 590 "${PYTHON:-python3}" benchmarks/gpu_check.py "$@"
