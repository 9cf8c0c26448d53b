//! `serve`: the protocol on a host, as the current user. For tests of whatever
//! speaks to a guest.

use std::{
    net::TcpListener,
    os::{fd::OwnedFd, unix::net::UnixListener},
};

use crate::{
    account::Who,
    control::freeze::Freezer,
    error::{Context, Error, Result},
    guest::Guest,
    server,
};

const USAGE: &str = "--listen 127.0.0.1:PORT or --listen unix:PATH";

pub fn serve(arguments: &[String]) -> Result<()> {
    let [flag, address] = arguments else { return Err(usage()) };
    if flag != "--listen" {
        return Err(usage());
    }
    let listener: OwnedFd = match address.strip_prefix("unix:") {
        Some(path) => UnixListener::bind(path).during("listen on", path)?.into(),
        None => {
            let listener = TcpListener::bind(address).during("listen on", address)?;
            let bound = listener.local_addr().during("listen on", address)?;
            // Whoever asked for port 0 reads the answer here.
            println!("{bound}");
            listener.into()
        }
    };
    let program = std::env::current_exe().during("find", "this program")?;
    let guest = Guest::start(Who::Current, program, Freezer::new(None))?;
    server::serve(&guest, listener)
}

fn usage() -> Error {
    Error::new("serve takes", USAGE, std::io::ErrorKind::InvalidInput.into())
}
