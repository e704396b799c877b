#!/usr/bin/env bash
# Check this project on a machine with a CUDA device, and measure it there: five parts of at most ten minutes each.
#
#   plugins/ocannl_cuda/check_device.sh --pack wheels [PYTHON]   # here: what a machine without a network needs
#   PARTS=1 plugins/ocannl_cuda/check_device.sh                  # there, in a copy of the repository with the folder wheels
#   PARTS=2 plugins/ocannl_cuda/check_device.sh                  # and so on; without PARTS, as much of all as LIMIT allows
#
#   1  the first results, and the conformance suite, without another library
#   2  products on the copy engine, PyTorch's streams and memory, races and accesses beyond memory
#   3  speed: our own kernels first, those of bfloat16 before others; then beside PyTorch eager
#   4  graphs: the conformance suite, host times, training steps
#   5  beside torch.compile, and the counters of the device
#
# Packing takes a Python of the version that is there, python3 by default: PyCUDA is built for it.
# There, packages that Python lacks are unpacked from the folder `wheels` of the repository into a folder of their own,
# which changes no environment; without that folder, pip fetches them. The rest of the repository is used in place.
# Steps run from the most to the least valuable one; each prints as it goes, and has a time limit. One that fails, or
# hangs, does not end the others. The last lines are a summary. Keep the output, with the date and the device, before
# anything is changed.
#
#   PYTHON     the Python to use, python3 by default; its packages, such as PyTorch and CuPy, take part
#   WITHOUT    packing: names of packages to leave out, by default numpy and nvidia_cuda_nvrtc, which come with PyTorch;
#              empty for a machine without it
#   PARTS      the numbers of the parts to run
#   EMULATED   1 for emulated devices: tiny sizes, nothing is installed
#   LIMIT      the seconds for all of it, 570 by default
#   TESTS      an expression of pytest that chooses among the conformance tests
#   ONLY       a part of the names of the workloads to measure
set -uo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3} EMULATED=${EMULATED:-0} TESTS=${TESTS:-} ONLY=${ONLY:-} LIMIT=${LIMIT:-570}
PARTS=${PARTS:-1 2 3 4 5} WITHOUT=${WITHOUT-numpy nvidia_cuda_nvrtc}
PACKAGES=("pytest>=8.2" "pytest-xdist>=3.5" "hypothesis>=6.100" "inline-snapshot>=0.30" "numpy>=2" "pluggy>=1.5"
  importlib-metadata "ml-dtypes>=0.5" cffi pytools mako platformdirs siphash24 "nvidia-cuda-nvrtc>=13,<14")
START=$SECONDS
SUMMARY=()
SITE=${TMPDIR:-/tmp}/ocannl-check

pack() {  # pack FOLDER PYTHON
  local name
  mkdir -p "$1"
  "$2" -m pip download --quiet --disable-pip-version-check --only-binary=:all: --dest "$1" "${PACKAGES[@]}" || return
  cp "$("$2" tools/build_pycuda.py | tail -n 1)" "$1" || return
  for name in $WITHOUT; do rm -f "$1/$name"-*.whl; done
  ls -sh "$1"
  printf 'for %s; a copy of the repository with these takes %s\n' "$("$2" --version)" "$(du -sch "$1" $(git ls-files) | tail -n 1 | cut -f 1)"
}

step() {  # step NAME SECONDS COMMAND...
  local name=$1 limit=$2 begin=$SECONDS code left=$((LIMIT - SECONDS + START))
  shift 2
  [ "$limit" -gt "$left" ] && limit=$left
  if [ "$limit" -lt 5 ]; then
    SUMMARY+=("$(printf '%-24s %s' "$name" 'left out: no time')")
    return
  fi
  printf '\n===== %s (%d s after the start, at most %d s)\n' "$name" $((begin - START)) "$limit"
  timeout --kill-after=5 "$limit" "$@" 2>&1
  code=$?
  case $code in 0) code=passed ;; 124 | 137) code="cut off" ;; 3) code="in part" ;; *) code="failed with $code" ;; esac
  SUMMARY+=("$(printf '%-24s %-16s %4d s' "$name" "$code" $((SECONDS - begin)))")
}

UNPACK='
import importlib.metadata, re, sys, zipfile
from pathlib import Path

def numbers(text):
    return [int(each) for each in re.findall(r"\d+", text)[:3]]

def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()

minor, left_out = sys.version_info.minor, []
least = {plain(name): numbers(version) for name, version in re.findall(r"([\w.-]+)>=([\d.]+)", " ".join(sys.argv[2:]))}
for wheel in sorted(Path("wheels").glob("*.whl")):
    name, version, *_, python, abi, _ = wheel.stem.split("-")
    try:
        present = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        present = ""
    if present and numbers(present) >= least.get(plain(name), []):
        continue
    is_any = "py3" in python.split(".")
    is_own = f"cp3{minor}" in python.split(".")
    is_stable = abi == "abi3" and any(int(each) <= minor for each in re.findall(r"cp3(\d+)", python))
    if not (is_any or is_own or is_stable):
        left_out.append(f"{wheel.name} is for another Python than 3.{minor}")
        continue
    zipfile.ZipFile(wheel).extractall(sys.argv[1])
    print(f"{name} {version}")
print(*left_out, sep="\n")
'

install() {  # the packages that Python lacks, and the backends, into $SITE
  rm -rf "$SITE"
  mkdir -p "$SITE"
  if [ -d wheels ]; then
    "$PYTHON" -c "$UNPACK" "$SITE" "${PACKAGES[@]}" || return
  else
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --target "$SITE" "${PACKAGES[@]}" || return
  fi
  # the backends are found by these entry points
  for plugin in interp cpu_c cuda; do
    mkdir -p "$SITE/ocannl_$plugin-0.dist-info"
    printf 'Metadata-Version: 2.1\nName: ocannl-%s\nVersion: 0\n' "$plugin" >"$SITE/ocannl_$plugin-0.dist-info/METADATA"
    printf '[ocannl.backends]\n%s = ocannl_%s\n' "$plugin" "$plugin" >"$SITE/ocannl_$plugin-0.dist-info/entry_points.txt"
  done
  "$PYTHON" -c 'import importlib.metadata; print("PyCUDA", importlib.metadata.version("pycuda"))' && return
  printf 'PyCUDA is built here, which takes minutes\n'
  local wheel
  wheel=$("$PYTHON" tools/build_pycuda.py | tail -n 1) && "$PYTHON" -m zipfile -e "$wheel" "$SITE"
}

if [ "${1:-}" = --pack ]; then
  pack "${2:-wheels}" "${3:-$PYTHON}"
  exit
fi

SIZE=() PROCESSES=8 KIND=device RUN=() RULE=(--kernel-regex kns=k_)
export PYTHONUNBUFFERED=1
if [ "$EMULATED" = 1 ]; then
  SIZE=(--small) PROCESSES=1 KIND=emulated RUN=("$PYTHON" -m ocannl_cuda_emulator --)
else
  PLUGINS=$PWD/plugins
  export PYTHONPATH=$SITE:$PWD:$PLUGINS/ocannl_interp/src:$PLUGINS/ocannl_cpu_c/src:$PLUGINS/ocannl_cuda/src${PYTHONPATH:+:$PYTHONPATH}
  export PYTHON SITE UNPACK
  export -f install
  command -v nvidia-smi >/dev/null && step nvidia-smi 20 nvidia-smi
  [ -f "$SITE/ready" ] || step install 150 bash -c "$(declare -p PACKAGES); install && touch $SITE/ready"
  # the first import after the start of a machine takes a minute, and must not count as that of a measurement
  "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' &&
    step "start of PyTorch" 120 "$PYTHON" -c 'import torch; print(torch.__version__, torch.ones(9, device="cuda").sum().item())'
fi
MEASURE=("${RUN[@]}" "$PYTHON" benchmarks/gpu.py)
CHECK=("${RUN[@]}" "$PYTHON" plugins/ocannl_cuda/device_checks.py)
CONFORMANCE=(tests/backends/test_conformance.py --processes "$PROCESSES" --tests 12 -k "cuda${TESTS:+ and ($TESTS)}"
  --results "${TMPDIR:-/tmp}/ocannl-check-$$.jsonl")

runs() {  # runs NUMBER: true for a part that is to run
  [[ " $PARTS " == *" $1 "* ]]
}

if runs 1; then
  step doctor 45 "${RUN[@]}" "$PYTHON" -m ocannl_core.cli doctor cuda
  step "first results" 75 "${MEASURE[@]}" --only "$ONLY" --small --no-peers --isolate 20
  step conformance 120 "$PYTHON" -m plugins.ocannl_cuda.tests.runs_in_parts "$KIND" "${CONFORMANCE[@]}" --seconds 118
fi
if runs 2; then
  for size in 64 200 1024 4096; do
    [ "$EMULATED" = 1 ] && [ "$size" -gt 64 ] && continue
    step "copy engine, $size" 60 "${CHECK[@]}" products --size "$size"
  done
  step "other libraries" 60 "${CHECK[@]}" sharing
  for tool in memcheck racecheck; do
    if ! command -v compute-sanitizer >/dev/null; then
      SUMMARY+=("$(printf '%-24s %s' "$tool" 'left out: no compute-sanitizer')")
    else
      step "$tool" 100 "${RUN[@]}" compute-sanitizer --tool "$tool" "${RULE[@]}" --error-exitcode 9 \
        "$PYTHON" benchmarks/gpu.py --small --no-peers --only "$ONLY"
    fi
  done
fi
if runs 3; then
  step "speed" 180 "${MEASURE[@]}" "${SIZE[@]}" --only "$ONLY" --no-peers --isolate 45
  step "asynchronous products" 90 env OCANNL_ASYNCHRONOUS_PRODUCTS=1 "${MEASURE[@]}" "${SIZE[@]}" --only "${ONLY:-bfloat16}" --no-peers --isolate 45
  step "beside PyTorch eager" 240 "${MEASURE[@]}" "${SIZE[@]}" --only "$ONLY" --eager --isolate 60
fi
if runs 4; then
  step "conformance, graphs" 120 "$PYTHON" -m plugins.ocannl_cuda.tests.runs_in_parts "$KIND-graphs" "${CONFORMANCE[@]}" --seconds 118
  for name in host perceptron; do
    step "$name times" 90 "${MEASURE[@]}" "${SIZE[@]}" --only "$name" --eager --isolate 60
  done
fi
if runs 5; then
  step "beside torch.compile" 300 "${MEASURE[@]}" "${SIZE[@]}" --only "$ONLY" --isolate 90
  if command -v ncu >/dev/null; then
    for name in attention bfloat16 "product 4096" softmax; do
      step "counters, $name" 60 ncu --clock-control none --set full -k regex:k_ -c 1 "$PYTHON" benchmarks/gpu.py --no-peers --only "$name"
    done
  else
    SUMMARY+=("$(printf '%-24s %s' counters 'left out: no ncu')")
  fi
fi
rm -f "${TMPDIR:-/tmp}/ocannl-check-$$.jsonl"
printf '\n===== summary, %d s\n' $((SECONDS - START))
printf '%s\n' "${SUMMARY[@]}"
printf '%s\n' "${SUMMARY[@]}" | grep -q failed && exit 1
exit 0
