#!/usr/bin/env bash
# Installs what `packaging/dist.sh` uses into DIR, each in the version that is written here, wheels by their hashes. With nothing to do it takes a second.
#   packaging/tools.sh DIR
set -euo pipefail
tools=$1
mkdir -p "$tools"

wheels=$(dirname "$0")/tools.txt
stamp=$(cat "$wheels")
if [ "$(cat "$tools/dist/.stamp" 2> /dev/null || true)" != "$stamp" ]; then
	python3 -m venv "$tools/dist"
	"$tools/dist/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --require-hashes --requirement "$wheels"
	printf '%s\n' "$stamp" > "$tools/dist/.stamp"
fi
# crate NAME VERSION [WORD...]
crate() {
	cargo install --list --root "$tools" | grep -q "^$1 v$2:" || cargo install --quiet --locked --debug "$1" --version "$2" --root "$tools" "${@:3}"
}
crate cargo-cyclonedx 0.5.9
# It compares texts for over ten minutes without optimisation.
CARGO_PROFILE_DEV_OPT_LEVEL=3 crate cargo-about 0.9.3 --features cli
crate cargo-deb 3.8.0
crate cargo-generate-rpm 0.21.1
