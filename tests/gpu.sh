#!/usr/bin/env bash
# The tests of plans on GPUs, a line a check:
#
#   ok       prelude conformance: 110 functions, 203 checks, 1.2 s
#   FAILED   kernels' bits: the first reason, and where the whole output is
#   skipped  memcheck: why
#
#   tests/gpu.sh --build [FOLDER]   makes the folder (target/gpu-suite): programs, models, the bits that a machine with g++
#                                   expects, jobs to time. It is all that a machine with a GPU needs; this script is in it, and
#                                   FOLDER.tar.xz (.gz where xz is not there) is the whole of it.
#   tests/gpu.sh [FOLDER]           runs the checks. Without a folder that is there, and with cargo, it is made first.
#
# A machine with a GPU needs a driver, and NVRTC, cuBLASLt and NCCL of CUDA 13 where the loader finds them, or in FOLDER/gpu-libs,
# which `FOLDER/shardc doctor --link SITE-PACKAGES/nvidia` fills. Where there is none
# everything runs on the software CUDA of the tests, over a fixed share of kernels, models and seeds; the first and the last line
# say so. What runs several ranks puts them all on the first GPU. Exit codes: 0, 1 if a check failed, 2 if none could run.
#
# SHARDC_GPU_DEVICE is `real` or `software` where the script is not to find out. SHARDC_PYTHON is the Python that has PyTorch.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    sed -n '2,/^set -e/p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//'
}

build=no
folder=
for argument in "$@"; do
    case $argument in
    --build) build=yes ;;
    --help | -h)
        usage
        exit 0
        ;;
    -*)
        echo "\`$argument\` is no option; see $0 --help" >&2
        exit 2
        ;;
    *) folder=$argument ;;
    esac
done

# Where nothing is said, a copy of the script is in its folder.
if [[ -z $folder ]]; then
    if [[ -f $here/gpu ]]; then folder=$here; else folder=$here/../target/gpu-suite; fi
fi

# Runs a command for so many seconds at most, where `timeout` is there.
limited() {
    if command -v timeout >/dev/null; then timeout --kill-after=10 "$@"; else "${@:2}"; fi
}

# The executable that cargo made of a target, by its messages.
executable() {
    grep -o '"executable":"[^"]*"' "$1" | cut -d '"' -f 4 | grep -E "/$2(-[0-9a-f]+)?\$" | tail -n 1
}

make_folder() {
    local root messages test program packed
    root=$(cd "$here/.." && pwd)
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    messages=$folder/cargo.json
    echo "building the programs"
    (cd "$root" && cargo build --release --locked --workspace --message-format json >"$messages")
    program=$(executable "$messages" shardc)
    (cd "$root" && cargo test --release --locked --workspace --test gpu --no-run --message-format json >"$messages")
    test=$(executable "$messages" gpu)
    rm -rf "$folder/tests" "$folder/expected" "$folder/jobs" "$messages"
    mkdir -p "$folder/tests"
    cp -R "$root/tests/models" "$folder/tests/models"
    cp "$program" "$folder/shardc"
    cp "$test" "$folder/gpu"
    cp "$(dirname "$test")/libshardc_fakecuda.so" "$folder/"
    # Names of functions are a fifth of the programs.
    if command -v strip >/dev/null; then strip "$folder/shardc" "$folder/gpu"; fi
    cp "$here/gpu.sh" "$root/benches/torch_step.py" "$folder/"
    export SHARDC_TEST_HOME=$folder SHARDC_GPU_EXPECTED=$folder/expected SHARDC_GPU_JOBS=$folder/jobs
    "$folder/gpu" --ignored --exact speed::jobs_are_written >/dev/null
    if command -v g++ >/dev/null; then
        echo "running every kernel on the host"
        SHARDC_GPU=all "$folder/gpu" --ignored --nocapture expected_bits_are_written 2>&1 | grep '^# ' | sed 's/^#/ /'
    else
        echo "skipped: g++ is not there, so no bits are expected of kernels"
    fi
    rm -rf "$folder/scratch" "$folder/logs"
    if command -v xz >/dev/null; then packed=$folder.tar.xz; else packed=$folder.tar.gz; fi
    XZ_OPT='-3 -T0' tar -C "$folder/.." -caf "$packed" "$(basename "$folder")"
    echo "$folder ($(du -sh "$folder" | cut -f 1)), packed: $packed ($(du -sh "$packed" | cut -f 1))"
}

if [[ $build == yes ]] || { [[ ! -f $folder/gpu ]] && [[ -f $here/../Cargo.toml ]] && command -v cargo >/dev/null; }; then
    make_folder
    if [[ $build == yes ]]; then exit 0; fi
fi
if [[ ! -f $folder/gpu || ! -f $folder/shardc ]]; then
    echo "$folder has no programs: make it with \`tests/gpu.sh --build FOLDER\`" >&2
    exit 2
fi
folder=$(cd "$folder" && pwd)
export SHARDC_TEST_HOME=$folder
if [[ -d $folder/gpu-libs ]]; then export LD_LIBRARY_PATH=$folder/gpu-libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
shardc=$folder/shardc
work=$folder/scratch
logs=$folder/logs
rm -rf "$logs"
mkdir -p "$work" "$logs"

# The device.
has_gpu() {
    "$shardc" doctor 2>/dev/null | grep -E '^ *libcuda' | grep -qE '[1-9][0-9]* GPU'
}
device=${SHARDC_GPU_DEVICE:-}
if [[ -z $device ]]; then
    if has_gpu; then device=real; else device=software; fi
fi
export SHARDC_GPU_DEVICE=$device
software=()
if [[ $device == real ]]; then
    what=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1) || true
    what="on ${what:-a GPU}"
else
    what="on the software CUDA: no GPU was used"
    if ! command -v g++ >/dev/null; then
        echo "there is no GPU, and no g++ for the software CUDA" >&2
        exit 2
    fi
    mkdir -p "$work/cuda"
    for library in libcuda libnvrtc libnccl libcublasLt; do
        ln -sf "$folder/libshardc_fakecuda.so" "$work/cuda/$library.so"
    done
    software=("LD_LIBRARY_PATH=$work/cuda" "FAKE_CUDA_FOLDER=$work/fake-cuda" "FAKE_CUDA_DEVICES=8" "FAKE_CUDA_NCCL=tcp")
fi

failed=0 passed=0 skipped=0

now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f s", b - a }'; }
ok() {
    passed=$((passed + 1))
    echo "ok       $*"
}
fails() {
    failed=$((failed + 1))
    echo "FAILED   $*"
}
skips() {
    skipped=$((skipped + 1))
    echo "skipped  $*"
}

# The first reason in an output: what follows a panic, with what it lists first, or the first error.
reason() {
    local line
    line=$(awk '/panicked at/ { getline; a = $0; getline; print a (/^stack backtrace|^note:|^ *$/ ? "" : ": " $0); exit }' "$1")
    if [[ -z $line ]]; then line=$(grep -m 1 -iE 'error|failure|failed|refused' "$1") || true; fi
    if [[ -z $line ]]; then line=$(grep -v '^ *$' "$1" | tail -n 1) || true; fi
    echo "${line:0:300} (all of it: $1)"
}

# How a command ended: 124 is that of `timeout`, and 137 that of a process that was killed.
ended() {
    case $1 in
    124) echo "it took more than $2 s" ;;
    137) echo "it was killed, or took more than $2 s: $(tail -n 1 "$3")" ;;
    *) reason "$3" ;;
    esac
}

# A test of the binary: its title, its name, and the seconds that it may take.
tested() {
    local title=$1 test=$2 seconds=$3 log="$logs/${2//:/_}" status=0 began told
    began=$(now)
    limited "$seconds" "$folder/gpu" "$test" --exact --nocapture --test-threads=1 >"$log" 2>&1 || status=$?
    told=$(grep '^# ' "$log" | tail -n 1 | cut -c 3-) || true
    if ((status != 0)); then
        fails "$title: $(ended "$status" "$seconds" "$log")"
    elif ! grep -q '1 passed' "$log"; then
        fails "$title: there is no test \`$test\`"
    elif [[ -n $told ]]; then
        ok "$title: $told, $(since "$began")"
    else
        skips "$title: $(grep -m 1 '^skipped: ' "$log" | cut -c 10-)"
    fi
}

# A job of the models: model, mesh, micro-batches, lines of the spec. It prints the spec's path.
spec() {
    local model=$1 mesh=$2 micro=$3 lines=$4 path
    path="$work/$(echo "$model $mesh $lines" | tr -c 'a-z0-9=\n' '-').shard"
    {
        echo "mesh $mesh"
        echo "batch 8 microbatches=$micro"
        echo "loss cross_entropy logits=logits labels=y"
        echo "optimizer adamw lr=1e-3 beta1=0.9 beta2=0.95 eps=1e-8 weight_decay=0.1 decay=matrices"
        echo "clip norm=1.0"
        if [[ " $mesh" == *" dp="* ]]; then echo "data axis=dp"; fi
        if [[ " $mesh" == *" tp="* ]]; then echo "tensor axis=tp"; fi
        if [[ -n $lines ]]; then echo "$lines"; fi
    } >"$path"
    echo "$path"
}

# Losses and norms of two files of metrics, as one reader sees them: 0 if they are as near as sums in another order are.
near() {
    local a b
    for file in "$1" "$2"; do
        sed -n 's/.*"loss":\([^,}]*\).*"grad_norm":\([^,}]*\).*/\1 \2/p' "$file" >"$file.numbers"
    done
    a=$(wc -l <"$1.numbers") b=$(wc -l <"$2.numbers")
    if ((a == 0 || a != b)); then
        echo "$a steps beside $b"
        return 1
    fi
    paste -d ' ' "$1.numbers" "$2.numbers" | awk '
        function off(x, y) { return x > y ? x - y : y - x }
        off($1, $3) > 1e-4 || off($2, $4) > 1e-3 * $4 { print "step " NR ": loss " $1 ", norm " $2 "; the CPU has " $3 ", " $4; exit 1 }'
}

checked() {
    local title="CUDA beside CPU, one plan" log=$logs/check job status=0 began model
    began=$(now)
    for model in gpt2 llama; do
        job=$(spec "$model" "dp=1" 2 "")
        rm -rf "$work/plan"
        "$shardc" compile "$folder/tests/models/$model/model.onnx" --spec "$job" -o "$work/plan" --no-certificate >"$log" 2>&1 &&
            limited 60 env "${software[@]}" "$shardc" check "$work/plan" --data "$folder/tests/models/$model/data.npz" \
                --device cuda >>"$log" 2>&1 || status=$?
        if ((status != 0)); then
            fails "$title: $model: $(ended "$status" 60 "$log")"
            return
        fi
    done
    ok "$title: gpt2, llama, $(since "$began")"
}

# Ranks as processes on one GPU: a launcher for each, as NCCL takes two ranks on one GPU only of two hosts.
launched() {
    local name=$1 ranks=$2 mesh=$3 micro=$4 lines=$5 title="$2 ranks, $1" job log status=0 began rank key port
    local pids=() train
    log="$logs/launch-$name-$ranks"
    job=$(spec gpt2 "$mesh" "$micro" "$lines")
    train=(train "$folder/tests/models/gpt2/model.onnx" --spec "$job" --data "$folder/tests/models/gpt2/data.npz" --steps 3)
    began=$(now)
    rm -f "$log".*
    key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    port=$((20000 + ($$ * 7 + passed + failed) % 20000))
    for ((rank = 0; rank < ranks; rank++)); do
        limited 120 env "${software[@]}" SHARDC_RENDEZVOUS_KEY="$key" NCCL_HOSTID="rank$rank" NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 \
            "$shardc" launch -n 1 --world-size "$ranks" --first-rank "$rank" --rendezvous "127.0.0.1:$port" \
            --rendezvous-timeout 30 -- "${train[@]}" --device cuda --metrics "$log.metrics" >"$log.$rank" 2>&1 &
        pids+=($!)
    done
    for ((rank = 0; rank < ranks; rank++)); do
        local one=0
        wait "${pids[rank]}" || one=$?
        if ((one != 0 && status == 0)); then
            status=$one
            cp "$log.$rank" "$log"
        fi
    done
    if ((status != 0)) && grep -q 'run on the CPU only' "$log"; then
        skips "$title: this \`shardc\` starts ranks as processes on the CPU only"
    elif ((status != 0)); then
        fails "$title: $(ended "$status" 120 "$log")"
    elif ! "$shardc" "${train[@]}" --metrics "$log.cpu" >"$log" 2>&1; then
        fails "$title: on the CPU: $(reason "$log")"
    elif ! near "$log.metrics" "$log.cpu" >"$log"; then
        fails "$title: $(reason "$log")"
    else
        ok "$title: gpt2 on $mesh, 3 steps as on the CPU, $(since "$began")"
    fi
}

all_launched() {
    if ! "$shardc" launch --help >/dev/null 2>&1; then
        skips "2 and 4 ranks on one GPU: this \`shardc\` has no command \`launch\`"
        return
    fi
    launched dp 2 "dp=2" 1 ""
    launched tp 2 "tp=2" 1 ""
    launched pp 2 "pp=2" 4 "pipeline axis=pp schedule=1f1b"
    launched zero 2 "dp=2" 1 "zero stage=3 axis=dp"
    launched dp 4 "dp=4" 1 ""
    launched tp 4 "tp=4" 1 ""
    launched pp 4 "pp=4" 4 "pipeline axis=pp schedule=1f1b"
    launched zero 4 "dp=4" 1 "zero stage=3 axis=dp"
    launched hybrid 4 "dp=2 tp=2" 2 "zero stage=1 axis=dp"
}

sanitized() {
    local tool=$1 log=$logs/$1 status=0 began job
    if [[ $device != real ]]; then
        skips "$tool: the software CUDA checks every access by itself"
        return
    fi
    if ! command -v compute-sanitizer >/dev/null; then
        skips "$tool: compute-sanitizer is not installed"
        return
    fi
    began=$(now)
    job=$(spec gpt2 "dp=1" 1 "")
    limited 90 compute-sanitizer --tool "$tool" --error-exitcode 9 "$shardc" train "$folder/tests/models/gpt2/model.onnx" \
        --spec "$job" --data "$folder/tests/models/gpt2/data.npz" --steps 1 --device cuda >"$log" 2>&1 || status=$?
    if grep -q 'Device not supported' "$log"; then
        skips "$tool: compute-sanitizer says \`Device not supported\`"
    elif ((status != 0)); then
        fails "$tool: $(ended "$status" 90 "$log")"
    else
        ok "$tool: gpt2, one step, $(since "$began")"
    fi
}

timed() {
    local job=gpt2-124m steps=24 batch=32 length=1024 title log=$logs/speed status=0 python line began
    if [[ $device != real ]]; then job=gpt2-small steps=4 batch=4 length=16; fi
    title="speed of $job, batch $batch x $length, bf16"
    began=$(now)
    limited 120 env "${software[@]}" "$shardc" train "$folder/jobs/$job/model.onnx" --spec "$folder/jobs/$job/job.shard" \
        --data "$folder/jobs/$job/data.npz" --steps "$steps" --device cuda --metrics "$log.metrics" >"$log" 2>&1 || status=$?
    if ((status != 0)); then
        fails "$title: $(ended "$status" 120 "$log")"
    else
        # The first steps warm up and are captured.
        line=$(sed -n 's/.*"seconds":\([^,}]*\).*/\1/p' "$log.metrics" | awk -v tokens=$((batch * length)) -v whole="$(since "$began")" '
            { all += $1 }
            NR == 1 { first = $1 }
            NR > 3 { s[++n] = $1 }
            END {
                for (i = 2; i <= n; i++) for (j = i; j > 1 && s[j] < s[j - 1]; j--) { t = s[j]; s[j] = s[j - 1]; s[j - 1] = t }
                m = s[int((n + 1) / 2)]
                printf "%.1f ms a step, %.0f tokens/s, first step within %.1f s", m * 1e3, tokens / m, whole - all + first
            }')
        if [[ $device != real ]]; then line="$line, which says nothing of a GPU"; fi
        ok "$title: $line"
    fi
    python=${SHARDC_PYTHON:-python3}
    if [[ $device != real ]]; then
        skips "the same in PyTorch: there is no GPU"
    elif ! "$python" -c 'import torch; assert torch.cuda.is_available()' >/dev/null 2>&1; then
        skips "the same in PyTorch: $python has no PyTorch with CUDA"
    elif limited 120 "$python" "$folder/torch_step.py" compile >"$log.torch" 2>&1; then
        ok "the same in PyTorch: $(tail -n 1 "$log.torch")"
    else
        fails "the same in PyTorch: $(reason "$log.torch")"
    fi
}

whole=$(now)
echo "checks of plans on GPUs, $what"
tested "prelude conformance" prelude::functions_give_the_hosts_bits 120
tested "kernels' bits" kernels::kernels_give_the_hosts_bits 240
tested "products of cuBLASLt" products::products_are_computed 120
tested "graphs give the bits of single calls" trains::graphs_give_the_bits_of_single_calls 120
tested "two runs give the same bits" trains::runs_give_the_same_bits 120
tested "gold models on one rank" trains::models_train_on_one_rank 240
checked
all_launched
sanitized memcheck
sanitized racecheck
timed
echo "$passed ok, $failed failed, $skipped skipped in $(since "$whole"), $what"
((failed == 0))
