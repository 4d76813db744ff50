#!/usr/bin/env bash
# Tries the files of `make dist` as users get them. `make dist-test` installs the peers first and names them in TASKGATE_PEERS.
#
#   packaging/dist-test.sh [PART ...]    of: archive chroot npx uvx deb rpm lint image program hosts; all without further words
#
# archive    unpacked in a folder with a space
# chroot     the static program alone in an empty root starts in under 50 ms (as root)
# npx        a registry on loopback: publish, `npx -y taskgate`, `npm install --global`
# uvx        a registry on loopback: publish, `uvx taskgate`, `pip install`, `uv tool install`
# deb, rpm   installed, upgraded, downgraded, removed and purged in a new Debian (as root)
# lint       lintian, rpmlint, units, completions, the formula and the schema of the list of components
# image      deploy/Dockerfile by buildah: its files, and a gateway in it, read-only and as user 65532 (as root)
# program    tests that kill, replace and drive the gateway, and clients of each matrix, with the static program
# hosts      `install` and `uninstall` in the files of ten desktop hosts, before six servers from npm and PyPI
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
since() { awk "BEGIN { printf \"%.1f\", $(date +%s.%N) - $1 }"; }
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
	say "$part: $(since "$began") s from nothing to the end of the first task, two calls of 2 s included"
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
	packaging/install.sh --from "file://$dist" --to "$work/bin"
	say "install.sh: $("$work/bin/taskgate" --version)"
}

try_chroot() {
	need_root chroot
	local empty=$work/empty best=1000000 began taken
	mkdir -p "$empty"
	cp "$(one "$dist/$target/taskgate")" "$empty/taskgate"
	for _ in {1..50}; do
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
	# The download comes first: the Python SDK 2 waits 10 s for a start, and then goes on without tasks.
	say "npx: $(npx -y taskgate --version)"
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
	say "uvx: $(uvx taskgate --version)"
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

# components FILE: it is valid by the schema of CycloneDX, and names libraries.
components() {
	if [ ! -x "$tools/cyclonedx/bin/python" ]; then
		python3 -m venv "$tools/cyclonedx"
		"$tools/cyclonedx/bin/pip" install --quiet --disable-pip-version-check 'cyclonedx-python-lib[json-validation]==11.12.0'
	fi
	"$tools/cyclonedx/bin/python" - "$1" <<-'PYTHON'
	import json, sys
	from cyclonedx.schema import SchemaVersion
	from cyclonedx.validation.json import JsonStrictValidator
	text = open(sys.argv[1]).read()
	if fault := JsonStrictValidator(SchemaVersion.V1_5).validate_str(text):
	    sys.exit(f"dist-test: the list of components breaks CycloneDX's schema: {fault}")
	names = {one["name"] for one in json.loads(text)["components"]}
	if len(names) < 50 or "tokio" not in names:
	    sys.exit(f"dist-test: the list of components has {len(names)} names")
	PYTHON
}

try_lint() {
	need lintian rpmlint ruby zsh fish
	lintian --fail-on error,warning "$dist"/*.deb
	rpmlint --config packaging/rpm/rpmlint.toml "$dist"/*.rpm
	ruby -c "$dist/taskgate.rb"
	components "$(one "$dist/taskgate-$version.cdx.json")"
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

# Becomes the command in the image's root: process 1 of its namespace, user 65532, no capabilities, a network of its own.
enter_image() {
	# shellcheck disable=SC2016 # the inner shell's
	local script='
		read -r process _ < /proc/self/stat
		printf "%s\n" "$process" > "$3"
		ip link set lo up
		mount --bind "$1" "$1"
		mount --bind "$2" "$1/var/lib/taskgate"
		mount -o remount,bind,ro "$1"
		exec env --ignore-environment HOME=/var/lib/taskgate TASKGATE_CONFIG=/etc/taskgate/taskgate.toml PATH=/usr/bin \
			"$(command -v unshare)" --root "$1" --wd /var/lib/taskgate --setuid 65532 --setgid 65532 "${@:4}"'
	PATH=$PATH:/usr/sbin exec unshare --mount --pid --fork --kill-child --net \
		bash -euc "$script" image "$work/image" "$work/store" "$work/process" "$@"
}
# refused REASON: a start that ends at once, with one sentence.
refused() {
	local status=0
	(enter_image /usr/bin/taskgate serve) > "$work/said" 2>&1 || status=$?
	say "image: $1: exit code $status, $(cat "$work/said")"
	[ "$status" = 64 ] && [ "$(wc -l < "$work/said")" = 1 ] || fail "$1: that is not one sentence and exit code 64"
}

try_image() {
	need_root image
	need buildah
	[ "$dist" = "$repository/target/dist" ] || fail "image is built from target/dist"
	local began container gateway status=0
	layers() { buildah --root "$work/layers" --runroot "$work/layers-run" --storage-driver vfs "$@"; }
	began=$(date +%s.%N)
	TARGET=$target deploy/rootfs.sh
	layers build --quiet --format docker --file deploy/Dockerfile --build-arg "TARGET=$target" --build-arg "VERSION=$version" --tag taskgate .
	container=$(layers from taskgate)
	cp -a "$(layers mount "$container")" "$work/image"
	layers inspect --type image --format '{{.Docker.Config.User}} {{.Docker.Config.Entrypoint}} {{.Docker.Config.Cmd}} {{.Docker.Config.Healthcheck.Test}}' taskgate > "$work/said"
	[ "$(cat "$work/said")" = '65532:65532 [/usr/bin/taskgate] [serve] [CMD /usr/bin/taskgate health]' ] || fail "the image is set to $(cat "$work/said")"
	(cd "$work/image" && find . -mindepth 1 -printf '%P %U %m\n' | LC_ALL=C sort) > "$work/found"
	diff - "$work/found" <<-FILES || fail "the image holds other files"
	etc 0 755
	etc/group 0 644
	etc/passwd 0 644
	etc/ssl 0 755
	etc/ssl/certs 0 755
	etc/ssl/certs/ca-certificates.crt 0 644
	etc/taskgate 0 755
	tmp 0 1777
	usr 0 755
	usr/bin 0 755
	usr/bin/taskgate 0 755
	var 0 755
	var/lib 0 755
	var/lib/taskgate 65532 700
	FILES
	cp -a "$work/image/var/lib/taskgate" "$work/store"

	refused "no configuration"
	printf '[upstreams.reports]\nurl = "http://127.0.0.1:9000/mcp"\n' > "$work/image/etc/taskgate/taskgate.toml"
	chmod 600 "$work/image/etc/taskgate/taskgate.toml"
	refused "a configuration of root's alone"
	chmod 644 "$work/image/etc/taskgate/taskgate.toml"

	rmdir "$work/image/tmp"
	enter_image /usr/bin/taskgate serve > "$work/gateway.log" 2>&1 &
	processes+=("$!")
	beside() { nsenter --net="/proc/$gateway/ns/net" "$@"; }
	for _ in {1..300}; do
		! grep -q '^admin ' "$work/gateway.log" || break
		sleep 0.1
	done
	grep -q '^admin ' "$work/gateway.log" || fail "the gateway does not serve: $(cat "$work/gateway.log")"
	gateway=$(cat "$work/process")
	[ "$(awk '/^NSpid:/ { print $NF }' "/proc/$gateway/status")" = 1 ] || fail "the gateway is not process 1"
	[ "$(awk '/^Uid:/ { print $2, $3, $4, $5 }' "/proc/$gateway/status")" = "65532 65532 65532 65532" ] || fail "the gateway runs as another user"
	# Without the function, whose process would be ended in place of the server's.
	nsenter --net="/proc/$gateway/ns/net" "$dist/$target/taskgate" demo-server --listen 127.0.0.1:9000 > "$work/demo.log" 2>&1 &
	processes+=("$!")
	beside curl --silent --output /dev/null --retry 50 --retry-connrefused --retry-delay 1 http://127.0.0.1:9000/mcp || fail "the demo server does not serve"
	beside "$dist/$target/taskgate" call http://127.0.0.1:8080/reports/mcp slow_report '{"seconds":4,"steps":4}' > "$work/said" 2>&1 || fail "$(cat "$work/said")"
	say "image: $(tail -n 1 "$work/said")"
	grep -q working "$work/said" || fail "the call did not become a task"
	say "image: $(since "$began") s from nothing (its build included) to the end of the first task, a call of 4 s included"
	beside "$dist/$target/taskgate" health || fail "the probe of the image fails"
	kill -TERM "$gateway"
	wait "${processes[-2]}" || status=$?
	[ "$status" = 0 ] || fail "SIGTERM to process 1: it ended with $status"
	[ -n "$(find "$work/store" -mindepth 1 -uid 65532 -name '*.key')" ] || fail "the store holds no key of user 65532: $(find "$work/store")"
	say "image: no /tmp, a read-only root, SIGTERM to process 1: passed"
}

# Faults that need no failpoint: programs of a release have none.
try_program() {
	local ends=(f05_ f06_ f09_ f16_ f25_a_drain f59_)
	TASKGATE_PROGRAM=$(one "$dist/$target/taskgate")
	export TASKGATE_PROGRAM
	tests() { cargo test --locked --test "$1" -- --test-threads 4 "${@:2}"; }
	tests durability "${ends[@]}" keys:: endpoint_sessions:: restarts::
	tests programs quick_start::
	tests real_peers ::fastmcp_4_ ::the_typescript_sdk_1_ every_client_is_served_in_front_of clients_page:: wrap_peers::
	say "program: passed"
}

try_hosts() {
	local modules=$peers/node_modules/@modelcontextprotocol python=$tools/servers/bin
	if [ ! -x "$python/mcp-server-git" ]; then
		python3 -m venv "$tools/servers"
		"$python/pip" install --quiet --disable-pip-version-check mcp==2.3.0 mcp-server-time==2026.10.19 mcp-server-git==2026.10.19 pyyaml==6.0.4
	fi
	mkdir -p "$work/home of hosts/notes"
	git init --quiet "$work/home of hosts/notes"
	TASKGATE_LOG=warn "$python/python" packaging/hosts.py "$(one "$dist/$target/taskgate")" "$work/home of hosts" \
		everything "${server[@]}" \
		-- files "$peers/node" "$modules/server-filesystem/dist/index.js" "$work/home of hosts" \
		-- memory "$peers/node" "$modules/server-memory/dist/index.js" \
		-- thinking "$peers/node" "$modules/server-sequential-thinking/dist/index.js" \
		-- time "$python/mcp-server-time" \
		-- git "$python/mcp-server-git" --repository "$work/home of hosts/notes"
}

[ "$#" != 0 ] || set -- archive chroot npx uvx deb rpm lint image program hosts
for part in "$@"; do
	case "$part" in archive | chroot | npx | uvx | deb | rpm | lint | image | program | hosts) ;; *) fail "$part is unknown: $(sed -n '4s/^# *//p' "$0")" ;; esac
	step "$part"
	"try_$part"
done
say "passed: $*"
