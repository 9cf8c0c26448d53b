#!/bin/sh
# Turns mmdebstrap's root filesystem ($1) into a machine's. Runs on the host, as
# mmdebstrap's last hook; its text is part of the recipe, so a change to it makes
# the next `berth image build` start afresh.
#
# BERTH_KERNEL: a directory that receives `vmlinuz` and `version`.
set -eu
root=$1

# The kernel's files without its package: the hypervisor boots the image's own
# kernel, so an upgrade inside a machine could change nothing, and the package
# would bring an initramfs builder along.
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
# 6.1.192-1 takes a page of ext4's allocator that is not in the cache for one that
# is: whoever writes after memory was short ends in a fault that keeps the
# filesystem's locks, and every later write waits for ever.
broken='6.1.192-1'
for release in $(apt-cache madison linux-image-cloud-amd64 | awk '{ print $3 }'); do
    case " $broken " in *" $release "*) continue ;; esac
    package=$(apt-cache show "linux-image-cloud-amd64=$release" |
        sed -n 's/^Depends: *\(linux-image-[0-9][^ ,]*\).*/\1/p' | head -n 1)
    [ -n "$package" ] && break
done
[ -n "${package-}" ] || { echo "E: the suite has no linux-image-cloud-amd64 that can be used" >&2; exit 1; }
version=${package#linux-image-}
echo "I: unpacking the kernel $version..." >&2
cd "$BERTH_KERNEL"
apt-get -q -o APT::Sandbox::User=root download "$package"
dpkg-deb --extract ./*.deb unpacked
mv "unpacked/boot/vmlinuz-$version" vmlinuz
mkdir -p "$root/usr/lib/modules"
cp -a "unpacked/lib/modules/$version" "$root/usr/lib/modules/"
chroot "$root" depmod "$version"
echo "$version" >version
rm -rf ./*.deb unpacked

# The user of every machine.
chroot "$root" useradd --create-home --uid 1000 --user-group --groups sudo --shell /bin/bash dev
echo 'dev ALL=(ALL:ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/dev"
chmod 0440 "$root/etc/sudoers.d/dev"

# guest-init writes the real name at boot, and a machine-id where it finds none.
echo berth >"$root/etc/hostname"
printf '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' >"$root/etc/hosts"
: >"$root/etc/machine-id"
rm -f "$root/var/lib/dbus/machine-id" "$root/etc/resolv.conf" "$root"/etc/ssh/ssh_host_*
echo 'LANG=C.UTF-8' >"$root/etc/environment"
echo '/dev/vda / ext4 defaults,discard 0 1' >"$root/etc/fstab"

# There is no other init in the image: these reach guest-init, which is PID 1.
for verb in reboot poweroff halt shutdown; do
    ln -sf /run/berth/guest-init "$root/usr/sbin/$verb"
done

cat >"$root/etc/motd" <<'TEXT'
This machine is yours: you are dev, sudo asks nothing, files stay when you leave.
Silence this with: touch ~/.hushlogin
TEXT

# What was only for the build; the rest of the cleaning is mmdebstrap's.
rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
rm -f "$root"/var/log/*.log "$root"/var/log/apt/* "$root"/var/cache/debconf/*-old
