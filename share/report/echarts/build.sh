#!/bin/sh
# Builds echarts.js anew from the npm packages that package-lock.json pins, and checks that it is the same.
# usage: share/report/echarts/build.sh [--update]     --update takes what comes out and writes its hash.
# Needs npm and node; nothing else here needs them. A part more (a kind of chart) is a name more in parts.js.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/package.json" "$here/package-lock.json" "$here/parts.js" "$work"
cd "$work"
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
node_modules/.bin/esbuild parts.js --bundle --minify --format=iife --global-name=echarts --target=es2019 \
    --legal-comments=eof --log-level=warning --outfile=echarts.js
if [ "${1:-}" = --update ]; then
    cp echarts.js "$here/echarts.js"
    for file in LICENSE NOTICE licenses/LICENSE-d3; do cp "node_modules/echarts/$file" "$here/$(basename "$file")"; done
    cp node_modules/zrender/LICENSE "$here/LICENSE-zrender"
    cp node_modules/tslib/LICENSE.txt "$here/LICENSE-tslib"
    (cd "$here" && sha256sum echarts.js >SHA256SUMS)
fi
(cd "$here" && sha256sum --check --quiet SHA256SUMS)
cmp echarts.js "$here/echarts.js" && echo "echarts.js is what these packages build"
