#!/bin/sh
# An upgrade restarts a running gateway; taskgate.socket listens meanwhile, so clients wait. A removal keeps the store.
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
	[ "$1" -eq 0 ] || systemctl try-restart taskgate.service || :
fi
