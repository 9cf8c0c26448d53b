//! What a machine may reach, and which secrets are shown to whom on its behalf.
//!
//! The model alone: parsing, printing and deciding. The egress bridge applies
//! it, hostd stores it, and neither has a rule of its own.

mod host;
mod network;
mod pattern;
mod policy;
mod secret;
mod value;

pub use host::{HostName, InvalidHost};
pub use network::{Ground, InvalidNetwork, Ipv4Network, Special};
pub use pattern::{Host, HostPattern, InvalidPattern};
pub use policy::{Destination, EgressMode, EgressPolicy, InvalidMode, Rule, Verdict};
pub use secret::{Binding, InvalidBinding, InvalidSecretName, Projection, SecretName};
pub use value::{InvalidValue, SecretValue};
