#!/usr/bin/env bash
# Makes the secrets of both compose files as root, and keeps those that are there:
#
#   sudo deploy/compose/secrets.sh [DIR]
#
# DIR is target/secrets unless written; the compose files read it from TASKGATE_SECRETS.
# Compose mounts the files as they are, so each belongs to the user that reads it: 65532 (taskgate) or 999 (PostgreSQL), mode 0400.
# The authority's key is thrown away: remove replica.crt to make all certificates again.
set -euo pipefail

dir=${1:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/target/secrets}
gateway=65532 database=999
days=3650

command -v openssl >/dev/null || { echo "secrets: openssl is missing: install it" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "secrets: run this as root: the files get the users 65532 and 999" >&2; exit 1; }
umask 077
mkdir -p "$dir"
chmod 0755 "$dir"
cd "$dir"
# new_key FILE [PREFIX]: a key of 64 hex digits, unless the file is there.
new_key() {
    local key
    [ ! -e "$1" ] || return 0
    key=$(openssl rand -hex 32)
    printf '%s%s\n' "${2:-}" "$key" >"$1"
}
# quiet COMMAND...: shows its messages only if it fails
quiet() { "$@" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }; }

# The client's key: `TASKGATE_KEY=$(sudo cat FILE) taskgate call …`
new_key ada.key tg_ada1_
new_key seal.key
new_key database.password
[ -e database.own.password ] || cp database.password database.own.password

if [ ! -e replica.crt ] || [ ! -e database.crt ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    new=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
    quiet openssl req -x509 "${new[@]}" -days "$days" -subj "/CN=taskgate compose" -keyout "$work/ca.key" -out ca.crt
    # signed NAME SUBJECT_ALT_NAMES
    signed() {
        quiet openssl req "${new[@]}" -subj "/CN=$1" -keyout "$1.key" -out "$work/$1.csr"
        printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n' "$2" >"$work/$1.ext"
        quiet openssl x509 -req -in "$work/$1.csr" -CA ca.crt -CAkey "$work/ca.key" -CAcreateserial -CAserial "$work/serial" \
            -days "$days" -extfile "$work/$1.ext" -out "$1.crt"
    }
    signed replica IP:172.31.244.11,IP:172.31.244.12
    signed database DNS:database
fi

chmod 0400 ada.key seal.key database.password database.own.password replica.key database.key
chmod 0444 ca.crt replica.crt database.crt
chown "$gateway:$gateway" ada.key seal.key database.password ca.crt replica.crt replica.key
chown "$database:$database" database.own.password database.crt database.key
echo "secrets: ready in $dir"
