#!/usr/bin/env bash
# Check this project on a machine with a CUDA device, and measure it there, in ten minutes.
#
#   plugins/ocannl_cuda/check_device.sh --pack wheels [PYTHON]   # here: what a machine without a network needs
#   plugins/ocannl_cuda/check_device.sh                          # there, in a copy of the repository
#
# Packing takes a Python of the version that is there, python3 by default: PyCUDA is built for it.
# There, packages that Python lacks are unpacked from the folder `wheels` of the repository into a folder of their own,
# which changes no environment; without that folder, pip fetches them. The rest of the repository is used in place.
# Steps run from the most to the least valuable one; each prints as it goes, and has a time limit. One that fails, or
# hangs, does not end the others. The last lines are a summary.
#
#   PYTHON     the Python to use, python3 by default; its packages, such as PyTorch and CuPy, take part
#   WITHOUT    packing: names of packages to leave out, as numpy and nvidia_cuda_nvrtc, which come with PyTorch
#   EMULATED   1 for emulated devices: tiny sizes, nothing is installed
#   LIMIT      the seconds for all of it, 570 by default
#   TESTS      an expression of pytest that chooses among the conformance tests
#   ONLY       a part of the names of the workloads to measure
set -uo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3} EMULATED=${EMULATED:-0} TESTS=${TESTS:-} ONLY=${ONLY:-} LIMIT=${LIMIT:-570}
PYCUDA=2026.1
PACKAGES=(pytest pytest-xdist hypothesis inline-snapshot "numpy>=2" pluggy importlib-metadata ml-dtypes cffi pytools mako
  platformdirs siphash24 "nvidia-cuda-nvrtc>=13,<14")
START=$SECONDS
SUMMARY=()
SITE=${TMPDIR:-/tmp}/ocannl-check

pack() {  # pack FOLDER PYTHON
  local name
  mkdir -p "$1"
  "$2" -m pip download --quiet --disable-pip-version-check --only-binary=:all: --dest "$1" "${PACKAGES[@]}" || return
  cp "$("$2" tools/build_pycuda.py | tail -n 1)" "$1" || return
  for name in ${WITHOUT:-}; do rm -f "$1/$name"-*.whl; done
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

minor, left_out = sys.version_info.minor, []
for wheel in sorted(Path("wheels").glob("*.whl")):
    name, version, *_, python, abi, _ = wheel.stem.split("-")
    try:
        present = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        present = ""
    if present and not (name == "numpy" and present.startswith("1.")):
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
    "$PYTHON" -c "$UNPACK" "$SITE" || return
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

SIZE=() PROCESSES=8 PARTS=device RUN=()
export PYTHONUNBUFFERED=1
if [ "$EMULATED" = 1 ]; then
  SIZE=(--small) PROCESSES=1 PARTS=emulated RUN=("$PYTHON" -m ocannl_cuda.emulation --)
else
  PLUGINS=$PWD/plugins
  export PYTHONPATH=$SITE:$PWD:$PLUGINS/ocannl_interp/src:$PLUGINS/ocannl_cpu_c/src:$PLUGINS/ocannl_cuda/src${PYTHONPATH:+:$PYTHONPATH}
  export PYTHON SITE UNPACK
  export -f install
  command -v nvidia-smi >/dev/null && step nvidia-smi 20 nvidia-smi
  step install 150 bash -c "$(declare -p PACKAGES); install"
fi
GPU=("${RUN[@]}" "$PYTHON" benchmarks/gpu.py --only "$ONLY")
CONFORMANCE=(tests/backends/test_conformance.py --processes "$PROCESSES" --tests 12 -k "cuda${TESTS:+ and ($TESTS)}"
  --results "${TMPDIR:-/tmp}/ocannl-check-$$.jsonl")

step doctor 45 "${RUN[@]}" "$PYTHON" -m ocannl_core.cli doctor cuda
step "first results" 75 "${GPU[@]}" --small --eager --isolate 20
step conformance 90 "$PYTHON" -m plugins.ocannl_cuda.tests.runs_in_parts "$PARTS" "${CONFORMANCE[@]}" --seconds 88
step benchmarks 180 "${GPU[@]}" "${SIZE[@]}" --isolate 45
step "conformance, graphs" 60 "$PYTHON" -m plugins.ocannl_cuda.tests.runs_in_parts "$PARTS-graphs" "${CONFORMANCE[@]}" --seconds 58
step "asynchronous products" 60 env OCANNL_ASYNCHRONOUS_PRODUCTS=1 \
  "${RUN[@]}" "$PYTHON" benchmarks/gpu.py --small --eager --isolate 20 --only "${ONLY:-bfloat16}"
for tool in racecheck memcheck; do
  if ! command -v compute-sanitizer >/dev/null; then
    SUMMARY+=("$(printf '%-24s %s' "$tool" 'left out: no compute-sanitizer')")
  else
    step "$tool" 100 "${RUN[@]}" compute-sanitizer --tool "$tool" --error-exitcode 9 "$PYTHON" benchmarks/gpu.py --small --eager --only "$ONLY"
  fi
done
rm -f "${TMPDIR:-/tmp}/ocannl-check-$$.jsonl"
printf '\n===== summary, %d s\n' $((SECONDS - START))
printf '%s\n' "${SUMMARY[@]}"
printf '%s\n' "${SUMMARY[@]}" | grep -q failed && exit 1
exit 0
