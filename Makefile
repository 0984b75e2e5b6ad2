# Everything a newcomer runs. Arguments:
#   PYTHON=python3.12   interpreter of the virtual environment
#   VENV=.venv          where it lives
#   PIP_ARGS=...        passed to every pip install, for example an index of your own
#   PROMPT='...'        what `make quickstart` completes
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
export PROMPT ?= Once upon a time, a little robot
CONSTRAINTS := constraints/cpu.txt
BIN := $(VENV)/bin
CXX_SOURCES = $$(git ls-files 'dualpace/templates/*.hpp' 'dualpace/templates/*.cpp' 'dualpace/templates/*.cu' 'dualpace/templates/*.cuh' 'tests/*.cpp' 'benchmarks/*.hpp' 'benchmarks/*.cpp')

.PHONY: quickstart test test-gpu sanitize-gpu clients check fuzz format bench locks clean

quickstart: $(VENV)/.quickstart
	@$(BIN)/python scripts/quickstart_model.py
	@$(BIN)/dualpace build specs/quickstart.yaml --no-image
	@$(BIN)/dualpace generate quickstart.bundle --prompt "$$PROMPT" --max-tokens 64 --temperature 0.7 --seed 1

test: check
	$(BIN)/python -m pytest

# Device tests: on a machine with an NVIDIA GPU, with torch for CUDA already in $(PYTHON).
test-gpu:
	@$(PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || \
	  { echo "$(PYTHON) finds no torch that sees an NVIDIA GPU; run this where one is, or name another interpreter with PYTHON=..."; exit 1; }
	$(PYTHON) -m pytest -m gpu tests/gpu

# compute-sanitizer over the kernels and an engine, on the same kind of machine.
sanitize-gpu:
	$(PYTHON) -m scripts.sanitize_gpu

# The clients that tests of the whole line use beside OpenAI's for Python, and operators' schemas, apart from all else:
# they need two minutes and a gigabyte, and Node's npm for some of them.
CLIENTS := .venv-clients
clients: $(CLIENTS)/.installed

$(CLIENTS)/.installed: pyproject.toml constraints/clients.txt tests/e2e/clients/package.json
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --disable-pip-version-check --no-compile $(PIP_ARGS) -c constraints/clients.txt '.[clients]'
	cd tests/e2e/clients && if command -v npm >/dev/null; then npm install --no-package-lock --no-fund --no-audit; fi
	@touch $@

check: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)

# Each fuzzer for SECONDS; what they find that is new goes to the folder FOUND.
SECONDS ?= 300
FOUND ?= /tmp/dualpace-fuzz
fuzz: $(VENV)/.test
	mkdir -p $(FOUND)/http $(FOUND)/json
	$(BIN)/python -m tests.fuzz.http_bytes -max_total_time=$(SECONDS) -max_len=4096 -artifact_prefix=$(FOUND)/ $(FOUND)/http
	$(BIN)/python -m tests.fuzz.json_bodies -max_total_time=$(SECONDS) -max_len=4096 -artifact_prefix=$(FOUND)/ $(FOUND)/json

format: $(VENV)/.test
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CXX_SOURCES)

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks.cpu_decode

# The wheels of the container image, by name and hash: needs `uv`, and the CPU's torch in an index that UV_INDEX names or a
# folder that UV_FIND_LINKS does.
LOCK = echo pip | uv pip compile pyproject.toml - -c $(CONSTRAINTS) --extra bench --generate-hashes --python-version 3.11 \
  --python-platform x86_64-manylinux_2_28 --no-annotate --no-header --no-emit-find-links --no-emit-index-url -q
locks:
	$(LOCK) --extra run -o dualpace/build/locks/cpu.txt
	$(subst echo,unset UV_INDEX UV_FIND_LINKS; echo,$(LOCK)) --extra run-cuda -o dualpace/build/locks/cuda.txt

clean:
	rm -rf $(VENV) $(CLIENTS) tests/e2e/clients/node_modules

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "dualpace needs Python 3.11 to 3.13; say which with: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.%: $(VENV)/bin/python pyproject.toml $(CONSTRAINTS)
	@echo "Installing dualpace[$*] into $(VENV); the first time takes a minute or two"
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS) -c $(CONSTRAINTS) -e '.[$*]'
	@touch $@
