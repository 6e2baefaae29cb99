# Everything runs in .venv, which is made on first use and again when what it holds changes.
# Needs: Python 3.11 or later with its venv module (Debian: python3 and python3-venv), and make.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PROTO := proto/diloco/wire/v1/sync.proto

# Real clusters for tests: what is missing for them is built, once, into the user's cache folder.
KIND := $(BIN)/python -m testbed.kind

# Where tests write down what they skipped, what took far longer than it did, and what passed only when it was run again;
# testbed/kind/steps.py shows them. RECORD=1 writes anew how long tests take, into tests/durations.json.
LISTS := --skipped-to build/skipped.txt --slow-to build/slow.txt --rerun-to build/rerun.txt $(if $(RECORD),--record-durations) \
  --durations 40 --durations-min 2

# Tests with processes and clusters depend on how a busy machine times them. One that fails runs once more; that it then
# passed is listed last, as a defect to find; a second time it fails (tests/reruns.json). A test that calculates fails
# at once.
RERUNS := --reruns 1

# The example, run through failures: a process killed with SIGKILL, a region's link taken away.
DEMO := examples/two-regions/job.yaml
DEMO_FAILURES := --slow us-west/old=0.5 --chaos kill:us-west/old/0@step=40 --chaos cut:us-east@step=150,seconds=15

# Set in some shells and images; each process that a test starts would then compile torch anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo report-png check test test-e2e test-all test-units test-quick test-processes check-all test-ci test-core check-quick programs test-clusters test-one-cluster test-alone test-shared test-faults test-owners soak kind-up kind-demo kind-down lint format proto docs reference reasons metrics crd chart-values pod-fields quality scale published mutants benchmarks package clean

help: ## List targets
	@echo "make TARGET, with TARGET one of"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Install into .venv, as every other target does on first use

demo: $(STAMP) ## Train a small model with four learners in two regions, through failures; minutes, into demo-output/
	rm -rf demo-output
	$(BIN)/diloco run $(DEMO) --output demo-output --record $(DEMO_FAILURES)

report-png: $(STAMP) ## Take docs/report.png from the demo's report; needs Chromium (Debian: chromium)
	$(BIN)/python scripts/report_png.py demo-output/report.html docs/report.png

check: lint ## Lint, then unit and property tests without the slow ones: what to run between two edits
	$(UNITS) $(QUICK)

test: $(STAMP) ## What a change needs: lint, unit and property tests, the core of those with processes and an API server
	@$(KIND) --clusters 0 run test-core+check-quick

# These calculate, so they take what tests with processes leave of the machine: a third. On a machine that builds the
# programs they run meanwhile: those that want helm wait for it.
check-quick: lint test-quick

check-all: lint test-units

# An API server and helm: what tests without a cluster want. They are built beside lint where they are missing.
programs: $(STAMP)
	@$(KIND) set-up programs

test-e2e: $(STAMP) ## Every test on real clusters: the chart, the documented commands, faults (KEEP_CLUSTERS=1 keeps the clusters)
	@$(KIND) --clusters 2 --small 1 run clusters test-clusters

test-all: $(STAMP) ## Lint and every test; lists last what was skipped
	@$(KIND) --clusters 2 --small 1 run programs test-processes+check-all clusters test-clusters

test-ci: $(STAMP) ## What CI runs: all but jobs over several clusters, and walks through long documents
	@DILOCO_WALKS=0 $(KIND) --clusters 2 --small 1 run programs test-processes+check-all clusters test-one-cluster

# A worker that is done takes tests of the other: the longest come last.
UNITS := $(BIN)/pytest -n 2 --dist worksteal tests/unit tests/property
# Without what calculates for long and shows little that others do not; fewer examples of each property.
QUICK := -m "not slow" --hypothesis-profile quick

test-units: $(STAMP)
	$(UNITS) $(LISTS)

test-quick: $(STAMP)
	$(UNITS) $(QUICK) $(LISTS)

# Four workers on two cores: these tests wait half their time.
PROCESSES := $(BIN)/pytest -n 4 $(RERUNS) --dist loadfile --no-loadscope-reorder tests/integration tests/hostile

test-processes: $(STAMP)
	$(PROCESSES) $(LISTS)

test-core: programs
	$(PROCESSES) -m core $(LISTS)

# Tests that take nodes or the operator away: one worker for each of the first two clusters. Beside them, in the third,
# those that do not. Then those of jobs over several clusters.
ON_CLUSTERS := $(BIN)/pytest $(RERUNS) $(LISTS)

test-clusters: $(STAMP)
	@$(MAKE) --no-print-directory test-one-cluster
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-faults test-owners

test-one-cluster: $(STAMP)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-alone test-shared

test-alone test-shared: $(STAMP)
	$(ON_CLUSTERS) -n 2 --dist loadfile --no-loadscope-reorder tests/cluster/$(@:test-%=%)

test-faults test-owners: $(STAMP)
	$(ON_CLUSTERS) -n 0 tests/cluster/across/$(@:test-%=%)

soak: $(STAMP) ## Twenty minutes of random chaos on a run, then ten minutes of attacks on a syncer
	$(BIN)/python -m tests.soak.chaos
	$(BIN)/python -m tests.hostile.soak

kind-up: $(STAMP) ## A real cluster with the project's images, for tests and trials; it stays until kind-down
	$(KIND) up

kind-demo: $(STAMP) ## The example job on a real cluster, with the operator and a pod lost on the way; it stays until kind-down
	$(BIN)/python -m testbed.kind.demo

kind-down: $(STAMP) ## Take down every cluster that was brought up here
	$(KIND) down

lint: $(STAMP) docs ## Style, types, who imports whom, dead links of the docs, and whether generated files are up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/generate_reference.py --check
	$(BIN)/python scripts/generate_reasons.py --check
	$(BIN)/python scripts/generate_metrics.py --check
	$(BIN)/python scripts/generate_crd.py --check
	$(BIN)/python scripts/generate_chart_values.py --check
	$(BIN)/python scripts/generate_pod_fields.py --check
	$(BIN)/python scripts/generate_proto.py --check
	$(BIN)/python scripts/generate_quality.py --check
	$(BIN)/python scripts/generate_published.py --check

format: $(STAMP) ## Format and sort imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP) ## The site of the documentation, into build/site; dead links fail (REPOSITORY_URL=ADDRESS: with a link to it)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

proto: $(STAMP) ## Generate the wire's stubs from proto/
	$(BIN)/python scripts/generate_proto.py

reasons: $(STAMP) ## Generate the lists of docs/how-to/operations.md from the operator's reasons
	$(BIN)/python scripts/generate_reasons.py

metrics: $(STAMP) ## Generate the lists of docs/reference/measurements.md from the metrics that the processes serve
	$(BIN)/python scripts/generate_metrics.py

reference: $(STAMP) ## Generate docs/reference/manifest.md and world.md from the models
	$(BIN)/python scripts/generate_reference.py

crd: $(STAMP) ## Generate the CustomResourceDefinition from the models, into crds/ and the chart
	$(BIN)/python scripts/generate_crd.py

chart-values: $(STAMP) ## Generate the table of values in the chart's README from values.yaml
	$(BIN)/python scripts/generate_chart_values.py

pod-fields: $(STAMP) ## Generate the fields of Kubernetes' types that a job passes on, from the installed client
	$(BIN)/python scripts/generate_pod_fields.py

quality: $(STAMP) ## Generate the tables of docs/explanation/quality.md and the recommendations from what was measured
	$(BIN)/python scripts/generate_quality.py

scale: $(STAMP) ## Generate the tables of docs/how-to/scale.md from what plan counts of models of 1B to 70B parameters
	$(BIN)/python scripts/generate_scale.py

published: $(STAMP) ## Generate the tables and plots of docs/explanation/published.md from what was simulated
	$(BIN)/python scripts/generate_published.py

mutants: $(STAMP) ## Change one line at a time and see that a test fails; hours (MUTANTS='--sample 100': so many)
	PYTHONPATH=trainer:operator $(BIN)/python scripts/mutate.py $(MUTANTS)

benchmarks: $(STAMP) ## Every benchmark, one JSON file each in build/benchmarks/, and what got worse; hours
	@mkdir -p build/benchmarks
	for name in wire link merge poison engine stall step overhead units capacity links links_real planned operator_scale recovery hetero quality cost published; do \
	  $(BIN)/python benchmarks/$$name.py --json build/benchmarks/$$name.json || exit 1; \
	done
	PYTHONPATH=benchmarks $(BIN)/python -m support.compare build/benchmarks benchmarks/results

package: $(STAMP) ## The wheel and the chart, into build/package (PACKAGE='--registry REGISTRY/TEAM': the chart names its images)
	PYTHONPATH=. $(BIN)/python scripts/package.py $(PACKAGE)

clean: ## Remove what was made, .venv and demo-output/ included
	rm -rf .venv build demo-output .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf *.egg-info trainer/*.egg-info

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "Python's venv module is needed (Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "installing into .venv: some minutes, most of them for torch"
	$(PYTHON) -m venv .venv
	@# Not compiled: most modules of these packages are never imported, and Python compiles the others at their first import.
	$(BIN)/python -m pip install --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
