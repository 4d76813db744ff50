#!/usr/bin/env bash
# Builds the Rust SDK's client with logins, for `make peers`. It is apart from the other tests, because it brings another HTTP client along.
#
#   tests/peers/rmcp_login.sh DIR      builds DIR/rmcp-login/debug/rmcp-login
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cargo build --quiet --locked --manifest-path "$here/rmcp_login/Cargo.toml" --target-dir "$1/rmcp-login"
