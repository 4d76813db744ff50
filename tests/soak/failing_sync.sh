#!/usr/bin/env bash
# F54 and F63 in the system itself: a sync that fails costs its batch and no task that has a handle; one that takes five
# seconds holds up no poll. Needs strace.
source "$(dirname "$0")/common.sh"

for fault in error=EIO:when=15 error=EIO:when=15+20 delay_enter=5000000:when=15; do
	serve "$FOLDER/data-$fault" strace -f -qq -o /dev/null -e trace=fsync,fdatasync -e "inject=fsync,fdatasync:$fault"
	calls=()
	for round in 1 2 3 4 5; do
		for n in 1 2 3 4; do
			"$PROGRAM" call "$URL" slow_report '{"seconds":0.5,"steps":2}' --flavour extension > "$FOLDER/call-$round-$n" 2>&1 &
			calls+=($!)
		done
		sleep 1
	done
	lost=0
	for id in "${calls[@]}"; do wait "$id" || lost=$((lost + 1)); done
	for file in "$FOLDER"/call-*; do
		# What got a handle has its result; what did not was told that nothing was sent.
		grep -q 'The report is ready' "$file" || grep -q 'store_failed' "$file" || fail "$fault: $(cat "$file")"
	done
	within 30 call 0.1 || fail "$fault: the gateway does not recover"
	[[ $fault != error* ]] || grep -q 'writing to the task store failed' "$FOLDER/gateway.log" || fail "$fault: nothing failed"
	stop
	echo "$fault: ok, $lost of ${#calls[@]} calls were refused"
done
