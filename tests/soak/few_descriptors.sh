#!/usr/bin/env bash
# F60 with a real limit: accepting pauses without spinning, calls go on, and all is well as soon as descriptors are free.
source "$(dirname "$0")/common.sh"

serve "$FOLDER/data" prlimit --nofile=96
gateway=${STARTED[-1]}
host=${URL#http://} && host=${host%%/*}
call 12 > "$FOLDER/held.out" 2>&1 &
held=$!
sleep 1
ticks() { awk '{print $14 + $15}' "/proc/$gateway/stat"; }
(
	for n in $(seq 200); do exec {line}<> "/dev/tcp/${host%:*}/${host#*:}" || break; done 2> /dev/null
	sleep 5
) &
crowd=$!
STARTED+=("$crowd")
sleep 1
before=$(ticks)
sleep 3
spent=$(($(ticks) - before))
[ "$spent" -lt 60 ] || fail "it spins: $spent ticks of 300"
wait "$crowd" || true
within 5 call 0.1 || fail "it does not recover"
wait "$held" || fail "a call that was held: $(cat "$FOLDER/held.out")"
echo "few descriptors: ok, $spent ticks in 3 s"
