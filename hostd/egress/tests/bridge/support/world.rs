//! A host with its bridge, a guest, and room for servers.

use super::{
    authority::Authority,
    guest::{GATEWAY, Guest},
    namespace::Namespace,
    server::Server,
};
use berth_egress::{
    Bridge, Launch,
    control::{Decision, Event, Limits, Link, Listeners, Outcome, Secret, Settings, Terms, new_placeholder},
};
use berth_types::{
    MachineId, UserId,
    egress::{Binding, EgressPolicy, Ground, HostName, Ipv4Network, Projection, SecretValue},
};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::{runtime::Runtime, sync::mpsc};

/// What no guest may ever see.
pub const VALUE: &str = "sk-live-0123456789abcdef";
pub const HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

pub struct World {
    pub host: Arc<Namespace>,
    pub servers: Namespace,
    pub guest: Guest,
    pub public: Authority,
    pub bridge: Bridge,
    pub machine: MachineId,
    pub terms: Terms,
    pub settings: Settings,
    pub directory: Directory,
    /// Its threads live in the host's namespace, and so does what they start.
    pub runtime: Runtime,
    pub events: mpsc::Receiver<Event>,
}

pub struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("berth-bridge-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn secret(name: &str, to: &[&str], projections: Vec<Projection>, value: &str) -> Secret {
    Secret {
        name: name.parse().unwrap(),
        binding: Binding::new(to.iter().map(|to| to.parse().unwrap()).collect(), projections).unwrap(),
        value: SecretValue::from_input(value.as_bytes().to_vec()).unwrap(),
        placeholder: new_placeholder(),
    }
}

pub fn header(name: &str, template: &str) -> Projection {
    Projection::Header { name: name.to_owned(), template: template.to_owned() }
}

/// `https://api.example`, which gets a bearer token.
pub fn bearer() -> (World, Server) {
    let projections = vec![header("Authorization", "Bearer {}")];
    let world = World::new(vec![secret("openai", &["api.example"], projections, VALUE)]);
    let server = Server::start(&world, "api.example", "198.51.100.10:443");
    (world, server)
}

fn launch() -> Launch {
    Launch { program: env!("CARGO_BIN_EXE_berth-bridge").into(), uid: 65534, gid: 65534, descriptors: 8192 }
}

impl World {
    pub fn new(secrets: Vec<Secret>) -> Self {
        Self::with(secrets, |_| {})
    }

    pub fn with(secrets: Vec<Secret>, change: impl FnOnce(&mut Settings)) -> Self {
        let (host, servers) = (Arc::new(Namespace::new()), Namespace::new());
        host.ip("link add near type veth peer name far");
        host.ip(&format!("link set far netns {}", servers.path()));
        host.ip(&format!("addr add {HOST}/24 dev near"));
        host.ip("link set near up");
        for last in 10..20 {
            servers.ip(&format!("addr add 198.51.100.{last}/24 dev far"));
        }
        servers.ip("link set far up");
        let directory = Directory::new();
        let (public, own) = (Authority::new("the world"), Authority::new("berth"));
        let guest = Guest::new(directory.path(), &format!("{}{}", own.pem(), public.pem()));
        let name = |text: &str| text.parse::<HostName>().unwrap();
        let mut settings = Settings {
            authority_certificate: own.pem(),
            authority_key: own.key_pem().into(),
            extra_roots: public.pem(),
            hosts: BTreeMap::from([
                (name("api.example"), vec![Ipv4Addr::new(198, 51, 100, 10)]),
                (name("other.example"), vec![Ipv4Addr::new(198, 51, 100, 11)]),
                (name("git.example"), vec![Ipv4Addr::new(198, 51, 100, 12)]),
            ]),
            ground: Ground { own: vec![HOST], private: vec!["10.0.0.0/8".parse().unwrap()] },
            resolvers: vec![SocketAddr::from(([198, 51, 100, 19], 53))],
            limits: Limits::default(),
        };
        change(&mut settings);
        let inside = host.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .on_thread_start(move || inside.enter())
            .build()
            .unwrap();
        let starting = runtime.spawn(Bridge::start(launch(), settings.clone()));
        let (bridge, events) = runtime.block_on(starting).unwrap().unwrap();
        let terms = Terms {
            name: "dev".parse().unwrap(),
            owner: UserId::random(),
            policy: EgressPolicy::default(),
            secrets,
            info: serde_json::json!({ "name": "dev" }),
        };
        let machine = MachineId::random();
        let world = Self {
            host,
            servers,
            guest,
            public,
            bridge,
            machine,
            terms,
            settings,
            directory,
            runtime,
            events,
        };
        world.link(&world.machine, &world.guest);
        world
    }

    pub fn link(&self, machine: &MachineId, guest: &Guest) {
        let listen = |port: u16| OwnedFd::from(guest.namespace.listen(([127, 0, 0, 1], port).into()));
        let listeners = Listeners {
            tls: listen(4443),
            http: listen(4080),
            other: listen(4000),
            dns_udp: guest.namespace.datagrams(([127, 0, 0, 1], 4053).into()).into(),
            dns_tcp: listen(4053),
            // Nothing arrives on it: here no kernel refuses anything.
            refused: UnixDatagram::unbound().unwrap().into(),
        };
        let network = Ipv4Network::around(GATEWAY, 24);
        let link = Link { machine: machine.clone(), gateway: GATEWAY, network, terms: self.terms.clone() };
        self.runtime.block_on(self.bridge.link(link, listeners)).unwrap();
    }

    pub fn update(&mut self, change: impl FnOnce(&mut Terms)) {
        change(&mut self.terms);
        let updating = self.bridge.update(self.machine.clone(), self.terms.clone());
        self.runtime.block_on(updating).unwrap();
    }

    pub fn placeholder(&self) -> String {
        self.terms.secrets[0].placeholder.clone()
    }

    pub fn event(&mut self) -> Event {
        let next = async { tokio::time::timeout(Duration::from_secs(60), self.events.recv()).await };
        self.runtime.block_on(next).expect("the bridge says something").expect("the bridge is there")
    }

    /// The next decision that fits; those before it are forgotten.
    pub fn decision(&mut self, fits: impl Fn(&Decision) -> bool) -> Decision {
        loop {
            if let Event::Decision(decision) = self.event()
                && fits(&decision)
            {
                assert!(!format!("{decision:?}").contains(VALUE), "{decision:?}");
                return *decision;
            }
        }
    }

    pub fn refused(&mut self, rule: &str) -> Decision {
        self.decision(|decision| decision.verdict == Outcome::Refused && decision.rule == rule)
    }

    pub fn allowed(&mut self, rule: &str) -> Decision {
        self.decision(|decision| decision.verdict == Outcome::Allowed && decision.rule == rule)
    }

    /// The processes that serve this world; one, unless something is wrong.
    pub fn bridge_pid(&self) -> i32 {
        let children = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let namespace = std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
            let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            (command.trim() == "berth-bridge" && namespace == self.host.link()).then_some(pid)
        });
        let found: Vec<i32> = children.collect();
        assert_eq!(found.len(), 1, "one bridge, not {found:?}");
        found[0]
    }
}
