//! A guest's ctl link, spoken by a test in version 1, which every guest speaks.

use super::net;
use anyhow::{Context, Result, bail};
use berth_guest_protocol::{
    Answer, Command, Control, Exec, Exit, HEADER, Kind, Open, Opening, Repair, Reply, Shutdown, Speaks,
    Version, decode, encode, header, parse_header,
};
use std::{
    io::{Read, Write},
    net::TcpStream,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

/// For a boot under emulation on a busy host.
const BOOT: Duration = Duration::from_secs(900);
const ANSWER: Duration = Duration::from_secs(180);

pub struct Guest(pub Arc<OwnedFd>);

impl Guest {
    /// Waits for the first answer, then sets the guest right as hostd would.
    pub fn up(&self) -> Result<()> {
        let limit = Instant::now() + BOOT;
        while !self.answers(Duration::from_millis(250)) {
            if Instant::now() > limit {
                bail!("the guest did not answer within {BOOT:?}");
            }
        }
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos().try_into()?;
        let repair = Repair {
            clock,
            entropy: [7; 32],
            hostname: "contract".to_owned(),
            renew_identity: false,
            disk: 0,
        };
        match self.control(&Control::Repair(repair))? {
            Answer::Done => Ok(()),
            answer => bail!("repair: {answer:?}"),
        }
    }

    /// Whether it answers a ping, all of it within the limit.
    pub fn answers(&self, limit: Duration) -> bool {
        let asked = || -> Result<Answer> {
            let mut stream = self.open(Open::Control, limit)?;
            stream.write_all(&encode(Version::ONE, &Control::Ping)?)?;
            answer(&mut stream)
        };
        matches!(asked(), Ok(Answer::Done))
    }

    fn control(&self, control: &Control) -> Result<Answer> {
        let mut stream = self.open(Open::Control, ANSWER)?;
        stream.write_all(&encode(Version::ONE, control)?)?;
        answer(&mut stream)
    }

    pub fn shut_down(&self, how: Shutdown) -> Result<()> {
        let mut stream = self.open(Open::Control, ANSWER)?;
        Ok(stream.write_all(&encode(Version::ONE, &Control::Shutdown(how))?)?)
    }

    /// Runs a line as the machine's user and gives its standard output.
    pub fn run(&self, line: &str) -> Result<String> {
        let mut stream = self.send(line)?;
        let mut output = Vec::new();
        loop {
            let (kind, payload) = frame(&mut stream).with_context(|| format!("running {line:?}"))?;
            match kind {
                Kind::Data => output.extend(payload),
                Kind::Errors => eprintln!("{line}: {}", String::from_utf8_lossy(&payload)),
                Kind::Exit => {
                    let exit: Exit = decode(Version::ONE, &payload)?;
                    anyhow::ensure!(exit == Exit::Status(0), "{line}: {exit:?}");
                    return Ok(String::from_utf8(output)?.trim().to_owned());
                }
                _ => {}
            }
        }
    }

    /// Starts a line that nobody waits for: it may end the machine.
    pub fn send(&self, line: &str) -> Result<TcpStream> {
        let command = Command::Line(line.as_bytes().to_vec());
        let mut stream = self.open(Open::Exec(Exec { command, env: Vec::new(), pty: None }), ANSWER)?;
        stream.write_all(&header(Kind::Eof, 0))?;
        Ok(stream)
    }

    fn open(&self, open: Open, limit: Duration) -> Result<TcpStream> {
        let mut stream = net::connect(&self.0, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(&Opening { speaks: Speaks::UpTo(Version::ONE), open }.encode()?)?;
        match frame(&mut stream)? {
            (Kind::Reply, payload) => match decode::<Reply>(Version::ONE, &payload)? {
                Ok(_) => Ok(stream),
                Err(refused) => bail!("refused: {refused:?}"),
            },
            (kind, _) => bail!("{kind:?} in place of a reply"),
        }
    }
}

fn answer(stream: &mut TcpStream) -> Result<Answer> {
    match frame(stream)? {
        (Kind::Answer, payload) => Ok(decode(Version::ONE, &payload)?),
        (kind, _) => bail!("{kind:?} in place of an answer"),
    }
}

fn frame(stream: &mut TcpStream) -> Result<(Kind, Vec<u8>)> {
    let mut header = [0; HEADER];
    stream.read_exact(&mut header)?;
    let header = parse_header(header)?;
    let mut payload = vec![0; header.length];
    stream.read_exact(&mut payload)?;
    Ok((header.kind, payload))
}
