//! A hypervisor that was taken over by its guest puts links, FIFOs, giants and directories
//! where hostd expects a machine's files.

use super::{Scratch, World, named, recovery::life, spec};
use berth_api::{Reply, Request};
use berth_types::{ByteSize, Machine, Refusal, State};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Every verb has to have answered within this: an open of a FIFO never does.
const LIMIT: Duration = Duration::from_secs(60);
const SECRET: &str = "a host's secret";
const NAMES: [&str; 9] = [
    "disk",
    "ram",
    "state",
    "state.tmp",
    "console.log",
    "hypervisor.log",
    "machine.json",
    "machine.new",
    "saving",
];
const KINDS: [&str; 6] = ["link", "fifo", "giant", "directory", "second-name", "socket"];

/// A file of the host's that nothing here may read, write, chown or remove.
struct Canary(PathBuf);

impl Canary {
    fn new(scratch: &Scratch) -> Self {
        let path = scratch.path().join("canary");
        fs::write(&path, SECRET).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        Self(path)
    }

    fn check(&self, when: &str) {
        let found = fs::metadata(&self.0).unwrap();
        assert_eq!(fs::read_to_string(&self.0).unwrap(), SECRET, "{when}");
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (0, 0, 0o640), "{when}");
    }
}

/// Puts one thing in a file's place, as the process of this user.
fn plant(kind: &str, canary: &Path, place: &Path, uid: u32) -> bool {
    let script = match kind {
        "link" => "ln -s \"$1\" \"$2\"",
        "fifo" => "mkfifo \"$2\"",
        "giant" => "truncate -s 1T \"$2\"",
        "directory" => "mkdir -p \"$2/a/b\" && ln -s \"$1\" \"$2/a/b/link\"",
        // Of a file of its own: of others' the kernel refuses it.
        "second-name" => "echo own > \"$2.own\" && ln \"$2.own\" \"$2\"",
        _ => "python3 -c 'import socket,sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' \"$2\"",
    };
    let script = format!("cd \"${{2%/*}}\" && rm -rf \"$2\" && {script}");
    let ids = [format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()];
    let mut planting = Command::new("setpriv");
    planting.args(ids).args(["sh", "-c", &script, "sh"]).arg(canary).arg(place);
    planting.stderr(std::process::Stdio::null()).status().unwrap().success()
}

async fn ask(world: &World, request: Request) -> Result<Reply, Refusal> {
    let what = format!("{request:?}");
    let answered = tokio::time::timeout(LIMIT, world.ask(request)).await;
    answered.unwrap_or_else(|_| panic!("{what} hangs"))
}

/// Every verb that looks at files, whatever each of them answers. What it shows is returned.
async fn walk(world: &World, name: &str) -> String {
    let name = || named(name);
    let mut shown = String::new();
    for request in [
        Request::Console { name: name() },
        Request::Info { name: name() },
        Request::List,
        Request::Snapshot { name: name(), label: None },
        Request::Fork { source: Some(name()), new: Some(named("copy")), count: None, no_secrets: false },
        Request::Sleep { name: name() },
        Request::Wake { name: name() },
        Request::Restore { name: name(), point: "@1".parse().unwrap() },
        Request::Attach { name: name() },
        Request::Stop { name: name() },
        Request::Snapshots { name: name() },
    ] {
        match ask(world, request).await {
            Ok(reply) => shown.push_str(&format!("{reply:?}\n")),
            Err(refusal) => shown.push_str(&format!("{refusal}\n")),
        }
    }
    shown
}

async fn is_well(world: &World, name: &str) {
    ask(world, Request::Sleep { name: named(name) }).await.unwrap();
    ask(world, Request::Attach { name: named(name) }).await.unwrap();
    let record = world.machine(name).record();
    assert!(record.state == State::Running && record.failure.is_none(), "{record:?}");
}

async fn remove(world: &World, names: &[&str]) {
    for name in names {
        if world.host.fleet.find(&world.user, &named(name)).is_ok() {
            ask(world, Request::Remove { names: vec![named(name)] }).await.unwrap();
        }
    }
    assert_eq!(world.remains(), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hypervisor_can_put_nothing_in_a_files_place() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let canary = Canary::new(&scratch);
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    let (place, uid) = (world.host.storage.directory(machine.id()), machine.record().uid);
    let found = fs::metadata(&place).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (0, uid, 0o710));
    for name in ["disk", "ram", "console.log", "hypervisor.log"] {
        let found = fs::metadata(place.join(name)).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (uid, 0o600), "{name}");
    }
    for name in NAMES {
        for kind in KINDS {
            // It may make its own files larger, and nothing else.
            let own = kind == "giant" && fs::metadata(place.join(name)).is_ok_and(|found| found.uid() == uid);
            assert!(own || !plant(kind, &canary.0, &place.join(name), uid), "{kind} as {name}");
        }
    }
    canary.check("after trying");
    is_well(&world, "dev").await;
    remove(&world, &["dev"]).await;
}

/// With more rights than it should ever have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_in_a_files_place_no_verb_follows_it() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let canary = Canary::new(&scratch);
    let world = World::open(&scratch).await;
    world.new_machine("other").await.unwrap();
    for kind in KINDS {
        for name in NAMES {
            let when = format!("{kind} as {name}");
            let machine = world.new_machine("dev").await.unwrap();
            let place = world.host.storage.directory(machine.id()).join(name);
            assert!(plant(kind, &canary.0, &place, 0), "{when}");
            let shown = walk(&world, "dev").await;
            canary.check(&when);
            assert!(!shown.contains(SECRET), "{when}: {shown}");
            for name in ["dev", "copy"] {
                if world.host.fleet.find(&world.user, &named(name)).is_ok() {
                    ask(&world, Request::Remove { names: vec![named(name)] }).await.unwrap();
                }
            }
            canary.check(&when);
        }
    }
    is_well(&world, "other").await;
    remove(&world, &["other"]).await;
}

/// As hostd made them before: a directory belonged to its hypervisor's user.
fn hand_back(place: &Path, uid: u32) {
    for entry in fs::read_dir(place).unwrap() {
        let path = entry.unwrap().path();
        // Only the record was root's.
        if !path.ends_with("machine.json") {
            chown(&path, Some(uid), Some(uid)).unwrap();
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }
    chown(place, Some(uid), Some(uid)).unwrap();
    fs::set_permissions(place, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn an_old_installation_is_taken_over_with_what_was_planted_in_it() {
    berth_sys::needs_root!();
    for kind in KINDS {
        let scratch = Scratch::new();
        let canary = Canary::new(&scratch);
        life(async || {
            let world = World::open(&scratch).await;
            for name in ["dev", "other"] {
                let machine = world.new_machine(name).await.unwrap();
                ask(&world, Request::Stop { name: named(name) }).await.unwrap();
                hand_back(&world.host.storage.directory(machine.id()), machine.record().uid);
            }
            let machine = world.machine("dev");
            let (place, uid) = (world.host.storage.directory(machine.id()), machine.record().uid);
            for name in NAMES {
                assert!(plant(kind, &canary.0, &place.join(name), uid), "{kind} as {name}");
            }
        });
        life(async || {
            let world = World::open(&scratch).await;
            for name in ["dev", "other"] {
                let machine = world.machine(name);
                let found = fs::metadata(world.host.storage.directory(machine.id())).unwrap();
                let uid = machine.record().uid;
                assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (0, uid, 0o710), "{kind}");
            }
            canary.check(kind);
            let shown = walk(&world, "dev").await;
            assert!(!shown.contains(SECRET), "{kind}: {shown}");
            canary.check(kind);
            ask(&world, Request::Attach { name: named("other") }).await.unwrap();
            is_well(&world, "other").await;
            remove(&world, &["dev", "copy", "other"]).await;
            canary.check(kind);
        });
    }
}

/// A store that is rebuilt from mirrors must not believe one of a hypervisor's.
#[test]
fn a_foreign_record_is_not_believed() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    life(async || {
        let world = World::open(&scratch).await;
        for name in ["mine", "forged"] {
            world.new_machine(name).await.unwrap();
            ask(&world, Request::Stop { name: named(name) }).await.unwrap();
        }
        let machine = world.machine("forged");
        let (place, uid) = (world.host.storage.directory(machine.id()), machine.record().uid);
        let forged = Machine { uid: 0, disk: ByteSize(1 << 50), ..(*machine.record()).clone() };
        hand_back(&place, uid);
        let record = place.join("machine.json");
        fs::remove_file(&record).unwrap();
        fs::write(&record, serde_json::to_vec(&forged).unwrap()).unwrap();
        chown(&record, Some(uid), Some(uid)).unwrap();
    });
    fs::remove_dir_all(scratch.path().join("data/store")).unwrap();
    life(async || {
        let world = World::open(&scratch).await;
        assert_eq!(world.machine("mine").record().state, State::Stopped);
        let forged = world.host.fleet.find(&world.user, &named("forged")).map(|found| found.record());
        assert!(forged.is_err(), "{forged:?}");
        let lost: Vec<_> = world.host.lost.all().into_iter().map(|entry| entry.note.reason).collect();
        assert!(lost.len() == 1 && lost[0].starts_with("its record: "), "{lost:?}");
        assert_eq!(world.remains().0, 1);
        // Its name is free, and the disk waits for the operator.
        ask(&world, Request::New { spec: spec("forged") }).await.unwrap();
    });
}
