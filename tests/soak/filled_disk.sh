#!/usr/bin/env bash
# F53 where the store itself fills its disk: new tasks are refused, then taken again within ten seconds after the old ones
# expired, and the file gives its room back within three minutes, without a restart. After an orderly stop it starts on a
# disk without a free byte, by its ballast. Whoever removes the lock's file lets no second gateway in. Needs root.
source "$(dirname "$0")/common.sh"

truncate -s 512M "$FOLDER/disk.img"
mkfs.ext4 -q -m 0 "$FOLDER/disk.img"
mkdir "$FOLDER/disk"
mount -o loop "$FOLDER/disk.img" "$FOLDER/disk"
MOUNTED+=("$FOLDER/disk")
DATA=$FOLDER/disk/data
STORE='stored_bytes_per_principal_max = "4GiB"'
TASKS=$'ttl = "25s"\nttl_max = "25s"\nkeep_result_min = "25s"'
serve "$DATA"

flood() { "$PROGRAM" call "$URL" flood '{"bytes":4000000}' --flavour extension; }
kept() { du -m --apparent-size "$DATA/tasks.db" | cut -f 1; }
for ((made = 0; made < 200; made++)); do
	flood > /dev/null 2> "$FOLDER/flood.err" || break
done
grep -qi full "$FOLDER/flood.err" || fail "the disk never fills up: $made results, $(cat "$FOLDER/flood.err")"
large=$(kept)
within 35 call 0.1 || fail "new tasks are refused ten seconds after the old ones expired"
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
cat /dev/zero > "$FOLDER/disk/filler" 2> /dev/null || true
[ "$(df --output=avail -B1 "$FOLDER/disk" | tail -n 1)" = 0 ] || fail "the disk is not full"
serve "$DATA"
said=$(call 0.1 2>&1 || true)
grep -qi full <<< "$said" || fail "new tasks on a full disk: $said"
rm "$FOLDER/disk/filler"
within 20 call 0.1 || fail "new tasks are refused though there is room again"
echo "start on a full disk: ok"
