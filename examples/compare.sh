#!/usr/bin/env bash
# Compiles the digits MLP for one rank and for four, shows what the ranks of the two plans hold and
# send otherwise, and why one weight lies as it does. Arguments go to `shardc explain`.
#
#     cargo build --release && examples/compare.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

shardc=${SHARDC:-target/release/shardc}
job=examples/digits
plans=$(mktemp -d target/compare.XXXXXX)
for spec in one dp2-tp2; do
    "$shardc" compile "$job/model.onnx" --spec "$job/$spec.shard" -o "$plans/$spec"
done
"$shardc" diff "$plans/one" "$plans/dp2-tp2"
"$shardc" explain "$plans/dp2-tp2" "${@:-fc2.weight}"
