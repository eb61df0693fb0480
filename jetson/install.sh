#!/usr/bin/env bash
# Installs edged's Debian package on a Jetson with JetPack 6 or 7, for JetPack's Python. Run it again to upgrade.
#
#   sudo jetson/install.sh                        builds the package from this checkout, and installs it
#   sudo EXTRAS=jetson,openvino jetson/install.sh the same with these extras (docs/packages.md)
#   sudo jetson/install.sh --deb edged_1.0.deb    installs a package from another machine; only apt needs the network
#   jetson/install.sh --dry-run                   prints the commands without running them
#   jetson/install.sh --dry-run --root TREE       the same for a recorded box
set -euo pipefail

EXTRAS=${EXTRAS:-jetson,media,mqtt,tracking}
top=$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")
deb=
root=
dry=

fail() {
    echo "install.sh: $1" >&2
    exit "${2:-1}"
}

while [ $# -gt 0 ]; do
    case $1 in
        --dry-run) dry=yes ;;
        --deb) [ -n "${2-}" ] || fail "--deb needs a package" 2; deb=$2 && shift ;;
        --root) [ -n "${2-}" ] || fail "--root needs a directory" 2; root=${2%/} && shift ;;
        -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" && exit ;;
        *) fail "unknown option $1; see --help" 2 ;;
    esac
    shift
done
[ -z "$root" ] || [ -n "$dry" ] || fail "--root is for --dry-run: nothing is installed into a recorded tree" 2
[ -z "$deb" ] || [ -f "$deb" ] || fail "$deb does not exist; name a package with --deb" 2

# Prints a text file of the box without NUL bytes; nothing if it is missing.
read_file() { tr -d '\0' 2>/dev/null <"$root/$1" || true; }

run() {
    if [ -n "$dry" ]; then
        printf 'would run:'
        printf ' %q' "$@"
        printf '\n'
    else
        "$@"
    fi
}

# "# R36 (release), REVISION: 4.3, ..." or, if newer images lack the file, Debian's "36.4.3-20250107174145".
l4t=$(read_file etc/nv_tegra_release | sed -n '1s/^# R\([0-9]\{1,\}\)\b.*REVISION: \([0-9.]\{1,\}\).*$/\1.\2/p')
[ -n "$l4t" ] || l4t=$(read_file var/lib/dpkg/status |
    awk '/^Package: /{p = $2 == "nvidia-l4t-core"} p && /^Version: /{sub(/-.*/, "", $2); print $2; exit}')
[ -n "$l4t" ] || fail "this is not a Jetson: /etc/nv_tegra_release and the package nvidia-l4t-core are missing"

case ${l4t%%.*} in
    36) jetpack=6 python=3.10 ;;
    38 | 39) jetpack=7 python=3.12 ;;
    [0-9] | [12][0-9] | 3[0-5])
        fail "L4T $l4t is too old: JetPack 5 and older have Python 3.8 or less; flash JetPack 6 or 7, then run this again" ;;
    37 | [4-9][0-9])
        jetpack=newer python=3.12
        echo "note: this script does not know L4T $l4t; it continues as for JetPack 7" ;;
    *) fail "unknown release of Jetson Linux $l4t; see /etc/nv_tegra_release" ;;
esac
model=$(read_file proc/device-tree/model)
# The package needs JetPack's Python, because only that one can import JetPack's TensorRT.
[ -d "$root/usr/lib/python$python" ] ||
    fail "JetPack $jetpack's own Python $python is not in /usr/lib: sudo apt install python$python, then run this again"
[ -n "$dry" ] || [ "$(id -u)" = 0 ] || fail "only root can install a package: run it with sudo, or with --dry-run"

mode=$(read_file var/lib/nvpmodel/status | sed -n 's/^.*pmode:0*\([0-9]\{1,\}\).*$/\1/p')
modes=$(read_file etc/nvpmodel.conf |
    sed -n 's/^ *< *POWER_MODEL *ID=\([0-9]\{1,\}\) *NAME=\([^ >]\{1,\}\).*$/\1=\2/p' | paste -sd ' ')
echo "${model:-Jetson}: JetPack $jetpack (L4T $l4t), Python $python"

if [ -z "$deb" ]; then
    [ -e "$root/usr/lib/python$python/ensurepip" ] || run apt-get install -y --no-install-recommends python3-venv make
    dist=$top/dist/jetson
    run rm -rf "$dist"
    run make -C "$top" deb ARCH=arm64 "PY=$python" "EXTRAS=$EXTRAS" "PYTHON=/usr/bin/python$python" "DIST=$dist"
    deb=$dist/PACKAGE.deb
    [ -n "$dry" ] || deb=$(echo "$dist"/*.deb)
fi
# --reinstall: a checkout's package may have changed, although its version is the same. A changed configuration is kept
# without a question.
run apt-get install -y --allow-downgrades --reinstall -o Dpkg::Options::=--force-confold "$(realpath -m "$deb")"

if ! compgen -G "$root/usr/lib/python3*/dist-packages/tensorrt*" >/dev/null; then
    echo "note: TensorRT is not installed, so the GPU stays unused: sudo apt install nvidia-jetpack"
fi
if [ -n "$mode" ] && [ -n "$modes" ]; then
    name=$(tr ' ' '\n' <<<"$modes" | sed -n "s/^$mode=//p")
    echo "note: power mode ${name:-$mode} of $modes: engines are timed in it, so choose it before the first"
    echo "      model is added (sudo nvpmodel -m NUMBER)"
fi
[ -n "$dry" ] || echo "edged runs: sudo edged status"
