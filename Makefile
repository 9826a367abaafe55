# make demo     from a fresh clone to a trained model
# make test     from a fresh clone to a tested program
# make check    run the linter, the type checker and the tests
# make docker   build and test the images of docker/; needs a Docker daemon
# make faults   inject faults into machines made of kernel namespaces; needs root
# make soak     inject random faults for SECONDS (60), drawn from SEED; a failure prints how to repeat it; needs root
# make engines  run the examples of other engines and compare our rules with torch's; downloads packages
# make demo   everything from a fresh clone to a trained model
# make test   everything from a fresh clone to tested
# make check  lint, types, tests
# make docker images and tests of docker/; needs a Docker daemon
# make faults  machines out of namespaces, and what goes wrong between them; needs root
# make upgrade  jobs of an earlier version are watched, stopped and resumed by this one; needs the git history
# make soak    random faults for SECONDS (60), drawn from SEED; a failure says how to repeat it; needs root
# make engines  the examples of other engines, our rules beside torch's; takes their packages from an index
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

SECONDS := 60

# Tests start thousands of Python processes. Without bytecode on disk each of them would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check lint slow docker engines faults upgrade soak clean

$(VENV)/demo.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fake]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fake,dev]'
	touch $@ $(VENV)/demo.stamp

$(VENV)/docker.stamp: $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docker]'
	touch $@

$(VENV)/engines.stamp: $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[engines]'
	touch $@

demo: $(VENV)/demo.stamp
	$(BIN)/clusterctl demo

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not docker and not engines and not faults and not upgrade"

slow: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m "slow and not docker and not engines"
	CLUSTERCTL_HOSTILE_INPUTS=60000 $(BIN)/python -m pytest -q tests/runtime/test_hostile.py

docker: $(VENV)/docker.stamp
	.ci/docker

engines: $(VENV)/engines.stamp
	$(BIN)/python -m pytest -m engines --timeout 600 tests/examples tests/runtime

faults: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m faults tests/faults

upgrade: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n 2 -m upgrade tests/upgrade

soak: $(VENV)/dev.stamp
	cd tests && ../$(BIN)/python -m faults.soak $(SECONDS) "$(SEED)" $(ROUND)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
