#!/usr/bin/env bash
# Tries the files of `make dist` as users get them. `make dist-test` installs the peers first and names them in TASKGATE_PEERS.
#
#   packaging/dist-test.sh [PART ...]    of: archive chroot npx uvx deb rpm lint; all without further words
#
# archive    unpacked in a folder with a space
# chroot     the static program alone in an empty root starts in under 50 ms (as root)
# npx        a registry on loopback: publish, `npx -y taskgate`, `npm install --global`
# uvx        a registry on loopback: publish, `uvx taskgate`, `pip install`, `uv tool install`
# deb, rpm   installed, upgraded, downgraded, removed and purged in a new Debian (as root)
# lint       lintian, rpmlint, units, completions and the formula
#
# archive, npx, uvx and deb are driven by stdio clients of SDKs, before server-everything; the seconds from nothing to the end of
# a first task are printed. DIST names another folder than target/dist, SUITE another Debian than trixie.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
dist=$(cd "${DIST:-target/dist}" && pwd)
peers=${TASKGATE_PEERS:?dist-test: name the folder that tests/peers/setup.sh filled}
tools=$repository/target/tools/registries
machine=$(uname -m)
target=$machine-unknown-linux-musl
work=$(mktemp -d)
processes=()
trap '[ "${#processes[@]}" = 0 ] || kill "${processes[@]}" 2> /dev/null || :; rm -rf "$work"' EXIT

step() { printf '\n==== dist-test: %s\n' "$*"; }
say() { printf 'dist-test: %s\n' "$*"; }
fail() { printf 'dist-test: %s\n' "$*" >&2; exit 1; }
need_root() { [ "$(id -u)" = 0 ] || fail "$1 needs root"; }
need() { for name in "$@"; do command -v "$name" > /dev/null || fail "$name is missing: run 'apt-get install $name' as root"; done; }
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
# wait_for URL
wait_for() {
	for _ in {1..300}; do
		! curl --silent --output /dev/null "$1" || return 0
		sleep 0.1
	done
	fail "$1 does not respond"
}
one() { [ -f "$1" ] || fail "$1 is missing: run make dist first"; printf '%s\n' "$1"; }

server=("$peers/node" "$peers/node_modules/@modelcontextprotocol/server-everything/dist/index.js" stdio)
calls=(echo '{"message":"hi"}' trigger-long-running-operation '{"duration":2,"steps":2}')

# drive PROGRAM...: clients of three SDKs start it with `wrap`. The first one knows tasks, and notes one.
drive() {
	local began=$1 facts
	shift
	facts=$(cd "$peers" && "$peers/py-modern/bin/python" wrap_py.py fastmcp "${calls[@]}" "$@" wrap --grace 500ms -- "${server[@]}")
	say "$part: FastMCP: $facts"
	[[ $facts == *'"task": "'* && $facts == *'Echo: hi'* ]] || fail "$part: no task was noted"
	say "$part: $(awk "BEGIN { printf \"%.1f\", $(date +%s.%N) - $began }") s from nothing to the end of the first task, two calls of 2 s included"
	facts=$(cd "$peers" && "$peers/py-modern/bin/python" wrap_py.py sdk "${calls[@]}" "$@" wrap --grace 500ms -- "${server[@]}")
	say "$part: Python SDK: $facts"
	facts=$(cd "$peers" && "$peers/node" wrap_ts.mjs ts2 "${calls[@]}" "$@" wrap --grace 500ms -- "${server[@]}")
	say "$part: TypeScript SDK: $facts"
}

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

try_archive() {
	local began
	began=$(date +%s.%N)
	mkdir -p "$work/a folder"
	tar -xzf "$(one "$dist/taskgate-$version-$target.tar.gz")" -C "$work/a folder"
	(cd "$dist" && sha256sum --check --quiet SHA256SUMS)
	drive "$began" "$work/a folder/taskgate-$version-$target/taskgate"
}

try_chroot() {
	need_root chroot
	local empty=$work/empty best=1000000 began taken
	mkdir -p "$empty"
	cp "$(one "$dist/$target/taskgate")" "$empty/taskgate"
	for _ in {1..10}; do
		began=$(date +%s%N)
		chroot "$empty" /taskgate --version > "$work/said" || fail "the program does not start in an empty root: is it static?"
		taken=$((($(date +%s%N) - began) / 1000))
		[ "$taken" -ge "$best" ] || best=$taken
	done
	say "chroot: $(cat "$work/said"), $((best / 1000)) ms, $(stat -c %s "$empty/taskgate") bytes"
	[ "$best" -lt 50000 ] || fail "the program takes $best µs to start"
}

try_npx() {
	local port began
	if [ ! -x "$tools/node_modules/.bin/verdaccio" ]; then
		mkdir -p "$tools"
		# verdaccio asks for node-fetch by a tag that registries may not have.
		printf '{"private": true, "overrides": {"node-fetch": "2.7.0"}}\n' > "$tools/package.json"
		(cd "$tools" && npm install --no-audit --no-fund --loglevel=error verdaccio@6.10.4)
	fi
	port=$(free_port)
	# shellcheck disable=SC2016 # verdaccio's words
	printf '%s\n' "storage: $work/npm-storage" 'packages: {"**": {access: $all, publish: $all}}' \
		'auth: {htpasswd: {file: ./htpasswd, max_users: -1}}' 'log: {type: stdout, level: warn}' 'max_body_size: 200mb' > "$work/verdaccio.yaml"
	"$peers/node" "$tools/node_modules/verdaccio/bin/verdaccio" --config "$work/verdaccio.yaml" --listen "127.0.0.1:$port" > "$work/verdaccio.log" 2>&1 &
	processes+=("$!")
	wait_for "http://127.0.0.1:$port/"
	export npm_config_registry=http://127.0.0.1:$port/ npm_config_cache=$work/npm-cache npm_config_update_notifier=false
	export npm_config_userconfig=$work/npmrc
	printf '//127.0.0.1:%s/:_authToken=none\n' "$port" > "$npm_config_userconfig"
	for package in "$dist"/npm/taskgate-*-*-*.tgz "$dist/npm/taskgate-$version.tgz"; do
		npm publish --loglevel=error "$(one "$package")"
	done
	began=$(date +%s.%N)
	drive "$began" npx -y taskgate
	npm install --global --prefix "$work/global" --loglevel=error taskgate
	say "npm install --global: $("$work/global/bin/taskgate" --version)"
	unset npm_config_registry npm_config_cache npm_config_userconfig
}

try_uvx() {
	local port index began
	if [ ! -x "$tools/py/bin/pypi-server" ]; then
		python3 -m venv "$tools/py"
		"$tools/py/bin/pip" install --quiet --disable-pip-version-check pypiserver==2.4.2 uv==0.13.9
	fi
	PATH=$tools/py/bin:$PATH
	port=$(free_port)
	index=http://127.0.0.1:$port
	mkdir -p "$work/wheels"
	pypi-server run --interface 127.0.0.1 --port "$port" --passwords . --authenticate . --disable-fallback "$work/wheels" > "$work/pypi.log" 2>&1 &
	processes+=("$!")
	wait_for "$index/"
	export UV_CACHE_DIR=$work/uv-cache UV_TOOL_DIR=$work/uv-tools UV_TOOL_BIN_DIR=$work/uv-bin UV_DEFAULT_INDEX=$index/simple
	uv publish --quiet --publish-url "$index/" --username none --password none "$dist"/pypi/*.whl
	began=$(date +%s.%N)
	drive "$began" uvx taskgate
	python3 -m venv "$work/venv"
	"$work/venv/bin/pip" install --quiet --disable-pip-version-check --index-url "$index/simple" taskgate
	say "pip install: $("$work/venv/bin/taskgate" --version)"
	uv tool install --quiet taskgate
	say "uv tool install: $("$work/uv-bin/taskgate" --version)"
}

# A new Debian in $work/debian.
debian() {
	local kept=$repository/target/tools/debian-${SUITE:-trixie}.tar
	need mmdebstrap
	[ -f "$kept" ] || mmdebstrap --quiet --variant=minbase "${SUITE:-trixie}" "$kept" ${MIRROR:+"$MIRROR"}
	rm -rf "$work/debian"
	mkdir -p "$work/debian"
	tar -xf "$kept" -C "$work/debian"
}
inside() { LC_ALL=C DEBIAN_FRONTEND=noninteractive chroot "$work/debian" "$@"; }
# has PATH... / lacks PATH...: in the new Debian
has() { for path in "$@"; do [ -e "$work/debian$path" ] || fail "$path is missing"; done; }
lacks() { for path in "$@"; do [ ! -e "$work/debian$path" ] || fail "$path is left"; done; }

try_deb() {
	need_root deb
	local began deb processor
	processor=$(dpkg --print-architecture)
	deb=$(one "$dist/taskgate_$version-1_$processor.deb")
	debian
	# A later version, with another configuration.
	dpkg-deb -R "$deb" "$work/later"
	sed -i "s/^Version: .*/Version: $version-2/" "$work/later/DEBIAN/control"
	printf '# later\n' >> "$work/later/etc/taskgate/taskgate.toml"
	dpkg-deb --build --root-owner-group "$work/later" "$work/debian/later.deb" > /dev/null
	cp "$deb" "$work/debian/first.deb"

	began=$(date +%s.%N)
	inside dpkg --install /first.deb
	drive "$began" "$work/debian/usr/bin/taskgate"
	inside getent passwd taskgate > /dev/null || fail "the user is missing"
	has /usr/lib/systemd/system/taskgate.socket /usr/bin/taskgate
	say "deb: $(inside taskgate --version) without systemd"
	printf '# mine\n' >> "$work/debian/etc/taskgate/taskgate.toml"
	mkdir -p "$work/debian/var/lib/taskgate"
	touch "$work/debian/var/lib/taskgate/tasks"
	inside dpkg --install --force-confdef --force-confold /later.deb
	grep -q '^# mine' "$work/debian/etc/taskgate/taskgate.toml" || fail "an upgrade replaced the configuration"
	inside dpkg --install --force-confdef --force-confold /first.deb
	grep -q '^# mine' "$work/debian/etc/taskgate/taskgate.toml" || fail "a downgrade replaced the configuration"
	inside dpkg --remove taskgate
	has /etc/taskgate/taskgate.toml /var/lib/taskgate/tasks
	lacks /usr/bin/taskgate
	inside dpkg --purge taskgate
	lacks /etc/taskgate /var/lib/taskgate
	say "deb: installed, upgraded, downgraded, removed, purged"
}


try_rpm() {
	need rpm
	local rpm
	rpm=$(one "$dist/taskgate-$version-1.$machine.rpm")
	rpm -qlp "$rpm"
	[ "$(id -u)" = 0 ] || { say "rpm: installed only as root"; return; }
	debian
	install_rpm() { rpm --root "$work/debian" --nodeps "$@"; }
	install_rpm --install "$rpm"
	inside getent passwd taskgate > /dev/null || fail "the user is missing"
	say "rpm: $(inside taskgate --version)"
	printf '# mine\n' >> "$work/debian/etc/taskgate/taskgate.toml"
	mkdir -p "$work/debian/var/lib/taskgate"
	install_rpm --upgrade --force "$rpm"
	grep -q '^# mine' "$work/debian/etc/taskgate/taskgate.toml" || fail "an upgrade replaced the configuration"
	install_rpm --erase taskgate
	has /etc/taskgate/taskgate.toml.rpmsave /var/lib/taskgate
	lacks /usr/bin/taskgate
	say "rpm: installed, upgraded, removed"
}

try_lint() {
	need lintian rpmlint ruby zsh fish
	lintian --fail-on error,warning "$dist"/*.deb
	rpmlint --config packaging/rpm/rpmlint.toml "$dist"/*.rpm
	ruby -c "$dist/taskgate.rb"
	local folder=$work/linted
	mkdir -p "$folder"
	tar -xzf "$(one "$dist/taskgate-$version-$target.tar.gz")" -C "$folder" --strip-components 1
	bash -n "$folder/completions/taskgate.bash"
	zsh -n "$folder/completions/_taskgate"
	fish --no-execute "$folder/completions/taskgate.fish"
	dpkg-deb -x "$dist/taskgate_$version-1_$(dpkg --print-architecture).deb" "$folder/deb"
	if command -v systemd-analyze > /dev/null; then
		# The program is elsewhere in this root.
		sed -i "s#^ExecStart=/usr/bin/taskgate#ExecStart=$folder/taskgate#" "$folder/deb/usr/lib/systemd/system/taskgate.service"
		systemd-analyze verify --man=no "$folder/deb/usr/lib/systemd/system/"taskgate.*
	fi
	say "lint: clean"
}

[ "$#" != 0 ] || set -- archive chroot npx uvx deb rpm lint
for part in "$@"; do
	case "$part" in archive | chroot | npx | uvx | deb | rpm | lint) ;; *) fail "$part is unknown: $(sed -n '4s/^# *//p' "$0")" ;; esac
	step "$part"
	"try_$part"
done
say "passed: $*"
