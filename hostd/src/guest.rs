//! hostd's own stream to guest-init: repair, pulse and shutdown.
//!
//! Whatever arrives here comes from a guest and is hostile; the protocol crate
//! checks lengths and contents, this module the order.

use crate::net::Link;
use berth_guest_protocol::{
    Answer, Command as Run, Control as Command, Equip, Exec, FrameError, GENERATION, HEADER, Kind, Open,
    Opened, Opening, Repair, Reply, Shutdown, Vitals, decode, encode, parse_header,
};
use berth_types::Machine;
use std::{
    io,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// How long one attempt to connect may take while a guest is starting.
const ATTEMPT: Duration = Duration::from_millis(300);
/// The same while one is being resumed: its link is up, so it is slow rather
/// than absent, and a second attempt would only be more work for it.
const RESUMED: Duration = Duration::from_secs(1);
/// For a guest to close its end of a stream.
const PARTING: Duration = Duration::from_millis(200);
/// Between two attempts, so that a booting guest is not hammered.
const PAUSE: Duration = Duration::from_millis(15);

#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    #[error("the guest does not answer")]
    Silent,
    #[error("the guest broke the protocol: {0}")]
    Protocol(String),
    #[error("the guest refused: {0}")]
    Refused(String),
    #[error("the connection to the guest broke: {0}")]
    Io(#[from] io::Error),
}

impl From<FrameError> for GuestError {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.to_string())
    }
}

#[derive(Debug)]
pub struct Control(TcpStream);

impl Control {
    /// Connects again and again until guest-init answers. The caller sets the limit.
    pub async fn when_up(link: &Link) -> Result<Self, GuestError> {
        loop {
            if let Ok(stream) = link.dial(ATTEMPT).await {
                match Self::open(stream).await {
                    // It listens but is not ready to speak, or the link is too young.
                    Err(GuestError::Io(_) | GuestError::Silent) => {}
                    opened => return opened,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The same, and has the guest set itself right at once: nobody waits for
    /// one answer before asking the next.
    pub async fn when_repaired(
        link: &Link,
        machine: &Machine,
        equipment: Option<Equip>,
        limit: Duration,
    ) -> Result<Self, GuestError> {
        let attempt = if machine.sleeps_in.is_some() { RESUMED } else { ATTEMPT };
        loop {
            if let Ok(mut stream) = link.dial(attempt).await {
                let opened = async {
                    let mut frames = opening()?;
                    // First, for with the repair the user's processes go on.
                    if let Some(equipment) = &equipment {
                        frames.extend(encode(Kind::Control, &Command::Equip(equipment.clone()))?);
                    }
                    frames.extend(encode(Kind::Control, &Command::Repair(repair(machine)?))?);
                    stream.write_all(&frames).await?;
                    Self::opened(stream).await
                };
                match opened.await {
                    Err(GuestError::Io(_) | GuestError::Silent) => {}
                    Err(error) => return Err(error),
                    Ok(mut control) => {
                        if equipment.is_some() {
                            control.answered(limit).await?;
                        }
                        control.answered(limit).await?;
                        return Ok(control);
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn open(mut stream: TcpStream) -> Result<Self, GuestError> {
        stream.write_all(&opening()?).await?;
        Self::opened(stream).await
    }

    async fn opened(mut stream: TcpStream) -> Result<Self, GuestError> {
        let payload = receive(&mut stream, Kind::Reply, Duration::from_secs(10)).await?;
        match decode::<Reply>(&payload)? {
            Ok(Opened::Control) => Ok(Self(stream)),
            Ok(other) => Err(GuestError::Protocol(format!("it opened {other:?} instead of control"))),
            Err(refused) => Err(GuestError::Refused(printable(&refused.message))),
        }
    }

    /// Freezes the user's processes, before a capture. A guest that does not know
    /// how to `rehearse` ends the connection.
    pub async fn freeze(&mut self, rehearse: bool, limit: Duration) -> Result<(), GuestError> {
        let mut frames = Vec::new();
        if rehearse {
            frames.extend(encode(Kind::Control, &Command::Rehearse)?);
        }
        frames.extend(encode(Kind::Control, &Command::Freeze)?);
        self.0.write_all(&frames).await?;
        if rehearse && let Err(error) = self.answered(limit).await {
            match error {
                GuestError::Refused(reason) => tracing::debug!(reason, "nothing is rehearsed"),
                error => return Err(error),
            }
        }
        self.answered(limit).await
    }

    /// The same on a connection that is there already, or on one of its own. It is
    /// returned.
    pub async fn frozen(
        mut there: Option<Self>,
        link: &Link,
        mut rehearse: bool,
        limit: Duration,
    ) -> Result<Self, GuestError> {
        loop {
            let known = there.take();
            let broken = known.is_some();
            let mut control = match known {
                Some(control) => control,
                None => timeout(limit, Self::when_up(link)).await.unwrap_or(Err(GuestError::Silent))?,
            };
            match control.freeze(rehearse, limit).await {
                Ok(()) => return Ok(control),
                Err(GuestError::Io(_)) if broken => {}
                Err(GuestError::Io(_)) if rehearse => rehearse = false,
                Err(error) => {
                    let _ = control.thaw(limit).await;
                    return Err(error);
                }
            }
        }
    }

    /// Lets a guest go on that stood still: its clock stood as well.
    pub async fn go_on(&mut self, machine: &Machine, limit: Duration) -> Result<(), GuestError> {
        self.done(&Command::Repair(repair(machine)?), limit).await
    }

    /// Thaws processes that were frozen for nothing: no time has passed.
    async fn thaw(&mut self, limit: Duration) -> Result<(), GuestError> {
        self.done(&Command::Thaw, limit).await
    }

    pub async fn vitals(&mut self, limit: Duration) -> Result<Vitals, GuestError> {
        match self.ask(&Command::Vitals, limit).await? {
            Answer::Vitals(vitals) => Ok(vitals),
            Answer::Failed(message) => Err(GuestError::Refused(printable(&message))),
            Answer::Done => Err(GuestError::Protocol("no vitals".into())),
        }
    }

    /// Whom to trust and which placeholders to have.
    pub async fn equip(&mut self, equipment: Equip, limit: Duration) -> Result<(), GuestError> {
        self.done(&Command::Equip(equipment), limit).await
    }

    /// Closes it from this end and waits for the other: a guest that is about
    /// to be captured has nothing left of it to work on when it comes back.
    pub async fn part(mut self) {
        let parted = async {
            self.0.shutdown().await?;
            self.0.read(&mut [0]).await
        };
        // If it takes its time, it finishes after it has come back.
        let _ = timeout(PARTING, parted).await;
    }

    /// Asks for a clean power-off; the end of the process is the answer.
    pub async fn shut_down(&mut self) -> Result<(), GuestError> {
        self.0.write_all(&encode(Kind::Control, &Command::Shutdown(Shutdown::PowerOff))?).await?;
        Ok(())
    }

    async fn done(&mut self, command: &Command, limit: Duration) -> Result<(), GuestError> {
        self.0.write_all(&encode(Kind::Control, command)?).await?;
        self.answered(limit).await
    }

    async fn answered(&mut self, limit: Duration) -> Result<(), GuestError> {
        let payload = receive(&mut self.0, Kind::Answer, limit).await?;
        match decode(&payload)? {
            Answer::Done => Ok(()),
            Answer::Failed(message) => Err(GuestError::Refused(printable(&message))),
            Answer::Vitals(_) => Err(GuestError::Protocol("vitals that nobody asked for".into())),
        }
    }

    async fn ask(&mut self, command: &Command, limit: Duration) -> Result<Answer, GuestError> {
        self.0.write_all(&encode(Kind::Control, command)?).await?;
        let payload = receive(&mut self.0, Kind::Answer, limit).await?;
        Ok(decode(&payload)?)
    }
}

fn opening() -> Result<Vec<u8>, GuestError> {
    Ok(encode(Kind::Open, &Opening { generation: GENERATION, open: Open::Control })?)
}

/// What sets right the clock, the randomness, the name and the disk's size.
fn repair(machine: &Machine) -> Result<Repair, GuestError> {
    let mut entropy = [0; 32];
    getrandom::fill(&mut entropy).map_err(|error| io::Error::other(error.to_string()))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Repair {
        clock: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
        entropy,
        hostname: machine.name.to_string(),
        renew_identity: machine.fresh,
        disk: machine.disk.bytes(),
    })
}

async fn receive(stream: &mut TcpStream, kind: Kind, limit: Duration) -> Result<Vec<u8>, GuestError> {
    let frame = async {
        let mut header = [0; HEADER];
        stream.read_exact(&mut header).await?;
        let header = parse_header(header)?;
        if header.kind != kind {
            return Err(GuestError::Protocol(format!("a {:?} frame where {kind:?} was due", header.kind)));
        }
        let mut payload = vec![0; header.length];
        stream.read_exact(&mut payload).await?;
        Ok(payload)
    };
    timeout(limit, frame).await.unwrap_or(Err(GuestError::Silent))
}

/// Tells a guest that runs already. If it cannot be told, its next start does it.
pub async fn equip_again(link: &Link, equipment: impl FnOnce() -> Equip) {
    let limit = Duration::from_secs(10);
    let told = timeout(limit, async {
        let mut control = Control::when_up(link).await?;
        control.equip(equipment(), limit).await
    });
    if !matches!(told.await, Ok(Ok(()))) {
        tracing::warn!("a guest was not told of its new secrets");
    }
}

/// Runs a line as the user would, and returns when it has ended, however it did.
pub async fn run(link: &Link, line: &str, limit: Duration) -> Result<(), GuestError> {
    let exec = Exec { command: Run::Line(line.into()), env: Vec::new(), pty: None };
    let opening = encode(Kind::Open, &Opening { generation: GENERATION, open: Open::Exec(exec) })?;
    let ended = async {
        let mut stream = link.dial(limit).await?;
        stream.write_all(&opening).await?;
        // The guest closes the stream once it has told all.
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
        Ok(())
    };
    timeout(limit, ended).await.unwrap_or(Err(GuestError::Silent))
}

/// A guest's words on a user's terminal: one line.
pub fn printable(text: &str) -> String {
    berth_types::text::plain(text, 200)
}
