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
# Makes cargo run built programs as root; cargo accepts no empty value.
RUNNER := $(if $(AS_ROOT),CARGO_TARGET_$(shell uname -m | tr a-z A-Z)_UNKNOWN_LINUX_GNU_RUNNER="$(AS_ROOT)")

.PHONY: help demo build check lint test test-unit test-all bench cluster field-cases kselftest fuzz docs docs-pages schemas install uninstall dist dist-check release clean

help:
	@echo "make demo       build, then measure every network mode of this machine (5 min beside the build)"
	@echo "make build      the release program; make install: with man pages and completions below PREFIX;"
	@echo "                make uninstall: removes them"
	@echo "make dist       static programs, packages and image of both architectures, below dist/ (30 min)"
	@echo "make dist-check installs and removes each of them in clean trees of Debian; needs root"
	@echo "make release    VERSION=X.Y.Z: both, then the tag"
	@echo "make check      lint, licences, oldest Rust, unit tests"
	@echo "make lint       subjects of commits, format, module circles, clippy, documentation, fuzz targets"
	@echo "make test       every capability once; make test-unit: without root, 90 s; make test-all: nightly"
	@echo "make bench      benchmarks of the load engine, the samplers and the packet library"
	@echo "make cluster    flannel, kube-proxy, kube-apiserver and etcd, built or installed (10 min)"
	@echo "make field-cases faults from public reports, and doctor's first finding on each (3 min)"
	@echo "make kselftest SELFTESTS=DIRECTORY: the kernel's network selftests in a guest, without and with accel"
	@echo "make fuzz       every fuzz target for five minutes (nightly compiler)"
	@echo "make docs       checks documents and builds the book below target/book"
	@echo "make docs-pages writes the generated parts of the book; make schemas: schema/"
	@echo "bench/run       lists benchmarks, experiments, endurance runs and mutation tests"

demo:
	@echo "make demo: builds the program (4 min on 2 CPUs, nothing if it is built), then measures every"
	@echo "network mode of this machine in throw-away namespaces (5 min), and writes results.json"
	@$(MAKE) --no-print-directory build
	@scripts/setup lab
	$(AS_ROOT) $(OVERLANE) lab run --quick --out results.json

build:
	@scripts/setup build
	@begun=$$(date +%s) && cargo build --release --locked -p overlane && \
	    echo "built in $$(($$(date +%s) - begun)) s (target on a fresh clone: 210 s on 2 CPUs)," \
	        "$$(($$(stat -c %s $(OVERLANE)) / 1000000)) MB (target: at most 25 MB)"

# Every capability once.
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

# The first checks of a change.
check: lint
	scripts/check-dependencies
	scripts/check-oldest-rust
	@$(MAKE) --no-print-directory test-unit

lint:
	@scripts/setup build
	cargo fmt --all --check
	scripts/check-subjects
	scripts/module-circles --deep $(notdir $(wildcard crates/*))
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	@# Checked, not linked: the compiler's stable release will do, and no libFuzzer is built.
	CUSTOM_LIBFUZZER_PATH=/nonexistent/libfuzzer.a \
		cargo check --manifest-path fuzz/Cargo.toml --target-dir target --locked

bench:
	bench/run short

# Programs of real Kubernetes nodes, below target/cluster/bin: flannel, kube-proxy,
# kube-apiserver from Go modules, etcd from Debian. Tests and lab modes that need them are
# skipped without it. CLUSTER: only those programs.
CLUSTER ?= flannel kube-proxy kube-apiserver
cluster:
	@scripts/setup cluster
	scripts/cluster/build $(CLUSTER)

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

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/overlane \
		$(DESTDIR)$(PREFIX)/share/man/man1/overlane.1 \
		$(DESTDIR)$(PREFIX)/share/man/man1/overlane-*.1 \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/overlane \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_overlane \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/overlane.fish

# Everything of a release, below dist/. ARCHS: only these architectures.
ARCHS ?= x86_64 aarch64
dist:
	@scripts/setup dist
	ARCHS="$(ARCHS)" scripts/dist/all

dist-check:
	@scripts/setup dist
	@crates/lab/tests/guest/fetch-arm64 && cargo build --locked --quiet -p overlane-lab --example support_matrix
	$(AS_ROOT) scripts/dist/check

# Refuses a tree with changes, a version that Cargo.toml does not have, and a changelog without it.
release:
	scripts/dist/releasable "$(VERSION)"
	@$(MAKE) --no-print-directory dist dist-check
	git tag --annotate "v$(VERSION)" --message "overlane $(VERSION)"

clean:
	cargo clean

# Writes the JSON schemas of every output from the types (schema/).
schemas:
	@scripts/setup build
	cargo run --quiet --locked --package overlane-xtask -- schemas

# Commands, links and generated parts of every document; the book, as HTML below target/book.
# Without mdbook the book is left out, unless OVERLANE_STRICT=1.
docs:
	@scripts/setup book
	$(RUNNER) cargo test --locked -p overlane --bin overlane documents
	$(RUNNER) cargo test --locked -p overlane --test it documents
	@scripts/docs-book

# Faults from public reports, and doctor's findings on them; the table of our own cases goes into the
# book. Others: make field-cases CASES=DIRECTORY
CASES ?=
field-cases:
	@scripts/setup test >&2
	@$(AS_ROOT) scripts/field-cases $(CASES)

# The kernel's network selftests in a guest, without and with accel in their namespaces. SELFTESTS:
# tools/testing/selftests of a kernel source tree. TESTS: only these, by their paths below net.
kselftest: build
	@[ -n "$(SELFTESTS)" ] || { echo "usage: make kselftest SELFTESTS=DIRECTORY [TESTS=...]"; exit 2; }
	$(AS_ROOT) scripts/kselftest/run "$(SELFTESTS)" $(TESTS)

# Writes the parts of the book that come from the program and the stored result files.
docs-pages: build
	$(AS_ROOT) scripts/docs-pages --overlane $(OVERLANE)
