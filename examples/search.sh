#!/usr/bin/env bash
# Measures this machine, searches the best way to spread the byte-level GPT over two CPU ranks of it,
# and trains that for a few steps, beside what was predicted.
#
#     cargo build --release && examples/search.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

shardc=${SHARDC:-target/release/shardc}
job=examples/tiny-gpt
to=$(mktemp -d target/search.XXXXXX)
"$shardc" calibrate --ranks 2 -o "$to/here.toml"
"$shardc" plan "$job/model.onnx" --spec "$job/one.shard" --ranks 2 --memory 1GB --cluster "$to/here.toml" -o "$to/best.shard"
"$shardc" compile "$job/model.onnx" --spec "$to/best.shard" -o "$to/plan"
"$shardc" train "$to/plan" --data "$job/corpus.txt" --context 64 --steps 20 --profile "$to/profile.json" --export "$to/trained.onnx"
"$shardc" simulate "$to/plan" --cluster "$to/here.toml" --measured "$to/profile.json" --trace "$to/trace.json"
