#!/usr/bin/env bash
# Runs everything, or the parts that are named, on this machine's GPU and writes gpu-results.json beside this script.
# Needs an NVIDIA driver and a CUDA toolkit (NVRTC, compute-sanitizer); nothing is built or fetched.
#   ./run.sh                     all parts
#   ./run.sh models ops          some
#   ./run.sh speed --tune        with tactics measured first
#   ./run.sh text --only engine --per-step   where the time of a decode step goes
set -euo pipefail
cd "$(dirname "$0")"
for toolkit in /usr/local/cuda /usr/local/cuda-*; do
    if [ -d "$toolkit/lib64" ]; then
        export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$toolkit/lib64"
    fi
done
exec bin/xtask gpu-suite --out gpu-results.json "$@"
