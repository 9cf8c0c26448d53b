//! The configuration: one file, every key commented there, all of it checked
//! before anything starts.

mod defaults;
mod load;
mod validate;

pub use load::{ConfigError, Loaded, load, parse};

use berth_types::{
    ByteSize, IdlePolicy, Quota, Span,
    egress::{EgressMode, HostName, HostPattern, Ipv4Network},
};
use ipnet::IpNet;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

/// The development configuration, as it is documented and shipped.
pub const DEFAULT_TOML: &str = include_str!("../default.toml");
/// The production configuration.
pub const PRODUCTION_TOML: &str = include_str!("../production.toml");

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Config {
    pub service: Service,
    pub gateway: Gateway,
    pub machine: MachineDefaults,
    pub idle: Idle,
    pub egress: Egress,
    pub audit: Audit,
    pub quota: Quota,
    pub host: Host,
    pub hypervisor: Hypervisor,
    pub image: Image,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Service {
    /// What must survive a reboot: pool, store, host keys.
    pub data: PathBuf,
    /// What must not: sockets, namespaces, pid files.
    pub run: PathBuf,
    /// `text` or `json` lines on standard error.
    pub log_format: LogFormat,
    /// A `tracing` filter.
    pub log: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Gateway {
    pub listen: Vec<SocketAddr>,
    /// The name that help and hints print.
    pub public_host: String,
    /// The port that help and hints print; 0: that of the first listener.
    pub public_port: u16,
    /// The unprivileged user that the gateway runs as.
    pub user: String,
    pub registration: Registration,
    /// New users in an hour where registration is open, in all; 0: any number.
    #[serde(default = "defaults::registration_per_hour")]
    pub registration_per_hour: u32,
    /// The same, from one address.
    #[serde(default = "defaults::registration_per_address")]
    pub registration_per_address: u32,
    /// Users that open registration makes at most; 0: any number.
    #[serde(default = "defaults::users_max")]
    pub users_max: u32,
    /// Connections that have not authenticated yet, in all.
    pub unauthenticated_max: u32,
    /// The same, from one address.
    pub unauthenticated_per_address: u32,
    /// How long a connection may take to authenticate.
    pub login_grace: Span,
    /// The longest that an address whose logins fail is refused; 0: never.
    #[serde(default = "defaults::penalty_max")]
    pub penalty_max: Span,
    /// Addresses that are never refused for failed logins, and whose
    /// registrations are counted by none.
    #[serde(default = "defaults::trusted_addresses")]
    pub trusted_addresses: Vec<IpNet>,
    /// Connections that one user may have.
    #[serde(default = "defaults::connections_per_user")]
    pub connections_per_user: u32,
    /// Channels on one connection.
    pub channels_max: u32,
    /// Channels on all connections of a user.
    #[serde(default = "defaults::channels_per_user")]
    pub channels_per_user: u32,
    /// Bytes on their way into machines that one user may have in the gateway.
    #[serde(default = "defaults::queue_per_user")]
    pub queue_per_user: ByteSize,
    /// The same of all users together.
    #[serde(default = "defaults::queue_max")]
    pub queue_max: ByteSize,
    /// How often a silent client is asked whether it is there.
    pub keepalive: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Registration {
    /// A key that nobody holds yet makes a new user.
    Open,
    /// Keys come from `key add` or `berth user add`.
    Closed,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct MachineDefaults {
    pub image: String,
    pub cpus: u32,
    pub memory: ByteSize,
    pub disk: ByteSize,
    pub cpus_max: u32,
    pub memory_max: ByteSize,
    pub disk_max: ByteSize,
    /// How long a boot may take before it counts as failed.
    pub boot_timeout: Span,
    /// How long a guest may stay silent before it counts as failed.
    pub silence_timeout: Span,
    /// How long a shutdown may take before power is cut.
    pub stop_timeout: Span,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Idle {
    /// Idle for this long: vCPUs stop, memory stays. Absent: never.
    pub pause: Option<Span>,
    /// Idle for this long: memory goes to disk, the process ends. Absent: never.
    pub sleep: Option<Span>,
    /// Below this share of one CPU a machine counts as idle.
    pub cpu_percent: u32,
    /// How many sleeps of a machine are kept to go back to.
    pub keep: u32,
    /// Sizes of memory for which a booted machine is kept ready to be copied.
    pub ready: Vec<ByteSize>,
    /// Memory that machines kept ready of other sizes may have together.
    #[serde(default = "Idle::ready_others")]
    pub ready_others: ByteSize,
}

impl Idle {
    const fn ready_others() -> ByteSize {
        ByteSize::gib(8)
    }

    pub fn policy(&self) -> IdlePolicy {
        IdlePolicy { pause: self.pause, sleep: self.sleep }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Egress {
    /// Of machines whose user has said nothing.
    pub mode: EgressMode,
    /// What no machine may reach, whatever its user allows.
    pub deny: Vec<HostPattern>,
    /// Private and shared networks that users' rules may allow by address.
    #[serde(default)]
    pub allow_private: Vec<Ipv4Network>,
    /// PEM files of private authorities that upstreams may be certified by.
    pub extra_roots: Vec<PathBuf>,
    /// Names that are looked up here first, as in /etc/hosts.
    pub hosts: BTreeMap<HostName, Vec<Ipv4Addr>>,
    /// Asked for every other name. Empty: those of the host.
    pub resolvers: Vec<SocketAddr>,
    /// Connections that one machine may have open.
    pub connections: u32,
    /// Names that one machine may look up in a second.
    pub dns_per_second: u32,
    /// The user id, and group id, that the bridge runs as.
    pub uid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Audit {
    /// A file that has grown to this is put aside.
    pub file_size: ByteSize,
    /// How many are kept of those with logins, verbs and states.
    pub keep: u32,
    /// Those that are younger stay, up to four times as many.
    #[serde(default = "Audit::keep_for")]
    pub keep_for: Span,
    /// How many are kept of those with what machines reached.
    #[serde(default = "Audit::egress_keep")]
    pub egress_keep: u32,
    #[serde(default = "Audit::egress_keep_for")]
    pub egress_keep_for: Span,
}

impl Audit {
    const fn keep_for() -> Span {
        Span::seconds(90 * 86_400)
    }

    const fn egress_keep() -> u32 {
        16
    }

    const fn egress_keep_for() -> Span {
        Span::seconds(7 * 86_400)
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Host {
    /// Memory that all running machines may have together; 0: what the host
    /// has, less a tenth.
    pub memory: ByteSize,
    /// The size of the pool's file where hostd makes one; sparse.
    pub pool_size: ByteSize,
    /// Free space in the pool below which nothing new is made.
    pub pool_reserve: ByteSize,
    /// Namespaces kept ready, so that a start never waits for one.
    pub spare_networks: u32,
    /// The first of the host user ids that hypervisors run as.
    pub uid_base: u32,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Hypervisor {
    pub driver: DriverChoice,
    pub cloud_hypervisor: CloudHypervisor,
    pub qemu: Qemu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverChoice {
    Auto,
    CloudHypervisor,
    Qemu,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CloudHypervisor {
    pub binary: PathBuf,
    /// Further words on guests' kernel command line.
    #[serde(default)]
    pub kernel_arguments: String,
    /// What a machine's disk may move in a second; 0: no limit.
    #[serde(default)]
    pub disk_bytes: ByteSize,
    #[serde(default)]
    pub disk_operations: u64,
    /// The same for each of its links, in each direction.
    #[serde(default)]
    pub link_bytes: ByteSize,
    #[serde(default)]
    pub link_operations: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Qemu {
    pub binary: PathBuf,
    /// Firmware for `-M microvm`, by name or path.
    pub firmware: PathBuf,
    pub accel: Accel,
    /// Further words on guests' kernel command line.
    #[serde(default)]
    pub kernel_arguments: String,
    /// What guests' CPU has or lacks beside its model, as in `-x2apic,+pmu`.
    #[serde(default)]
    pub cpu_features: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accel {
    Auto,
    Kvm,
    Tcg,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Image {
    /// Where images are kept, a directory each: `vmlinux`, `initrd`, `disk`.
    pub directory: PathBuf,
    /// Another kernel than the image's own, by path; empty: the image's.
    #[serde(default)]
    pub kernel: PathBuf,
}

impl Gateway {
    /// The port that a person types.
    pub fn shown_port(&self) -> u16 {
        match self.public_port {
            0 => self.listen.first().map_or(22, SocketAddr::port),
            port => port,
        }
    }
}

impl Service {
    pub fn api_socket(&self) -> PathBuf {
        self.run.join("hostd.sock")
    }
}
