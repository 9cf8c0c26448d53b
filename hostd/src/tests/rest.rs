//! Sleep, wake, fork, snapshot and restore.

use super::{Scratch, World, guests::Manners, named, recovery::life};
use berth_api::{Reply, Request};
use berth_guest_protocol::Vitals;
use berth_types::{Code, IdlePolicy, Label, Point, Span, State};

fn label(text: &str) -> Label {
    text.parse().unwrap()
}

fn disk(world: &World, name: &str) -> std::path::PathBuf {
    world.host.storage.directory(world.machine(name).id()).join("disk")
}

#[tokio::test]
async fn a_machine_sleeps_and_wakes_with_nothing_in_between() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
    let record = machine.record();
    assert_eq!((record.state, record.runtime.is_none()), (State::Asleep, true));
    assert_eq!(world.guests.open(), 0);
    assert_eq!(world.host.ledger.memory().0.bytes(), 0);
    assert!(!disk(&world, "dev").exists(), "its files are frozen");
    world.ask(Request::Attach { name: named("dev") }).await.unwrap();
    assert_eq!(machine.record().state, State::Running);
    assert!(disk(&world, "dev").exists());
    assert!(machine.record().failure.is_none());
}

#[tokio::test]
async fn a_login_by_its_name_wakes_what_sleeps_and_nothing_else() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    let stopped = world.new_machine("off").await.unwrap();
    world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
    world.ask(Request::Stop { name: named("off") }).await.unwrap();
    for login in ["nobody", "off", "dev"] {
        world.ask(Request::Expect { login: login.to_owned() }).await.unwrap();
    }
    while machine.record().state != State::Running {
        tokio::task::yield_now().await;
    }
    assert_eq!(stopped.record().state, State::Stopped);
    assert_eq!(world.remains(), (2, 2));
}

#[tokio::test]
async fn a_shutdown_puts_machines_to_sleep_and_stops_what_cannot() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    let sleepless = world.new_machine("sleepless").await.unwrap();
    // No device state can be written where there is a directory.
    std::fs::create_dir(disk(&world, "sleepless").with_file_name("state.tmp")).unwrap();
    world.operate(Request::Shutdown).await.unwrap();
    assert_eq!(machine.record().state, State::Asleep);
    assert_eq!(sleepless.record().state, State::Stopped);
    assert_eq!(world.guests.open(), 0);
}

#[tokio::test]
async fn old_sleeps_age_out_and_can_be_gone_back_to() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    for round in 0..5u8 {
        std::fs::write(disk(&world, "dev"), [round; 64]).unwrap();
        world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
        world.ask(Request::Wake { name: named("dev") }).await.unwrap();
    }
    while world.host.archive.of(machine.id()).len() > 3 {
        tokio::task::yield_now().await;
    }
    std::fs::write(disk(&world, "dev"), [99; 64]).unwrap();
    world.ask(Request::Restore { name: named("dev"), point: Point::Automatic(2) }).await.unwrap();
    assert_eq!(std::fs::read(disk(&world, "dev")).unwrap()[0], 3);
    // The restore itself is undone by going back to what it put aside.
    world.ask(Request::Restore { name: named("dev"), point: Point::Automatic(1) }).await.unwrap();
    assert_eq!(std::fs::read(disk(&world, "dev")).unwrap()[0], 99);
}

#[tokio::test]
async fn forks_come_from_one_capture_and_leave_nothing_of_it() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let source = world.new_machine("dev").await.unwrap();
    std::fs::write(disk(&world, "dev"), [5; 64]).unwrap();
    let fork = Request::Fork {
        source: Some(named("dev")),
        new: Some(named("a")),
        count: Some(2),
        no_secrets: false,
    };
    world.ask(fork).await.unwrap();
    for child in ["a-1", "a-2"] {
        assert_eq!(world.machine(child).record().state, State::Running);
        assert_eq!(std::fs::read(disk(&world, child)).unwrap()[0], 5);
        assert_eq!(world.machine(child).record().parent.as_ref().unwrap().machine, *source.id());
    }
    while !world.host.archive.of(source.id()).is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(source.record().state, State::Running);
}

#[tokio::test]
async fn a_sleeping_machine_is_forked_without_waking_it() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let source = world.new_machine("dev").await.unwrap();
    world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
    world
        .ask(Request::Fork {
            source: Some(named("dev")),
            new: Some(named("a")),
            count: None,
            no_secrets: false,
        })
        .await
        .unwrap();
    assert_eq!(source.record().state, State::Asleep);
    assert_eq!(world.machine("a").record().state, State::Running);
    world.ask(Request::Remove { names: vec![named("dev")] }).await.unwrap();
    world.ask(Request::Sleep { name: named("a") }).await.unwrap();
    world.ask(Request::Wake { name: named("a") }).await.unwrap();
}

#[tokio::test]
async fn bad_forks_are_refused_before_anything_is_made() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    world.new_machine("dev").await.unwrap();
    for (source, new, count, code) in [
        ("dev", "dev", None, Code::Conflict),
        ("nosuch", "a", None, Code::NotFound),
        ("dev", "attach", None, Code::Usage),
        ("dev", "a", Some(0), Code::Usage),
        ("dev", "a", Some(10_000), Code::Usage),
        ("dev", "a", Some(3), Code::Limit),
    ] {
        let fork =
            Request::Fork { source: Some(named(source)), new: Some(named(new)), count, no_secrets: false };
        assert_eq!(world.ask(fork).await.unwrap_err().code, code, "{source} {new} {count:?}");
        assert_eq!(world.remains(), (1, 1));
    }
}

#[tokio::test]
async fn who_comes_after_a_sleep_was_asked_for_finds_it_awake() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    world.ask(Request::Stop { name: named("dev") }).await.unwrap();
    // Its boot takes until it is begun anew, and all of them are asked meanwhile.
    world.guests.behave(Manners::MuteOnce);
    let (started, slept, attached) = tokio::join!(
        world.ask(Request::Wake { name: named("dev") }),
        world.ask(Request::Sleep { name: named("dev") }),
        world.ask(Request::Attach { name: named("dev") }),
    );
    started.unwrap();
    slept.unwrap();
    attached.unwrap();
    assert_eq!(machine.record().state, State::Running);
    assert_eq!(world.host.archive.of(machine.id()).len(), 1, "it slept in between");
}

/// The clock of one that stands still stands too, and nobody else sets it again.
#[tokio::test]
async fn a_source_goes_on_with_the_right_time() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    world.new_machine("dev").await.unwrap();
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let snapshot = Request::Snapshot { name: named("dev"), label: Some(label("one")) };
    world.ask(snapshot).await.unwrap();
    assert!(u128::from(world.guests.clock()) >= before.as_nanos());
}

#[tokio::test]
async fn snapshots_by_name() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    world.new_machine("dev").await.unwrap();
    std::fs::write(disk(&world, "dev"), [1; 64]).unwrap();
    let take = |name: &str| Request::Snapshot { name: named("dev"), label: Some(label(name)) };
    world.ask(take("one")).await.unwrap();
    assert_eq!(world.ask(take("one")).await.unwrap_err().code, Code::Conflict);
    std::fs::write(disk(&world, "dev"), [2; 64]).unwrap();
    let unknown = Request::Restore { name: named("dev"), point: "two".parse().unwrap() };
    assert_eq!(world.ask(unknown).await.unwrap_err().code, Code::NotFound);
    let from =
        Request::NewFrom { new: named("copy"), name: named("dev"), point: "one".parse().unwrap(), ttl: None };
    world.ask(from).await.unwrap();
    assert_eq!(std::fs::read(disk(&world, "copy")).unwrap()[0], 1);
    world.ask(Request::Restore { name: named("dev"), point: "one".parse().unwrap() }).await.unwrap();
    assert_eq!(std::fs::read(disk(&world, "dev")).unwrap()[0], 1);
    let Reply::Points(points) = world.ask(Request::Snapshots { name: named("dev") }).await.unwrap() else {
        panic!("no points")
    };
    let names: Vec<_> = points.iter().map(|point| point.point.as_str()).collect();
    assert_eq!(names, ["@1", "one"]);
    world.ask(Request::SnapshotRemove { name: named("dev"), label: label("one") }).await.unwrap();
    assert_eq!(
        world
            .ask(Request::Restore { name: named("dev"), point: "one".parse().unwrap() })
            .await
            .unwrap_err()
            .code,
        Code::NotFound
    );
}

#[tokio::test]
async fn damaged_memory_boots_from_its_disk_and_says_so() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
    let generation = machine.record().sleeps_in.clone().unwrap();
    let state = world.host.storage.generations().directory(&generation).join("state");
    std::fs::write(&state, "garbage").unwrap();
    world.ask(Request::Attach { name: named("dev") }).await.unwrap();
    let failure = machine.record().failure.clone().unwrap();
    assert!(failure.reason.contains("booted from its disk"), "{}", failure.reason);
    assert_eq!(std::fs::read(&state).unwrap(), b"garbage", "kept for whoever looks into it");
}

#[tokio::test]
async fn idle_machines_pause_then_sleep_and_busy_ones_do_not() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    let rest = async |sleep| {
        let policy = IdlePolicy { pause: Some(Span::seconds(1)), sleep };
        world.ask(Request::Idle { name: named("dev"), policy: Some(policy) }).await.unwrap();
    };
    rest(None).await;
    let why = async || match world.ask(Request::Why { name: named("dev") }).await {
        Ok(Reply::Why(why)) => why.reason,
        other => panic!("no why: {other:?}"),
    };
    while !why().await.contains("1 command runs") {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    world.guests.report(Vitals::default());
    while machine.record().state != State::Paused {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(machine.record().runtime.as_ref().unwrap().pid > 0);
    // Only now: it may be asleep before anybody has seen that it is paused.
    rest(Some(Span::seconds(2))).await;
    while machine.record().state != State::Asleep {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    world.ask(Request::Keepalive { name: named("dev"), span: Some(Span::seconds(60)) }).await.unwrap();
    assert_eq!(machine.record().state, State::Running);
}

#[tokio::test]
async fn a_paused_machine_that_cannot_go_on_can_be_stopped() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    let policy = IdlePolicy { pause: Some(Span::seconds(1)), sleep: None };
    world.ask(Request::Idle { name: named("dev"), policy: Some(policy) }).await.unwrap();
    world.guests.report(Vitals::default());
    while machine.record().state != State::Paused {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    world.guests.behave(Manners::Mute);
    world.ask(Request::Stop { name: named("dev") }).await.unwrap();
    assert_eq!(machine.record().state, State::Stopped);
    assert_eq!(world.guests.open(), 0);
}

#[tokio::test]
async fn a_schedule_wakes_and_a_ttl_removes() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
    let at = jiff::Timestamp::now() + std::time::Duration::from_millis(200);
    let schedule = Some(berth_types::Schedule { at, every: None });
    world.ask(Request::Schedule { name: named("dev"), schedule }).await.unwrap();
    while machine.record().state != State::Running {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(machine.record().schedule, None);
    let mut short = super::spec("short");
    short.ttl = Some(Span::seconds(5));
    world.ask(Request::New { spec: short }).await.unwrap();
    while world.host.fleet.is_taken(&world.user, &named("short")) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(world.remains(), (1, 1));
}

#[test]
fn sleeping_machines_outlive_hostd() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    life(async || {
        let world = World::open(&scratch).await;
        world.new_machine("dev").await.unwrap();
        std::fs::write(disk(&world, "dev"), [7; 64]).unwrap();
        world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
    });
    life(async || {
        let world = World::open(&scratch).await;
        assert_eq!(world.machine("dev").record().state, State::Asleep);
        world.ask(Request::Attach { name: named("dev") }).await.unwrap();
        assert_eq!(std::fs::read(disk(&world, "dev")).unwrap()[0], 7);
        assert!(world.machine("dev").record().failure.is_none());
    });
}
