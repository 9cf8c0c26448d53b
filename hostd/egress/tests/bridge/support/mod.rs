//! What every case needs: a world, servers in it, and a guest.

pub mod authority;
pub mod git;
pub mod guest;
pub mod namespace;
pub mod plain;
pub mod server;
pub mod tls;
pub mod world;

pub use plain::Plain;
pub use server::Server;
pub use world::{VALUE, World, bearer, header, secret};
