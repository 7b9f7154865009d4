# Every target sets up .venv itself and is quick when that is done. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python itself compiles the few files that are imported, and must be allowed to keep that for the next process.
PIP := $(BIN)/pip install --quiet --no-compile
unexport PYTHONDONTWRITEBYTECODE
# LOCKED=1 sets up with exactly the files that .ci/test.lock names; torch, a different file on every kind of machine, is not in it.
INSTALL = $(if $(LOCKED),$(PIP) --no-deps torch==2.13.0 && $(PIP) --no-deps --require-hashes -r .ci/test.lock,$(PIP) torch==2.13.0 -r $(VENV)/requirements.txt)
NATIVE_SOURCES := $(wildcard csrc/*.h $(patsubst %,csrc/%/*.*,kernels engine engine/layers simd bind abi))
CPP := $(NATIVE_SOURCES) $(wildcard csrc/cuda/*)
NATIVE := setup.py $(NATIVE_SOURCES)

# Where a compiler is, a failing build must stop us: otherwise the C++ backend would silently go untested.
export FASTFED_REQUIRE_EXTENSION ?= $(if $(shell command -v $(CXX) 2>/dev/null),1,)

.PHONY: help run test asan fuzz device-proof host-proof ranks-proof rule-proof integrations-proof docs gallery lock licences wheel bench bench-peers gpu lint style types clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.built ## compare four methods on the embedded digits: a table, and a report to open in a browser
	$(BIN)/fastfed demo --out out/demo

# Two workers with two threads each are more than two cores: threads that wait give way instead of spinning.
test: export OMP_WAIT_POLICY = passive
test: style ## style, then every test: CPU backends, Triton's interpreter, CUDA kernels on the host
	$(BIN)/pytest -m "not exhaustive" -n 2 --dist loadgroup
	TRITON_INTERPRET=1 FASTFED_TILES=wide $(BIN)/pytest -m backend -n 2 tests/kernels
	TRITON_INTERPRET=1 $(BIN)/pytest -m "(backend or device) and not exhaustive" -n 2 tests/kernels/test_triton_races.py tests/train tests/aggregate
	FASTFED_CUDA_HOST=1 $(BIN)/pytest -m backend -n 2 tests/kernels

# Slow: the interpreter pays per program, and the tiles that ship are small.
device-proof: export OMP_WAIT_POLICY = passive
device-proof: $(VENV)/.built ## every test of the Triton kernels at the tile sizes that ship, and under the race detector
	TRITON_INTERPRET=1 FASTFED_RACES=1 $(BIN)/pytest -m backend -n 2 tests/kernels
	TRITON_INTERPRET=1 $(BIN)/pytest -m device -n 2 tests/train tests/golden tests/aggregate
	$(BIN)/pytest -m "exhaustive and not device" -n 2 tests/aggregate tests/kernels tests/optim tests/simulation tests/train

host-proof: export OMP_WAIT_POLICY = passive
host-proof: $(VENV)/.built ## what takes long and needs no device: sweeps side by side, benchmarks, an installation without a compiler
	$(BIN)/pytest -m "exhaustive and not device" -n 2 --dist loadgroup tests/app tests/bench tests/plan tests/test_build.py tests/test_waiting.py

# Two to five processes at a time. Two hosts are network namespaces, where root may make some; elsewhere that test says why not.
ranks-proof: export OMP_WAIT_POLICY = passive
ranks-proof: $(VENV)/.built ## every set-up on 1, 2, 3 and 5 ranks, a dozen killed on two and resumed on three, two hosts
	$(BIN)/pytest -m exhaustive tests/ranks
	TRITON_INTERPRET=1 $(BIN)/pytest -m "device and exhaustive" tests/ranks

# The extension is built once more, in a copy of the sources: AddressSanitizer and UBSan end a test at the first finding.
asan: export OMP_WAIT_POLICY = passive
asan: $(VENV)/.built ## the extension under AddressSanitizer and UBSan: the suites of kernels and of training
	.ci/asan

fuzz: $(VENV)/.built ## ten minutes of damaged files, and ten of random models and rounds against float64 autograd
	$(BIN)/python -m tests.fuzz.files --seconds $(or $(SECONDS),600)
	$(BIN)/python -m tests.fuzz.programs --seconds $(or $(SECONDS),600)

rule-proof: $(VENV)/.built ## add the rules of docs/adding_a_rule.md to a scratch copy, run them on every backend; the slowest page
	$(BIN)/pytest -m exhaustive tests/test_docs.py

# Each host in an environment of its own, which shares the built extension of the checkout; nothing of it is installed here.
integrations-proof: export OMP_WAIT_POLICY = passive
integrations-proof: export FLWR_TELEMETRY_ENABLED = 0
integrations-proof: .venv-flower/.made .venv-pfl/.made ## FastFed inside Flower and inside pfl: their tests, and their pages' examples
	.venv-flower/bin/python -m pytest tests/integrations -k "not pfl"
	.venv-pfl/bin/python -m pytest tests/integrations -k "not flower"

docs: $(VENV)/.built ## the documentation as a site with search and a reference: out/docs/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo out/docs/index.html

lock: $(VENV)/.built ## write .ci/test.lock anew: the test environment to the file, with hashes (make test LOCKED=1 sets up from it)
	.ci/lock

licences: $(VENV)/.built ## every package of the environment, its licence, and which extra wants it
	@$(BIN)/python .ci/licences.py

wheel: $(VENV)/.built ## dist/: one wheel for every torch, built in isolation, tried in an environment of its own (TORCH=... for another torch)
	.ci/wheel

gallery: $(VENV)/.built ## docs/gallery.md: every kind of figure, of short runs
	$(BIN)/python -m fastfed.app.gallery docs

bench: $(VENV)/.built ## time every kernel and whole rounds beside their peers
	$(BIN)/fastfed doctor
	$(BIN)/fastfed bench kernels --json out/kernels.json --plot out/kernels.png
	$(BIN)/fastfed bench rounds --json out/rounds.json --plot out/rounds.png

# Each framework in an environment of its own. One that does not install keeps nobody from being measured: the table says why.
bench-peers: $(VENV)/.built .venv-flower/.made .venv-pfl/.made .venv-fedjax/.made .venv-blazefl/.made ## time whole rounds beside fedjax, pfl, Flower and others
	$(BIN)/fastfed bench peers --json out/peers.json --plot out/peers.png

# On a machine with a CUDA device; elsewhere the first command says what is missing. What fails after that does not keep
# the rest from being measured: the report names it, and is then the failure.
gpu: export FASTFED_DEVICE = cuda
gpu: $(VENV)/.built ## self-test, tests and benchmarks on this machine's card: out/gpu/report.md, beside the predictions
	$(BIN)/fastfed doctor --self-test
	@mkdir -p out/gpu && rm -f out/gpu/*.json out/gpu/*.xml
	$(BIN)/fastfed doctor --json > out/gpu/doctor.json
	-$(BIN)/pytest -m device --junitxml=out/gpu/tests.xml tests/train
	-$(BIN)/fastfed bench kernels --device cuda --json out/gpu/kernels.json
	-$(BIN)/fastfed bench rounds --device cuda --json out/gpu/rounds.json
	-$(BIN)/python -m fastfed.bench.device_costs --keep out/gpu/counts --json out/gpu/predictions.json
	$(BIN)/python -m fastfed.bench.gpu_report --folder out/gpu

lint: style types ## style (ruff) and types (mypy; the first time it reads all of torch, which takes a minute)

style: $(VENV)/.built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)

types: $(VENV)/.built
	$(BIN)/mypy -p fastfed

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) .venv-flower .venv-pfl .venv-fedjax .venv-blazefl build dist out *.egg-info fastfed/*.so .mypy_cache .pytest_cache .ruff_cache .benchmarks .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv-%/.made: $(VENV)/.built pyproject.toml
	$(PYTHON) -m venv .venv-$*
	@$(BIN)/python .ci/requirements.py host-test $* > .venv-$*/requirements.txt
	.venv-$*/bin/pip install --quiet --no-compile torch==2.13.0 -r .venv-$*/requirements.txt
	@touch $@

# Frameworks that share nothing with FastFed; `failed` has pip's reason.
.venv-fedjax/.made .venv-blazefl/.made: .venv-%/.made: bench/peers/in_%.txt
	$(PYTHON) -m venv .venv-$*
	@.venv-$*/bin/pip install --quiet --no-compile -r $< 2> .venv-$*/said && rm -f .venv-$*/failed || \
	  { grep -a ERROR .venv-$*/said | head -1 | cut -c1-140 > .venv-$*/failed; cat .venv-$*/failed; }
	@touch $@

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(PIP) 'pybind11>=2.13' 'setuptools>=77' wheel
	@touch $@

# Other packages, torch the largest of them, are unpacked while ours is compiled, which needs none of them. One torch of those
# that FastFed takes, in its build for CPUs; without the extra `gpu`: it is large, and tests need no GPU.
$(VENV)/.built: $(VENV)/.made pyproject.toml $(NATIVE)
	@$(BIN)/python .ci/requirements.py all test docs dev > $(VENV)/requirements.txt
	$(INSTALL) & others=$$!; trap 'kill $$others' INT TERM; \
	  $(PIP) --no-build-isolation --no-deps -e .; ours=$$?; wait $$others && exit $$ours
	@touch $@
