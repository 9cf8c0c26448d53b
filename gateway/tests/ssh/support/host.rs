//! A hostd that remembers users and machines and starts nothing.

use berth_api::{
    Call, Caller, Connection, Identity, KeyNotice, MachineView, Message, NetworkView, Reply, Request,
    Resolved, Session, Usage,
};
use berth_guest_protocol::{Opened, Reply as GuestReply, Version, encode};
use berth_types::{
    ByteSize, Code, DEFAULT_MACHINE, MachineId, MachineName, Quota, Refusal, SshKey, State, UserId,
};
use jiff::Timestamp;
use nix::sys::socket::{setsockopt, sockopt};
use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{Arc, Mutex},
};
use tokio::{
    net::UnixListener,
    runtime::Runtime,
    sync::{Notify, watch},
};

/// Each start of a machine of this name lasts until [`Host::has_booted`] is called once.
pub const SLOW: &str = "slow";
/// One of this name answers with noise.
pub const NOISY: &str = "noisy";
/// One of this name starts every command, and reads nothing of what is sent to it.
pub const STUCK: &str = "stuck";
/// One of this name ends every stream at once.
pub const MUTE: &str = "mute";

/// What only this hostd answers.
pub const WORD: &str = "the word of this hostd";

pub struct Host {
    state: Arc<Mutex<World>>,
    // The server runs as long as this does.
    runtime: Option<Runtime>,
}

struct World {
    guest: SocketAddr,
    users: HashMap<String, UserId>,
    keys: Vec<(UserId, SshKey)>,
    machines: BTreeMap<(UserId, MachineName), MachineView>,
    /// Logins that were announced.
    expected: Vec<String>,
    /// Logins that the gateway says have failed.
    failed: Vec<String>,
    access: watch::Sender<u64>,
    locked: Option<UserId>,
    /// The far ends of streams into machines that read nothing.
    stuck: Vec<TcpStream>,
    /// Every login is told of a key that was added.
    pub warned: bool,
    booted: Arc<Notify>,
}

type Answer = Result<(Reply, Option<OwnedFd>), Refusal>;

impl Host {
    pub fn start(socket: &Path, guest: SocketAddr) -> Self {
        let state = Arc::new(Mutex::new(World {
            guest,
            users: HashMap::new(),
            keys: Vec::new(),
            machines: BTreeMap::new(),
            expected: Vec::new(),
            failed: Vec::new(),
            access: watch::channel(1).0,
            locked: None,
            stuck: Vec::new(),
            warned: false,
            booted: Arc::default(),
        }));
        let runtime = Runtime::new().unwrap();
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(socket).unwrap()
        };
        super::open_to_all(socket);
        let shared = Arc::clone(&state);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(Connection::new(stream), Arc::clone(&shared)));
            }
        });
        Self { state, runtime: Some(runtime) }
    }

    /// As if it had been killed.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    pub fn users(&self) -> usize {
        self.state.lock().unwrap().users.len()
    }

    pub fn machines(&self) -> usize {
        self.state.lock().unwrap().machines.len()
    }

    /// What was said of logins that failed.
    pub fn failures(&self) -> Vec<String> {
        self.state.lock().unwrap().failed.clone()
    }

    /// From now on every login is told of a key that was added.
    pub fn warn(&self) {
        self.state.lock().unwrap().warned = true;
    }

    /// Locks the user that a key is of.
    pub fn lock(&self, fingerprint: &str) {
        let mut world = self.state.lock().unwrap();
        world.locked = world.users.get(fingerprint).cloned();
        assert!(world.locked.is_some());
        world.access.send_modify(|version| *version += 1);
    }

    /// Ends the start that lasts, or else the next one at once.
    pub fn has_booted(&self) {
        self.state.lock().unwrap().booted.notify_one();
    }

    pub fn expects(&self, login: &str) -> bool {
        self.state.lock().unwrap().expected.iter().any(|one| one == login)
    }
}

async fn serve(mut connection: Connection, state: Arc<Mutex<World>>) {
    while let Ok((call, _)) = connection.receive::<Call>().await {
        let slow = match &call.request {
            Request::Attach { name } => name.as_str() == SLOW,
            Request::New { spec } => spec.name.as_str() == SLOW,
            _ => false,
        };
        if slow {
            for step in ["starting slow", "booting"] {
                connection.send(&Message::Progress(step.into()), None).await.unwrap();
            }
            let booted = Arc::clone(&state.lock().unwrap().booted);
            booted.notified().await;
        }
        if let Request::Access { seen } = &call.request {
            let mut access = state.lock().unwrap().access.subscribe();
            let _ = access.wait_for(|version| Some(*version) != *seen).await;
        }
        let answer = state.lock().unwrap().answer(call);
        let (result, descriptor) = match answer {
            Ok((reply, descriptor)) => (Ok(reply), descriptor),
            Err(refusal) => (Err(refusal), None),
        };
        let descriptor = descriptor.as_ref().map(AsFd::as_fd);
        if connection.send(&Message::Done(result), descriptor).await.is_err() {
            return;
        }
    }
}

impl World {
    fn answer(&mut self, call: Call) -> Answer {
        let session = match call.caller {
            Caller::User(session) => session,
            _ => return self.before_login(call.request),
        };
        if let Some(refusal) = self.standing(&session) {
            return Err(refusal);
        }
        let user = session.user;
        let mine = |name: &MachineName| (user.clone(), name.clone());
        let plain = |reply| Ok((reply, None));
        if let Request::Expect { login } = &call.request {
            self.expected.push(login.clone());
        }
        match call.request {
            Request::Resolve { login } | Request::Expect { login } => {
                let mut mine = self.machines.keys().filter(|(owner, _)| *owner == user).map(|(_, name)| name);
                let found = mine.clone().find(|name| name.as_str() == login);
                let near = mine.find(|name| name.as_str().starts_with(&login.to_lowercase()));
                plain(Reply::Resolved(match found {
                    Some(name) => Resolved::Machine(name.clone()),
                    None => Resolved::Lobby { similar: near.cloned() },
                }))
            }
            Request::Attach { name } => {
                self.find(&mine(&name))?;
                self.attach(name, false)
            }
            Request::AttachDefault => {
                let name: MachineName = DEFAULT_MACHINE.parse().unwrap();
                let made = !self.machines.contains_key(&mine(&name));
                self.machines.entry(mine(&name)).or_insert_with(|| machine(name.clone()));
                self.attach(name, made)
            }
            Request::New { spec } => {
                if self.machines.contains_key(&mine(&spec.name)) {
                    let message = format!("you have a machine '{}' already", spec.name);
                    return Err(Refusal::new(Code::Conflict, message, "choose another name"));
                }
                let mut view = machine(spec.name.clone());
                view.labels = spec.labels;
                view.memory = spec.memory.unwrap_or(view.memory);
                self.machines.insert(mine(&spec.name), view.clone());
                plain(Reply::Machine(Box::new(view)))
            }
            Request::List => {
                let machines = self.machines.iter().filter(|((owner, _), _)| *owner == user);
                plain(Reply::Machines(machines.map(|(_, view)| view.clone()).collect()))
            }
            Request::Info { name } | Request::Stop { name } | Request::Restart { name } => {
                let view = self.find(&mine(&name))?.clone();
                plain(Reply::Machine(Box::new(view)))
            }
            Request::Console { name } => {
                self.find(&mine(&name))?;
                plain(Reply::Console("booted\r\n\u{1b}[2Jlogin:".into()))
            }
            Request::Remove { names } => {
                for name in &names {
                    self.find(&mine(name))?;
                }
                for name in &names {
                    self.machines.remove(&mine(name));
                }
                plain(Reply::Removed(names))
            }
            Request::Rename { old, new } => {
                let mut view = self.find(&mine(&old))?.clone();
                view.name = new.clone();
                self.machines.remove(&mine(&old));
                self.machines.insert(mine(&new), view.clone());
                plain(Reply::Machine(Box::new(view)))
            }
            Request::KeyAdd { key } => {
                self.users.insert(key.fingerprint.clone(), user.clone());
                self.keys.push((user, key.clone()));
                plain(Reply::Key(key))
            }
            Request::KeyList => {
                let keys = self.keys.iter().filter(|(owner, _)| *owner == user);
                plain(Reply::Keys(keys.map(|(_, key)| key.clone()).collect()))
            }
            Request::KeyRemove { fingerprint } => {
                let found = self
                    .keys
                    .iter()
                    .position(|(owner, key)| *owner == user && key.fingerprint.starts_with(&fingerprint));
                let Some(found) = found else {
                    return Err(Refusal::new(Code::NotFound, "you have no such key", "see 'key ls'"));
                };
                let (_, key) = self.keys.remove(found);
                self.users.remove(&key.fingerprint);
                self.access.send_modify(|version| *version += 1);
                plain(Reply::Key(key))
            }
            Request::Whoami => plain(Reply::Identity(Identity {
                user,
                label: "tester".into(),
                created: Timestamp::now(),
                keys: 1,
                usage: Usage::default(),
                quota: Quota {
                    machines: 10,
                    memory: ByteSize::gib(8),
                    disk: ByteSize::gib(100),
                    points: ByteSize::gib(100),
                },
            })),
            other => panic!("a user may not ask for {other:?}"),
        }
    }

    fn before_login(&mut self, request: Request) -> Answer {
        match request {
            Request::Knows { fingerprint } => Ok((Reply::Knows(self.users.contains_key(&fingerprint)), None)),
            Request::LoginFailed { address, fingerprint, reason } => {
                self.failed.push(format!("{address} {} {reason}", fingerprint.unwrap_or_default()));
                Ok((Reply::Done, None))
            }
            Request::Ready => Ok((Reply::Ready(WORD.into()), None)),
            Request::Access { .. } => Ok((Reply::Access(*self.access.borrow()), None)),
            Request::Standing { sessions } => {
                Ok((Reply::Standing(sessions.iter().map(|session| self.standing(session)).collect()), None))
            }
            Request::Login { key, .. } => {
                let registered = !self.users.contains_key(&key.fingerprint);
                let user = self.users.entry(key.fingerprint.clone()).or_insert_with(UserId::random).clone();
                if registered {
                    self.keys.push((user.clone(), key));
                }
                if self.locked.as_ref() == Some(&user) {
                    return Ok((Reply::Barred(locked()), None));
                }
                let notices = vec![KeyNotice {
                    fingerprint: "SHA256:planted".into(),
                    added: Timestamp::UNIX_EPOCH,
                    from: Some([192, 0, 2, 1].into()),
                }];
                let notices = if self.warned { notices } else { Vec::new() };
                Ok((Reply::LoggedIn { user, registered, notices }, None))
            }
            other => panic!("the gateway may not ask for {other:?}"),
        }
    }

    fn stuck(&mut self) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Loopback's buffers would take megabytes that no machine reads.
        setsockopt(&listener, sockopt::RcvBuf, &(32 << 10)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        setsockopt(&stream, sockopt::SndBuf, &(32 << 10)).unwrap();
        let (mut guest, _) = listener.accept().unwrap();
        let reply = GuestReply::Ok(Opened::Exec { pid: 1 });
        guest.write_all(&encode(Version::ONE, &reply).unwrap()).unwrap();
        self.stuck.push(guest);
        stream
    }

    fn standing(&self, session: &Session) -> Option<Refusal> {
        if self.locked.as_ref() == Some(&session.user) {
            return Some(locked());
        }
        let owner = self.users.get(&session.key);
        let removed =
            || Refusal::new(Code::NotAllowed, "the key of this connection was removed", "use another key");
        (owner != Some(&session.user)).then(removed)
    }

    fn find(&self, machine: &(UserId, MachineName)) -> Result<&MachineView, Refusal> {
        let missing =
            || Refusal::new(Code::NotFound, format!("you have no machine '{}'", machine.1), "see 'ls'");
        self.machines.get(machine).ok_or_else(missing)
    }

    fn attach(&mut self, name: MachineName, made: bool) -> Answer {
        let stream = match name.as_str() {
            NOISY => noise(&[0xff; 4096]),
            MUTE => noise(&[]),
            STUCK => self.stuck(),
            _ => TcpStream::connect(self.guest).unwrap(),
        };
        Ok((Reply::Attached { name, made }, Some(stream.into())))
    }
}

fn locked() -> Refusal {
    Refusal::new(Code::NotAllowed, "your account is locked (stolen laptop)", "ask the operator")
}

fn noise(bytes: &'static [u8]) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(bytes);
    });
    TcpStream::connect(address).unwrap()
}

fn machine(name: MachineName) -> MachineView {
    MachineView {
        name,
        id: MachineId::random(),
        state: State::Running,
        image: "debian".into(),
        cpus: 1,
        memory: ByteSize::gib(1),
        disk: ByteSize::gib(10),
        disk_used: None,
        pool_used: None,
        labels: BTreeMap::new(),
        created: Timestamp::now(),
        last_used: Timestamp::now(),
        up_ms: Some(1),
        failure: None,
        parent: None,
        parent_id: None,
        expires: None,
        keepalive_until: None,
        wakes_at: None,
        network: NetworkView { address: "10.77.0.2".into(), egress: "nothing yet".into() },
    }
}
