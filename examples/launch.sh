#!/usr/bin/env bash
# Trains the small GPT over two ranks that are processes: each on a GPU of its own where this machine
# has two and what they need, else on the CPU. Arguments go to `shardc train`.
#
#     cargo build --release && examples/launch.sh --steps 50
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

shardc=${SHARDC:-target/release/shardc}
job=examples/tiny-gpt
device=cpu
found=$("$shardc" doctor --json)
if [[ $found != *'"version":null'* && $found =~ ([0-9]+)\ GPUs ]] && ((BASH_REMATCH[1] >= 2)); then
    device=cuda
fi
echo "two ranks on: $device" >&2
exec "$shardc" launch -n 2 -- train "$job/model.onnx" --spec "$job/dp2.shard" --data "$job/corpus.txt" --context 64 \
    --device "$device" --export target/tiny-gpt.onnx "$@"
