#!/usr/bin/env bash
# Makes npm packages: the launcher, and one package for each program that is named as OS-ARCH=FILE (node's words).
#   packaging/npm/pack.sh VERSION OUT linux-x64=FILE [...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=$1 out=$2
shift 2
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

platforms=()
for platform in "$@"; do
	name=${platform%%=*} program=${platform#*=}
	platforms+=("$name")
	install -D -m 755 "$program" "$work/$name/bin/taskgate"
	cp "$here/../../LICENSE" "$work/$name/"
	printf 'The program of the package [taskgate](https://www.npmjs.com/package/taskgate) for %s.\n' "$name" > "$work/$name/README.md"
	cat > "$work/$name/package.json" <<-JSON
	{
	  "name": "@taskgate/$name",
	  "version": "$version",
	  "description": "The program of taskgate for $name",
	  "license": "Apache-2.0",
	  "os": ["${name%-*}"],
	  "cpu": ["${name#*-}"],
	  "files": ["bin", "LICENSE"],
	  "preferUnplugged": true
	}
	JSON
	(cd "$work/$name" && npm pack --silent --pack-destination "$out" > /dev/null)
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
(cd "$work/taskgate" && npm pack --silent --pack-destination "$out" > /dev/null)
