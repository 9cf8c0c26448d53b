//! Can the gateway's user reach hostd's socket? A private directory above it lets every
//! verb answer "the host is unavailable" while both daemons are well.

use crate::context::Context;
use berth_types::{Code, Refusal};
use nix::unistd::{User, setfsgid, setfsuid};
use std::{
    fs, io,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    thread,
};

/// Asks the kernel, as the gateway's user, once hostd listens.
pub fn check(context: &Context) -> Result<(), Refusal> {
    let name = &context.config.gateway.user;
    // Without that user the gateway says so itself.
    let Ok(Some(user)) = User::from_name(name) else { return Ok(()) };
    let socket = context.config.service.api_socket();
    let uid = user.uid;
    let above = socket.clone();
    let Some((directory, error)) = as_user(user.clone(), move || obstacle(&above)) else {
        let shown = socket.display().to_string();
        let connected = as_user(user, move || UnixStream::connect(socket));
        return connected.map(drop).map_err(|error| {
            let message =
                format!("the gateway's user {name} (uid {uid}) cannot connect to {shown} ({error})");
            Refusal::new(Code::Failed, message, "hostd gives it to gateway.user when it starts")
        });
    };
    let mode = fs::metadata(&directory).map_or(0, |found| found.permissions().mode() & 0o7777);
    let message = format!(
        "the gateway's user {name} (uid {uid}) cannot enter {} (mode {mode:03o}: {error}), so no login would reach hostd",
        directory.display()
    );
    let hint = format!("'chmod o+x {}', or choose another service.run", directory.display());
    Err(Refusal::new(Code::Failed, message, hint))
}

/// Runs in a thread of its own, whose view of files alone is that user's.
fn as_user<T: Send + 'static>(user: User, work: impl FnOnce() -> T + Send + 'static) -> T {
    let running = thread::spawn(move || {
        // The gateway has no group but its own, and root's others would open what is closed to it.
        let _ = rustix::thread::set_thread_groups(&[]);
        setfsgid(user.gid);
        setfsuid(user.uid);
        work()
    });
    running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The first directory above the socket that cannot be entered, and why.
fn obstacle(socket: &Path) -> Option<(PathBuf, io::Error)> {
    let mut above: Vec<&Path> = socket.ancestors().skip(1).collect();
    above.reverse();
    above.into_iter().find_map(|directory| {
        // A name in a directory is found only by those who may enter it.
        fs::symlink_metadata(directory.join(".")).err().map(|error| (directory.to_owned(), error))
    })
}
