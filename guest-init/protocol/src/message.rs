//! The messages. Order of fields and variants is the wire format, and what version 1 has
//! of it is frozen: how something is added is in `VERSIONING.md`.

use crate::Version;
use serde::{Deserialize, Serialize};

/// What a stream is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Open {
    /// hostd's own stream.
    Control,
    Exec(Exec),
    /// A connection made inside the guest.
    Connect(Target),
    /// A listener inside the guest, for as long as this stream is open.
    Listen(Listen),
    /// Claims a connection that a listener announced.
    Accept {
        ticket: u64,
    },
}

/// What the guest speaks, to a host that may speak it too. Before its [`Reply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub version: Version,
}

/// Answers an [`crate::Opening`].
pub type Reply = Result<Opened, Refused>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Opened {
    Control,
    Exec {
        pid: u32,
    },
    Connected,
    /// The address that was bound: a port for TCP, a path for a socket.
    Listening {
        port: u16,
        path: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub kind: RefusedKind,
    /// One line, for a person.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusedKind {
    /// It speaks version 1 alone, and was told another.
    Version,
    Malformed,
    /// Nothing there, or nobody listens.
    Unreachable,
    /// The guest's own permissions said no.
    Denied,
    /// Out of processes, memory, descriptors or disk.
    Exhausted,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    pub command: Command,
    /// Added to the login environment, in this order.
    pub env: Vec<(String, String)>,
    pub pty: Option<Pty>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// The user's login shell.
    Shell,
    /// A line for the user's shell, as sshd runs it. Bytes, for not every line is UTF-8.
    Line(Vec<u8>),
    /// The SFTP server that guest-init itself is.
    Sftp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pty {
    pub term: String,
    pub columns: u16,
    pub rows: u16,
    pub width: u16,
    pub height: u16,
    /// RFC 4254 section 8: opcode and value.
    pub modes: Vec<(u8, u32)>,
}

/// From the host to a running command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    Resize {
        columns: u16,
        rows: u16,
        width: u16,
        height: u16,
    },
    /// By name, without SIG: `INT`, `TERM`.
    Signal(String),
}

/// Once per [`Open::Exec`] stream: the process is gone and what it wrote was
/// sent. [`crate::Kind::Eof`] may still follow, when a background job holds the
/// output open; the stream ends when both were sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    Status(u8),
    /// By name, without SIG.
    Signal {
        name: String,
        core: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    Tcp { host: String, port: u16 },
    Unix { path: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listen {
    /// Port 0: any.
    Tcp {
        host: String,
        port: u16,
    },
    Unix {
        path: String,
    },
    /// A socket in a directory of its own that only the user may enter, for an
    /// ssh agent.
    Agent,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incoming {
    pub ticket: u64,
    pub host: String,
    pub port: u16,
}

/// From hostd, answered in turn by [`Answer`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    Ping,
    /// Freezes the user's processes and syncs the disk.
    Freeze,
    /// Thaws without repairing: a capture was given up.
    Thaw,
    /// After a boot, resume or fork: sets right what time and copying broke,
    /// then thaws.
    Repair(Repair),
    Vitals,
    /// Ends every process, syncs, unmounts; no answer but the end of the machine.
    Shutdown(Shutdown),
    /// Before every repair, and whenever it changes.
    Equip(Equip),
    /// Before a freeze whose capture is resumed where guests are emulated, and a
    /// CPU is idle: a shell is run for nobody then, so that the next is faster.
    Rehearse,
}

/// What the machine needs to reach the world as the host wants it to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Equip {
    /// The certificate of the host's authority, in PEM: programs trust it.
    pub authority: String,
    /// Private authorities that the host trusts besides, likewise.
    pub roots: String,
    /// For every command from now on; what the user sets goes first.
    pub environment: Vec<(String, String)>,
    /// The lines of known_hosts that the machine's ssh has to have. Since version 2.
    #[serde(skip)]
    pub known_hosts: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shutdown {
    PowerOff,
    Reboot,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    /// Nanoseconds since the epoch.
    pub clock: u64,
    /// Fresh from the host, never used before.
    pub entropy: [u8; 32],
    pub hostname: String,
    /// A fork, or a machine's first start: a new machine-id and all that hangs on it.
    pub renew_identity: bool,
    /// The disk's size in bytes. The filesystem grows to it where it is smaller;
    /// a disk that was just made larger may take a moment to show it.
    pub disk: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Vitals(Vitals),
    Failed(String),
}

/// What the machine says of itself. Only ever used against the machine's own
/// interest in sleeping, never against another's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vitals {
    pub uptime_ms: u64,
    /// Commands without a terminal that still run.
    pub commands: u32,
    /// Terminals, and those whose foreground job is not their shell.
    pub terminals: u32,
    pub busy_terminals: u32,
    /// Nanoseconds of CPU that the user's processes have used.
    pub cpu_ns: u64,
    pub memory_used: u64,
    pub memory_total: u64,
    pub disk_used: u64,
    pub disk_total: u64,
    /// Bytes that have moved on commands, terminals and forwards, ever.
    pub moved: u64,
}
