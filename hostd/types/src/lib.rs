//! The nouns of berth: ids, names, sizes, machines and their states.
//!
//! No I/O happens here, so every rule can be read and tested on its own, and
//! every other crate can depend on it without dragging anything along.

mod audit;
mod boot;
pub mod egress;
mod generation;
mod id;
mod lost;
mod machine;
mod name;
mod policy;
mod refusal;
mod size;
mod source;
mod span;
mod state;
pub mod text;
mod user;

pub use audit::{AuditEntry, AuditEvent, EgressEntry};
pub use boot::{BootId, InvalidBootId};
pub use generation::{Generation, InvalidLabel, Label, Point, Why};
pub use id::{GenerationId, IdError, MachineId, UserId};
pub use lost::LostKind;
pub use machine::{DEFAULT_MACHINE, Failure, Labels, Machine, MachineSpec, Parent, Runtime, Size, is_label};
pub use name::{InvalidName, MachineName, RESERVED};
pub use policy::{Activity, IdlePolicy, Schedule};
pub use refusal::{Code, Refusal};
pub use size::{ByteSize, InvalidSize};
pub use source::source;
pub use span::{InvalidSpan, Span};
pub use state::{Event, State, next};
pub use user::{Lock, Quota, SshKey, User};

/// Fields of a record that this build does not know. A later build wrote them, and they are
/// written again with the rest.
pub type Unknown = serde_json::Map<String, serde_json::Value>;
