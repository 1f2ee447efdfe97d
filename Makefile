# One command for each thing; all set-up included (Debian 12, root or sudo).

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)
OVERLANE := target/release/overlane
# Nothing can be built below a path with blanks: it is built elsewhere, and `target` is a link.
ifneq ($(word 2,$(CURDIR)),)
export CARGO_TARGET_DIR := $(shell scripts/target-dir)
ifeq ($(CARGO_TARGET_DIR),)
$(error no directory to build in)
endif
endif
# Tests and measurements that build testbeds need root; compiling does not.
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo scripts/as-root)
# Has cargo run what it built as root; cargo takes no empty one.
RUNNER := $(if $(AS_ROOT),CARGO_TARGET_$(shell uname -m | tr a-z A-Z)_UNKNOWN_LINUX_GNU_RUNNER="$(AS_ROOT)")

.PHONY: help demo build check lint deny msrv test test-unit test-all mutants hostile bench bench-generator bench-engines bench-sampling bench-pacing bench-latency bench-open-loop bench-packet bench-compare bench-busy busy-shown bench-busy-simulation bench-watch bench-watch-peers bench-doctor bench-datapath bench-accel bench-bgp bench-evpn kills cluster policy requests soak fuzz install clean

help:
	@echo "make demo    build, then measure every network mode of this machine (5 min beside the build)"
	@echo "make check   format, clippy, docs, licences, oldest Rust, fuzz targets, unit tests"
	@echo "make test    every capability once; make test-unit: without root, 90 s; make test-all: nightly"
	@echo "make bench   benchmarks of the load engine, the samplers and the packet library"
	@echo "make policy  packet filters flipped under load, against the fast path (10 min)"
	@echo "make soak    vtep and tapbridge for an hour among malformed packets"
	@echo "make hostile an unprivileged user against accel, vtep and doctor (10 min)"
	@echo "make mutants changes to packet, stats, planning and checks that no test notices"
	@echo "make cluster flannel, kube-proxy, kube-apiserver and etcd, built or installed (10 min)"
	@echo "make fuzz    every fuzz target for five minutes (nightly compiler)"
	@echo "make install program, man pages and completions below PREFIX (/usr/local)"

demo: build
	@scripts/setup lab
	$(AS_ROOT) $(OVERLANE) lab run --quick --out results.json

build:
	@scripts/setup build
	cargo build --release --locked -p overlane

# Every capability once, by its most telling path.
test:
	@scripts/setup test
	@scripts/test test

# Tests that need no root.
test-unit:
	@scripts/setup unit
	@scripts/test unit

# Nightly: all guest kernels, all variants, long simulations and loads beside a busy machine.
test-all:
	@scripts/setup test
	@scripts/test all

# What a change is looked at with first.
check: lint deny msrv test-unit

lint:
	@scripts/setup build
	cargo fmt --all --check
	scripts/module-circles --deep $(notdir $(wildcard crates/*))
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	@# Checked, not linked: the compiler's stable release will do, and no libFuzzer is built.
	CUSTOM_LIBFUZZER_PATH=/nonexistent/libfuzzer.a \
		cargo check --manifest-path fuzz/Cargo.toml --target-dir target --locked

# Licences, sources and duplicate versions of what is built in (deny.toml). Where
# cargo-deny is not installed, the test `dependencies` looks at the same without it.
deny:
	@if command -v cargo-deny >/dev/null; then \
		cargo deny --locked --offline check bans licenses sources || exit 1; \
		cargo deny --locked check advisories || \
			{ [ "$$CARGO_NET_OFFLINE" = true ] || exit 1; echo "deny: offline: advisories were not looked up"; }; \
	else \
		echo "deny: cargo-deny is not installed: advisories are not looked up;"; \
		echo "deny: licences, sources and duplicates are checked by the test 'dependencies'"; \
	fi

# Builds with the oldest Rust that Cargo.toml declares.
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
msrv:
	@scripts/setup msrv
	@if cargo +$(MSRV) --version >/dev/null 2>&1; then \
		echo cargo +$(MSRV) check --workspace --locked; \
		cargo +$(MSRV) check --workspace --locked; \
	else \
		echo "msrv: Rust $(MSRV) is not installed and could not be: not built with it"; \
	fi

# Changes that no test notices: scripts/mutants. One shard of each area by default; for
# more, SHARD="k/n k/n", and AREA=packet|stats|planning|checks.
AREA ?= all
SHARD ?= 0/40
mutants:
	@scripts/setup mutants
	scripts/mutants $(AREA) $(SHARD)

bench: bench-generator bench-sampling bench-pacing bench-latency bench-open-loop bench-packet

# Programs of real Kubernetes nodes, below target/cluster/bin: flannel, kube-proxy,
# kube-apiserver from Go modules, etcd from Debian. Tests and lab modes that want them are
# left out where this was not run. CLUSTER: only those programs.
CLUSTER ?= flannel kube-proxy kube-apiserver
cluster:
	@scripts/setup cluster
	scripts/cluster/build $(CLUSTER)

# Our load engine against iperf3, netperf, sockperf and nuttcp.
bench-generator:
	@scripts/setup bench
	cargo build --release --locked -p overlane-measure --examples
	$(AS_ROOT) target/release/examples/generator_against_generator

# The built-in engine beside iperf3, netperf and qperf, in one interleaved run.
bench-engines: build
	@scripts/setup bench
	$(AS_ROOT) $(OVERLANE) lab run --modes host --offload full \
		--workloads tcp_stream,tcp_rr --engine overlane,iperf3,netperf,qperf \
		--duration 1 --blocks 20

# A run with all samplers on against one with them off.
bench-sampling:
	@scripts/setup bench
	cargo build --release --locked -p overlane-measure --examples
	$(AS_ROOT) target/release/examples/sampler_overhead

# What pacing costs a datagram, and how even it is.
bench-pacing:
	@scripts/setup bench
	cargo build --release --locked -p overlane-measure --examples
	$(AS_ROOT) target/release/examples/pacing

# Runs on a simulated machine that others use: how often intervals hold, and what is found.
# With 5,000 runs, the 4.14% that is right and three standard errors stay below 5%.
bench-busy-simulation:
	RUNS=5000 cargo test --release --locked -p overlane-measure --lib -- \
		simulated::intervals_hold simulated::a_trial_that_ends --nocapture --test-threads 1

# `try` beside stress-ng, a compiler, nginx under wrk and pgbench. N=50 takes hours:
# MINUTES=30 does a part, and the next run goes on (docs/results/busy.jsonl, or RECORD).
bench-busy: build
	@scripts/setup busy
	$(AS_ROOT) scripts/bench-busy $(OVERLANE) $(N)

# The defaults on a machine that works: a proof beside one busy CPU, the lab beside a compiler.
busy-shown: build
	@scripts/setup lab
	$(AS_ROOT) scripts/busy-shown $(OVERLANE)

# kill -9 of runs at random moments; nothing may be left.
kills: build
	$(AS_ROOT) scripts/kill-runs $(OVERLANE) $(or $(N),10) $(or $(MODES),vm-bridge evpn)

# What `watch` and `trace` cost those who are watched. netperf is in Debian's non-free.
bench-watch: build
	@scripts/setup bench
	$(AS_ROOT) scripts/bench-watch $(OVERLANE) $(or $(BLOCKS),12) $(MODES)

# The same beside pwru and retis, in a guest whose kernel has kprobes. PWRU and RETIS name them.
bench-watch-peers: build
	@scripts/setup bench
	crates/lab/tests/guest/fetch-kernel 6.12
	scripts/bench-watch-peers $(OVERLANE) $(BLOCKS)

# Recording a latency, and a schedule against a closed loop.
bench-latency:
	@scripts/setup bench
	cargo build --release --locked -p overlane-measure --examples
	$(AS_ROOT) target/release/examples/latency_cost

# A server that stands still for 20 ms each second: open loop against closed ones.
bench-open-loop:
	@scripts/setup bench
	cargo build --release --locked -p overlane-measure --examples
	$(AS_ROOT) target/release/examples/open_loop

# Checksums, segmentation, coalescing: per byte and per packet.
bench-packet:
	@scripts/setup build
	cargo bench --locked -p overlane-packet

# How often report compare finds a change where there is none, and where there is.
bench-compare: build
	@scripts/setup bench
	$(AS_ROOT) scripts/bench-compare $(OVERLANE)

# How long doctor takes among a thousand namespaces.
bench-doctor: build
	cargo build --release --locked -p overlane-doctor --examples
	$(AS_ROOT) target/release/examples/many_namespaces 1000 $(OVERLANE)

# The two-TAP bridge by each engine against the naive loop, veth pairs and, with netmap,
# loopback; the VXLAN endpoint in its variants against the kernel's and Open vSwitch's; a guest's
# port by vhost-user against one by TAP.
# BENCH_ARGUMENTS: more options of `lab run` (--quick, --blocks N, --duration S …).
bench-datapath: build
	@scripts/setup lab
	for plan in tapbridge tap-netmap vtep; do $(AS_ROOT) $(OVERLANE) lab run \
		--plan scripts/plans/$$plan.toml --out target/$$plan.json $(BENCH_ARGUMENTS) || exit; done
	cargo build --release --locked -p overlane-datapath --examples
	$(AS_ROOT) target/release/examples/guest_port

# The fast path against the kernel's VXLAN and the bare host; what crossing namespaces
# costs; how soon it follows changes.
bench-accel: build
	@scripts/setup lab
	$(AS_ROOT) $(OVERLANE) lab run --modes host,vxlan,vxlan+accel --offload full,none \
		--workloads tcp_stream,tcp_rr,tcp_crr,udp_stream --sizes 64,1400,65507 \
		--out accel.json
	$(AS_ROOT) $(OVERLANE) lab run --plan scripts/plans/accel.toml --blocks 8 --out accel-flows.json
	@# Real nodes are built by `make cluster`, which wants Go.
	[ -x target/cluster/bin/kube-proxy ] || { echo "nodes are not measured: make cluster"; exit 0; }; \
	$(AS_ROOT) $(OVERLANE) lab run --plan scripts/plans/accel-nodes.toml --blocks 8 \
		--out accel-nodes.json
	cargo build --release --locked -p overlane-accel --examples
	$(AS_ROOT) target/release/examples/border_cost
	$(AS_ROOT) target/release/examples/stale_window
	$(AS_ROOT) target/release/examples/daemon_cost
	$(AS_ROOT) target/release/examples/node_cost

# Routes by BGP, of BIRD and FRR, against static ones.
bench-bgp: build
	@scripts/setup bench
	$(AS_ROOT) $(OVERLANE) lab run --plan calico-bgp --blocks 8 \
		--out calico-bgp.json

# EVPN: VXLAN devices filled by FRR against those that learn; then one speaker announces ENDS
# remote ends and ADDRESSES to FRR: how soon the kernel has them, what FRR, accel and doctor take.
ENDS ?= 1000
ADDRESSES ?= 100000
bench-evpn: build
	@scripts/setup bench
	$(AS_ROOT) $(OVERLANE) lab run --plan scripts/plans/evpn.toml --blocks 8 --out evpn.json
	$(AS_ROOT) scripts/bench-evpn $(OVERLANE) $(ENDS) $(ADDRESSES)

# Rules flipped at random under load, on the fast path's bed and on the slow path's, for ten
# minutes, or OVERLANE_POLICY_SECONDS.
OVERLANE_POLICY_SECONDS ?= 600
policy:
	@scripts/setup test
	$(RUNNER) OVERLANE_POLICY_SECONDS=$(OVERLANE_POLICY_SECONDS) cargo test --locked \
		-p overlane-accel --test root policy:: -- --nocapture

# Requests over real flannel through 50 switches of accel and 50 kills of it, and to services of
# the real kube-proxy while their endpoints change; none may fail.
requests: build
	@scripts/setup requests
	$(AS_ROOT) scripts/accel-switches $(OVERLANE) 50 50 flannel
	$(AS_ROOT) scripts/accel-endpoints $(OVERLANE) 45

# vtep and tapbridge under traffic among malformed packets, while devices, peers and
# configurations come and go: an hour, or OVERLANE_SOAK_SECONDS.
OVERLANE_SOAK_SECONDS ?= 3600
soak:
	@scripts/setup test
	$(RUNNER) OVERLANE_SOAK_SECONDS=$(OVERLANE_SOAK_SECONDS) cargo test --locked \
		--release -p overlane --test root soak:: -- --nocapture

# An unprivileged user beside the daemons, for some seconds.
HOSTILE_SECONDS ?= 600
hostile: build
	$(AS_ROOT) scripts/hostile-user $(HOSTILE_SECONDS) $(OVERLANE)

# Every fuzz target for some minutes.
FUZZ_SECONDS ?= 300
fuzz:
	@scripts/setup build
	scripts/fuzz $(FUZZ_SECONDS)

PREFIX ?= /usr/local
install: build
	install -D $(OVERLANE) $(DESTDIR)$(PREFIX)/bin/overlane
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(OVERLANE) man $(DESTDIR)$(PREFIX)/share/man/man1
	$(OVERLANE) completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/overlane
	$(OVERLANE) completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_overlane
	$(OVERLANE) completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/overlane.fish

clean:
	cargo clean

.PHONY: book docs docs-pages check-docs results schemas

# Writes the JSON schemas of every output from the types (schema/).
schemas:
	@scripts/setup build
	cargo run --quiet --locked --package overlane-xtask -- schemas

# The book, as HTML below target/book.
docs:
	@scripts/setup book
	PATH="$(CURDIR)/target/tools/bin:$$PATH" mdbook build docs

# The book without a warning: a stage of CI. Fails without mdbook where nothing may be
# left out (OVERLANE_STRICT=1).
book:
	@scripts/setup book
	@export PATH="$(CURDIR)/target/tools/bin:$$PATH"; \
	if command -v mdbook >/dev/null; then scripts/docs-book; \
	else echo "book: mdbook is not installed and could not be: the book is not built"; \
		[ "$$OVERLANE_STRICT" != 1 ]; fi

# Writes what the program and the kept result files say into the book.
docs-pages: build
	$(AS_ROOT) scripts/docs-pages --overlane $(OVERLANE)

# Commands, links and generated parts of every document; the book.
check-docs:
	@scripts/setup build
	$(RUNNER) cargo test --locked -p overlane --bin overlane documents
	$(RUNNER) cargo test --locked -p overlane --test it documents
	@$(MAKE) --no-print-directory book

# Measures every claim of docs/results/claims.json and writes its page: quiet machine,
# some hours. CLAIMS: only those.
results: build
	@scripts/setup bench
	$(AS_ROOT) scripts/docs-results $(OVERLANE) $(CLAIMS)
