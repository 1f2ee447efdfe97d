# One command for each thing; all set-up included (Debian 12, root or sudo).

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)
OVERLANE := target/release/overlane
# Tests and measurements that build testbeds need root; compiling does not.
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo "sudo -E env PATH=$$PATH")
# Has cargo run what it built as root; cargo takes no empty one.
RUNNER := $(if $(AS_ROOT),CARGO_TARGET_$(shell uname -m | tr a-z A-Z)_UNKNOWN_LINUX_GNU_RUNNER="$(AS_ROOT)")

.PHONY: help demo build test lint bench bench-generator bench-engines bench-sampling bench-pacing bench-latency bench-open-loop bench-packet bench-compare bench-doctor bench-datapath bench-accel soak fuzz install clean

help:
	@echo "make demo    build, then measure every network mode of this machine (5 min)"
	@echo "make test    all tests, those that need root included"
	@echo "make bench   benchmarks of the load engine, the samplers and the packet library"
	@echo "make soak    vtep and tapbridge for an hour among malformed packets"
	@echo "make fuzz    every fuzz target for five minutes (nightly compiler)"
	@echo "make install program, man pages and completions below PREFIX (/usr/local)"

demo: build
	@scripts/setup lab
	$(AS_ROOT) $(OVERLANE) lab run --quick --out results.json

build:
	@scripts/setup build
	cargo build --release --locked -p overlane

test:
	@scripts/setup test
	@scripts/run-tests $(AS_ROOT)

lint:
	@scripts/setup build
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

bench: bench-generator bench-sampling bench-pacing bench-latency bench-open-loop bench-packet

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
# loopback; the VXLAN endpoint in its variants against the kernel's and Open vSwitch's.
# BENCH_ARGUMENTS: more options of `lab run` (--quick, --blocks N, --duration S …).
bench-datapath: build
	@scripts/setup lab
	for plan in tapbridge tap-netmap vtep; do $(AS_ROOT) $(OVERLANE) lab run \
		--plan scripts/plans/$$plan.toml --out target/$$plan.json $(BENCH_ARGUMENTS) || exit; done

# The fast path against the kernel's VXLAN and the bare host; what crossing namespaces
# costs; how soon it follows changes.
bench-accel: build
	@scripts/setup lab
	$(AS_ROOT) $(OVERLANE) lab run --modes host,vxlan,vxlan+accel --offload full,none \
		--workloads tcp_stream,tcp_rr,tcp_crr,udp_stream --sizes 64,1400,65507 \
		--out accel.json
	$(AS_ROOT) $(OVERLANE) lab run --plan scripts/plans/accel.toml --blocks 8 --out accel-flows.json
	cargo build --release --locked -p overlane-accel --examples
	$(AS_ROOT) target/release/examples/border_cost
	$(AS_ROOT) target/release/examples/stale_window
	$(AS_ROOT) target/release/examples/daemon_cost

# vtep and tapbridge under traffic among malformed packets, while devices, peers and
# configurations come and go: an hour, or OVERLANE_SOAK_SECONDS.
OVERLANE_SOAK_SECONDS ?= 3600
soak:
	@scripts/setup test
	$(RUNNER) OVERLANE_SOAK_SECONDS=$(OVERLANE_SOAK_SECONDS) cargo test --locked \
		--release -p overlane --test soak -- --nocapture

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
