//! A shell, a command or SFTP in a machine.

use super::{agent, attach, upstream};
use crate::{
    ssh::{
        channel::{Gone, Inbox, Outlet},
        peer::Peer,
        session::{Setup, refuse},
    },
    target::{Place, Request},
    ui::{LiveOn, Progress, Screen},
};
use berth_guest_client::{Frames, GuestError, Output};
use berth_guest_protocol::{Command, Exec, Exit, Open};
use std::sync::Arc;

pub use upstream::cells;

#[derive(Debug)]
pub struct Job {
    pub place: Place,
    pub request: Request,
    pub setup: Setup,
}

/// Steps: attach, forward the agent, start the command, carry both directions.
pub async fn run(peer: &Arc<Peer>, inbox: &mut Inbox, outlet: &Outlet, job: Job) -> Result<(), Gone> {
    let Job { place, request, setup } = job;
    let screen = Screen::new(outlet, setup.pty.is_some());

    let live = if request == Request::Shell { LiveOn::Output } else { LiveOn::Errors };
    let attaching = Progress::show(&screen, live, async |progress| attach(peer, &place, &progress).await);
    let attached = match inbox.during(attaching).await? {
        Ok(attached) => attached,
        Err(refusal) => return refuse(outlet, &screen, &refusal).await,
    };
    if attached.made {
        screen.notice(&format!("your machine '{}' is made", attached.name)).await?;
    }

    let mut environment = setup.variables;
    environment.extend(peer.environment());
    let mut listener = None;
    if setup.agent {
        match inbox.during(agent::listen(peer, Place::Machine(attached.name.clone()))).await? {
            Ok((path, listening)) => {
                environment.push(("SSH_AUTH_SOCK".into(), path));
                listener = Some(listening);
            }
            Err(refusal) => screen.notice(&format!("the agent is not forwarded: {refusal}")).await?,
        }
    }

    let command = match request {
        Request::Shell => Command::Shell,
        Request::Exec(line) => Command::Line(line),
        Request::Sftp => Command::Sftp,
    };
    let open = Open::Exec(Exec { command, env: environment, pty: setup.pty });
    let mut stream = match inbox.during(super::agree(attached.stream, open)).await? {
        Ok(stream) => stream,
        Err(refusal) => return refuse(outlet, &screen, &refusal).await,
    };

    let ended = tokio::select! {
        ended = download(&mut stream.frames, outlet) => ended?,
        gone = upstream::carry(inbox, stream.writer, upstream::Form::Frames(stream.version)) => return gone,
    };
    drop(listener);
    match ended {
        Ok(exit) => report(outlet, exit).await,
        Err(error) => refuse(outlet, &screen, &super::refusal(&error)).await,
    }
}

/// From the machine to the client, at the client's pace, until the command has
/// ended and everyone who holds its output has closed it.
async fn download(frames: &mut Frames, outlet: &Outlet) -> Result<Result<Exit, GuestError>, Gone> {
    let (mut exit, mut silent) = (None, false);
    loop {
        frames.read_ahead(outlet.read_ahead());
        match frames.output().await {
            Ok(Output::Data(data)) => outlet.data(data).await?,
            Ok(Output::Errors(data)) => outlet.errors(data).await?,
            // Both are kept for the end: a client that has ended its input too
            // answers an end with a close, and would lose the exit status.
            Ok(Output::Eof) => silent = true,
            Ok(Output::Exit(how)) => exit = Some(how),
            Err(error) => return Ok(exit.ok_or(error)),
        }
        if silent && let Some(exit) = exit.take() {
            return Ok(Ok(exit));
        }
    }
}

async fn report(outlet: &Outlet, exit: Exit) -> Result<(), Gone> {
    match exit {
        Exit::Status(status) => outlet.exit_status(status).await?,
        Exit::Signal { name, core } => {
            // OpenSSH's client ignores exit-signal and would end with 255; the
            // status says what a shell would say.
            let status = number(&name).map_or(u8::MAX, |number| 128 + number);
            let name = name.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
            outlet.exit_signal(name, core).await?;
            outlet.exit_status(status).await?;
        }
    }
    outlet.eof().await
}

/// Linux's number of a signal.
fn number(name: &str) -> Option<u8> {
    let signal: nix::sys::signal::Signal = format!("SIG{name}").parse().ok()?;
    u8::try_from(signal as i32).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_their_numbers() {
        assert_eq!(number("KILL"), Some(9));
        assert_eq!(number("TERM"), Some(15));
        assert_eq!(number("NONSENSE"), None);
    }
}
