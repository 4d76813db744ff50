# What the scripts here share: a folder, the demo server, a gateway in front of it, and an end that leaves nothing.
# Read by `source`; everything that is started is ended by its id.
set -euo pipefail

PROGRAM=${TASKGATE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/target/debug/taskgate}
FOLDER=$(mktemp -d)
STARTED=()
MOUNTED=()

# What was started under a prefix is its child, and would outlive it.
stop() {
	for id in "${STARTED[@]}"; do
		for child in $(cat "/proc/$id/task/$id/children" 2> /dev/null) "$id"; do kill -KILL "$child" 2> /dev/null || true; done
	done
	STARTED=()
	wait 2> /dev/null || true
}

end() {
	stop
	for place in "${MOUNTED[@]}"; do umount "$place" || true; done
	rm -rf "$FOLDER"
}
trap end EXIT

fail() {
	echo "FAILED: $*" >&2
	tail -n 20 "$FOLDER"/*.log >&2 || true
	exit 1
}

# within SECONDS COMMAND...: until the command succeeds.
within() {
	local left=$(($1 * 10))
	shift
	until "$@" > /dev/null 2>&1; do
		left=$((left - 1))
		[ "$left" -gt 0 ] || return 1
		sleep 0.1
	done
}

# serve STORE [PREFIX...]: the gateway with its store in a folder, under the prefix where there is one, and in front of one
# more upstream where $OTHER is its table. $TASKS are further keys of the upstream's tasks.
serve() {
	local store=$1
	shift
	# Those of an earlier start say what this one has not said yet.
	rm -f "$FOLDER/demo.out" "$FOLDER/gateway.out"
	"$PROGRAM" demo-server --listen 127.0.0.1:0 > "$FOLDER/demo.out" 2> "$FOLDER/demo.log" &
	STARTED+=($!)
	within 10 grep -q http "$FOLDER/demo.out" || fail "the demo server does not start"
	cat > "$FOLDER/taskgate.toml" <<-TOML
		[listen]
		address = "127.0.0.1:0"
		[admin]
		address = "127.0.0.1:0"
		[store]
		kind = "disk"
		path = "$store"
		[upstreams.demo]
		url = "$(head -n 1 "$FOLDER/demo.out")"
		[upstreams.demo.tasks]
		mode = "always"
		poll_interval = "200ms"
		${TASKS:-}
		${OTHER:-}
	TOML
	"$@" "$PROGRAM" serve --config "$FOLDER/taskgate.toml" > "$FOLDER/gateway.out" 2> "$FOLDER/gateway.log" &
	STARTED+=($!)
	within 60 grep -q '^admin' "$FOLDER/gateway.out" || fail "the gateway does not start"
	URL=$(sed -n 's/^serving //p' "$FOLDER/gateway.out" | grep '/demo/')
	ADMIN=$(sed -n 's/^admin *//p' "$FOLDER/gateway.out")
}

# call SECONDS: a tool that takes so long, as a task, to its end.
call() {
	"$PROGRAM" call "$URL" slow_report "{\"seconds\":$1,\"steps\":2}" --flavour extension
}
