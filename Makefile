# berth. `make help` lists what there is to make.

CONFIG ?= config/default.toml
TARGET := $(or $(CARGO_TARGET_DIR),target)
# The six programs side by side, as they are installed.
BIN := $(TARGET)/bin
BERTH := $(BIN)/berth --config $(CONFIG)
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo)
export PATH := $(PATH):$(HOME)/.cargo/bin

STATIC := x86_64-unknown-linux-gnu
RELEASED := berth berth-hostd berth-gateway berth-bridge berth-jail

.PHONY: help run up down setup setup-test setup-bench build image man lint deny unit e2e test fuzz fuzz-guided torture bench

help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: image ## Serve in the foreground; Ctrl-C stops cleanly
	@$(AS_ROOT) $(BERTH) run

up: image ## Serve in the background; returns when it answers
	@$(AS_ROOT) $(BERTH) up

down: ## Stop what 'make up' started; its machines sleep
	@if [ -x $(BIN)/berth ]; then $(AS_ROOT) $(BERTH) down; else echo "nothing was built, so nothing runs"; fi

setup: ## Check for Rust, install the packages that are missing
	@scripts/setup

setup-test:
	@scripts/setup test

setup-bench:
	@scripts/setup bench

build: setup ## Build the programs, in release mode
	@cargo build --locked --release -p berth-cli -p berth-hostd -p berth-gateway -p berth-egress -p berth-hypervisor --bins
	@RUSTFLAGS="-C target-feature=+crt-static" \
	    cargo build --locked --profile guest -p berth-guest-init --target $(STATIC)
	@mkdir -p $(BIN)
	@scripts/place $(BIN) $(RELEASED:%=$(TARGET)/release/%) $(TARGET)/$(STATIC)/guest/berth-guest-init

image: build ## Make the base image, or bring it up to date
	@$(AS_ROOT) $(BERTH) image build

man: setup ## Man pages and completions, into target/man and target/completions
	cargo run --quiet --locked -p berth-man -- $(TARGET)/man $(TARGET)/completions

# Installs nothing. The quick ones first.
lint: ## Formatting, shell scripts, crates, clippy and the documentation
	@for tool in python3 shellcheck; do command -v $$tool >/dev/null || \
	    { echo "lint: $$tool is missing: 'make setup-test' installs it" >&2; exit 1; }; done
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	scripts/check-shell
	scripts/check-crates
	cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --all-features --no-deps --document-private-items

# Not in `lint`: it takes minutes to build, and its advisories come from the network.
deny: ## What cargo-deny says of the crates, with advisories; needs the network
	@command -v cargo-deny >/dev/null || \
	    { echo "deny: cargo-deny is missing: 'cargo install --locked cargo-deny' installs it" >&2; exit 1; }
	cargo deny --locked check

# Tests are compiled without optimisation: it would take longer than it saves, and
# overflows are caught. What the end-to-end cases start is the release build.
unit: setup-test image ## The tests of the crates
	cargo test --workspace --exclude berth-tests --all-features

e2e: setup-test image ## Real machines through the real ssh
	$(AS_ROOT) env BERTH_BIN_DIR=$(abspath $(BIN)) PATH="$$PATH" cargo test -p berth-tests

test: setup-test lint unit e2e ## Everything that has to pass

# Also a part of `unit`, for a second each unless BERTH_FUZZ_SECONDS says otherwise.
FUZZ ?= 600
fuzz: setup ## Mutate what guests and servers send, FUZZ=SECONDS each
	BERTH_FUZZ_SECONDS=$(FUZZ) cargo test -p berth-egress --lib fuzz_ -- --nocapture

# libFuzzer's instrumentation is LLVM's, so a stable toolchain does; it needs g++.
COVERAGE := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Ccodegen-units=1 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
GUIDED ?= guest texts sni dns
fuzz-guided: setup ## The same by coverage, on GUIDED targets of fuzz/, FUZZ=SECONDS each
	@command -v g++ >/dev/null || { echo "fuzz-guided: g++ is missing: install that package" >&2; exit 1; }
	@cp Cargo.lock fuzz/Cargo.lock
	RUSTFLAGS="$(COVERAGE)" cargo build --release --manifest-path fuzz/Cargo.toml --target $(STATIC) \
	    --target-dir $(TARGET)/fuzz
	@for target in $(GUIDED); do \
	    echo "fuzz: $$target"; mkdir -p fuzz/corpus/$$target; \
	    $(TARGET)/fuzz/$(STATIC)/release/$$target -max_total_time=$(FUZZ) -print_final_stats=1 \
	        -artifact_prefix=fuzz/corpus/$$target- fuzz/corpus/$$target || exit 1; done

# A few dozen moments are a part of `unit`, where that runs as root.
MOMENTS ?= 3000
torture: setup-test ## Cut the power at MOMENTS random moments, as root
	$(AS_ROOT) env BERTH_TORTURE=$(MOMENTS) PATH="$$PATH" \
	    cargo test -p berth-hostd --lib tests::flash -- --nocapture

bench: setup-bench image ## Measure against OpenSSH's sshd; writes docs/benchmarks.md
	$(AS_ROOT) env BERTH_BIN_DIR=$(abspath $(BIN)) PATH="$$PATH" cargo run --release -p berth-tests --bin bench
