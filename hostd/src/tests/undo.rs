//! Every write that a verb makes fails once: whatever the answer is, the machine is then
//! what it says that it is, can be used, and nothing is left over.

use super::{Scratch, World, named, recovery::life, spec};
use berth_api::Request;
use berth_types::{Point, State};
use std::time::Duration;

/// What is written in the disk of the machine, which a restore may exchange for the past.
const NOW: &str = "now";
const PAST: &str = "past";

fn base() -> Point {
    "base".parse().unwrap()
}

/// Each verb, after what has to come before it.
fn verbs() -> Vec<(&'static str, Vec<Request>, Request)> {
    let name = || named("dev");
    let sleep = || Request::Sleep { name: name() };
    let stop = || Request::Stop { name: name() };
    let restore = || Request::Restore { name: name(), point: base() };
    let fork =
        || Request::Fork { source: Some(name()), new: Some(named("child")), count: None, no_secrets: false };
    let snapshot = || Request::Snapshot { name: name(), label: Some("more".parse().unwrap()) };
    vec![
        ("sleep", vec![], sleep()),
        ("wake", vec![sleep()], Request::Wake { name: name() }),
        ("boot", vec![stop()], Request::Wake { name: name() }),
        ("snapshot", vec![], snapshot()),
        ("snapshot of a sleeper", vec![sleep()], snapshot()),
        ("restore", vec![], restore()),
        ("restore of a sleeper", vec![sleep()], restore()),
        ("restore of a stopped one", vec![stop()], restore()),
        ("fork", vec![], fork()),
        ("fork of a sleeper", vec![sleep()], fork()),
        ("stop", vec![], stop()),
        ("stop of a sleeper", vec![sleep()], stop()),
        ("restart", vec![], Request::Restart { name: name() }),
        ("new", vec![], Request::New { spec: spec("child") }),
        ("rename", vec![], Request::Rename { old: name(), new: named("child") }),
        ("rm", vec![], Request::Remove { names: vec![name()] }),
    ]
}

pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("{what}"));
}

fn write_disk(world: &World, text: &str) {
    let directory = world.host.storage.directory(world.machine("dev").id());
    std::fs::write(directory.join("disk"), text).unwrap();
}

/// A running machine whose past, in the snapshot `base`, differs from what it is now.
async fn prepare(world: &World, before: Vec<Request>) {
    world.new_machine("dev").await.unwrap();
    write_disk(world, PAST);
    let label = Some("base".parse().unwrap());
    world.ask(Request::Snapshot { name: named("dev"), label }).await.unwrap();
    write_disk(world, NOW);
    for request in before {
        world.ask(request).await.unwrap();
    }
}

/// The machines can be used, and then removed, with nothing left.
async fn sound(world: &World, what: &str, restored: bool) {
    for handle in world.host.fleet.of(&world.user) {
        let name = handle.record().name.clone();
        let settled = [State::Running, State::Paused, State::Asleep, State::Stopped, State::Failed];
        eventually(&format!("{what}: {name} settles"), async || {
            settled.contains(&handle.record().state) || handle.record().state == State::Removing
        })
        .await;
        if handle.record().state != State::Removing {
            let used = world.ask(Request::Attach { name: name.clone() }).await;
            used.unwrap_or_else(|refusal| panic!("{what}: {name} cannot be used: {refusal}"));
            let disk = world.host.storage.directory(handle.id()).join("disk");
            let disk = std::fs::read_to_string(disk).unwrap();
            if name == named("dev") {
                assert!(disk == NOW || (restored && disk == PAST), "{what}: its disk says {disk:?}");
            }
        }
        world.ask(Request::Remove { names: vec![name] }).await.unwrap();
    }
    assert_eq!(world.remains(), (0, 0), "{what}");
    let generations = world.host.storage.pool().join("generations");
    eventually(&format!("{what}: saved states are let go of"), async || {
        std::fs::read_dir(&generations).unwrap().count() == 0
    })
    .await;
    assert_eq!(world.host.ledger.memory().0.bytes(), 0, "{what}: memory is still taken");
    eventually(&format!("{what}: networks are given back"), async || world.guests.open() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_write_fails_a_verb_leaves_what_can_be_used() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    for (what, ..) in verbs() {
        for writes in 0.. {
            let (_, before, verb) = verbs().into_iter().find(|(name, ..)| *name == what).unwrap();
            prepare(&world, before).await;
            world.host.store.faults.fail_after(writes, false);
            let answer = world.ask(verb).await;
            let struck = world.host.store.faults.end();
            let what = format!("{what}, write {writes} ({:?})", answer.as_ref().err());
            sound(&world, &what, what.starts_with("restore")).await;
            if !struck {
                break;
            }
        }
    }
}

/// And the same for the hostd that comes after one that was killed right then.
#[test]
fn whichever_write_fails_the_next_start_finds_what_can_be_used() {
    berth_sys::needs_root!();
    for (what, ..) in verbs() {
        for writes in 0.. {
            let scratch = Scratch::new();
            let struck = life(async || {
                let world = World::open(&scratch).await;
                let (_, before, verb) = verbs().into_iter().find(|(name, ..)| *name == what).unwrap();
                prepare(&world, before).await;
                world.host.store.faults.fail_after(writes, true);
                let _ = world.ask(verb).await;
                // A write that is tried again meets the same.
                let struck = world.host.store.faults.has_struck();
                if !struck {
                    world.host.store.faults.end();
                }
                struck
            });
            life(async || {
                let world = World::open(&scratch).await;
                let what = format!("{what}, write {writes}");
                assert_eq!(world.host.lost.all().len(), 0, "{what}");
                sound(&world, &what, what.starts_with("restore")).await;
            });
            if !struck {
                break;
            }
        }
    }
}
