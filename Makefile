# `make test` installs its programs and peers first, and then runs every check. All steps share one `target` folder.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
MAKEFLAGS += --no-print-directory

DENY_VERSION := 0.20.2
TARGET := $(CURDIR)/target
PEERS := $(TARGET)/peers
TOOLS := $(TARGET)/tools
DENY := $(TOOLS)/bin/cargo-deny

# The programs that tests start besides the peers, each with its package if the package has another name.
PROGRAMS := cc=build-essential curl strace valgrind nginx haproxy caddy chromium initdb=postgresql pgbouncer etcd=etcd-server

# A file has the second at which each step began: `make test` prints the minutes of each step at its end.
PHASES := $(TARGET)/reports/phases.tsv
BESIDE := $(TARGET)/reports/phases-beside.tsv
begin = mkdir -p "$(TARGET)/reports"; printf '%s\t%s\n' "$$(date +%s)" "$(1)" >> "$(PHASES)"
comma := ,
step = @printf '\n==== %s\n' "$(1)"; $(call begin,$(1))

# CI builds once, so it writes nothing for incremental builds.
export CARGO_INCREMENTAL ?= $(if $(CI),0,1)

LOG := $(TARGET)/reports/tests.log
CHECK_LOG := $(TARGET)/reports/check.log

# `make test` compiles each target once: clippy-driver is the compiler and the linter in one. Cargo builds anew with other values, so all steps of
# a run have these. A build by hand has no lints, and files of its own; both share the dependencies.
test built unit: export RUSTC_WORKSPACE_WRAPPER := clippy-driver
test built unit: export CLIPPY_ARGS := -Dwarnings__CLIPPY_HACKERY__
# All targets but the tests within the library and `support`, which take one core for minutes: they are compiled beside the first lanes.
BINARIES := --bins --bench gateway --test '*'
compile = CARGO_TERM_COLOR=never cargo test --locked --workspace --no-run --no-fail-fast
faulty_demo = cargo build --quiet --locked --workspace --example taskgate-faulty-demo

# Else a test builds it, and waits while another cargo compiles.
test unit check: export TASKGATE_FAULTY_DEMO := $(if $(CARGO_TARGET_DIR),$(abspath $(CARGO_TARGET_DIR)),$(TARGET))/debug/examples/taskgate-faulty-demo

# More than the number of cores: some tests of each binary wait, and most of those of the library, for PostgreSQL.
TEST_THREADS ?= 4
LIBRARY_THREADS ?= 8
# `Peers` bounds the number of tests with peers that run; a waiting test also takes a thread.
PEERS_THREADS ?= 24

# Binaries run in lanes: one after another in a lane, and the lanes side by side. The output of a lane is printed
# after all lanes end. Interrupting the run ends the lanes too.
define lanes
	@mkdir -p "$(TARGET)/reports"
	# `compiled LIST OPTIONS…` compiles, and `run LIST NAMES ARGUMENTS…` runs binaries of that list.
	compiled() { $(compile) "$${@:2}" > "$(TARGET)/reports/$$1.txt" 2>&1 || { cat "$(TARGET)/reports/$$1.txt"; return 1; }; }
	run() { tests/run.sh "$(TARGET)/reports/$$1.txt" "$$2" --test-threads "$${threads:-$(TEST_THREADS)}" "$${@:3}"; }
	pids=() logs=()
	beside() {
		trap 'kill $${pids[*]} 2> /dev/null || :' EXIT
		logs+=("$(TARGET)/reports/$$1.log")
		"$$1" > "$(TARGET)/reports/$$1.log" 2>&1 & pids+=("$$!")
	}
	ended() {
		local failed=0 pid
		for pid in "$${pids[@]}"; do wait "$$pid" || failed=1; done
		cat "$${logs[@]}"
		pids=() logs=()
		return "$$failed"
	}
endef

.PHONY: begun prepared installable built peers memory restarted-servers test check setup fmt lint unit rules doc seconds bench instructions sessions manifests audit fuzz soak dist dist-test other-systems

# The steps follow one another; parallel work is within a step.
.NOTPARALLEL:

test: begun installable fmt prepared unit rules seconds
	$(call step,minutes of each phase)
	@tests/phases.sh "$(PHASES)" "$(BESIDE)"
	printf '\n==== all checks passed\n'

begun:
	@mkdir -p "$(TARGET)/reports"
	: > "$(PHASES)"
	: > "$(BESIDE)"

# For every edit: the quick checks, without peers. Tests that need peers report that they were skipped.
check: begun fmt
	$(call step,tests in a few minutes)
	$(call lanes)
	core() { local failed=0; run check taskgate --skip store::postgres || failed=1; run check "support tidy files engine" && return "$$failed"; }
	wire() { local failed=0; run check faces || failed=1; run check upstreams --skip stdio:: && return "$$failed"; }
	{
		cargo test --locked --workspace --no-run && compiled check &&
		{ beside core; beside wire; ended; }
	} 2>&1 | tee "$(CHECK_LOG)" || { tests/failures.sh "$(CHECK_LOG)"; exit 1; }
	tests/seconds.sh "$(CHECK_LOG)"

# Installs the peers while the tests are compiled; on a machine without a linker, it installs the linker first.
prepared: installable
	@command -v cc > /dev/null || $(MAKE) setup PHASES="$(BESIDE)"
	$(MAKE) setup PHASES="$(BESIDE)" > "$(TARGET)/reports/setup.log" 2>&1 & installing=$$!
	# The step ends only after the installation.
	trap 'wait "$$installing" || :' EXIT
	$(MAKE) built
	$(call step,setup: the rest)
	wait "$$installing" || { cat "$(TARGET)/reports/setup.log"; exit 1; }
	cat "$(TARGET)/reports/setup.log"

define find_missing
	missing=()
	for program in $(PROGRAMS); do
		[ -x "$$(PATH="$$PATH:/usr/sbin:$$(echo /usr/lib/postgresql/*/bin | tr ' ' :)" command -v "$${program%%=*}")" ] || missing+=("$${program##*=}")
	done
endef

installable:
	@command -v cargo > /dev/null || { echo "cargo is missing: install Rust (the version is in Cargo.toml)" >&2; exit 1; }
	$(find_missing)
	[ "$${#missing[@]}" = 0 ] || [ "$$(id -u)" = 0 ] || { echo "programs are missing: run 'apt-get install $${missing[*]}' as root" >&2; exit 1; }

setup: installable
	$(call step,setup: programs of the system)
	$(find_missing)
	if [ "$${#missing[@]}" != 0 ]; then
		# The installed services must not start by themselves, not even after a restart of the machine.
		services=()
		for program in "$${missing[@]}"; do
			case "$$program" in nginx|caddy|haproxy|pgbouncer|etcd-server) [ ! -d /run/systemd/system ] || services+=("$${program%-server}") ;; esac
		done
		[ "$${#services[@]}" = 0 ] || systemctl --quiet --runtime mask "$${services[@]}"
		# The tests make their own database clusters; the package must create none, so that it starts none.
		case " $${missing[*]} " in *" postgresql "*)
			mkdir -p /etc/postgresql-common
			[ -e /etc/postgresql-common/createcluster.conf ] || echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf ;;
		esac
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}"
		[ "$${#services[@]}" = 0 ] || systemctl --quiet disable "$${services[@]}"
		[ "$${#services[@]}" = 0 ] || systemctl --quiet --runtime unmask "$${services[@]}"
	fi
	$(call step,setup: clients and servers of others)
	@tests/peers/setup.sh "$(PEERS)"
	$(call begin,end)

fmt:
	$(call step,format)
	@cargo fmt --all --check

# Not part of `make test`, whose build lints.
lint:
	$(call step,lints)
	@cargo clippy --quiet --workspace --all-targets --locked -- -D warnings

built:
	$(call step,lints and build of the tests)
	@$(compile) $(BINARIES)
	$(faulty_demo)

# With TASKGATE_PEERS set, tests of real peers fail if a peer is missing; without it they are skipped. On PostgreSQL 18 run the store's
# contract, its rules, plans and poolers. The program is also checked as users build it, without the features that only tests enable; the
# documentation has the same dependencies, so they are checked once. No lane but `library` starts cargo: it would wait for that one, which
# compiles first, since that takes one core, and the tests after it take all.
unit:
	$(call step,tests in lanes: the library$(comma) durability upstreams faces$(comma) complexity to programs$(comma) real_peers)
	$(call lanes)
	export TASKGATE_PEERS="$(PEERS)"
	library() {
		local failed=0
		compiled library --lib || failed=1
		env -u RUSTC_WORKSPACE_WRAPPER cargo check --quiet --locked --bin taskgate && $(MAKE) doc PHASES=/dev/null && cargo test --locked --doc || failed=1
		threads=$(LIBRARY_THREADS) run library "taskgate support" || failed=1
		TASKGATE_POSTGRES="$(PEERS)/postgres-18" threads=$(LIBRARY_THREADS) run library taskgate store::postgres::tests::keeps store::postgres::tests::rules \
			store::postgres::tests::plan store::postgres::tests::pooled && return "$$failed"
	}
	stores() { run binaries "durability upstreams faces"; }
	processes() { run binaries "taskgate complexity engine files tidy gateway programs"; }
	real() { threads=$(PEERS_THREADS) run binaries real_peers; }
	# Joined by `&&`: before `||` the shell continues after a failed command.
	{
		compiled binaries $(BINARIES) && $(faulty_demo) &&
		{ beside real; beside processes; beside stores; beside library; ended; }
	} 2>&1 | tee "$(LOG)" || { tests/failures.sh "$(LOG)"; exit 1; }

# Not part of `make test`: servers of two years of SDK releases restart while clients use them, 45 s each.
restarted-servers: setup
	$(call step,servers that are started again)
	@tests/peers/earlier/setup.sh "$(PEERS)"
	TASKGATE_PEERS="$(PEERS)" TASKGATE_RESTARTED_SECONDS=45 \
		cargo test --locked --test real_peers -- restarted_servers --nocapture

# Every cell of the matrices of real peers, and their rows behind balancers. `make test` runs only every pair of a client, a server and a
# case. UPDATE_GOLDEN=1 writes the tables of docs/compatibility.md, with the commit.
peers: setup
	$(call step,every cell of the matrices of real peers)
	@tests/peers/glewlwyd.sh "$(PEERS)"
	@tests/peers/rmcp_login.sh "$(PEERS)"
	@TASKGATE_PEERS_ALL=1 TASKGATE_PEERS="$(PEERS)" cargo test --locked --test real_peers -- --test-threads $(PEERS_THREADS) --include-ignored

seconds:
	$(call step,seconds of each suite)
	@tests/seconds.sh "$(LOG)"

# Checks that the test of each rule in docs/rules.md ran.
rules:
	$(call step,rules)
	@TASKGATE_TEST_LOG="$(LOG)" tests/run.sh "$(TARGET)/reports/binaries.txt" tidy rules::

doc:
	$(call step,documentation)
	@RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --no-deps --document-private-items --lib

# Built like a release. Compares the gateway with bare servers in the same run; see the head of benches/gateway.rs. With UPDATE_BENCHMARKS=1 the
# tables go to docs/benchmarks.md.
bench instructions: export CARGO_INCREMENTAL = 0
bench:
	@for proxy in nginx haproxy; do
		if ! command -v "$$proxy" > /dev/null; then
			[ "$$(id -u)" = 0 ] || { echo "$$proxy is missing: it is left out" >&2; continue; }
			apt-get update -qq && apt-get install -y -qq --no-install-recommends "$$proxy"
		fi
	done
	@cargo bench --locked

# Counts the instructions of a request with valgrind: see the head of benches/gateway/counted.rs. Fails if a path takes over 3 %
# more than in benches/gateway/instructions.tsv; UPDATE_BASELINE=1 rewrites that file.
instructions:
	@cargo bench --locked --bench gateway -- --instructions

# Records the terminal sessions of docs/command-line.md anew; `unit` compares them.
sessions:
	@UPDATE_SESSIONS=1 cargo test --quiet --locked --test programs readme_sessions::

# Renders deploy/kubernetes from the chart; `unit` compares them.
manifests: setup
	@HELM="$(PEERS)/py-helm/bin/helm" deploy/kubernetes/render.sh

# The advisory database is not in a package registry, so this needs more network access than the tests.
audit:
	$(call step,setup: cargo-deny $(DENY_VERSION))
	@if ! "$(DENY)" --version 2> /dev/null | grep -q ' $(DENY_VERSION)$$'; then
		cargo install cargo-deny --quiet --locked --version $(DENY_VERSION) --root "$(TOOLS)"
	fi
	"$(DENY)" check advisories

# Runs each target for FUZZ_SECONDS. RUSTC_BOOTSTRAP lets the stable compiler do what cargo-fuzz needs a nightly one for. C
# libraries are built without the fuzzer's checks. Begins with the seeds; new inputs stay
# in target/fuzz.
FUZZ_SECONDS ?= 60
FUZZ_VERSION := 0.13.1
FUZZ_TARGETS := envelope:envelope scan_differential:scan sse_decoder:sse lines:lines schema:schema answers:answers \
	token:token proof:proof login_documents:login_documents access_rules:access_rules audit_lines:audit_lines
fuzz:
	$(call step,setup: cargo-fuzz $(FUZZ_VERSION))
	@if ! "$(TOOLS)/bin/cargo-fuzz" --version 2> /dev/null | grep -q ' $(FUZZ_VERSION)$$'; then
		cargo install cargo-fuzz --quiet --locked --version $(FUZZ_VERSION) --root "$(TOOLS)"
	fi
	export RUSTC_BOOTSTRAP=1 PATH="$(TOOLS)/bin:$$PATH"
	for target in $(FUZZ_TARGETS); do
		found="$(TARGET)/fuzz/$${target##*:}"
		mkdir -p "$$found"
		cargo fuzz run "$${target%%:*}" "$$found" "tests/corpus/$${target##*:}" -- -max_total_time=$(FUZZ_SECONDS)
	done

# Makes the files of a release in target/dist, for each of DIST_TARGETS (the host's processor, static and for glibc 2.17). With
# PROFILE=FILE it records no profile; see the head of packaging/dist.sh.
DIST_TARGETS ?=
dist:
	$(call step,files of a release)
	@packaging/dist.sh $(DIST_TARGETS)

# Not part of `make test`: tries the files of `make dist` with registries on loopback, an empty root and new Debians. PARTS names
# some of them: archive chroot npx uvx deb rpm lint image program hosts; `chroot`, `deb`, `rpm` and `image` need root.
PARTS ?=
dist-test: setup
	$(call step,files of a release as users get them)
	@if [ "$$(id -u)" = 0 ]; then
		missing=()
		for program in buildah mmdebstrap lintian rpm rpmlint ruby zsh fish; do
			command -v "$$program" > /dev/null || missing+=("$$program")
		done
		[ "$${#missing[@]}" = 0 ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}"; }
	fi
	TASKGATE_PEERS="$(PEERS)" packaging/dist-test.sh $(PARTS)

# Compiles the program for other systems, its C libraries with zig. Nothing is linked or run. Not part of `make test`.
OTHER_SYSTEMS ?= aarch64-apple-darwin x86_64-pc-windows-gnu
other-systems:
	$(call step,other systems: $(OTHER_SYSTEMS))
	@if [ ! -x "$(TOOLS)/zig/bin/cargo-zigbuild" ]; then
		python3 -m venv "$(TOOLS)/zig"
		"$(TOOLS)/zig/bin/pip" install --quiet --disable-pip-version-check $$(sed -n 's/^python=(\(.*\))$$/\1/p' packaging/tools.sh)
	fi
	for system in $(OTHER_SYSTEMS); do
		rustup target add "$$system"
		PATH="$(TOOLS)/zig/bin:$$PATH" cargo-zigbuild check --locked --bin taskgate --target "$$system"
	done

# Measures the gateway's memory with unread large answers, of every kind over every transport.
memory:
	$(call step,memory under responses that no client reads)
	@cargo test --locked --test programs answer_memory -- --include-ignored --nocapture --test-threads 1

# Long tests, and tests that need root and system tools: more schedules, power cuts, kills and restarts, real disks that are
# full or fail.
KILL_CYCLES ?= 40
RESTARTS ?= 200
REPLACED_GATEWAYS ?= 2000
POWER_CUT_IMAGES ?= 2000
STORED_RESULTS ?= 80000
REPLICA_SCHEDULES ?= 1000000
PRINCIPAL_NAMES ?= 250
REPLICA_KILLS ?= 100
REPLICA_FAULTS ?= 700
REPLICA_FAILOVERS ?= 5
EARLIER ?= HEAD~1
AUDIT_CALLS ?= 10000
BALANCED_PAIRS ?= 42
BLOAT_LIVES ?= 1000000
soak: setup
	$(call step,schedules of faults over several replicas: $(REPLICA_SCHEDULES))
	@REPLICA_SCHEDULES=$(REPLICA_SCHEDULES) cargo test --locked --test engine replicas:: -- --nocapture
	$(call step,power cuts: $(POWER_CUT_IMAGES) images)
	@TASKGATE_POWER_CUT_IMAGES=$(POWER_CUT_IMAGES) TASKGATE_PEERS="$(PEERS)" cargo test --quiet --locked --test durability power_cut:: -- --nocapture
	$(call step,kill cycles: $(KILL_CYCLES) of each fault)
	@KILL_CYCLES=$(KILL_CYCLES) cargo test --locked --test durability kill_cycles:: -- --nocapture
	$(call step,principals with equal names at two gateways and at an endpoint: $(PRINCIPAL_NAMES) of each kind)
	@PRINCIPAL_NAMES=$(PRINCIPAL_NAMES) TASKGATE_PEERS="$(PEERS)" cargo test --locked --test durability -- isolation:: endpoint_twin
	$(call step,gateways with a thousand tasks that are killed beside others: $(REPLICA_KILLS))
	@REPLICA_KILLS=$(REPLICA_KILLS) TASKGATE_PEERS="$(PEERS)" cargo test --locked --test durability thousand_tasks -- --nocapture
	$(call step,faults of three gateways and their database: $(REPLICA_FAULTS))
	@REPLICA_FAULTS=$(REPLICA_FAULTS) TASKGATE_PEERS="$(PEERS)" cargo test --locked --test durability replicas::courses -- --nocapture
	$(call step,leaders of the database that are killed under a thousand tasks: $(REPLICA_FAILOVERS))
	@REPLICA_FAILOVERS=$(REPLICA_FAILOVERS) TASKGATE_PEERS="$(PEERS)" cargo test --locked --test durability f74_ -- --nocapture
	$(call step,gateways that are replaced one after the other by another version: $(EARLIER))
	@rm -rf "$(TARGET)/earlier" && mkdir -p "$(TARGET)/earlier/source"
	git archive "$(EARLIER)" | tar -x -C "$(TARGET)/earlier/source"
	cargo build --quiet --locked --manifest-path "$(TARGET)/earlier/source/Cargo.toml" --target-dir "$(TARGET)/earlier"
	TASKGATE_EARLIER="$(TARGET)/earlier/debug/taskgate" TASKGATE_PEERS="$(PEERS)" \
		cargo test --locked --test durability -- --ignored --nocapture another_version
	$(call step,calls that the audit and the metrics count: $(AUDIT_CALLS))
	@AUDIT_CALLS=$(AUDIT_CALLS) cargo test --locked --test programs count_the_same_calls
	$(call step,pairs behind balancers: $(BALANCED_PAIRS))
	@BALANCED_PAIRS=$(BALANCED_PAIRS) cargo test --locked --test gateway pairs::balanced -- --nocapture
	$(call step,tasks that are inserted and removed in the database: $(BLOAT_LIVES))
	@BLOAT_LIVES=$(BLOAT_LIVES) TASKGATE_PEERS="$(PEERS)" cargo test --locked --lib -- --ignored --nocapture however_many_tasks_have_lived
	$(call step,restarts under load: $(RESTARTS))
	@RESTARTS=$(RESTARTS) cargo test --locked --test durability restarts::
	$(call step,gateways that are replaced: $(REPLACED_GATEWAYS) courses)
	@REPLACED_GATEWAYS=$(REPLACED_GATEWAYS) cargo test --locked --test engine any_moment
	$(call step,memory: $(STORED_RESULTS) small results)
	@STORED_RESULTS=$(STORED_RESULTS) cargo test --locked --test programs -- --ignored --nocapture --test-threads 1 small_results
	$(call step,disks and descriptors)
	@cargo build --locked
	for script in full_disk filled_disk failing_sync few_descriptors black_hole cut_networks; do
		bash "tests/soak/$$script.sh"
	done
