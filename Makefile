# `make` lists the targets. Everything runs through uv, which `make` fetches into .uv/ when the machine has none.
.DEFAULT_GOAL := help
SHELL := /bin/bash
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RUN := $(UV) run --frozen

.PHONY: help demo test test-integration check lint fmt types bench docs proto gpu-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.uv/bin/uv:
	python3 -m pip install --quiet --disable-pip-version-check --target .uv uv

demo: $(UV) ## the whole system on this machine: real log, agents, scheduler and a simulated Kubernetes; under a minute
	$(RUN) --no-dev --extra demo hami demo

test: $(UV) ## every test
	$(RUN) pytest -n 2

test-integration: $(UV) ## the integration tests only; HAMI_TEST_KUBECONFIG=... runs them against a real cluster
	$(RUN) pytest -n 2 tests/integration

check: $(UV) lint types test docs-check ## what CI runs

lint: $(UV) ## style, import directions, file sizes
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) lint-imports --no-cache

fmt: $(UV) ## format
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

types: $(UV) ## mypy --strict
	$(RUN) mypy

bench: $(UV) ## benchmarks, one JSON line each
	$(RUN) python -m benchmarks

docs: $(UV) ## regenerate the reference pages
	$(RUN) python -m hami.cli.reference docs/reference

docs-check: $(UV)
	$(RUN) python -m hami.cli.reference --check docs/reference

proto: $(UV) ## regenerate hami/nodeagent/pb from proto/
	$(RUN) python -m grpc_tools.protoc -I proto --python_out=hami/nodeagent/pb --pyi_out=hami/nodeagent/pb $(notdir $(wildcard proto/*.proto))

gpu-check: $(UV) ## what NVML says on this machine, as JSON; exits 0 without a driver
	$(RUN) python tools/gpu_check.py

clean: ## remove caches and the environment
	rm -rf .venv .uv .mypy_cache .ruff_cache .pytest_cache .hypothesis
