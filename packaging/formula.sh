#!/usr/bin/env bash
# Prints the Homebrew formula of the archives in OUT.
#   packaging/formula.sh VERSION OUT TARGET...
set -euo pipefail
version=$1 out=$2
shift 2
cd "$(dirname "$0")/.."
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)

# archive SYSTEM CPU TARGET: the block of one archive, if it was made.
archive() {
	local name=taskgate-$version-$3.tar.gz
	[ -f "$out/$name" ] || return 0
	cat <<-RUBY
	  on_$1 do
	    on_$2 do
	      url "$repository/releases/download/v$version/$name"
	      sha256 "$(sha256sum "$out/$name" | cut -d ' ' -f 1)"
	    end
	  end
	RUBY
}

cat <<RUBY
class Taskgate < Formula
  desc "Reverse proxy that turns slow MCP tool calls into tasks"
  homepage "$repository"
  version "$version"
  license "Apache-2.0"

RUBY
for target in "$@"; do
	case "$target" in *-darwin) system=macos ;; *) system=linux ;; esac
	case "$target" in x86_64-*) cpu=intel ;; *) cpu=arm ;; esac
	archive "$system" "$cpu" "$target"
done
cat <<'RUBY'

  def install
    bin.install "taskgate"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/taskgate.bash" => "taskgate"
    zsh_completion.install "completions/_taskgate"
    fish_completion.install "completions/taskgate.fish"
    pkgshare.install "config"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/taskgate --version")
  end
end
RUBY
