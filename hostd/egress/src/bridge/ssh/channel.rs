//! One session channel, carried from the guest to the server and back.

use super::server::Route;
use crate::control::Outcome;
use russh::{
    Channel, ChannelId, ChannelMsg, client,
    server::{Handle, Msg},
};
use std::sync::Arc;
use tokio::sync::mpsc;

/// What a server may be told of a guest's environment.
const VARIABLES: &[&str] = &["GIT_PROTOCOL", "LANG", "LC_ALL", "LC_CTYPE"];

/// What the guest wants run.
enum Request {
    Exec(Vec<u8>),
    Shell,
    Subsystem(String),
}

pub async fn serve(route: Arc<Route>, user: String, mut guest: Channel<Msg>, handle: Handle) {
    let id = guest.id();
    let mut variables = Vec::new();
    let request = loop {
        match guest.wait().await {
            Some(ChannelMsg::SetEnv { variable_name, variable_value, want_reply }) => {
                if VARIABLES.contains(&variable_name.as_str()) && variables.len() < VARIABLES.len() {
                    variables.push((variable_name, variable_value));
                }
                answer(&handle, id, want_reply, true).await;
            }
            Some(ChannelMsg::Exec { want_reply, command }) => break (Request::Exec(command), want_reply),
            Some(ChannelMsg::RequestShell { want_reply }) => break (Request::Shell, want_reply),
            Some(ChannelMsg::RequestSubsystem { want_reply, name }) => {
                break (Request::Subsystem(name), want_reply);
            }
            Some(ChannelMsg::RequestPty { want_reply, .. } | ChannelMsg::AgentForward { want_reply }) => {
                answer(&handle, id, want_reply, false).await;
            }
            Some(ChannelMsg::Close) | None => return,
            Some(_) => {}
        }
    };
    let (request, want_reply) = request;
    answer(&handle, id, want_reply, true).await;
    let reason = match start(&route, &user, variables, request).await {
        Ok(server) => return carry(&route, guest, server).await,
        Err(reason) => reason,
    };
    let _ = guest.extended_data_bytes(1, format!("berth: {reason}\r\n")).await;
    let _ = guest.exit_status(255).await;
    let _ = guest.close().await;
}

async fn answer(handle: &Handle, id: ChannelId, wanted: bool, success: bool) {
    if wanted {
        // A guest that is gone needs no answer.
        let _ = if success { handle.channel_success(id).await } else { handle.channel_failure(id).await };
    }
}

async fn start(
    route: &Route,
    user: &str,
    variables: Vec<(String, String)>,
    request: Request,
) -> Result<Channel<client::Msg>, String> {
    let server = route.login(user).await?;
    let opened = async {
        let channel = server.channel_open_session().await?;
        for (name, value) in variables {
            channel.set_env(false, name, value).await?;
        }
        match request {
            Request::Exec(command) => channel.exec(false, command).await?,
            Request::Shell => channel.request_shell(false).await?,
            Request::Subsystem(name) => channel.request_subsystem(false, name).await?,
        }
        Ok::<_, russh::Error>(channel)
    };
    opened.await.map_err(|error| format!("the server opens no channel: {error}"))
}

/// Both ways until the server closes.
///
/// What the guest sends is taken at once: russh's loop for the guest waits for
/// a channel that does not take its messages, and so would what the server
/// sends back. [`Queued`](super::queued::Queued) keeps the guest from sending too far ahead.
async fn carry(route: &Route, guest: Channel<Msg>, server: Channel<client::Msg>) {
    let (mut from_guest, to_guest) = guest.split();
    let (mut from_server, to_server) = server.split();
    let mut decision = route.decision(Outcome::Allowed);
    let (mut up, mut down) = (0, 0);
    let (queue, mut queued) = mpsc::unbounded_channel();
    let taking = async {
        while let Some(message) = from_guest.wait().await {
            let length = if let ChannelMsg::Data { data } = &message { data.len() } else { 0 };
            route.queued.add(length).await;
            let last = matches!(message, ChannelMsg::Close);
            if last || queue.send(message).is_err() {
                break;
            }
        }
        drop(queue);
    };
    let giving = async {
        while let Some(message) = queued.recv().await {
            match message {
                ChannelMsg::Data { data } => {
                    up += data.len() as u64;
                    route.queued.remove(data.len());
                    to_server.data_bytes(data).await?;
                }
                ChannelMsg::Eof => to_server.eof().await?,
                ChannelMsg::Signal { signal } => to_server.signal(signal).await?,
                _ => {}
            }
        }
        to_server.close().await
    };
    let upwards = async { tokio::join!(taking, giving).1 };
    let downwards = async {
        while let Some(message) = from_server.wait().await {
            match message {
                ChannelMsg::Data { data } => {
                    down += data.len() as u64;
                    to_guest.data_bytes(data).await?;
                }
                ChannelMsg::ExtendedData { data, ext } => {
                    down += data.len() as u64;
                    to_guest.extended_data_bytes(ext, data).await?;
                }
                ChannelMsg::ExitStatus { exit_status } => to_guest.exit_status(exit_status).await?,
                ChannelMsg::ExitSignal { .. } => to_guest.exit_status(255).await?,
                ChannelMsg::Eof => to_guest.eof().await?,
                ChannelMsg::Failure | ChannelMsg::Close => break,
                _ => {}
            }
        }
        to_guest.close().await
    };
    tokio::select! {
        ended = downwards => if let Err(error) = ended {
            decision.reason = format!("broken off: {error}");
        },
        // The guest closed first; what the server still says is for nobody.
        _ = upwards => {}
    }
    decision.up = up;
    decision.down = down;
    route.machine.host.reporter.decided(decision);
}
