#!/usr/bin/env bash
# F53 where the store itself fills its disk: new tasks are refused, then taken again within ten seconds after the old ones
# expired, and the file gives its room back within three minutes, without a restart. After an orderly stop it starts on a
# disk without room, by its ballast. Whoever removes the lock's file lets no second gateway in. Needs root.
source "$(dirname "$0")/common.sh"

truncate -s 224M "$FOLDER/disk.img"
mkfs.ext4 -q -m 0 "$FOLDER/disk.img"
mkdir "$FOLDER/disk"
mount -o loop "$FOLDER/disk.img" "$FOLDER/disk"
MOUNTED+=("$FOLDER/disk")
DATA=$FOLDER/disk/data
OTHER=$'[limits]\nstored_bytes_per_principal_max = "4GiB"'
TASKS=$'ttl = "45s"\nttl_max = "45s"\nkeep_result_min = "45s"'
serve "$DATA"

flood() { "$PROGRAM" call "$URL" flood '{"bytes":4000000}' --flavour extension; }
kept() { du -m --apparent-size "$DATA/tasks.db" | cut -f 1; }
made=0
# They are made faster than they expire, on a slow machine, too.
floods() {
	local calls=()
	for n in 1 2 3 4; do
		flood > /dev/null 2> "$FOLDER/flood-$n.err" &
		calls+=($!)
	done
	for id in "${calls[@]}"; do wait "$id" || return 1; done
}
while [ "$made" -lt 100 ] && floods; do made=$((made + 4)); done
is_full() { grep -qi full "$FOLDER"/flood-*.err; }
within 5 is_full || fail "the disk never fills up: $made results, $(cat "$FOLDER"/flood-*.err)"
large=$(kept)
within 55 call 0.1 || fail "new tasks are refused ten seconds after the old ones expired"
small() { [ "$(kept)" -lt 32 ]; }
within 180 small || fail "the file has still $(kept) MiB of $large"
echo "filled disk: ok, $made results of 4 MB took $large MiB, of which $(kept) are left"

# The lock is the folder's, not that of a file in it.
rm "$DATA/tasks.lock"
code=0
"$PROGRAM" serve --config "$FOLDER/taskgate.toml" > /dev/null 2> "$FOLDER/second.log" || code=$?
[ "$code" = 75 ] || fail "a second gateway ends with $code"
echo "removed lock: ok"

# In order, and not a byte left: not even the index of the log can be made without the ballast.
[ -e "$DATA/tasks.ballast" ] || fail "there is no ballast"
for id in "${STARTED[@]}"; do kill -TERM "$id"; done
wait 2> /dev/null || true
STARTED=()
# What is promised to pages in memory comes back once they are written. Some file systems say that blocks are left and give
# them to nobody, so a write decides: less than the log's index takes fits in no more.
mkdir "$FOLDER/disk/filler"
tries=0
takes_more() {
	tries=$((tries + 1))
	head -c 32768 /dev/zero 2> /dev/null > "$FOLDER/disk/filler/more-$tries" && sync "$FOLDER/disk/filler/more-$tries"
}
for n in $(seq 20); do
	cat /dev/zero > "$FOLDER/disk/filler/$n" 2> /dev/null || true
	sync
	takes_more 2> /dev/null || break
done
! takes_more 2> /dev/null || fail "the disk is not full: $(df --output=avail -B1 "$FOLDER/disk" | tail -n 1) bytes are left"
serve "$DATA"
said=$(call 0.1 2>&1 || true)
grep -qi full <<< "$said" || fail "new tasks on a full disk: $said"
rm -r "$FOLDER/disk/filler"
within 20 call 0.1 || fail "new tasks are refused though there is room again"
echo "start on a full disk: ok"
