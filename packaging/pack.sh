#!/usr/bin/env bash
# Packs built programs: archives, packages for npm, PyPI, Debian and RPM, a formula, the lists, and checksums of them all.
#
#   packaging/pack.sh VERSION OUT WORK TARGET...    each program is WORK/programs/TARGET/taskgate
#
# Equal programs give equal bytes, with the time SOURCE_DATE_EPOCH (without it: the last commit's). In PATH: npm, cargo-deb, cargo-generate-rpm, cargo-cyclonedx,
# cargo-about, Python 3.11.
# GENERATOR=FILE    prints completions and manual pages, where no program of WORK runs here
# PARTS="archives npm"    packs these alone, of: lists archives npm wheels packages formula
# MINISIGN_KEY=FILE    signs the checksums
set -euo pipefail

[ "$#" -ge 4 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 64; }
version=$1
mkdir -p "$2"
out=$(cd "$2" && pwd) work=$(cd "$3" && pwd)
shift 3
cd "$(dirname "$0")/.."
root=$PWD
parts=" ${PARTS:-lists archives npm wheels packages formula} "
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022

step() { printf '\n==== pack: %s\n' "$*"; }
fail() { printf 'pack: %s\n' "$*" >&2; exit 1; }
has() { [[ $parts == *" $1 "* ]]; }

for target in "$@"; do
	[ -x "$work/programs/$target/taskgate" ] || fail "$work/programs/$target/taskgate is missing: packaging/dist.sh builds it"
done

# Both packages take their files from target/stage, so one run at a time has it.
mkdir -p "$root/target"
exec 9> "$root/target/stage.lock"
flock 9
stage=$root/target/stage
rm -rf "$stage"
mkdir -p "$stage/completions" "$stage/man" "$stage/units" "$stage/documents"
trap 'rm -rf "$stage"' EXIT

generator=${GENERATOR:-}
for target in "$@"; do
	[ -n "$generator" ] || ! "$work/programs/$target/taskgate" --version > /dev/null 2>&1 || generator=$work/programs/$target/taskgate
done
[ -n "$generator" ] || fail "no program of $* runs here: name one that does in GENERATOR"
step "completions and manual pages"
"$generator" completions bash > "$stage/completions/taskgate.bash"
"$generator" completions zsh > "$stage/completions/_taskgate"
"$generator" completions fish > "$stage/completions/taskgate.fish"
"$generator" man "$stage/man"

if has lists; then
	step "components and licences"
	packaging/lists.sh "$version" "$out"
fi
cp README.md "$stage/documents/"
[ ! -f "$out/licences.txt" ] || cp "$out/licences.txt" "$stage/documents/"

archive() {
	local target=$1 name=taskgate-$version-$1 folder
	folder=$work/archives/$name
	rm -rf "$folder"
	mkdir -p "$folder/config" "$folder/systemd"
	install -m 755 "$work/programs/$target/taskgate" "$folder/taskgate"
	install -m 644 LICENSE "$stage"/documents/* "$folder/"
	cp -r "$stage/man" "$stage/completions" "$folder/"
	install -m 644 config/minimal.toml config/taskgate.example.toml "$folder/config/"
	install -m 644 deploy/taskgate.service deploy/taskgate.socket "$folder/systemd/"
	find "$folder" -type d -exec chmod 755 {} +
	tar --create --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
		--directory "$work/archives" "$name" | gzip -9n > "$out/$name.tar.gz"
	# Images are built from here.
	install -D -m 755 "$folder/taskgate" "$out/$target/taskgate"
}
if has archives; then
	for target in "$@"; do
		step "the archive for $target"
		archive "$target"
	done
fi

# Packages hold the static program, which runs beside every C library, and the programs of systems that have none.
packaged=()
for target in "$@"; do
	case "$target" in *-musl | *-darwin | *-windows-*) packaged+=("$target") ;; esac
done

if has npm && [ "${#packaged[@]}" != 0 ]; then
	step "npm packages"
	programs=()
	for target in "${packaged[@]}"; do
		case "$target" in x86_64-*) cpu=x64 ;; aarch64-*) cpu=arm64 ;; *) fail "$target: node has no word for its processor" ;; esac
		case "$target" in *-linux-*) system=linux ;; *-darwin) system=darwin ;; *) continue ;; esac
		programs+=("$system-$cpu=$work/programs/$target/taskgate")
	done
	packaging/npm/pack.sh "$version" "$out/npm" "${programs[@]}"
fi

if has wheels && [ "${#packaged[@]}" != 0 ]; then
	step "wheels"
	for target in "${packaged[@]}"; do
		python3 packaging/pypi/wheel.py "$version" "$target" "$work/programs/$target/taskgate" "$out/pypi"
	done
fi

# The units of packages: the program is in /usr/bin, and the user is the one that the package creates.
package_units() {
	local repository
	repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
	{
		cat packaging/unit-header.txt
		sed -e '1,/^\[Unit\]$/d' -e "s#^ExecStart=/usr/local/bin/#ExecStart=/usr/bin/#" \
			-e "s#^Description=.*#&\nDocumentation=man:taskgate(1) $repository#" \
			-e 's/^DynamicUser=yes$/User=taskgate\nGroup=taskgate\nRemoveIPC=yes\nRestrictSUIDSGID=yes/' deploy/taskgate.service
	} > "$stage/units/taskgate.service"
	cp deploy/taskgate.socket "$stage/units/"
}
package() {
	local target=$1 processor
	case "$target" in x86_64-*) processor=x86_64 ;; *) processor=aarch64 ;; esac
	install -m 755 "$work/programs/$target/taskgate" "$stage/taskgate"
	cargo deb --quiet --no-build --no-strip --target "$target" --deb-version "$version-1" --output "$out/"
	cargo generate-rpm --target "$target" --arch "$processor" --payload-compress gzip --source-date "$SOURCE_DATE_EPOCH" \
		--set-metadata "version = \"$version\"" --output "$out/"
}
if has packages && [ "${#packaged[@]}" != 0 ]; then
	package_units
	gzip -9n "$stage"/man/*
	cp packaging/deb/overrides "$stage/overrides"
	printf 'taskgate (%s-1) unstable; urgency=medium\n\n  * See CHANGELOG.md of this version.\n\n -- %s  %s\n' "$version" \
		"$(sed -n 's/^authors = \["\(.*\)"\]/\1/p' Cargo.toml)" "$(date -R -d "@$SOURCE_DATE_EPOCH")" > "$stage/changelog"
	find "$stage" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
	for target in "${packaged[@]}"; do
		case "$target" in *-linux-musl) ;; *) continue ;; esac
		step "Debian and RPM packages for $target"
		package "$target"
	done
fi

if has formula && [ "${#packaged[@]}" != 0 ]; then
	step "the formula"
	packaging/formula.sh "$version" "$out" "${packaged[@]}" > "$out/taskgate.rb"
fi

step "checksums"
cp packaging/install.sh "$out/"
(cd "$out" && find . -type f ! -name 'SHA256SUMS*' ! -path './*-*-*/*' | sed 's#^\./##' | sort | xargs -d '\n' sha256sum) > "$work/SHA256SUMS"
mv "$work/SHA256SUMS" "$out/SHA256SUMS"
if [ -n "${MINISIGN_KEY:-}" ]; then
	minisign -S -s "$MINISIGN_KEY" -m "$out/SHA256SUMS" -t "taskgate $version"
fi
printf 'pack: %s files in %s\n' "$(wc -l < "$out/SHA256SUMS")" "$out"
