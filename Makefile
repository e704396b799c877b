# Every target makes the virtual environment that it needs; nothing but Python 3.11+ and a C compiler must be there.

CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11 python
IS_NEW := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
MINOR := -c 'import sys; print("%d.%d" % sys.version_info[:2] + sys.abiflags)'
PYTHON ?= $(shell for each in $(CANDIDATES); do $$each $(IS_NEW) 2>/dev/null && echo $$each && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

PLUGINS := interp cpu_c cuda cuda_emulator opencl mpi onnx
# The packages of CI, by version and hash, for all Pythons and systems.
LOCK := requirements/ci.txt
PROJECTS := pyproject.toml $(foreach plugin,$(PLUGINS),plugins/ocannl_$(plugin)/pyproject.toml)
# One command, or pip looks for the core of each plugin in a registry.
EDITABLE := -e . $(foreach plugin,$(PLUGINS),-e plugins/ocannl_$(plugin))

.PHONY: gallery surface cuda-all-races cuda-assembly cuda-compile cuda-emulated cuda-faults cuda-graphs cuda-planted cuda-races cuda-sanitize opencl demo floors lock release site test test-pythons smoke fuzz ulps torture killed lint onnx-table types docs bench peers judges clean test-slow test-long

demo: $(VENV)/.for-examples
	$(BIN)/python examples/digits.py $(ARGS)

IN_PROCESSES := --numprocesses=auto --maxprocesses=8 --dist=worksteal --durations=10 --durations-min=2

test: $(VENV)/.for-test
	$(BIN)/python -m pytest $(IN_PROCESSES) $(ARGS)

# The tests that `make test` leaves out: see CONTRIBUTING.md.
test-slow: $(VENV)/.for-test
	$(BIN)/python -m pytest -m "slow and not long" $(IN_PROCESSES) $(ARGS)

# The longest of the slow tests: before a release.
test-long: $(VENV)/.for-test
	$(BIN)/python -m pytest -m long $(IN_PROCESSES) $(ARGS)

# Under a minute on two cores; tests of every layer, listed in tests/smoke.txt.
smoke: $(VENV)/.for-test
	$(BIN)/python -m pytest --numprocesses=2 --dist=worksteal @tests/smoke.txt $(ARGS)

# The first of each minor version, on the path or of pyenv.
PYTHONS ?= $(shell for minor in 3.11 3.12 3.13 3.14; do \
	for each in python$$minor $(HOME)/.pyenv/versions/$$minor.*/bin/python3; do \
	$$each $(IS_NEW) 2>/dev/null && echo $$each && break; done; done; true)

# `make smoke` with each of PYTHONS, in virtual environments of their own with the packages of CI.
test-pythons:
	@failed=; for each in $(PYTHONS); do \
		minor=$$($$each $(MINOR)) && echo "== Python $$minor: $$each" && \
		$(MAKE) --no-print-directory VENV=$(VENV)-$$minor PYTHON=$$each $(VENV)-$$minor/.locked && \
		$(MAKE) --no-print-directory VENV=$(VENV)-$$minor PYTHON=$$each smoke || failed="$$failed $$each"; \
	done; test -z "$$failed" || { echo "error: failed with$$failed" >&2; exit 1; }

# Public names with their arguments, hooks, settings and formats; a test compares the file with the code.
surface: $(VENV)/.for-test
	$(BIN)/python -m tools.surface $(ARGS)

fuzz: $(VENV)/.for-test
	$(BIN)/python -m tests.fuzz.run $(ARGS)

ulps: $(VENV)/.for-test
	$(BIN)/python -m plugins.ocannl_cpu_c.tests.float32_functions $(ARGS)

# Damages a small cache, compilers and disks; half an hour on two idle processors, or minutes with ARGS="--sample 400".
torture: $(VENV)/.for-test
	$(BIN)/python -m plugins.ocannl_cpu_c.tests.torture $(ARGS)

# Kernels that take long to compile stay for the next run.
KEPT := --kept-cache=$(VENV)/kernels

# Runs on emulated devices: need no GPU. Parts print as they end, and their results are kept by the content of the repository: after
# ARGS="--seconds 540" has ended a run, the same command goes on with the parts that are left (exit code 3).
IN_PARTS := $(BIN)/python -m plugins.ocannl_cuda.tests.runs_in_parts

# The tests of the backend, compilers for three generations of devices, and faults; then the others under the address sanitizer.
cuda-emulated: cuda-faults cuda-sanitize cuda-races

cuda-faults: $(VENV)/.for-cuda
	CUDA_COMPILE_ALL=1 $(BIN)/python -m pytest -m "" --numprocesses=2 --dist=worksteal plugins/ocannl_cuda/tests $(KEPT)

# Every kernel of the conformance suite, by a compiler for three generations of devices.
cuda-compile: $(VENV)/.for-cuda
	CUDA_COMPILE_ALL=1 $(BIN)/python -m pytest --numprocesses=2 --dist=worksteal plugins/ocannl_cuda/tests/test_cuda_compiles.py $(KEPT)

cuda-sanitize: $(VENV)/.for-cuda
	$(IN_PARTS) sanitize $(ARGS)

# With a detector of races. The conformance suite takes minutes, all of it hours at first: kernels are compiled anew.
cuda-races: $(VENV)/.for-cuda
	$(IN_PARTS) races tests/backends/test_conformance.py $(ARGS)

cuda-all-races: $(VENV)/.for-cuda
	$(IN_PARTS) races $(ARGS)

# Plants faults in a copy of the repository, one after the other, and prints those that no test catches; needs no GPU.
cuda-planted: $(VENV)/.for-cuda
	$(BIN)/python -m plugins.ocannl_cuda.tests.plant $(ARGS)

# Every routine that runs twice replays as a graph.
cuda-graphs: $(VENV)/.for-cuda
	$(IN_PARTS) emulated-graphs $(ARGS)

# Compiles the kernels of the benchmarks' networks for three generations of devices; needs none.
cuda-assembly: $(VENV)/.for-cuda
	CUDA_ASSEMBLY_ALL=1 $(BIN)/python -m pytest --numprocesses=0 plugins/ocannl_cuda/tests/test_cuda_assembly.py $(KEPT) $(ARGS)

# Every test that takes a device, on OpenCL devices; then those of several devices, where PoCL presents the processor twice.
# Needs no GPU. PoCL compiles for half an hour the first time, and keeps the results.
opencl: $(VENV)/.for-test
	$(BIN)/python -m pytest -m "" --all-devices --numprocesses=2 --dist=worksteal -k opencl $(KEPT) $(ARGS)
	POCL_DEVICES="pthread pthread" $(BIN)/python -m pytest -m "" --all-devices --numprocesses=2 --dist=worksteal tests/backends tests/train plugins/ocannl_opencl \
		-k "opencl and (device or copy or copies or merge or context or shard)" $(KEPT) $(ARGS)

# The backends of examples/backends, which other tests skip where their packages are missing.
gallery: $(VENV)/.for-gallery
	$(BIN)/python -m pytest -m "" --numprocesses=2 --dist=worksteal tests/examples/test_backend_gallery.py tests/core/testing/test_corpora.py $(KEPT) $(ARGS)

# The suites of the onnx package on the interpreter and the C backend, and the table of the documentation; half an hour.
onnx-table: $(VENV)/.for-test
	$(BIN)/python -m plugins.ocannl_onnx.tests.table $(ARGS)

# Kills processes of training runs at random steps, and resumes each run.
killed: $(VENV)/.for-test
	$(BIN)/python -m plugins.ocannl_mpi.tests.killed $(ARGS)

lint: $(VENV)/.for-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tools/prose_lint.py
	$(BIN)/python tools/portability_lint.py

types: $(VENV)/.for-test $(VENV)/.for-lint
	$(BIN)/mypy

docs: $(VENV)/.for-docs
	$(BIN)/python -m sphinx -W --keep-going -q -j 2 -b html docs docs/_build/html
	$(BIN)/python tools/build_site.py --check docs/_build/html

# The documentation of this checkout and of tags, ARGS="v0.1.0 v0.2.0", with a menu of versions: build/site.
site: $(VENV)/.for-docs
	$(BIN)/python tools/build_site.py $(ARGS)

# Builds all distributions and checks them; uploads nothing. ARGS="--previous COMMIT" tests the upgrade from a commit.
release: $(VENV)/.for-release
	$(BIN)/python tools/release.py $(ARGS)

# Renews the versions of the packages of CI; ARGS="--upgrade-package numpy" one of them, ARGS=--upgrade all.
lock: $(VENV)/.for-release
	$(BIN)/python tools/lock.py $(ARGS)

# Tests on the oldest versions of the dependencies that the distributions allow.
floors: $(VENV)/.for-release
	$(BIN)/python tools/lock.py --floors build/floors.txt
	$(PYTHON) -m venv --clear build/floors
	build/floors/bin/python -m pip install --quiet --disable-pip-version-check -r build/floors.txt
	build/floors/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(EDITABLE)
	build/floors/bin/python -m pytest --numprocesses=2 --dist=worksteal @tests/smoke.txt $(ARGS)

bench: $(VENV)/.for-examples
	$(BIN)/python benchmarks/report.py $(ARGS)

# What the benchmarks compare with; gigabytes, so only on request. tinygrad calls clang, PyTensor g++.
peers: $(VENV)/.for-peers

# The tests and samples that other libraries bring, and operations here beside them; minutes.
judges: $(VENV)/.for-peers
	$(BIN)/python -m tests.judges.torch_samples $(ARGS)
	$(BIN)/python -m tests.judges.einsum_samples
	$(BIN)/python -m tests.judges.einops_samples
	$(BIN)/python -m tests.judges.modules
	$(BIN)/python -m tests.judges.optimizers
	$(BIN)/python -m tests.judges.compositions

clean:
	rm -rf $(VENV) $(VENV)-* build dist docs/_build .coverage htmlcov
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find ocannl_core plugins tests tools examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or newer is needed; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	touch $@

# The packages of CI. Both commands find everything in the lock file, or fail.
$(VENV)/.locked: $(VENV)/.made $(PROJECTS) $(LOCK)
	$(PIP) --require-hashes -r $(LOCK)
	$(PIP) --no-deps --no-build-isolation $(EDITABLE)
	touch $@ $(foreach group,dev test lint docs notebooks release examples,$(VENV)/.for-$(group))

# PyCUDA has no wheels; the one built here needs no toolkit, and is kept in the user's cache directory.
$(VENV)/.for-cuda: $(VENV)/.for-test
	$(BIN)/python tools/build_pycuda.py --install
	$(PIP) "nvidia-cuda-nvrtc>=13,<14" "nvidia-cuda-nvdisasm>=13,<14"
	touch $@

$(VENV)/.for-gallery: $(VENV)/.for-test
	$(PIP) --group gallery
	touch $@

$(VENV)/.for-%: $(VENV)/.made $(PROJECTS)
	$(PIP) $(EDITABLE) --group $*
	touch $@
