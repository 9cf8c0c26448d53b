//! A session channel, from its first request to its exit status.

use super::{
    channel::{Gone, Inbox, Outlet},
    peer::Peer,
    ready,
};
use crate::{
    attach::exec,
    command::{self, Context},
    target::{self, Request, Route},
    ui::{
        LiveOn, Progress, Screen,
        text::{QUOTED, printable},
    },
};
use berth_guest_protocol::Pty;
use berth_types::Refusal;
use russh::ChannelMsg;
use std::sync::{Arc, atomic::Ordering};
use zeroize::Zeroizing;

/// Variables that clients may set, as sshd's AcceptEnv.
const ENVIRONMENT: &[&str] = &["LANG", "TERM", "COLORTERM"];
const VARIABLES_MAX: usize = 64;
const VALUE_MAX: usize = 4096;
/// What a shell says of a command that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// May a client set this variable?
pub fn accepts_variable(name: &str, value: &str) -> bool {
    let known = ENVIRONMENT.contains(&name) || name.starts_with("LC_");
    known && name.len() <= 64 && value.len() <= VALUE_MAX && !value.contains('\0') && !name.contains('=')
}

/// What was asked for before the command was.
#[derive(Debug, Default)]
pub struct Setup {
    pub variables: Vec<(String, String)>,
    pub pty: Option<Pty>,
    pub agent: bool,
}

/// Serves a channel to its end. The handler has already answered each request;
/// here it happens.
pub async fn serve(peer: Arc<Peer>, mut inbox: Inbox, outlet: Outlet) {
    if run(&peer, &mut inbox, &outlet).await == Err(Gone) {
        tracing::debug!(channel = %outlet.id(), "the client left");
    }
    let _ = outlet.close().await;
}

async fn run(peer: &Arc<Peer>, inbox: &mut Inbox, outlet: &Outlet) -> Result<(), Gone> {
    let (setup, request) = requested(inbox).await?;
    let screen = Screen::new(outlet, setup.pty.is_some());
    if peer.asks_ready.load(Ordering::Relaxed) {
        return ready::answer(peer, outlet, &screen).await;
    }
    if let Some(refusal) = peer.refused.get() {
        return refuse(outlet, &screen, refusal).await;
    }
    if peer.greets() {
        let user = peer.login.get().map(|login| login.session.user.to_string()).unwrap_or_default();
        screen.notice(&format!("your key is new here: you are now user {user}")).await?;
    }
    for notice in peer.notices() {
        let from = notice.from.map(|address| format!(" from {address}")).unwrap_or_default();
        let (key, added) = (printable(&notice.fingerprint, 100), notice.added.strftime("%Y-%m-%d %H:%M UTC"));
        let undo = format!("{} key rm {key}", peer.gateway.address.lobby());
        screen
            .notice(&format!("the key {key} was added on {added}{from}: if not by you, type: {undo}"))
            .await?;
    }
    let json = matches!(&request, Request::Exec(line) if target::asks_for_json(line));
    let resolved = inbox.during(peer.resolve()).await?;
    let route = resolved.and_then(|resolved| target::route(resolved, request, &peer.gateway.address));
    match route {
        Ok(Route::Machine { place, request, meant }) => {
            if let Some(name) = meant {
                let login = peer.login.get().map(|login| printable(&login.name, QUOTED)).unwrap_or_default();
                let line = peer.gateway.address.machine(name.as_str());
                let notice = format!("you have no machine '{login}', this is your default machine");
                screen.notice(&format!("{notice}: for '{name}' type: {line}")).await?;
            }
            exec::run(peer, inbox, outlet, exec::Job { place, request, setup }).await
        }
        Ok(Route::Verb(words)) => verb(peer, inbox, outlet, &screen, words).await,
        Err(refusal) => {
            if json {
                screen.refusal_value(&refusal).await?;
            }
            refuse(outlet, &screen, &refusal).await
        }
    }
}

/// Collects what comes before the command.
async fn requested(inbox: &mut Inbox) -> Result<(Setup, Request), Gone> {
    let mut setup = Setup::default();
    loop {
        match inbox.next().await? {
            ChannelMsg::SetEnv { variable_name: name, variable_value: value, .. }
                if accepts_variable(&name, &value) && setup.variables.len() < VARIABLES_MAX =>
            {
                setup.variables.push((name, value));
            }
            ChannelMsg::RequestPty {
                term,
                col_width,
                row_height,
                pix_width,
                pix_height,
                terminal_modes,
                ..
            } => {
                setup.pty = Some(Pty {
                    term: term.chars().take(64).collect(),
                    columns: exec::cells(col_width),
                    rows: exec::cells(row_height),
                    width: exec::cells(pix_width),
                    height: exec::cells(pix_height),
                    modes: terminal_modes.iter().map(|(mode, value)| (*mode as u8, *value)).collect(),
                });
            }
            ChannelMsg::AgentForward { .. } => setup.agent = true,
            ChannelMsg::RequestShell { .. } => return Ok((setup, Request::Shell)),
            ChannelMsg::Exec { command, .. } => return Ok((setup, Request::Exec(command))),
            ChannelMsg::RequestSubsystem { name, .. } if name == "sftp" => return Ok((setup, Request::Sftp)),
            _ => {}
        }
    }
}

async fn verb(
    peer: &Arc<Peer>,
    inbox: &mut Inbox,
    outlet: &Outlet,
    screen: &Screen<'_>,
    words: Vec<String>,
) -> Result<(), Gone> {
    let (json, words) = command::split_json(words);
    // Wiped when the verb is done: it may be the value of a secret.
    let mut input = Zeroizing::new(Vec::new());
    if command::wants_input(&words) {
        match read_input(inbox, screen).await? {
            Some(bytes) => input = bytes,
            None => return outlet.exit_status(INTERRUPTED).await,
        }
    }
    let live = if json { LiveOn::Errors } else { LiveOn::Output };
    let work = Progress::show(screen, live, async |progress| {
        let Some(login) = peer.login.get() else { return Err(command::unexpected()) };
        let context = Context {
            api: &peer.gateway.api,
            address: &peer.gateway.address,
            session: login.session.clone(),
            progress,
            colour: screen.is_terminal() && !json,
            json,
            input,
        };
        command::run(&context, &words).await
    });
    tokio::pin!(work);
    let answer = loop {
        tokio::select! {
            answer = &mut work => break answer,
            message = inbox.next() => if screen.is_terminal() && is_interrupt(&message?) {
                return outlet.exit_status(INTERRUPTED).await;
            }
        }
    };
    match answer {
        Ok(answer) if json => screen.result(&format!("{}\n", answer.value)).await?,
        Ok(answer) => screen.result(&answer.text).await?,
        Err(refusal) => {
            if json {
                screen.refusal_value(&refusal).await?;
            }
            return refuse(outlet, screen, &refusal).await;
        }
    }
    outlet.exit_status(0).await?;
    outlet.eof().await
}

/// Standard input to its end; `None` if the user gave up.
async fn read_input(inbox: &mut Inbox, screen: &Screen<'_>) -> Result<Option<Zeroizing<Vec<u8>>>, Gone> {
    let mut input = Zeroizing::new(Vec::with_capacity(command::INPUT_MAX));
    loop {
        let message = inbox.next().await?;
        if screen.is_terminal() && is_interrupt(&message) {
            return Ok(None);
        }
        match message {
            ChannelMsg::Data { data } => {
                // A terminal in raw mode sends what was typed: Ctrl-D is the end of it.
                let end = data.iter().position(|byte| screen.is_terminal() && *byte == 4);
                input.extend_from_slice(data.get(..end.unwrap_or(data.len())).unwrap_or_default());
                if end.is_some() || input.len() > command::INPUT_MAX {
                    return Ok(Some(input));
                }
            }
            ChannelMsg::Eof => return Ok(Some(input)),
            _ => {}
        }
    }
}

fn is_interrupt(message: &ChannelMsg) -> bool {
    matches!(message, ChannelMsg::Data { data } if data.contains(&3))
}

/// Ends a channel with an error line and its status.
pub async fn refuse(outlet: &Outlet, screen: &Screen<'_>, refusal: &Refusal) -> Result<(), Gone> {
    screen.refusal(refusal).await?;
    outlet.exit_status(refusal.code.exit_status()).await?;
    outlet.eof().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_variables_pass() {
        for good in ["LANG", "LC_ALL", "TERM", "COLORTERM"] {
            assert!(accepts_variable(good, "x"));
        }
        for bad in ["PATH", "LD_PRELOAD", "BASH_ENV", "lang", "SSH_AUTH_SOCK", "LC_A=B"] {
            assert!(!accepts_variable(bad, "x"), "{bad}");
        }
        assert!(!accepts_variable("LANG", "a\0b"));
        assert!(!accepts_variable("LANG", &"x".repeat(5000)));
    }
}
