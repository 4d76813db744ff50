#!/usr/bin/env bash
# Makes the files of a release in target/dist: programs for each target, guided by a profile of the benchmark's loads, their
# archives, packages for npm, PyPI, Debian and RPM, a formula, the list of components, all licences, and checksums.
#
#   packaging/dist.sh [TARGET ...]    the host's processor without further words: musl (static) and glibc 2.17
#
# PROFILE=FILE    uses this profile (target/dist/taskgate.profdata of an earlier run) and records none: the programs have equal bytes then
# MINISIGN_KEY=FILE    signs the checksums
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD out=$PWD/target/dist work=$PWD/target/dist-build tools=$PWD/target/tools
machine=$(uname -m)
[ "$#" != 0 ] || set -- "$machine-unknown-linux-musl" "$machine-unknown-linux-gnu"
# RUSTFLAGS and CFLAGS name both folders, and blanks end their words.
case "$root${CARGO_HOME:-$HOME/.cargo}" in
	*[[:space:]]*) printf 'dist: the path of the clone or of CARGO_HOME has a blank: move it\n' >&2; exit 64 ;;
esac

step() { printf '\n==== dist: %s (after %s min)\n' "$*" "$((SECONDS / 60))"; }

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
TASKGATE_COMMIT=$(git rev-parse --short=12 HEAD)
[ -z "$(git status --porcelain)" ] || TASKGATE_COMMIT=$TASKGATE_COMMIT-modified
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export TASKGATE_COMMIT SOURCE_DATE_EPOCH CARGO_INCREMENTAL=0

step "tools"
rustup component add llvm-tools
rustup target add "$@" "$machine-unknown-linux-musl"
"$root/packaging/tools.sh" "$tools"
PATH=$tools/dist/bin:$tools/bin:$PATH
profdata=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/llvm-profdata

# The symbols of crates do not contain the target, so that one profile fits all targets.
export RUSTC_WRAPPER=$root/packaging/rustc-same-names.sh
# Folders of this machine are not in the programs.
remap="--remap-path-prefix=$root=/taskgate --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
export CFLAGS="-ffile-prefix-map=$root=/taskgate -ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=/cargo"
names="-Csymbol-mangling-version=v0"

mkdir -p "$work"
# The profile may be in the folder that is deleted now.
[ -z "${PROFILE:-}" ] || cp "$PROFILE" "$work/given.profdata"
rm -rf "$out"
mkdir -p "$out"

if [ -n "${PROFILE:-}" ]; then
	cp "$work/given.profdata" "$out/taskgate.profdata"
else
	step "a program that records"
	recording=$machine-unknown-linux-musl raw=$work/raw
	rm -rf "$raw"
	mkdir -p "$raw"
	# Zig's linker does not take an option that rustc needs for a program that records.
	linker=CARGO_TARGET_$(tr a-z- A-Z_ <<< "$recording")_LINKER
	env "$linker=cc" RUSTFLAGS="$names -Cprofile-generate=$raw" cargo zigbuild --locked --profile dist --target "$recording" \
		--target-dir "$work/recording" --bin taskgate
	step "the loads"
	# A separate program, which records no profile and may be slow, makes the loads.
	loads=$(env -u RUSTC_WRAPPER -u CFLAGS cargo bench --locked --no-run --profile dev --bench gateway --target-dir "$work/loads" \
		--message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
	TASKGATE_BENCH_PROGRAM=$work/recording/$recording/dist/taskgate "$loads" --train
	"$profdata" merge --sparse --output "$out/taskgate.profdata" "$raw"
fi

for target in "$@"; do
	step "the program for $target"
	case "$target" in *-gnu) named=$target.2.17 ;; *) named=$target ;; esac
	RUSTFLAGS="$names $remap -Cprofile-use=$out/taskgate.profdata -Cllvm-args=-pgo-warn-missing-function=false" \
		cargo zigbuild --locked --profile dist --target "$named" --target-dir "$work/guided" --bin taskgate
	install -D "$work/guided/$target/dist/taskgate" "$work/programs/$target/taskgate"
done

"$root/packaging/pack.sh" "$version" "$out" "$work" "$@"
step "done"
