#!/usr/bin/env bash
# Prints how long each suite took, from what a run of the tests printed. The tests of a binary run side by side: the
# seconds of its suites are the sum of those of their tests, with what a test waits for another one or for its turn; those of
# the binary are what went by.
set -euo pipefail

awk '
    / Running / || / Doc-tests / {
        binary = $2 == "unittests" ? $3 : $2
        sub(/^tests\//, "", binary)
        sub(/\/main\.rs$/, "", binary)
        sub(/\.rs$/, "", binary)
        if ($0 ~ /taskgate_test_support|support-/) binary = "support"
        if (/ Doc-tests /) binary = "doc-tests of " $2
        order[++binaries] = binary
    }
    /^test .* \.\.\. (ok|FAILED) <[0-9.]+s>$/ {
        # Only what is shared out to suites has a path in front of its name.
        suite = index($2, "::") ? substr($2, 1, index($2, "::") - 1) : ""
        if (binary !~ /^(engine|faces|files|gateway|upstreams|programs|durability|real_peers)$/) suite = ""
        seconds = $NF
        gsub(/[<>s]/, "", seconds)
        key = binary SUBSEP suite
        if (!(key in count)) suites[binary] = suites[binary] suite " "
        count[key]++
        spent[key] += seconds
    }
    /^test result: / && / finished in / {
        went = $NF
        sub(/s$/, "", went)
        passed[binary] += went
        tests[binary] += $4 + $6
        total += went
    }
    END {
        printf "%-36s %6s %9s\n", "suite", "tests", "seconds"
        for (at = 1; at <= binaries; at++) {
            binary = order[at]
            if (binary in seen) continue
            seen[binary] = 1
            printf "%-36s %6d %9.1f\n", binary, tests[binary], passed[binary]
            parts = split(suites[binary], names, " ")
            for (part = 1; part <= parts; part++) {
                key = binary SUBSEP names[part]
                printf "    %-32s %6d %9.1f\n", names[part], count[key], spent[key]
            }
        }
        printf "%-36s %6s %9.1f\n", "all", "", total
    }
' "$1"
