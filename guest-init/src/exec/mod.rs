//! Commands, shells and the SFTP server: run as the user, in a session of
//! their own, with pipes or a terminal, as sshd would run them.

mod environment;
mod modes;
mod spawn;
mod stream;
mod terminal;

use std::sync::Arc;

use berth_guest_protocol::{Exec, Opened};

use crate::{error::Result, guest::Guest, server::wire::Wire};

pub use spawn::{errand, rehearse};

pub fn run(guest: &Arc<Guest>, wire: &mut Wire, request: &Exec) -> Result<()> {
    let _executing = guest.streams.execute();
    let running = spawn::start(guest, request)?;
    wire.reply(Opened::Exec { pid: running.child.pid.as_raw_nonzero().get().unsigned_abs() })?;
    stream::Stream::new(wire, running).run()
}
