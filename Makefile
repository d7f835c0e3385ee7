# `make demo` and `make test` are all a newcomer needs; both create their own environment.
PYTHON ?= python3
VENV := .venv
DEMO_VENV := .venv-demo
DEMO := demo-result
DEMO_FRAMES ?= 2000

.PHONY: demo animation test check docs format slow scale clean

demo: $(DEMO_VENV)/.ready
	mkdir -p $(DEMO)
	rm -f $(DEMO)/frames.jsonl
	$(DEMO_VENV)/bin/gain-export models/roadsigns/roadsigns.onnx --output $(DEMO)/roadsigns.gain.onnx \
	    --force --labels models/roadsigns/labels.txt --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5 \
	    --crop-pct 1 --crop-mode squash --interpolation bicubic --calibrate test://signs
	$(DEMO_VENV)/bin/gain-stream 'test://drive?frames=$(DEMO_FRAMES)' --model $(DEMO)/roadsigns.gain.onnx \
	    --update-every 16 --side-by-side --output $(DEMO)/drive.mp4 \
	    --jsonl $(DEMO)/frames.jsonl --timeline $(DEMO)/timeline.png \
	    --state-out $(DEMO)/state.safetensors --json $(DEMO)/summary.json
	@echo
	@echo 'The result is in $(CURDIR)/$(DEMO):'
	@echo '  drive.mp4         the frozen source beside the adapted prediction'
	@echo '  timeline.png      accuracy and calibration over the drive, strength and gain below'
	@echo '  frames.jsonl      one line per frame; summary.json: the table above'
	@echo '  roadsigns.gain.onnx, state.safetensors: the artifact, and what was learned'

# The animation of the README, from what `make demo` left.
animation: $(DEMO)/drive.mp4
	$(DEMO_VENV)/bin/python benchmarks/animation.py $(DEMO)/drive.mp4 $(DEMO)/frames.jsonl \
	    docs/images/frozen-and-adapted.gif

$(DEMO)/drive.mp4:
	$(MAKE) demo

# A process for each core, of one thread; the tests of a file share what they set up.
test: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile

check: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Warnings are errors; the site is in site/, to be opened from the disk or copied to any host.
docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict

slow: $(VENV)/.ready
	$(VENV)/bin/python -m pytest -m 'slow and not gpu and not trt'

# A Ray cluster of two workers on this machine: the evaluation killed and resumed, eight cameras
# while replicas are killed. It prints what was lost.
scale: $(VENV)/.ready
	$(VENV)/bin/python -m pip install --quiet --editable '.[eval,serve,ray]'
	$(VENV)/bin/python -m pytest -m scale -s tests/scale

format: $(VENV)/.ready
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# No torch and no GPU library: what a device installs, and matplotlib for the picture.
$(DEMO_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python -m pip install --quiet --editable '.[report]'
	touch $@

# Dependency groups need pip 25.1.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)/bin/python -m pip install --quiet --editable '.[export,report,serve]' --group dev --group docs
	touch $@

clean:
	rm -rf $(VENV) $(DEMO_VENV) $(DEMO) site
