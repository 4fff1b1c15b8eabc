#!/usr/bin/env bash
# Trains the digits MLP on one rank with checkpoints, goes on from the last one over four ranks, and
# exports what came of it. Arguments go to the second `shardc train`.
#
#     cargo build --release && examples/checkpoints.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

shardc=${SHARDC:-target/release/shardc}
job=examples/digits
run=$(mktemp -d target/checkpoints.XXXXXX)
"$shardc" train "$job/model.onnx" --spec "$job/one.shard" --data "$job/train.npz" --shuffle --steps 100 \
    --checkpoint "$run/one" --every 25 --validate "$job/test.npz"
"$shardc" train "$job/model.onnx" --spec "$job/dp2-tp2.shard" --data "$job/train.npz" --shuffle --steps 200 \
    --resume "$run/one" --checkpoint "$run/four" --every 50 --validate "$job/test.npz" --keep-best --export "$run/digits.onnx" "$@"
