//! What one user may take of the pool, and that others' machines wake whatever that is.

use super::{Scratch, World, guests::Manners, key, named, recovery::life, spec, undo::eventually};
use berth_api::{Reply, Request};
use berth_hypervisor::Exit;
use berth_types::{ByteSize, Code, State};
use std::time::Duration;

fn snapshot(name: &str, label: &str) -> Request {
    Request::Snapshot { name: named(name), label: Some(label.parse().unwrap()) }
}

/// The review's M4: each odd size left a template for good, and cost two boots.
#[tokio::test]
async fn forty_odd_sizes_leave_few_templates_and_others_wake() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open_with(&scratch, |config| {
        config.idle.ready = vec![ByteSize::mib(128)];
        config.idle.ready_others = ByteSize::mib(512);
    })
    .await;
    world.new_machine("sleeper").await.unwrap();
    world.ask(Request::Sleep { name: named("sleeper") }).await.unwrap();
    let sleeper = world.machine("sleeper");

    let mut mallory = world;
    let ann = std::mem::replace(
        &mut mallory.user,
        mallory.host.registry.register("mallory", key("mallory")).await.unwrap().id,
    );
    for number in 1..=44 {
        let mut odd = spec("odd");
        odd.memory = Some(ByteSize::mib(128 + 2 * number));
        mallory.ask(Request::New { spec: odd }).await.unwrap();
        mallory.ask(Request::Remove { names: vec![named("odd")] }).await.unwrap();
        // So that each size gets its template: the queue is as short for others.
        mallory.host.templating.idle().await;
        let templates = mallory.host.archive.templates();
        let bytes: u64 = templates.iter().map(|one| one.memory.bytes()).sum();
        // The bound is for those that are kept: the one that is being made displaced another.
        assert!(templates.len() <= 1 + 4, "{} templates after {number} sizes", templates.len());
        assert!(bytes <= ByteSize::mib(128 + 512).bytes(), "{bytes} bytes after {number} sizes");
    }
    let left = mallory.host.archive.templates();
    assert!((1..=4).contains(&left.len()), "some were made, and few are left: {}", left.len());
    // Whoever uses one keeps it.
    let used = left.iter().min_by_key(|one| one.created).unwrap();
    let mut same = spec("same");
    same.memory = Some(used.memory);
    mallory.ask(Request::New { spec: same }).await.unwrap();
    mallory.user = ann;
    mallory.ask(Request::Wake { name: named("sleeper") }).await.unwrap();
    assert_eq!(sleeper.record().state, State::Running);
}

/// It was waited for as if its guest were slow, for a minute.
#[tokio::test]
async fn a_template_whose_hypervisor_ends_is_made_again_at_once() {
    let scratch = Scratch::new();
    let world = World::open_with(&scratch, |config| config.idle.ready = vec![ByteSize::mib(128)]).await;
    let directories = || {
        let names = std::fs::read_dir(world.host.storage.machines()).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    world.guests.behave(Manners::Absorbed);
    let mut small = spec("dev");
    small.memory = Some(ByteSize::mib(128));
    world.ask(Request::New { spec: small }).await.unwrap();
    let own = world.machine("dev").id().to_string();
    // The template's guest is up, and has been told to run something.
    let mut template = None;
    eventually("a template that is made", async || {
        template = directories().into_iter().find(|name| *name != own && !name.starts_with('.'));
        template.is_some() && world.guests.is_absorbed()
    })
    .await;
    world.guests.behave(Manners::Good);
    let template = template.unwrap().parse().unwrap();
    world.driver.end(&template, Exit::Signal(9)).unwrap();
    let another = eventually("another one", async || world.host.archive.templates().len() == 1);
    tokio::time::timeout(Duration::from_secs(30), another)
        .await
        .expect("a guest that is gone was waited for");
}

#[test]
fn a_pool_below_its_reserve_refuses_new_work_and_wakes_what_sleeps() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let free = life(async || {
        let world = World::open(&scratch).await;
        world.new_machine("dev").await.unwrap();
        world.ask(snapshot("dev", "before")).await.unwrap();
        world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
        world.host.storage.space().unwrap().free
    });
    life(async || {
        // As if others' snapshots had taken the rest, to half of the reserve.
        let world = World::open_with(&scratch, |config| {
            config.host.pool_reserve = ByteSize(free.bytes().saturating_mul(2));
        })
        .await;
        for refused in [Request::New { spec: spec("more") }, snapshot("dev", "more")] {
            let refusal = world.ask(refused).await.unwrap_err();
            assert!(refusal.message.contains("storage is full"), "{refusal}");
        }
        world.ask(Request::Wake { name: named("dev") }).await.unwrap();
        assert_eq!(world.machine("dev").record().state, State::Running);
        // And it can be put to sleep again, which takes nothing.
        world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
    });
}

#[tokio::test]
async fn points_are_counted_against_their_user_and_sleeping_is_never_refused() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let mut world = World::open_with(&scratch, |config| config.quota.points = ByteSize::mib(350)).await;
    world.new_machine("dev").await.unwrap();
    for label in ["one", "two", "three"] {
        world.ask(snapshot("dev", label)).await.unwrap();
    }
    let fork = Request::Fork { source: Some(named("dev")), new: None, count: None, no_secrets: false };
    for refused in [snapshot("dev", "four"), fork, Request::New { spec: spec("more") }] {
        let refusal = world.ask(refused).await.unwrap_err();
        assert_eq!(refusal.code, Code::Limit);
        assert!(refusal.message.contains("snapshots and earlier sleeps take"), "{refusal}");
    }
    assert_eq!(world.remains(), (1, 1));
    // Asleep and awake again, as often as one likes; what that leaves behind goes.
    for _ in 0..3 {
        world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
        world.ask(Request::Wake { name: named("dev") }).await.unwrap();
    }
    crate::quota::prune(&world.host, &world.user).await;
    let asked = Request::Snapshots { name: named("dev") };
    let Reply::Points(points) = world.ask(asked).await.unwrap() else { panic!("no points") };
    let why: Vec<&str> = points.iter().map(|point| point.why.as_str()).collect();
    assert_eq!(why.iter().filter(|why| **why == "snapshot").count(), 3, "snapshots stay: {why:?}");
    assert_eq!(why.iter().filter(|why| **why == "sleep").count(), 0, "{why:?}");
    // Another user is not concerned, and room is room again.
    let ann =
        std::mem::replace(&mut world.user, world.host.registry.register("bob", key("bob")).await.unwrap().id);
    world.new_machine("bobs").await.unwrap();
    world.ask(snapshot("bobs", "mine")).await.unwrap();
    world.user = ann;
    let remove = Request::SnapshotRemove { name: named("dev"), label: "one".parse().unwrap() };
    world.ask(remove).await.unwrap();
    world.ask(snapshot("dev", "four")).await.unwrap();
}
