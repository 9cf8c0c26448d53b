//! Guests that speak the control protocol on loopback and can misbehave.

use crate::{
    error::Result,
    host::Host,
    net::{Link, Network, Networks, Taps},
};
use berth_guest_protocol::{
    Answer, Control, Exit as Ended, HEADER, Hello, Kind, Message, Open, Opened, Opening, Refused,
    RefusedKind, Reply, Version, Vitals, decode, encode, frozen::v1, header, parse_header,
};
use berth_hypervisor::{Exit, fake::Fake};
use berth_types::MachineId;
use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    net::SocketAddr,
    sync::{Arc, Mutex, Weak},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    Good,
    /// Accepts and says nothing: a boot that hangs.
    Mute,
    /// So does the next that is started, and those after it do not.
    MuteOnce,
    /// Opens, then answers with what is no answer.
    Garbage,
    /// Says what it is asked, and its commands never end.
    Absorbed,
    /// Never does what it is told on shutdown.
    Stubborn,
    /// Speaks version 1 alone, and as strictly as it was.
    Old,
}

#[derive(Clone)]
pub struct Guests(Arc<Mutex<Inner>>);

struct Inner {
    driver: Fake,
    host: Weak<Host>,
    manners: Manners,
    vitals: Vitals,
    open: HashMap<String, SocketAddr>,
    /// The network of the one that hangs.
    mute: Option<String>,
    /// What the last one that was set right had its clock set to.
    clock: u64,
    /// A command was begun that does not end.
    absorbed: bool,
    /// What was said on each connection: the payloads of all frames.
    heard: BTreeMap<usize, Vec<Vec<u8>>>,
    connections: usize,
}

impl Guests {
    pub fn new(driver: Fake) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            driver,
            host: Weak::new(),
            manners: Manners::Good,
            vitals: busy(),
            open: HashMap::new(),
            mute: None,
            clock: 0,
            absorbed: false,
            heard: BTreeMap::new(),
            connections: 0,
        })))
    }

    pub fn serve(&self, host: &Arc<Host>) {
        self.0.lock().unwrap().host = Arc::downgrade(host);
    }

    /// How guests behave from now on, those that are up included.
    pub fn behave(&self, manners: Manners) {
        self.0.lock().unwrap().manners = manners;
    }

    /// What guests say of themselves from now on.
    pub fn report(&self, vitals: Vitals) {
        self.0.lock().unwrap().vitals = vitals;
    }

    /// In nanoseconds since 1970.
    pub fn clock(&self) -> u64 {
        self.0.lock().unwrap().clock
    }

    /// Has a guest begun a command that does not end?
    pub fn is_absorbed(&self) -> bool {
        self.0.lock().unwrap().absorbed
    }

    /// What was said since this was asked last, of each connection the payloads of its frames.
    pub fn heard(&self) -> Vec<Vec<Vec<u8>>> {
        std::mem::take(&mut self.0.lock().unwrap().heard).into_values().collect()
    }

    pub fn open(&self) -> usize {
        self.0.lock().unwrap().open.len()
    }

    fn manners(&self) -> Manners {
        self.0.lock().unwrap().manners
    }

    async fn listen(&self, name: String) -> Network {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        {
            let mut inner = self.0.lock().unwrap();
            inner.open.insert(name.clone(), address);
            if inner.manners == Manners::MuteOnce && inner.mute.is_none() {
                inner.mute = Some(name.clone());
            }
        }
        let (guests, network) = (self.clone(), name.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(guests.clone().converse(network.clone(), stream));
            }
        });
        let null = || File::open("/dev/null").unwrap().into();
        let taps = Some(Taps { ctl: null(), eth: null() });
        Network { name, netns: Arc::new(null()), link: Link::Loopback(address), taps, doors: None }
    }

    async fn converse(self, network: String, mut stream: TcpStream) {
        let hangs = self.0.lock().unwrap().mute.as_ref() == Some(&network);
        if hangs || self.manners() == Manners::Mute {
            return std::future::pending().await;
        }
        let payload = receive(&mut stream).await.1;
        let connection = {
            let mut inner = self.0.lock().unwrap();
            inner.connections += 1;
            let connection = inner.connections;
            inner.heard.insert(connection, vec![payload.clone()]);
            connection
        };
        let Opening { speaks, open } = Opening::decode(&payload).unwrap();
        let version = if self.manners() == Manners::Old {
            if v1::decode::<v1::Opening>(&payload).unwrap().generation != v1::GENERATION {
                let refused = Refused { kind: RefusedKind::Version, message: "1 spoken".into() };
                return send(&mut stream, Version::ONE, &Reply::Err(refused)).await;
            }
            Version::ONE
        } else {
            Version::OURS.settle(speaks.version())
        };
        if version > Version::ONE {
            send(&mut stream, version, &Hello { version: Version::OURS }).await;
        }
        if matches!(open, Open::Exec(_)) {
            if self.manners() == Manners::Absorbed {
                self.0.lock().unwrap().absorbed = true;
                return std::future::pending().await;
            }
            // It ran, and said nothing.
            send(&mut stream, version, &Reply::Ok(Opened::Exec { pid: 1 })).await;
            stream.write_all(&header(Kind::Eof, 0)).await.unwrap();
            return send(&mut stream, version, &Ended::Status(0)).await;
        }
        send(&mut stream, version, &Reply::Ok(Opened::Control)).await;
        loop {
            let (kind, payload) = receive(&mut stream).await;
            assert_eq!(kind, Kind::Control);
            if version == Version::ONE {
                v1::decode::<v1::Control>(&payload).unwrap();
            }
            let command: Control = decode(version, &payload).unwrap();
            if let Some(said) = self.0.lock().unwrap().heard.get_mut(&connection) {
                said.push(payload);
            }
            if let Control::Repair(repair) = &command {
                self.0.lock().unwrap().clock = repair.clock;
            }
            match (self.manners(), command) {
                (Manners::Garbage, Control::Vitals) => stream.write_all(&[0xff; 64]).await.unwrap(),
                (Manners::Stubborn, Control::Shutdown(_)) => {}
                (_, Control::Shutdown(_)) => self.end(&network),
                (_, Control::Vitals) => {
                    let vitals = Answer::Vitals(self.0.lock().unwrap().vitals.clone());
                    send(&mut stream, version, &vitals).await;
                }
                _ => send(&mut stream, version, &Answer::Done).await,
            }
        }
    }

    fn end(&self, network: &str) {
        let (driver, host) = {
            let inner = self.0.lock().unwrap();
            (inner.driver.clone(), inner.host.upgrade().unwrap())
        };
        let owner =
            |record: &berth_types::Machine| record.runtime.as_ref().is_some_and(|up| up.netns == network);
        let machine = host.fleet.all().into_iter().find(|handle| owner(&handle.record())).unwrap();
        driver.end(machine.id(), Exit::Clean).unwrap();
    }
}

/// A guest with a command under way does not fall asleep.
fn busy() -> Vitals {
    Vitals { commands: 1, ..Vitals::default() }
}

async fn send<M: Message>(stream: &mut TcpStream, version: Version, message: &M) {
    // The other side may be gone.
    let _ = stream.write_all(&encode(version, message).unwrap()).await;
}

/// Ends its task quietly when the other side is gone.
async fn receive(stream: &mut TcpStream) -> (Kind, Vec<u8>) {
    let mut header = [0; HEADER];
    if stream.read_exact(&mut header).await.is_err() {
        return std::future::pending().await;
    }
    let header = parse_header(header).unwrap();
    let mut payload = vec![0; header.length];
    stream.read_exact(&mut payload).await.unwrap();
    (header.kind, payload)
}

#[async_trait::async_trait]
impl Networks for Guests {
    async fn take(&self) -> Result<Network> {
        Ok(self.listen(MachineId::random().to_string()).await)
    }

    /// A network of an earlier world: its guest is made anew.
    async fn find(&self, name: &str) -> Result<Option<Network>> {
        Ok(Some(self.listen(name.to_owned()).await))
    }

    async fn taps(&self, _: &Network) -> std::io::Result<Taps> {
        let null = || Ok::<_, std::io::Error>(File::open("/dev/null")?.into());
        Ok(Taps { ctl: null()?, eth: null()? })
    }

    fn release(&self, name: &str) {
        self.0.lock().unwrap().open.remove(name);
    }

    async fn keep_only(&self, names: &[String]) -> Result<()> {
        self.0.lock().unwrap().open.retain(|name, _| names.contains(name));
        Ok(())
    }
}
