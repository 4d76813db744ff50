#!/bin/sh
getent passwd taskgate > /dev/null ||
	useradd --system --user-group --home-dir /var/lib/taskgate --no-create-home --shell /usr/sbin/nologin taskgate || exit 1
