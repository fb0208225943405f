#!/bin/bash
# Runs every fuzz target of the tree, one after the other, FUZZTIME each. What fails is kept by Go under
# testdata/fuzz of its package; with KEEP=N, so are up to N of the shortest inputs that reached new code, but for
# those that hold a private key: none is committed.
set -eu -o pipefail
cd "$(dirname "$0")/.."

time=${FUZZTIME:-10s}
keep=${KEEP:-0}
only=${FUZZ:-.}
cache=$(go env GOCACHE)/fuzz
failed=()

# keep_corpus copies inputs whose text is not there yet.
keep_corpus() {
	local from="$cache/$1/$2" to="$3/testdata/fuzz/$2" file count=0
	[ -d "$from" ] || return 0
	mkdir -p "$to"
	while read -r _ file; do
		[ "$count" -lt "$keep" ] || break
		if grep -q 'PRIVATE KEY' "$file"; then continue; fi
		count=$((count + 1))
		[ -e "$to/${file##*/}" ] || cp "$file" "$to/"
	done < <(find "$from" -type f -printf '%s %p\n' | sort -n)
}

for package in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do
	[ "$package" = ./build ] && continue
	import=$(go list "$package")
	for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$package"/*_test.go | sed 's/^func //' | sort -u | grep -E "$only"); do
		echo "== $package $target ($time)"
		if ! go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package"; then
			failed+=("$package $target")
		elif [ "$keep" -gt 0 ]; then
			keep_corpus "$import" "$target" "$package"
		fi
	done
done

if [ "${#failed[@]}" -gt 0 ]; then
	printf 'FAILED: %s\n' "${failed[@]}"
	exit 1
fi
