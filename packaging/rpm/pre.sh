#!/bin/sh
# Creates the user. /usr/lib/sysusers.d/taskgate.conf comes with the files, after this; its line is repeated here.
getent passwd taskgate > /dev/null && exit 0
if command -v systemd-sysusers > /dev/null; then
	echo 'u taskgate - "taskgate, a proxy for MCP" /var/lib/taskgate' |
		systemd-sysusers --replace=/usr/lib/sysusers.d/taskgate.conf - && exit 0
fi
useradd --system --user-group --home-dir /var/lib/taskgate --no-create-home --shell /usr/sbin/nologin taskgate || exit 1
