#!/bin/sh
# Installs taskgate for one user, from a folder of a release: checks the checksum, needs no root, says what it did.
#
#   install.sh [--from URL] [--to FOLDER] [--version VERSION]
#
# --from       URL of the folder with SHA256SUMS and the archives; or TASKGATE_FROM
# --to         folder of the program; or TASKGATE_TO; ~/.local/bin without both
# --version    the release of that folder, if it holds several
#
# From a pipe: curl -fsSL URL/install.sh | sh -s -- --from URL
set -eu

# RELEASING.md: the address of releases, once there is one.
default_from=

say() { printf 'install.sh: %s\n' "$*"; }
# fail STATUS TEXT: 64 a mistake in the call, 65 a bad download, 69 no program for this machine, 73 a file cannot be written.
fail() {
	status=$1
	shift
	printf 'install.sh: %s\n' "$*" >&2
	exit "$status"
}

# The target of this machine, or a refusal.
find_target() {
	system=$(uname -s)
	machine=$(uname -m)
	case "$machine" in
		x86_64 | amd64) machine=x86_64 ;;
		aarch64 | arm64) machine=aarch64 ;;
		*) fail 69 "no program for $system on $machine: build it from source" ;;
	esac
	case "$system" in
		Linux) target=$machine-unknown-linux-musl ;;
		Darwin) target=$machine-apple-darwin ;;
		*) fail 69 "no program for $system on $machine: build it from source" ;;
	esac
}

# download NAME: into the work folder.
download() {
	if command -v curl > /dev/null; then
		curl --fail --silent --show-error --location --output "$work/$1" "$from/$1"
	elif command -v wget > /dev/null; then
		wget --quiet --output-document="$work/$1" "$from/$1"
	else
		fail 69 "neither curl nor wget is installed: install one of them"
	fi || fail 65 "$from/$1: the download failed; nothing was installed"
}

# digest FILE: its SHA-256.
digest() {
	if command -v sha256sum > /dev/null; then sha256sum < "$1"; else shasum -a 256 < "$1"; fi | cut -d ' ' -f 1
}

read_words() {
	from=${TASKGATE_FROM:-$default_from}
	to=${TASKGATE_TO:-}
	version=
	while [ "$#" -gt 0 ]; do
		[ "$#" -ge 2 ] || fail 64 "$1 is unknown or has no value: install.sh [--from URL] [--to FOLDER] [--version VERSION]"
		case "$1" in
			--from) from=$2 ;;
			--to) to=$2 ;;
			--version) version=$2 ;;
			*) fail 64 "$1 is unknown: install.sh [--from URL] [--to FOLDER] [--version VERSION]" ;;
		esac
		shift 2
	done
	from=${from%/}
	[ -n "$from" ] || fail 64 "taskgate has no public address yet: name the folder of a release by --from URL or TASKGATE_FROM"
	[ -n "$to" ] || to=${HOME:?install.sh: HOME is not set: name a folder by --to}/.local/bin
}

# The version that a program says, or nothing.
version_of() {
	{ "$1" --version 2> /dev/null || :; } | sed -n '1s/^taskgate //p'
}

main() {
	read_words "$@"
	find_target
	command -v sha256sum > /dev/null || command -v shasum > /dev/null ||
		fail 69 "neither sha256sum nor shasum is installed: install one of them"
	mkdir -p "$to" 2> /dev/null || fail 73 "$to: the folder cannot be created; name another one by --to"
	[ -d "$to" ] && [ -w "$to" ] || fail 73 "$to: the folder cannot be written; name another one by --to"
	[ ! -d "$to/taskgate" ] || fail 73 "$to/taskgate is a folder; name another folder by --to"
	work=$(mktemp -d)
	new=$to/.taskgate.$$
	trap 'rm -rf "$work" "$new"' EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM

	download SHA256SUMS
	line=$(sed -n "/  taskgate-${version:-[0-9][^ ]*}-$target\.tar\.gz\$/p" "$work/SHA256SUMS")
	[ -n "$line" ] || fail 69 "$from holds no archive of ${version:-any version} for $target"
	versions=$(printf '%s\n' "$line" | sed "s/.*  taskgate-\(.*\)-$target\.tar\.gz\$/\1/" | tr '\n' ' ')
	[ "$(printf '%s\n' "$line" | wc -l)" -eq 1 ] || fail 64 "$from holds several versions: ${versions% }; name one by --version"
	wanted=${line%% *}
	archive=${line##* }
	download "$archive"
	found=$(digest "$work/$archive")
	[ "$found" = "$wanted" ] ||
		fail 65 "$archive has the SHA-256 $found, and SHA256SUMS says $wanted: a half or changed download; nothing was installed"
	folder=${archive%.tar.gz}
	tar -xzf "$work/$archive" -C "$work" || fail 65 "$archive cannot be unpacked; nothing was installed"

	# A copy in the same folder: the move replaces the program at once, even one that runs.
	{ cp "$work/$folder/taskgate" "$new" && chmod 755 "$new"; } || fail 73 "$to: the program cannot be written"
	installed=$(version_of "$new")
	[ -n "$installed" ] || fail 69 "the program for $target does not run on this machine; nothing was installed"
	if [ -e "$to/taskgate" ]; then
		earlier=$(version_of "$to/taskgate")
		done="replaced taskgate ${earlier:-of an unknown version} by $installed: $to/taskgate"
	else
		done="installed taskgate $installed: $to/taskgate"
	fi
	mv -f "$new" "$to/taskgate" || fail 73 "$to/taskgate cannot be replaced"
	say "$done"

	case ":$PATH:" in
		*":$to:"*) ;;
		*) say "$to is not in PATH: add it, or start the program by its full path" ;;
	esac
	say "nothing else was changed; \`taskgate completions SHELL\` and \`taskgate man FOLDER\` make completions and manual pages"
}

# The last line: half a script does nothing.
main "$@"
