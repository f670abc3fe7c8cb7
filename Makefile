# spark-jetstream. `make` alone lists what there is to do.

# Interpreters to try, in this order; `make PYTHON=/path/to/python3 setup` takes that one.
PYTHONS := python3 python3.13 python3.12 python3.11 python3.10 python3.14 python
# A name on the PATH is not enough: pyenv leaves names there that start nothing, hence the try.
PYTHON ?= $(shell for name in $(PYTHONS); do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$name; break; }; done)

VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
# The dependency group of that name is installed too.
DOCS := $(VENV)/.docs
RECIPES := $(VENV)/.recipes
RELEASE := $(VENV)/.release
LOCK_VENV := .lock
SPARKS := .spark
MATRIX_ENVS := .matrix
COMPAT_VERSIONS := 4.0.5 4.1.4 4.2.1
# The one that `make test` also runs on.
QUICK_COMPAT_VERSION := $(firstword $(COMPAT_VERSIONS))
# An engine with Spark's API, and its client.
SAIL := sail-0.7.2
SAIL_CLIENT := pyspark-client==4.2.*

# Two -q: pip says nothing but errors.
PIP_INSTALL := $(PY) -m pip install -qq --disable-pip-version-check
PIP_LOCKED := $(PIP_INSTALL) --require-hashes --constraint constraints.txt
# The extras that demo, tests and lint need. pip finds this project installed, and adds what the extras name.
EXTRAS := 'spark-jetstream[avro,cli,connect,demo,java,nkeys,prometheus,protobuf,spark,testing,websocket,yaml]'
# Notebooks draw plots, and so do benchmarks.
EXTRAS_docs := 'spark-jetstream[notebook]'
# Spark's workers take `python3` from the PATH unless told otherwise, and would find no pyarrow there.
RUN := export PYSPARK_PYTHON="$(CURDIR)/$(PY)" PYSPARK_DRIVER_PYTHON="$(CURDIR)/$(PY)" SPARK_LOCAL_IP=127.0.0.1 && \
	JAVA_HOME="$$($(PY) -m spark_jetstream.java)" && export JAVA_HOME &&

PYTEST := -m pytest -q --dist worksteal --durations=10
# They import libraries of the group docs, which `make test` does not need.
TESTS_OF_SITE := tests/docs/test_built_site.py
MYPY_PATHS = spark_jetstream pyspark_jetstream.py tests $(wildcard benchmarks tools/*.py)

# Each test process would otherwise compile the package and the tests anew, and so would every Spark worker.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two pips would change the same environment.
.NOTPARALLEL:
.PHONY: help setup demo test test-all histories points chaos soak fuzz generate lint docs audit release-check bench bench-quick bench-cluster bench-idle compat-sparks matrix suites lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Make .venv and install this project and its tools into it

demo: $(INSTALLED) ## Stream 336,776 flights through an embedded server and Spark, and check the result
	@$(RUN) $(PY) -m spark_jetstream demo

# Most of these tests wait for a server: it takes five processes to keep two cores busy.
test: $(INSTALLED) $(SPARKS)/$(QUICK_COMPAT_VERSION)/.installed ## Run the tests of every part and option in a few minutes
	@$(RUN) $(PY) $(PYTEST) --numprocesses 5 -m "not full" --ignore $(TESTS_OF_SITE)

# Sparks and clusters that tests break need a core each.
test-all: $(DOCS) $(RECIPES) $(RELEASE) compat-sparks ## Run all tests: every kind of crash, the older Sparks, notebooks, the demo
	@$(RUN) $(PY) $(PYTEST) --numprocesses 2

# HISTORIES_SEED=101 HISTORIES=3000 makes as many, from that seed on.
histories: $(INSTALLED) ## Compare source and sink with models, over histories of small events that seeds make
	@$(PY) $(PYTEST) --numprocesses 3 tests/source/test_histories.py tests/sink/test_histories.py

# POINTS=pairs also ends the run that goes on, at each of its requests: more than an hour.
points: $(INSTALLED) ## End writes and queries at each of their requests in turn, and count what is stored and read
	@POINTS=$(or $(POINTS),each) $(PY) -m pytest -q -o log_cli=true -o log_cli_level=WARNING tests/points

# CHAOS_FAULTS=500 CHAOS_SEED=7 runs as many faults, from that seed on; CHAOS_LONGEST=70 freezes servers for up to 70 s.
chaos: $(INSTALLED) ## Break servers, wires and Spark in turn under load, and check that no message is lost or comes twice
	@$(RUN) $(PY) -m pytest -q -o log_cli=true -o log_cli_level=WARNING tests/chaos/test_faults.py

# SOAK_SECONDS=7200 SOAK_SEED=7 runs as long, with another order of restarts.
soak: $(INSTALLED) ## Run under load for an hour with a restart each minute, and check that nothing grows and nothing is lost
	@$(RUN) $(PY) -m tests.chaos.soak build/soak.txt

# FUZZ_SECONDS=3600 FUZZ_TARGET=wire FUZZ_SEED=7 is an hour for one target, from that seed on.
fuzz: $(INSTALLED) ## Give everything that reads bytes of others inputs that nobody meant, ten minutes; prints the seed
	@$(PY) -m tests.fuzz --seconds $(or $(FUZZ_SECONDS),600) $(FUZZ_TARGET:%=--target %) $(FUZZ_SEED:%=--seed %) \
		$(FUZZ_ENGINE:%=--engine %)

generate: $(INSTALLED) ## Write the pages that are made of the code: options, commands, logins, the tree of modules, and the notebooks' .ipynb
	@$(PY) -m tools.references
	@$(PY) -m tools.logins
	@$(PY) -m tools.architecture
	@$(PY) tools/site/build.py

lint: $(INSTALLED) ## Check style, types and prose
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy $(MYPY_PATHS)
	@$(PY) -m tools.prose

# The variable turns off a notice about the successor of MkDocs. Each notebook runs in a kernel of this environment.
# With --quiet, --strict would see no warning.
# mkdocs empties its folder first: an old site stays until the new one is complete.
docs: $(DOCS) ## Build the documentation site into site/, with the outputs of the notebooks
	@$(RUN) NO_MKDOCS_2_WARNING=1 JUPYTER_PREFER_ENV_PATH=1 $(PY) -m mkdocs build --strict --site-dir build/site
	@rm -rf site && mv build/site site
	@echo "site/index.html is written"

audit: $(RELEASE) ## Look every locked dependency up in PyPI's list of vulnerabilities; needs the internet
	@$(PY) -m tools.audit

release-check: $(RELEASE) $(LOCK_VENV)/bin/uv ## Build dist/ and an SBOM, install what is in it into empty environments, and run a query there
	@$(PY) -m tools.release_check --install $(LOCK_VENV)/bin/uv

bench: $(DOCS) ## Measure throughput, latency and memory, half an hour; writes build/bench.json and draws docs/images
	@$(RUN) $(PY) -m benchmarks --json build/bench.json
	@$(PY) -m benchmarks.plots build/bench.json docs/images

bench-quick: $(INSTALLED) ## The same in three to five minutes, for a look between two changes; writes build/bench-quick.json
	@$(RUN) $(PY) -m benchmarks --quick --json build/bench-quick.json

bench-cluster: $(INSTALLED) ## Compare three executors and a cluster of three servers with the model of docs/tuning.md; five minutes
	@$(RUN) $(PY) -m benchmarks.cluster

bench-idle: $(INSTALLED) ## Measure what a waiting query and a micro-batch cost, by streams and by trigger; nine minutes
	@$(RUN) $(PY) -m benchmarks.idle

compat-sparks: $(COMPAT_VERSIONS:%=$(SPARKS)/%/.installed) $(SPARKS)/$(SAIL)/.installed ## Fetch the older Sparks, and Sail, that the tests also run on

# MATRIX=spark, python, server, libraries, client, sail or managed runs one axis.
matrix: $(INSTALLED) $(LOCK_VENV)/bin/uv ## Run a smoke test on each version of Spark, Python, nats-server and the libraries
	@$(PY) -m tools.matrix $(LOCK_VENV)/bin/uv $(MATRIX_ENVS) $(MATRIX)

# SUITES=spark, python, server, libraries or update runs one axis.
suites: $(INSTALLED) $(LOCK_VENV)/bin/uv ## Run the suites of Spark's Kafka source and of faults on other versions, six minutes for each
	@$(PY) -m tools.suites $(LOCK_VENV)/bin/uv $(MATRIX_ENVS) $(SUITES)

lock: $(INSTALLED) $(LOCK_VENV)/bin/uv ## Write constraints.txt anew, with the newest releases for every supported Python
	@$(LOCK_VENV)/bin/uv pip compile pyproject.toml --universal --python-version 3.10 --all-extras \
		$(foreach group,bootstrap dev recipes docs release,--group $(group)) \
		--upgrade --generate-hashes --quiet --no-emit-index-url --custom-compile-command "make lock" \
		--output-file constraints.txt
	@echo "constraints.txt is written; run 'make test-all' before you commit it"

clean: ## Remove .venv, the environments of the other targets, the older Sparks and every cache
	rm -rf $(VENV) $(LOCK_VENV) $(SPARKS) $(MATRIX_ENVS) build dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf spark-warehouse metastore_db derby.log artifacts
	find spark_jetstream tests -type d -name __pycache__ -prune -exec rm -rf {} +

# An environment that is there already is kept and installed into.
$(INSTALLED): pyproject.toml constraints.txt
	@test -x $(PY) || { \
		test -n "$(PYTHON)" || { \
			echo "spark-jetstream needs Python 3.10 or newer; none of these is: $(PYTHONS)." >&2; \
			echo "Install one, or name one: make PYTHON=/path/to/python3 setup" >&2; exit 1; }; \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
			echo "spark-jetstream needs Python 3.10 or newer; $(PYTHON) is older or does not start." >&2; exit 1; }; \
		$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
			echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; \
			exit 1; }; \
		echo "Making $(VENV) with $$($(PYTHON) --version)"; \
		$(PYTHON) -m venv $(VENV); }
	@echo "Installing what tests and lint need into $(VENV) (two minutes the first time)"
# An older pip knows no groups, so the locked one is installed first, from its own entry.
	@sed -n '/^pip==/,/^    #/p' constraints.txt > $(VENV)/pip.txt
	@$(PIP_INSTALL) --require-hashes --requirement $(VENV)/pip.txt
	@$(PIP_LOCKED) --group bootstrap
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
# In an environment of its own it would be built with a setuptools that no hash names.
	@$(PIP_LOCKED) --no-build-isolation nkeys
	@$(PIP_LOCKED) --group dev $(EXTRAS)
	@touch $@

$(DOCS) $(RECIPES) $(RELEASE): $(VENV)/.%: $(INSTALLED)
	@echo "Installing the group $* of pyproject.toml into $(VENV)"
	@$(PIP_LOCKED) --group $* $(EXTRAS_$*)
	@touch $@

$(LOCK_VENV)/bin/uv: | $(INSTALLED)
	@$(PY) -m venv $(LOCK_VENV)
	@$(LOCK_VENV)/bin/python -m pip install -qq --disable-pip-version-check uv

# Only the files of that Spark; everything else comes from the environment. Moved into place when complete.
$(SPARKS)/%/.installed: | $(INSTALLED)
	@echo "Fetching Spark $* (half a minute)"
	@rm -rf $(SPARKS)/$* $(SPARKS)/$*.part
	@$(PIP_INSTALL) --no-deps --no-compile --target $(SPARKS)/$*.part pyspark==$*
	@touch $(SPARKS)/$*.part/.installed
	@mv $(SPARKS)/$*.part $(SPARKS)/$*

$(SPARKS)/sail-%/.installed: | $(INSTALLED)
	@rm -rf $(@D) $(@D).part
	@$(PIP_INSTALL) --no-deps --no-compile --target $(@D).part pysail==$* '$(SAIL_CLIENT)'
	@touch $(@D).part/.installed
	@mv $(@D).part $(@D)
