#!/usr/bin/env bash
# The full counts of what `cargo test` tries a fixed share of: hours on two cores. Each part says what it did.
#
#   tests/full.sh            all parts, one after the other
#   tests/full.sh PART...    these parts
#   tests/full.sh --list     the parts, with their commands
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

test="cargo test --release --locked --workspace --test"
# A part: its name, what it tries, its command.
parts=(
    "integers|3,000 random programs of integers over sums, divisions and means|SHARDC_PROGRAMS=3000 $test integers"
    "ops|20,000 single ops under every layout|SHARDC_PROGRAMS=20000 $test single_ops"
    "bad-input|3,100 bad inputs of the whole program|SHARDC_PROGRAMS=3100 $test bad_input"
    "empty|2,000 graphs with dimensions of size 0|SHARDC_PROGRAMS=2000 $test empty_dimensions"
    "reshards|200 pairs of plans, a checkpoint from one to the other|SHARDC_PROGRAMS=200 $test reshards"
    "checkpoints|2,000 kills, every call on a file failed, 10,000 damages|SHARDC_FAULTS=2000 $test checkpoints"
    "processes|100 ranks killed or stopped among four processes|SHARDC_FAULTS=100 $test processes"
    "mutants|ten times as many wrong plans|SHARDC_MUTANTS=10 $test mutants"
    "mistakes|eight times as many graphs with a mistake|SHARDC_MISTAKES=8 $test mistakes"
    "launches|five times as many damaged launch tables|SHARDC_MUTANTS=5 $test launches"
    "published|published trainings of up to a thousand billion parameters|SHARDC_PUBLISHED=all $test plans published"
    "fuzzed|1,430,000 damaged files for each of seven readers|SHARDC_FUZZ=1430000 $test fuzzed"
    "cuda|every damage of the CUDA kernels, all sizes, steps and architectures|SHARDC_MUTANTS=5 bash tests/cuda.sh"
    "gpu|all models, ten meshes, 20 orders of work on the software CUDA|SHARDC_GPU=all $test gpu"
)

chosen=" $* "
if [[ ${1-} == --list ]]; then
    for part in "${parts[@]}"; do
        IFS='|' read -r name tries command <<<"$part"
        printf '%-12s %s\n%12s %s\n' "$name" "$tries" "" "$command"
    done
    exit 0
fi
for wanted in "$@"; do
    if ! printf '%s\n' "${parts[@]}" | grep -q "^$wanted|"; then
        echo "there is no part \`$wanted\`; $0 --list shows all" >&2
        exit 2
    fi
done

failed=()
for part in "${parts[@]}"; do
    IFS='|' read -r name tries command <<<"$part"
    if [[ $# -gt 0 && $chosen != *" $name "* ]]; then continue; fi
    printf '\n%s: %s\n$ %s\n' "$name" "$tries" "$command"
    began=$SECONDS
    if [[ $command != *cuda.sh* ]]; then command+=" -- --nocapture"; fi
    bash -c "$command" || failed+=("$name")
    printf '%s took %d s\n' "$name" $((SECONDS - began))
done
if ((${#failed[@]})); then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
