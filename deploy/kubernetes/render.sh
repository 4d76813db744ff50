#!/usr/bin/env bash
# Renders the plain manifests from the chart, without Helm's labels, into DIR (default: this folder). HELM names the program.
#
#   deploy/kubernetes/render.sh [DIR]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=${1:-$here}

for values in "$here"/values/*.yaml; do
    name=$(basename "$values")
    {
        echo "# Rendered from deploy/helm/taskgate by render.sh; edit values/$name, or the chart."
        "${HELM:-helm}" template taskgate "$here/../helm/taskgate" --namespace taskgate --values "$values" |
            sed -e '/^# Source: /d' -e '/helm\.sh\/chart:/d' -e '/app\.kubernetes\.io\/managed-by:/d'
    } >"$dir/$name"
done
