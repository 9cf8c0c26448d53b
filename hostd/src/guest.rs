//! hostd's own stream to guest-init: repair, pulse and shutdown.
//!
//! How a stream is opened and read is the client crate's; here is what is asked on it,
//! and when a broken one is made anew.

use crate::net::Link;
use berth_guest_client::{Begin, GuestError, Output, Stream};
use berth_guest_protocol::{
    Answer, Command as Run, Control as Command, Equip, Exec, Open, Opened, Repair, Shutdown, Version, Vitals,
};
use berth_types::Machine;
use std::{
    io,
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};

/// How long one attempt to connect may take while a guest is starting.
const ATTEMPT: Duration = Duration::from_millis(300);
/// The same while one is being resumed: its link is up, so it is slow rather
/// than absent, and a second attempt would only be more work for it.
const RESUMED: Duration = Duration::from_secs(1);
/// For a guest that is connected to say that it listens.
const REPLY: Duration = Duration::from_secs(10);
/// For a guest to close its end of a stream.
const PARTING: Duration = Duration::from_millis(200);
/// Between two attempts, so that a booting guest is not hammered.
const PAUSE: Duration = Duration::from_millis(15);

/// The version that a guest was heard to speak. One that is known is told what is new
/// without waiting for its answer; one that is not is spoken to as every guest understands.
#[derive(Debug, Default)]
pub struct Heard(AtomicU16);

impl Heard {
    /// As it was written down.
    pub fn new(number: Option<u16>) -> Self {
        Self(AtomicU16::new(number.unwrap_or_default()))
    }

    pub fn version(&self) -> Option<Version> {
        Version::new(self.0.load(Ordering::Relaxed))
    }

    /// To be written down.
    pub fn number(&self) -> Option<u16> {
        self.version().map(Version::number)
    }

    fn set(&self, version: Option<Version>) {
        self.0.store(version.map_or(0, Version::number), Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub struct Control(Stream);

impl Control {
    /// Connects again and again until guest-init answers. The caller sets the limit.
    pub async fn when_up(link: &Link) -> Result<Self, GuestError> {
        loop {
            if let Ok(stream) = link.dial(ATTEMPT).await {
                match Self::open(stream, Begin::new(None, Open::Control)?).await {
                    // It listens but is not ready to speak, or the link is too young.
                    Err(error) if may_come(&error) => {}
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
        heard: &Heard,
        limit: Duration,
    ) -> Result<Self, GuestError> {
        let attempt = if machine.sleeps_in.is_some() { RESUMED } else { ATTEMPT };
        // First, for with the repair the user's processes go on.
        let equipment = equipment.map(Command::Equip);
        loop {
            if let Ok(stream) = link.dial(attempt).await {
                let mut begin = Begin::new(heard.version(), Open::Control)?;
                if let Some(equipment) = &equipment {
                    begin.push(equipment)?;
                }
                begin.push(&Command::Repair(repair(machine)?))?;
                match Self::open(stream, begin).await {
                    Err(error) if may_come(&error) => {}
                    // What was heard was another's word. The next attempt goes by none.
                    Err(error) if error.is_of_version() && heard.version().is_some() => heard.set(None),
                    Err(error) => return Err(error),
                    Ok(mut control) => {
                        heard.set(Some(control.0.version));
                        for _ in equipment.iter() {
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

    async fn open(stream: TcpStream, begin: Begin) -> Result<Self, GuestError> {
        let stream = begin.send(stream, REPLY).await?;
        if stream.opened == Opened::Control { Ok(Self(stream)) } else { Err(GuestError::Answer) }
    }

    /// Freezes the user's processes, before a capture.
    pub async fn freeze(&mut self, rehearse: bool, limit: Duration) -> Result<(), GuestError> {
        if rehearse {
            self.0.send(&Command::Rehearse).await?;
        }
        self.0.send(&Command::Freeze).await?;
        if rehearse && let Err(error) = self.answered(limit).await {
            match error {
                GuestError::Failed(reason) => {
                    tracing::debug!(reason = printable(&reason), "nothing is rehearsed");
                }
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
                Err(error) if error.is_broken() && broken => {}
                // Guests of version 1 that are older than it ended up do not know how to
                // rehearse, and end the stream.
                Err(error) if error.is_broken() && rehearse => rehearse = false,
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
        self.0.send(&Command::Vitals).await?;
        match self.0.receive(limit).await? {
            Answer::Vitals(vitals) => Ok(vitals),
            Answer::Failed(message) => Err(GuestError::Failed(message)),
            Answer::Done => Err(GuestError::Answer),
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
            self.0.writer.shutdown().await?;
            self.0.frames.raw().await
        };
        // If it takes its time, it finishes after it has come back.
        let _ = timeout(PARTING, parted).await;
    }

    /// Asks for a clean power-off; the end of the process is the answer.
    pub async fn shut_down(&mut self) -> Result<(), GuestError> {
        self.0.send(&Command::Shutdown(Shutdown::PowerOff)).await
    }

    async fn done(&mut self, command: &Command, limit: Duration) -> Result<(), GuestError> {
        self.0.send(command).await?;
        self.answered(limit).await
    }

    async fn answered(&mut self, limit: Duration) -> Result<(), GuestError> {
        match self.0.receive(limit).await? {
            Answer::Done => Ok(()),
            Answer::Failed(message) => Err(GuestError::Failed(message)),
            Answer::Vitals(_) => Err(GuestError::Answer),
        }
    }
}

/// It is not there yet, as far as this says.
const fn may_come(error: &GuestError) -> bool {
    error.is_broken() || matches!(error, GuestError::Silent)
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
    let ended = async {
        let stream = link.dial(limit).await?;
        let mut stream = berth_guest_client::open(stream, Open::Exec(exec), limit).await?;
        // The guest closes the stream once it has told all.
        loop {
            match stream.frames.output().await {
                Ok(Output::Data(_) | Output::Errors(_) | Output::Eof | Output::Exit(_)) => {}
                Err(GuestError::Ended) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    };
    timeout(limit, ended).await.unwrap_or(Err(GuestError::Silent))
}

/// What went wrong, which a guest may have worded.
pub fn describe(error: &GuestError) -> String {
    printable(&error.to_string())
}

/// A guest's words on a user's terminal: one line.
pub fn printable(text: &str) -> String {
    berth_types::text::plain(text, 200)
}
