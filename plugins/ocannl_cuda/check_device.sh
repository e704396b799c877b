#!/usr/bin/env bash
# Check this project on a machine with a CUDA device, and measure it there, in ten minutes.
#
#   plugins/ocannl_cuda/check_device.sh --pack wheels   # here: what a machine without a network needs
#   plugins/ocannl_cuda/check_device.sh                 # there, in a copy of the repository
#
# Packages come from the folder `wheels` of the repository if it is there, else from the network. Each step prints
# as it goes, and has a time limit; one that fails does not end the others. The last lines are a summary.
#
#   PYTHON     the Python to use, python3 by default; its packages, such as PyTorch, are seen
#   EMULATED   1 for emulated devices: tiny sizes, nothing is installed
#   TESTS      an expression of pytest that chooses among the conformance tests
#   ONLY       a part of the names of the workloads to measure
set -uo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3} EMULATED=${EMULATED:-0} TESTS=${TESTS:-} ONLY=${ONLY:-}
PACKAGES=(pytest pytest-xdist hypothesis inline-snapshot "numpy>=2" pluggy importlib-metadata ml-dtypes cffi pytools mako
  platformdirs siphash24 "nvidia-cuda-nvrtc>=13,<14")
START=$SECONDS
SUMMARY=()

pack() {  # pack FOLDER
  mkdir -p "$1"
  "$PYTHON" -m pip download --quiet --only-binary=:all: --dest "$1" "${PACKAGES[@]}" || return
  cp "$("$PYTHON" tools/build_pycuda.py | tail -n 1)" "$1"
  ls "$1"
}

step() {  # step NAME SECONDS COMMAND...
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  printf '\n===== %s (%d s after the start, at most %d s)\n' "$name" $((begin - START)) "$limit"
  timeout --kill-after=5 "$limit" "$@" 2>&1
  code=$?
  case $code in 0) code=passed ;; 124 | 137) code="cut off" ;; *) code="failed with $code" ;; esac
  SUMMARY+=("$(printf '%-24s %-16s %4d s' "$name" "$code" $((SECONDS - begin)))")
}

install() {
  local venv=${TMPDIR:-/tmp}/ocannl-check
  "$PYTHON" -m venv --system-site-packages "$venv" || return
  if [ -d wheels ]; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=$PWD/wheels; fi
  "$venv/bin/pip" install --quiet --disable-pip-version-check "${PACKAGES[@]}" || return
  local wheel
  wheel=$(ls wheels/pycuda-*.whl 2>/dev/null | head -n 1)
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps ${wheel:-$("$venv/bin/python" tools/build_pycuda.py | tail -n 1)}
}

if [ "${1:-}" = --pack ]; then
  pack "${2:-wheels}"
  exit
fi

SMALL=(--only "$ONLY") RUN=() PROCESSES=4
if [ "$EMULATED" = 1 ]; then
  SMALL+=(--small) PROCESSES=0 RUN=("$PYTHON" -m ocannl_cuda.emulation --)
else
  export -f install
  export PYTHON
  step install 200 bash -c "$(declare -p PACKAGES); install"
  PYTHON=${TMPDIR:-/tmp}/ocannl-check/bin/python
  # the packages of the repository are found by their folders, and the backends by these entry points
  SITE=$("$PYTHON" -c 'import site; print(site.getsitepackages()[0])')
  for plugin in interp cpu_c cuda; do
    printf '%s\n' "$PWD/plugins/ocannl_$plugin/src" >"$SITE/ocannl_$plugin.pth"
    mkdir -p "$SITE/ocannl_$plugin-0.dist-info"
    printf 'Metadata-Version: 2.1\nName: ocannl-%s\nVersion: 0\n' "$plugin" >"$SITE/ocannl_$plugin-0.dist-info/METADATA"
    printf '[ocannl.backends]\n%s = ocannl_%s\n' "$plugin" "$plugin" >"$SITE/ocannl_$plugin-0.dist-info/entry_points.txt"
  done
  printf '%s\n' "$PWD" >"$SITE/ocannl_core.pth"
  command -v nvidia-smi >/dev/null && step nvidia-smi 20 nvidia-smi
fi

step doctor 60 "${RUN[@]}" "$PYTHON" -m ocannl_core.cli doctor cuda
step "first results" 90 "${RUN[@]}" "$PYTHON" benchmarks/gpu.py --small --only "$ONLY"
step conformance 150 "${RUN[@]}" "$PYTHON" -m pytest --quiet -p no:cacheprovider --all-devices --numprocesses="$PROCESSES" \
  tests/backends/test_conformance.py -k "cuda${TESTS:+ and ($TESTS)}"
step benchmarks 170 "${RUN[@]}" "$PYTHON" benchmarks/gpu.py "${SMALL[@]}"
for tool in racecheck memcheck; do
  left=$((590 - SECONDS + START))
  if ! command -v compute-sanitizer >/dev/null; then
    SUMMARY+=("$(printf '%-24s %s' "$tool" 'left out: no compute-sanitizer')")
  elif [ "$left" -gt 20 ]; then
    step "$tool" "$left" "${RUN[@]}" compute-sanitizer --tool "$tool" --error-exitcode 9 "$PYTHON" benchmarks/gpu.py --small --eager --only "$ONLY"
  fi
done
printf '\n===== summary, %d s\n' $((SECONDS - START))
printf '%s\n' "${SUMMARY[@]}"
printf '%s\n' "${SUMMARY[@]}" | grep -q failed && exit 1
exit 0
