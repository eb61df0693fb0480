#!/usr/bin/env bash
# Installs edged as a service on a Jetson with JetPack 6 or 7: a virtual environment with access to JetPack's
# TensorRT, the unit systemd/edged.service and settings for a Jetson. Run it again to upgrade.
#
#   sudo jetson/install.sh                        from this checkout
#   sudo jetson/install.sh --from edged-1.0.whl   from a wheel
#   jetson/install.sh --dry-run                   print what would be done, and do nothing
#   jetson/install.sh --dry-run --root TREE       the same for a recorded box
set -euo pipefail

PREFIX=/opt/edged
UNITS=/etc/systemd/system
top=$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")
source=$top
root=
dry=

fail() {
    echo "install.sh: $1" >&2
    exit "${2:-1}"
}

while [ $# -gt 0 ]; do
    case $1 in
        --dry-run) dry=yes ;;
        --from) [ -n "${2-}" ] || fail "--from needs a wheel or a checkout" 2; source=$2 && shift ;;
        --root) [ -n "${2-}" ] || fail "--root needs a directory" 2; root=${2%/} && shift ;;
        -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" && exit ;;
        *) fail "unknown option $1; see --help" 2 ;;
    esac
    shift
done
[ -z "$root" ] || [ -n "$dry" ] || fail "--root is for --dry-run: nothing is installed into a recorded tree" 2
[ -e "$source" ] || fail "$source does not exist; name a wheel or a checkout with --from"
source=$(realpath "$source")

# A text file of the box without NULs, or nothing.
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
[ -n "$l4t" ] || fail "this is not a Jetson: neither /etc/nv_tegra_release nor the package nvidia-l4t-core exists"

case ${l4t%%.*} in
    36) jetpack=6 python=3.10 cuda=">=12.9.1,<13" ;;
    38 | 39) jetpack=7 python=3.12 cuda=">=13" ;;
    [0-9] | [12][0-9] | 3[0-5])
        fail "L4T $l4t is too old: JetPack 5 and older have Python 3.8 or less; flash JetPack 6 or 7, then run this again" ;;
    37 | [4-9][0-9])
        jetpack=newer python=3.12 cuda=">=13"
        echo "note: this script does not know L4T $l4t; it continues as for JetPack 7" ;;
    *) fail "unknown release of Jetson Linux $l4t; see /etc/nv_tegra_release" ;;
esac
model=$(read_file proc/device-tree/model)
# Not the first python3 on the path: only the system's Python has the system's packages.
[ -d "$root/usr/lib/python$python" ] ||
    fail "JetPack $jetpack's own Python $python is not in /usr/lib: sudo apt install python$python, then run this again"
[ -n "$dry" ] || [ "$(id -u)" = 0 ] || fail "only root can install a service: run it with sudo, or with --dry-run"

mode=$(read_file var/lib/nvpmodel/status | sed -n 's/^.*pmode:0*\([0-9]\{1,\}\).*$/\1/p')
modes=$(read_file etc/nvpmodel.conf |
    sed -n 's/^ *< *POWER_MODEL *ID=\([0-9]\{1,\}\) *NAME=\([^ >]\{1,\}\).*$/\1=\2/p' | paste -sd ' ')
echo "${model:-Jetson}: JetPack $jetpack (L4T $l4t), Python $python"

[ -e "$root/usr/lib/python$python/ensurepip" ] || run apt-get install -y --no-install-recommends python3-venv
run "/usr/bin/python$python" -m venv --system-site-packages "$PREFIX"
run "$PREFIX/bin/python" -m pip install --quiet --upgrade 'pip>=25'
# TensorRT engines use the GPU through cuda-bindings, in the release for the driver's CUDA.
run "$PREFIX/bin/python" -m pip install --quiet "$source[cuda,media,mqtt,tracking]" "cuda-bindings$cuda"
# Its dependencies would bring an OpenCV that needs a display.
run "$PREFIX/bin/python" -m pip install --quiet --no-deps 'trackers>=2.6,<3'
run ln -sf "$PREFIX/bin/edged" /usr/local/bin/edged
# The service's user, a member of the groups of the GPU's device nodes, and the folder of its sockets.
for kind in sysusers tmpfiles; do
    run install -D -m 0644 "$top/systemd/$kind.d/edged.conf" "/usr/lib/$kind.d/edged.conf"
done
run systemd-sysusers edged.conf
run systemd-tmpfiles --create edged.conf
for unit in edged.service edged.socket edged-operate.socket; do
    run install -D -m 0644 "$top/systemd/$unit" "$UNITS/$unit"
done
run install -D -m 0644 "$top/jetson/edged.service.d/jetson.conf" "$UNITS/edged.service.d/jetson.conf"
run systemctl daemon-reload
run systemctl enable edged
run systemctl restart edged

if ! compgen -G "$root/usr/lib/python3*/dist-packages/tensorrt*" >/dev/null; then
    echo "note: TensorRT is not installed, so the GPU stays unused: sudo apt install nvidia-jetpack, then run this again"
fi
if [ -n "$mode" ] && [ -n "$modes" ]; then
    name=$(tr ' ' '\n' <<<"$modes" | sed -n "s/^$mode=//p")
    echo "note: power mode ${name:-$mode} of $modes: engines are timed in it, so choose it before the first"
    echo "      model is added (sudo nvpmodel -m NUMBER)"
fi
[ -n "$dry" ] || echo "edged runs: sudo edged status"
