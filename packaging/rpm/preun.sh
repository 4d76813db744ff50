#!/bin/sh
# 0 packages are left after a removal, 1 after an upgrade.
if [ "$1" -eq 0 ] && [ -d /run/systemd/system ]; then
	systemctl --no-reload disable --now taskgate.service taskgate.socket || :
fi
