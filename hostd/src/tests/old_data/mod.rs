//! Data of an earlier version opens with everything in it, and that of a later one is left
//! as it is. The data is written by frozen copies of what wrote it then.

mod fixture;
mod frozen;
mod golden;
mod newer;
mod rewritten;

use super::{Scratch, World, key, named, recovery::life};
use crate::egress::Scope;
use berth_api::{Request, Session};
use berth_audit::{Query, read_public_key, verify};
use berth_types::{
    AuditEvent, ByteSize, GenerationId, MachineId, State, UserId, Why,
    egress::{EgressMode, Projection},
};
use fixture::{ANN, BOB, DEV, OldData, SECRET, SLEEP, SLEEPER, SNAPSHOT, TEMPLATE};
use serde_json::Value;
use std::{fs, path::Path};

fn user(id: &str) -> UserId {
    id.parse().unwrap()
}

fn snapshot(id: &str) -> GenerationId {
    id.parse().unwrap()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// What the store has, in its own words.
fn stored(old: &OldData, tree: &str, key: &str) -> Value {
    let text = stored_bytes(old, tree, key);
    serde_json::from_slice(&text).unwrap()
}

fn stored_bytes(old: &OldData, tree: &str, key: &str) -> Vec<u8> {
    // The threads of who had it open may take a moment to let go of it.
    let database = (0..1000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        sled::open(old.data.join("store")).ok()
    });
    database.unwrap().open_tree(tree).unwrap().get(key).unwrap().unwrap().to_vec()
}

/// Everything that the old data says, as today's hostd has it.
fn check_everything(world: &World) {
    let host = &world.host;
    assert_eq!(host.lost.all().len(), 0, "{:?}", host.lost.all());
    // 1. Users and keys.
    let users: Vec<_> = host.registry.users().into_iter().map(|user| (user.id, user.label)).collect();
    assert_eq!(users, [(user(BOB), "bob".to_owned()), (user(ANN), "ann".to_owned())]);
    let locked = host.registry.user(&user(BOB)).unwrap().locked;
    assert_eq!(locked.unwrap().reason, "unpaid");
    for (owner, name) in [(ANN, "ann"), (ANN, "laptop"), (BOB, "bob")] {
        let fingerprint = key(name).fingerprint;
        assert_eq!(host.registry.owner(&fingerprint), Some(user(owner)), "{name}");
        let keys = host.registry.keys(&user(owner));
        let own = keys.iter().find(|key| key.fingerprint == fingerprint).unwrap();
        assert_eq!((&own.public, own.added_from.is_some()), (&key(name).public, true));
    }
    // 2. Machines.
    let dev = world.machine("dev").record();
    assert_eq!((dev.id.as_str(), dev.owner.as_str(), dev.state), (DEV, ANN, State::Stopped));
    assert_eq!((dev.cpus, dev.memory, dev.disk, dev.uid), (2, ByteSize::mib(128), ByteSize::mib(1), 700_000));
    assert_eq!((dev.labels["team"].as_str(), dev.fresh, dev.no_secrets), ("web", false, true));
    assert_eq!(dev.created.to_string(), "2026-03-01T10:20:30.123456789Z");
    assert_eq!(dev.egress.as_ref().unwrap().deny[0].to_string(), "evil.example");
    assert_eq!(dev.idle.unwrap().pause.unwrap().duration().as_secs(), 300);
    assert_eq!(dev.parent.as_ref().unwrap().name.as_str(), "old");
    assert_eq!(dev.failure.as_ref().unwrap().reason, "it fell over");
    assert_eq!(dev.lineage.len(), 1);
    let disk = fs::read_to_string(host.storage.directory(world.machine("dev").id()).join("disk"));
    assert_eq!(disk.unwrap(), "disk of dev");
    // 3. Saved states.
    let sleeper = world.machine("sleeper").record();
    assert_eq!((sleeper.state, &sleeper.sleeps_in), (State::Asleep, &Some(snapshot(SLEEP))));
    assert!(sleeper.failure.is_none(), "{:?}", sleeper.failure);
    for id in [SLEEP, SNAPSHOT] {
        let found = host.archive.get(&snapshot(id)).unwrap();
        assert_eq!((found.owner.as_ref(), found.driver.as_str()), (Some(&user(ANN)), "fake"), "{id}");
    }
    let before = host.archive.point(&DEV.parse().unwrap(), &"before".parse().unwrap()).unwrap();
    assert_eq!((&before.id, before.guest), (&snapshot(SNAPSHOT), Some(2)));
    let template = host.archive.get(&snapshot(TEMPLATE)).unwrap();
    assert_eq!((&template.machine, &template.why), (&None, &Why::Template { version: "8192-1-0".into() }));
    // 4. Policies and secrets.
    for scope in [Scope::User, Scope::Label("team".into(), "web".into())] {
        let policy = host.policies.get(&user(ANN), &scope).unwrap();
        assert_eq!(
            (policy.mode, policy.allow[0].to_string()),
            (EgressMode::Allowlist, "*.debian.org".into())
        );
    }
    let secrets = host.vault.of(&user(ANN));
    assert_eq!(secrets.len(), 1);
    let secret = &secrets[0];
    assert_eq!(secret.value.as_ref().unwrap().expose(), SECRET);
    assert_eq!(secret.meta.placeholder, "berth_secret_0123");
    assert_eq!(secret.meta.machine, Some(SLEEPER.parse::<MachineId>().unwrap()));
    assert_eq!(secret.meta.binding.projections(), [Projection::Placeholder]);
}

/// It can all be used, and the audit log goes on where it ended.
async fn check_use(world: &World, scratch: &Scratch) {
    world.ask(Request::Attach { name: named("sleeper") }).await.unwrap();
    let sleeper = world.machine("sleeper").record();
    assert!(sleeper.state == State::Running && sleeper.failure.is_none(), "{sleeper:?}");
    let place = world.host.storage.directory(&sleeper.id);
    for (file, text) in [("ram", "memory of nightnightni"), ("disk", "disk of nightnightni")] {
        assert_eq!(fs::read_to_string(place.join(file)).unwrap(), text, "it sleeps on");
    }
    let (new, point) = (named("again"), "before".parse().unwrap());
    world.ask(Request::NewFrom { new, name: named("dev"), point, ttl: None }).await.unwrap();
    let again = world.machine("again").record();
    let disk = fs::read_to_string(world.host.storage.directory(&again.id).join("disk"));
    assert_eq!(disk.unwrap(), "disk of snapsnapsnap");
    assert!(again.uid > 700_001, "{} comes again", again.uid);
    let laptop = Session { key: key("laptop").fingerprint, ..world.session() };
    assert!(world.host.registry.standing(&laptop).is_ok());
    // The log has both versions in one chain.
    world.host.audit.record(AuditEvent::Started { version: "2".into() }).await;
    world.host.audit.settle().await;
    let audit = scratch.path().join("data/audit");
    let report = verify(&audit, &read_public_key(&audit).unwrap(), &[]).unwrap();
    assert_eq!(report.problems, []);
    assert!(report.entries > 7 && report.checkpoints >= 3, "{report:?}");
    let all = world.host.audit.read(Query { most: 100, ..Query::default() }).await.unwrap();
    let seqs =
        |egress: bool| all.iter().filter(move |entry| matches!(entry.event, AuditEvent::Egress(_)) == egress);
    assert!(seqs(true).count() == 1 && seqs(false).count() > 5);
    let text = fs::read_to_string(audit.join("0000000001.jsonl")).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[2].starts_with(r#"{"seq":2,"#), "{text}");
    assert!(lines[lines.len() - 1].starts_with(r#"{"format_version":2,"seq":"#), "{text}");
}

#[test]
fn data_of_version_1_opens_with_everything_in_it() {
    berth_sys::needs_root!();
    for with_store in [true, false] {
        let scratch = Scratch::new();
        let old = OldData::write(scratch.path());
        if !with_store {
            old.remove_store();
        }
        let manifest = old.data.join(format!("pool/generations/{SNAPSHOT}/manifest.json"));
        let before = fs::read(&manifest).unwrap();
        life(async || {
            let world = World::open(&scratch).await;
            check_everything(&world);
        });
        // Migrated, it has lost nothing either: with its store, and rebuilt from what a
        // start of today has written.
        if with_store {
            old.remove_store();
        }
        life(async || {
            let world = World::open(&scratch).await;
            check_everything(&world);
            check_use(&world, &scratch).await;
        });
        assert_eq!(fs::read(&manifest).unwrap(), before, "a manifest is never written again");
    }
}
