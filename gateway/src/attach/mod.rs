//! Streams into machines: commands, forwards, listeners, agents.

pub mod agent;
pub mod exec;
pub mod forward;
pub mod jump;
pub mod listen;
mod upstream;

use crate::{
    ssh::peer::Peer,
    target::Place,
    ui::{Progress, text::printable},
};
use berth_api::{Reply, Request};
use berth_guest_client::{GuestError, Stream};
use berth_guest_protocol::{Open, RefusedKind};
use berth_types::{Code, MachineName, Refusal};
use std::time::Duration;
use tokio::net::TcpStream;

/// A guest that takes longer to answer has stopped answering. Longer than a
/// TCP connect that nobody answers.
const ANSWER: Duration = Duration::from_secs(150);

/// Bytes that the kernel keeps for a machine.
const UNSENT_MAX: usize = 256 << 10;

/// A new stream to a machine, nothing said on it yet.
#[derive(Debug)]
pub struct Attached {
    pub name: MachineName,
    /// The machine was made by this.
    pub made: bool,
    pub stream: TcpStream,
}

/// Asks hostd for a stream; the machine is started if need be.
pub async fn attach(peer: &Peer, place: &Place, progress: &Progress) -> Result<Attached, Refusal> {
    let request = match place {
        Place::Machine(name) => Request::Attach { name: name.clone() },
        Place::Default => Request::AttachDefault,
    };
    match peer.call(request, |text| progress.report(text)).await? {
        (Reply::Attached { name, made }, Some(descriptor)) => {
            let stream = std::net::TcpStream::from(descriptor);
            let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
            let stream = stream.map_err(|error| {
                tracing::error!(%error, "a stream from hostd is unusable");
                crate::command::unexpected()
            })?;
            // Keystrokes must not wait for each other; the host side may have left this off.
            let _ = stream.set_nodelay(true);
            // What a machine does not read is counted here, not in the kernel.
            let _ = nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::SndBuf, &UNSENT_MAX);
            Ok(Attached { name, made, stream })
        }
        _ => Err(crate::command::unexpected()),
    }
}

/// Attaches and opens in one go, for streams whose machine is known to be up.
pub async fn open(peer: &Peer, place: &Place, open: Open) -> Result<Stream, Refusal> {
    let attached = attach(peer, place, &Progress::silent()).await?;
    agree(attached.stream, open).await
}

/// Opens an attached stream; what went wrong becomes a refusal.
pub async fn agree(stream: TcpStream, open: Open) -> Result<Stream, Refusal> {
    berth_guest_client::open(stream, open, ANSWER).await.map_err(|error| refusal(&error))
}

/// What a person is told when a guest said no or said nonsense.
pub fn refusal(error: &GuestError) -> Refusal {
    let (code, hint) = match error {
        GuestError::Silent => (Code::Failed, "look at its console with 'info NAME --console'"),
        GuestError::Refused(refused) => match refused.kind {
            RefusedKind::Unreachable => (Code::NotFound, "is anything listening there?"),
            RefusedKind::Denied => (Code::NotAllowed, "the machine's own permissions forbid it"),
            RefusedKind::Exhausted => (Code::Limit, "free memory, disk or processes in the machine"),
            RefusedKind::Version => (Code::Failed, "restart the machine"),
            RefusedKind::Malformed | RefusedKind::Failed => (Code::Failed, "try again"),
        },
        _ => (Code::Failed, "look at it with 'info NAME', then connect again"),
    };
    let text = match error {
        GuestError::Refused(refused) => refused.message.clone(),
        error => error.to_string(),
    };
    Refusal::new(code, printable(&text, 200), hint)
}
