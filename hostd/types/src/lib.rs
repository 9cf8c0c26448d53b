//! The nouns of berth: ids, names, sizes, machines and their states.
//!
//! No I/O happens here, so every rule can be read and tested on its own, and
//! every other crate can depend on it without dragging anything along.

mod id;
mod machine;
mod name;
mod refusal;
mod size;
mod span;
mod state;
mod user;

pub use id::{IdError, MachineId, UserId};
pub use machine::{DEFAULT_MACHINE, Failure, Labels, Machine, MachineSpec, Runtime};
pub use name::{InvalidName, MachineName, RESERVED};
pub use refusal::{Code, Refusal};
pub use size::{ByteSize, InvalidSize};
pub use span::{InvalidSpan, Span};
pub use state::{Event, State, next};
pub use user::{Quota, SshKey, User};

/// The generation of the records that hostd writes to disk.
pub const RECORD_GENERATION: u16 = 1;
