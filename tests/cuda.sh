#!/usr/bin/env bash
# The tests of generated CUDA kernels, which need no GPU. With libnvrtc, kernels are assembled and
# their PTX is interpreted; with g++, they are executed on the host. What is not there is skipped,
# which is said aloud and is no failure.
#
#   tests/cuda.sh [ARGUMENTS]      runs these tests; arguments go to them
#   tests/cuda.sh --with COMMAND   runs a command with libnvrtc, in place of them
#
# SHARDC_CUDA says how much is tried. `all`, which it is where nothing is said, takes the whole;
# `kernels` executes every kernel of the ten models in f32 and bf16, those of two models in f16,
# assembles every other one of them, and takes fixed shares of what is done with them.
#
# SHARDC_CUDA_TOOLS is the folder that libnvrtc is installed into, target/cuda-tools without it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=13.5.37
nvrtc="nvidia-cuda-nvrtc==$version"
tools=${SHARDC_CUDA_TOOLS:-target/cuda-tools}
# Seconds for all of it; the index has 20 to answer, three times.
patience=600

skipped() {
    echo "skipped: $*" >&2
}

# The folder of the installed libnvrtc, which may be none.
installed() {
    local found
    found=$(find "$tools/nvrtc-$version" -name 'libnvrtc.so.*' -print -quit 2>/dev/null) || true
    if [[ -n $found ]]; then dirname "$found"; fi
}

# Installs libnvrtc, in a folder of its own first, so that none is ever there in part.
install_nvrtc() {
    local part status=0
    if ! command -v python3 >/dev/null; then
        skipped "python3 is not there to install $nvrtc"
        return
    fi
    if ! python3 -m pip --version >/dev/null 2>&1; then
        skipped "pip is not there to install $nvrtc"
        return
    fi
    part=$(mktemp -d "$tools/part.XXXXXX")
    limited "$patience" python3 -m pip install --quiet --disable-pip-version-check --no-input --no-deps --only-binary :all: \
        --timeout 20 --retries 2 --target "$part/nvrtc" "$nvrtc" || status=$?
    if ((status == 0)); then
        rm -rf "$tools/nvrtc-$version"
        mv "$part/nvrtc" "$tools/nvrtc-$version"
    else
        skipped "$nvrtc cannot be installed"
    fi
    rm -rf "$part"
}

# Runs a command for so many seconds at most, where `timeout` is there.
limited() {
    if command -v timeout >/dev/null; then timeout "$@"; else "${@:2}"; fi
}

mkdir -p "$tools"
tools=$(cd "$tools" && pwd)
folder=$(installed)
if [[ -z $folder ]]; then
    install_nvrtc
    folder=$(installed)
fi
if [[ -n $folder ]]; then
    # Programs look for the name without a version first, so no other library comes before this one.
    if [[ ! -e $folder/libnvrtc.so ]]; then
        (cd "$folder" && ln -sf "$(basename "$(find . -name 'libnvrtc.so.*' -print -quit)")" libnvrtc.so)
    fi
    export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
else
    skipped "libnvrtc: kernels are not assembled, nor their PTX interpreted, unless the system has one"
fi
if ! command -v g++ >/dev/null; then
    skipped "g++ is not there: kernels are not executed on the host"
fi

# Three numbers, which the tests write: kernels assembled, executed on the host, interpreted.
SHARDC_CUDA_COUNTS=$(mktemp)
export SHARDC_CUDA_COUNTS SHARDC_CUDA=${SHARDC_CUDA:-all}
trap 'rm -f "$SHARDC_CUDA_COUNTS"' EXIT

if [[ ${1-} == --with ]]; then
    "${@:2}"
else
    # One choice of packages for all, as features and so what is compiled depend on it.
    test=(cargo test --release --locked --workspace)
    "${test[@]}" --test host --test product --test ptx --test cubins --test library --test logs -- "$@"
    "${test[@]}" --lib -- cpu::math::text "$@"
    "${test[@]}" --test cuda -- "$@"
fi

assembled=0 executed=0 interpreted=0
if [[ -s $SHARDC_CUDA_COUNTS ]]; then
    read -r assembled executed interpreted <"$SHARDC_CUDA_COUNTS" || true
fi
echo "kernels: ${assembled:-0} assembled, ${executed:-0} executed, ${interpreted:-0} interpreted"
