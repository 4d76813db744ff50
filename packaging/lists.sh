#!/usr/bin/env bash
# Lists the components of the program (CycloneDX) and the licences of them all, without folders of this machine.
#   packaging/lists.sh VERSION OUT
set -euo pipefail
version=$1 out=$2
cd "$(dirname "$0")/.."

# cargo-cyclonedx writes beside the Cargo.toml of each member of the workspace.
written=(taskgate-components.json tests/support/taskgate-components.json)
trap 'rm -f "${written[@]}"' EXIT
cargo cyclonedx --quiet --format json --spec-version 1.5 --target all --override-filename taskgate-components
sed -e "s#$PWD#/taskgate#g" taskgate-components.json > "$out/taskgate-$version.cdx.json"
rm -f "${written[@]}"

# The crates are there: cargo-cyclonedx has asked for them all.
cargo about -L warn generate --offline --fail --config packaging/about.toml packaging/licences.hbs > "$out/licences.html"
sed -e '/<title>\|<style>\|<!DOCTYPE/d' -e 's/<[^>]*>//g' -e 's/&lt;/</g' -e 's/&gt;/>/g' -e 's/&quot;/"/g' -e "s/&#x27;/'/g" \
	-e 's/&#x60;/`/g' -e 's/&#x3D;/=/g' -e 's/&amp;/\&/g' "$out/licences.html" > "$out/licences.txt"
