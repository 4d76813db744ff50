#!/usr/bin/env bash
# F53 on a disk of its own: reads go on, running tasks end, new ones are refused before the disk is full, and all is well
# once there is room again. Needs root.
source "$(dirname "$0")/common.sh"

truncate -s 512M "$FOLDER/disk.img"
mkfs.ext4 -q "$FOLDER/disk.img"
mkdir "$FOLDER/disk"
mount -o loop "$FOLDER/disk.img" "$FOLDER/disk"
MOUNTED+=("$FOLDER/disk")
serve "$FOLDER/disk/data"
call 0.1 > /dev/null || fail "a call on an empty disk"
call 8 > "$FOLDER/held.out" 2>&1 &
held=$!
sleep 1
free=$(df --output=avail -B1M "$FOLDER/disk" | tail -n 1)
fallocate -l $((free - 24))M "$FOLDER/disk/filler"
refused() { ! call 0.1; }
within 10 refused || fail "a full disk takes new tasks"
said=$(call 0.1 2>&1 || true)
grep -qi full <<< "$said" || fail "the refusal does not name its reason: $said"
wait "$held" || fail "a task that ran when the disk became full: $(cat "$FOLDER/held.out")"
rm "$FOLDER/disk/filler"
within 20 call 0.1 || fail "new tasks are refused though there is room again"
echo "full disk: ok"
