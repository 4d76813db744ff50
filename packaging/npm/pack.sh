#!/usr/bin/env bash
# Makes npm packages: the launcher, and one package for each program that is named as OS-ARCH=FILE (node's words). npm gives all
# entries one time and one owner, so that equal programs give equal bytes.
#   packaging/npm/pack.sh VERSION OUT linux-x64=FILE [...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# Provenance of npm compares it with the workflow's repository.
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' "$here/../../Cargo.toml")
version=$1 out=$2
shift 2
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pack() { (cd "$1" && npm pack --silent --ignore-scripts --offline --pack-destination "$out" > /dev/null); }
platforms=() packing=()
for platform in "$@"; do
	name=${platform%%=*} program=${platform#*=}
	platforms+=("$name")
	install -D -m 755 "$program" "$work/$name/bin/taskgate"
	cp "$here/../../LICENSE" "$work/$name/"
	(cd "$work/$name" && printf 'The program of the npm package taskgate for %s.\n' "$name" > README.md)
	cat > "$work/$name/package.json" <<-JSON
	{
	  "name": "@taskgate/$name",
	  "version": "$version",
	  "description": "The program of taskgate for $name",
	  "license": "Apache-2.0",
	  "repository": "$repository",
	  "os": ["${name%-*}"],
	  "cpu": ["${name#*-}"],
	  "files": ["bin", "LICENSE"],
	  "preferUnplugged": true
	}
	JSON
	pack "$work/$name" & packing+=("$!")
done

cp -r "$here/taskgate" "$work/taskgate"
cp "$here/../../LICENSE" "$work/taskgate/"
optional=$(printf '    "@taskgate/%s": "'"$version"'",\n' "${platforms[@]}")
cat > "$work/taskgate/package.json" <<JSON
{
  "name": "taskgate",
  "version": "$version",
  "description": "A reverse proxy that turns slow MCP tool calls into tasks",
  "license": "Apache-2.0",
  "repository": "$repository",
  "keywords": ["mcp", "model-context-protocol", "tasks", "proxy"],
  "type": "module",
  "bin": { "taskgate": "bin/taskgate.mjs" },
  "files": ["bin", "LICENSE"],
  "engines": { "node": ">=18" },
  "optionalDependencies": {
${optional%,}
  }
}
JSON
pack "$work/taskgate" & packing+=("$!")
for one in "${packing[@]}"; do wait "$one"; done
