# `make demo` and `make test` are all a newcomer needs; both create their own environment.
PYTHON ?= python3
VENV := .venv
DEMO_VENV := .venv-demo

.PHONY: demo test check format slow clean

test: $(VENV)/.ready
	$(VENV)/bin/python -m pytest

check: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

slow: $(VENV)/.ready
	$(VENV)/bin/python -m pytest -m slow

format: $(VENV)/.ready
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# Dependency groups need pip 25.1.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)/bin/python -m pip install --quiet --editable '.[export]' --group dev
	touch $@

clean:
	rm -rf $(VENV) $(DEMO_VENV) demo-result
