//! What the types cannot say.

use crate::Config;
use berth_types::ByteSize;

const LEAST_MEMORY: ByteSize = ByteSize::mib(128);
/// A few windows of one connection.
const LEAST_QUEUE: ByteSize = ByteSize::mib(8);

/// One line per problem, each naming its key.
pub fn validate(config: &Config) -> Vec<String> {
    let Config { service, gateway, machine, quota, host, egress, audit, .. } = config;
    let checks = [
        (service.data.is_absolute(), "service.data: must be an absolute path"),
        (service.run.is_absolute(), "service.run: must be an absolute path"),
        // Sockets live there and a socket's path has at most 107 bytes.
        (service.run.as_os_str().len() <= 70, "service.run: at most 70 characters, sockets live there"),
        (config.image.directory.is_absolute(), "image.directory: must be an absolute path"),
        (!gateway.listen.is_empty(), "gateway.listen: name at least one address"),
        (!gateway.public_host.is_empty(), "gateway.public_host: cannot be empty"),
        (!gateway.user.is_empty() && gateway.user != "root", "gateway.user: name an unprivileged user"),
        (gateway.unauthenticated_max > 0, "gateway.unauthenticated_max: must be at least 1"),
        (gateway.unauthenticated_per_address > 0, "gateway.unauthenticated_per_address: must be at least 1"),
        (gateway.connections_per_user > 0, "gateway.connections_per_user: must be at least 1"),
        (gateway.channels_per_user > 0, "gateway.channels_per_user: must be at least 1"),
        (gateway.queue_per_user >= LEAST_QUEUE, "gateway.queue_per_user: must be at least 8M"),
        (
            gateway.queue_max >= gateway.queue_per_user,
            "gateway.queue_max: is less than gateway.queue_per_user",
        ),
        (gateway.channels_max > 0, "gateway.channels_max: must be at least 1"),
        (machine.cpus > 0, "machine.cpus: must be at least 1"),
        (machine.cpus_max >= machine.cpus, "machine.cpus_max: is less than machine.cpus"),
        (machine.memory >= LEAST_MEMORY, "machine.memory: must be at least 128M"),
        (machine.memory_max >= machine.memory, "machine.memory_max: is less than machine.memory"),
        (machine.disk_max >= machine.disk, "machine.disk_max: is less than machine.disk"),
        (quota.machines > 0, "quota.machines: must be at least 1"),
        (
            quota.memory >= machine.memory,
            "quota.memory: is less than machine.memory, nobody could have a machine",
        ),
        (quota.disk >= machine.disk, "quota.disk: is less than machine.disk, nobody could have a machine"),
        (host.pool_size.bytes() >= 1 << 30, "host.pool_size: must be at least 1G"),
        (egress.connections >= 16, "egress.connections: must be at least 16"),
        (egress.dns_per_second > 0, "egress.dns_per_second: must be at least 1"),
        (egress.uid >= 100_000, "egress.uid: must be at least 100000, clear of the host's users"),
        (egress.uid < host.uid_base, "egress.uid: must be below host.uid_base, where machines' begin"),
        (
            egress.extra_roots.iter().all(|path| path.is_absolute()),
            "egress.extra_roots: must be absolute paths",
        ),
        (
            egress.allow_private.iter().all(|network| network.is_private()),
            "egress.allow_private: only networks within 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 and 100.64.0.0/10",
        ),
        (audit.file_size.bytes() >= 64 << 10, "audit.file_size: must be at least 64K"),
        (audit.keep >= 2, "audit.keep: must be at least 2"),
        (audit.egress_keep >= 2, "audit.egress_keep: must be at least 2"),
        (host.uid_base >= 100_000, "host.uid_base: must be at least 100000, clear of the host's users"),
    ];
    checks.iter().filter(|(good, _)| !good).map(|(_, problem)| (*problem).to_owned()).collect()
}
