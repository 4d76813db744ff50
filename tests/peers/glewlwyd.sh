#!/usr/bin/env bash
# Fetches Debian's glewlwyd and its libraries, a second authorization server for `make peers`.
#
#   tests/peers/glewlwyd.sh DIR      unpacks them into DIR/glewlwyd, and installs nothing
#
# Without apt-get it does nothing: the tests that need it are left out.
set -euo pipefail
to=$1/glewlwyd
if [ -x "$to/usr/bin/glewlwyd" ] || ! command -v apt-get >/dev/null; then
    exit 0
fi
packages=$(apt-get install --simulate --no-install-recommends glewlwyd | awk '$1 == "Inst" { print $2 }')
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Where glewlwyd is installed there is nothing to simulate, and its libraries are the system's.
(cd "$folder" && apt-get download --quiet ${packages:-glewlwyd glewlwyd-common})
for package in "$folder"/*.deb; do
    dpkg --extract "$package" "$folder/root"
done
rm -rf "$to"
mv "$folder/root" "$to"
