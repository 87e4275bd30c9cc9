#!/usr/bin/env bash
# Makes the files of this folder from the packages on npm: `update.sh` in a fresh checkout changes
# nothing. Each file is the minified file of its package, as an ES module, below a line that names
# version and licence. Prism is its core and the languages that answers are likely to contain.
set -euo pipefail
cd "$(dirname "$0")"
MARKED=18.2.0
TEMML=0.13.5
PRISM=1.30.0
LANGUAGES=(markup css clike javascript typescript jsx tsx json bash shell-session python rust go c cpp
    csharp java kotlin swift ruby lua sql yaml toml ini markdown diff docker makefile powershell)

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
npm install --prefix "$work" --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error \
    "marked@$MARKED" "temml@$TEMML" "prismjs@$PRISM"
from="$work/node_modules"

{
    echo "/* marked $MARKED, MIT, https://github.com/markedjs/marked; the licence is in LICENSES.txt. */"
    grep -v '^//# sourceMappingURL' "$from/marked/lib/marked.esm.js"
} >marked.js
{
    echo "/* Temml $TEMML, MIT, https://github.com/ronkok/Temml; the licence is in LICENSES.txt. */"
    cat "$from/temml/dist/temml.min.js"
    echo
    echo 'export default temml;'
} >temml.js
{
    echo "/* Prism $PRISM, MIT, https://github.com/PrismJS/prism; the licence is in LICENSES.txt. */"
    echo 'self.Prism = { manual: true, disableWorkerMessageHandler: true };'
    cat "$from/prismjs/components/prism-core.min.js"
    echo
    for language in "${LANGUAGES[@]}"; do
        cat "$from/prismjs/components/prism-$language.min.js"
        echo
    done
    echo 'export default Prism;'
} >prism.js
{
    echo 'The page contains these programs by others, unchanged but for their packing.'
    for name in marked temml prismjs; do
        printf '\n== %s\n' "$name"
        cat "$from/$name"/LICENSE*
    done
} >LICENSES.txt
