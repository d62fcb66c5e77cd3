# Each verb makes the environment it needs; nothing has to be done before.
.PHONY: setup demo test lint golden bench clean

PYTHON ?= python3
BIN := .venv/bin

setup: .venv/.ready ## Make the pinned environment in .venv

.venv/.ready: requirements.txt components/pyproject.toml serve_app/pyproject.toml
	@echo "Making .venv from requirements.txt (a few minutes with an empty package cache) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet "$$(grep '^uv==' requirements.txt)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements.txt
	@touch .venv/.ready

demo: .venv/.ready ## Plan the dev stack, then serve a real model from a local object store
	@$(BIN)/python -m demo

test: .venv/.ready ## Run the tests
	@$(BIN)/python -m pytest -q

lint: .venv/.ready ## Format check, lint, import contracts, types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/lint-imports
	@$(BIN)/pyright

golden: .venv/.ready ## Write the golden files anew; read the diff before committing it
	@$(BIN)/python -m pytest -q --snapshot-update tests/components tests/infra tests/serve_app/test_metrics_page.py

bench: .venv/.ready ## Measure beside the peers; writes docs/benchmarks.md (needs nginx, about an hour)
	@$(BIN)/python -m benchmarks

clean: ## Remove what the other verbs made
	@rm -rf .venv rendered
