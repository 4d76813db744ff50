#!/usr/bin/env bash
# F27 with a network that swallows every packet: the call ends at the connect deadline, was not run, and no other
# upstream waits with it. In a network namespace of its own, over a pair of devices the far one of which hears nothing.
[ -n "${IN_NAMESPACE:-}" ] || IN_NAMESPACE=1 exec unshare --net "$0" "$@"
source "$(dirname "$0")/common.sh"

ip link set lo up
ip link add near type veth peer name far
ip address add 10.99.0.1/24 dev near
ip link set near up
ip link set far up
ip neighbour add 10.99.0.2 lladdr 02:00:00:00:00:02 nud permanent dev near

OTHER=$'[upstreams.hole]\nurl = "http://10.99.0.2:9000/mcp"'
serve "$FOLDER/data"
hole=${URL/\/demo\//\/hole\/}
began=$(date +%s)
"$PROGRAM" call "$hole" anything '{}' --flavour extension > "$FOLDER/hole.out" 2>&1 &
caller=$!
within 3 call 0.1 || fail "another upstream waits for the black hole"
if wait "$caller"; then fail "a call into a black hole succeeded"; fi
took=$(($(date +%s) - began))
grep -qi 'unreachable\|not be reached' "$FOLDER/hole.out" || fail "what the caller reads: $(cat "$FOLDER/hole.out")"
[ "$took" -ge 4 ] && [ "$took" -le 30 ] || fail "it took $took s"
echo "black hole: ok, given up after $took s"
