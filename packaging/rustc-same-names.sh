#!/usr/bin/env bash
# A wrapper of rustc, for RUSTC_WRAPPER. Cargo gives each crate an id that depends on the target, and rustc writes it into the
# names of symbols; a profile finds functions by these names. Here a crate for a target has an id that depends on its name, its
# version and its features alone. Crates for the host (build scripts, macros) keep theirs.
set -euo pipefail
is_for_target='' name='' features='' previous=''
for argument in "$@"; do
	case "$previous" in
		--crate-name) name=$argument ;;
		--cfg) features+=$argument ;;
		--target) is_for_target=1 ;;
	esac
	previous=$argument
done
if [ -z "$is_for_target" ]; then
	exec "$@"
fi
id=$(printf '%s %s %s' "$name" "${CARGO_PKG_NAME:-} ${CARGO_PKG_VERSION:-}" "$features" | sha256sum | cut -c 1-16)
arguments=()
for argument in "$@"; do
	case "$argument" in
		metadata=*) argument=metadata=$id ;;
	esac
	arguments+=("$argument")
done
exec "${arguments[@]}"
