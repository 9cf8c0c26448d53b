//! What a power failure takes, and what the next start makes of the rest.
//!
//! The files are as a failure may leave them; `flash` takes them from a disk.

use super::{Scratch, World, named, recovery::life};
use berth_api::Request;
use berth_types::{Machine, State};

const PAST: &str = "past";
const NOW: &str = "now";

fn write_disk(world: &World, text: &str) {
    let directory = world.host.storage.directory(world.machine("dev").id());
    std::fs::write(directory.join("disk"), text).unwrap();
}

fn disk(world: &World) -> String {
    let directory = world.host.storage.directory(world.machine("dev").id());
    std::fs::read_to_string(directory.join("disk")).unwrap()
}

fn record(world: &World) -> Machine {
    (*world.machine("dev").record()).clone()
}

fn failure(world: &World) -> String {
    record(world).failure.map(|failure| failure.reason).unwrap_or_default()
}

async fn sleep(world: &World) {
    world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
}

async fn wake(world: &World) {
    world.ask(Request::Attach { name: named("dev") }).await.unwrap();
}

/// It is down and says why; it comes up from its disk, which has that text.
async fn boots(world: &World, why: &str, text: &str) {
    assert_eq!(record(world).state, State::Stopped);
    assert!(failure(world).contains(why), "{:?} does not say {why:?}", failure(world));
    wake(world).await;
    assert_eq!(record(world).state, State::Running);
    assert_eq!(disk(world), text);
    assert!(failure(world).contains("disk"), "{:?}", failure(world));
}

#[test]
fn memory_that_had_not_reached_the_disk_is_not_resumed() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    life(async || {
        let world = World::open(&scratch).await;
        world.new_machine("dev").await.unwrap();
        write_disk(&world, NOW);
        sleep(&world).await;
    });
    // hostd alone was killed: all is in the page cache.
    life(async || {
        let world = World::open(&scratch).await;
        assert_eq!((record(&world).state, failure(&world)), (State::Asleep, String::new()));
    });
    scratch.reboot();
    for _ in 0..2 {
        life(async || {
            let world = World::open(&scratch).await;
            assert_eq!(record(&world).state, State::Stopped);
        });
    }
    life(async || {
        let world = World::open(&scratch).await;
        // A copy of it is no better, whenever it was made.
        let label = Some("copy".parse().unwrap());
        world.ask(Request::Snapshot { name: named("dev"), label }).await.unwrap();
        boots(&world, "before it was on the disk", NOW).await;
        world.ask(Request::Stop { name: named("dev") }).await.unwrap();
        write_disk(&world, PAST);
        assert_eq!(failure(&world), "");
        world.ask(Request::Restore { name: named("dev"), point: "copy".parse().unwrap() }).await.unwrap();
        assert_eq!((disk(&world).as_str(), record(&world).state), (NOW, State::Running));
        assert!(failure(&world).contains("before it was on the disk"), "{:?}", failure(&world));
    });
}

#[test]
fn memory_that_had_reached_the_disk_is_resumed() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    life(async || {
        let world = World::open(&scratch).await;
        world.new_machine("dev").await.unwrap();
        sleep(&world).await;
    });
    // What the hostd that was killed had not synced is synced by the next.
    life(async || {
        let world = World::open(&scratch).await;
        let id = record(&world).sleeps_in.unwrap();
        while !world.host.storage.generations().is_synced(&id) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    });
    scratch.reboot();
    life(async || {
        let world = World::open(&scratch).await;
        assert_eq!(record(&world).state, State::Asleep);
        wake(&world).await;
        assert_eq!((record(&world).state, failure(&world)), (State::Running, String::new()));
    });
}

#[test]
fn a_machine_that_ran_when_the_host_went_down_says_so() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    life(async || {
        let world = World::open(&scratch).await;
        world.new_machine("dev").await.unwrap();
        write_disk(&world, NOW);
    });
    scratch.reboot();
    life(async || {
        let world = World::open(&scratch).await;
        boots(&world, "went down while it ran", NOW).await;
    });
}

#[test]
fn memory_that_was_being_saved_is_resumed_only_in_the_boot_that_saved_it() {
    berth_sys::needs_root!();
    for reboots in [false, true] {
        let scratch = Scratch::new();
        life(async || {
            let world = World::open(&scratch).await;
            world.new_machine("dev").await.unwrap();
            write_disk(&world, NOW);
            let saved = world.host.storage.directory(&record(&world).id).join("state");
            std::fs::write(saved, berth_hypervisor::fake::STATE).unwrap();
            let record = Machine { state: State::Suspending, ..record(&world) };
            world.host.store.put_machine(&record).await.unwrap();
        });
        if reboots {
            scratch.reboot();
        } else {
            scratch.end_processes();
        }
        life(async || {
            let world = World::open(&scratch).await;
            if reboots {
                boots(&world, "while it went to sleep", NOW).await;
            } else {
                assert_eq!((record(&world).state, failure(&world)), (State::Asleep, String::new()));
                wake(&world).await;
                assert_eq!((record(&world).state, disk(&world).as_str()), (State::Running, NOW));
            }
        });
    }
}

/// The store's last writes may be lost, and with them that a machine woke.
#[test]
fn a_wake_that_the_store_has_lost_does_not_take_the_machine_back() {
    berth_sys::needs_root!();
    for sleeps_again in [false, true] {
        let scratch = Scratch::new();
        life(async || {
            let world = World::open(&scratch).await;
            world.new_machine("dev").await.unwrap();
            write_disk(&world, PAST);
            sleep(&world).await;
            let asleep = record(&world);
            wake(&world).await;
            write_disk(&world, NOW);
            if sleeps_again {
                sleep(&world).await;
            }
            world.host.archive.sync_all().await;
            world.host.store.put_machine(&asleep).await.unwrap();
        });
        scratch.reboot();
        life(async || {
            let world = World::open(&scratch).await;
            if sleeps_again {
                assert_eq!((record(&world).state, failure(&world)), (State::Asleep, String::new()));
                wake(&world).await;
                assert_eq!((record(&world).state, disk(&world).as_str()), (State::Running, NOW));
            } else {
                boots(&world, "went down while it ran", NOW).await;
            }
        });
    }
}

/// A hostd that ended in the middle of a wake had not written the mark of it yet.
#[test]
fn a_wake_that_the_next_hostd_finishes_has_its_mark() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let asleep = life(async || {
        let world = World::open(&scratch).await;
        world.new_machine("dev").await.unwrap();
        write_disk(&world, PAST);
        sleep(&world).await;
        let asleep = record(&world);
        wake(&world).await;
        let woken = record(&world);
        let from = asleep.sleeps_in.clone().unwrap();
        world.host.storage.unmark_awake(&asleep.id, &from).await.unwrap();
        let begun = Machine { state: State::Starting, sleeps_in: Some(from), ..woken };
        world.host.store.put_machine(&begun).await.unwrap();
        asleep
    });
    life(async || {
        let world = World::open(&scratch).await;
        wake(&world).await;
        assert_eq!(record(&world).state, State::Running);
        write_disk(&world, NOW);
        world.host.archive.sync_all().await;
        // The power fails, and the store's last writes are lost.
        world.host.store.put_machine(&asleep).await.unwrap();
    });
    scratch.reboot();
    life(async || {
        let world = World::open(&scratch).await;
        boots(&world, "went down while it ran", NOW).await;
    });
}

/// What is tidied up some seconds after a wake leaves the mark of a later wake alone.
#[test]
fn the_last_wake_keeps_its_mark() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    life(async || {
        let world = World::open(&scratch).await;
        world.new_machine("dev").await.unwrap();
        sleep(&world).await;
        wake(&world).await;
        let first = record(&world).woke_from.unwrap();
        sleep(&world).await;
        wake(&world).await;
        let (id, last) = (record(&world).id, record(&world).woke_from.unwrap());
        let has = |from| world.host.storage.woke_from(&id, from).unwrap();
        assert!(has(&first) && has(&last));
        while has(&first) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(has(&last));
    });
}

/// That it ran on its old disk once, it says after every stop of a sleeper too.
#[test]
fn a_stop_that_the_store_has_lost_does_not_take_the_machine_back() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    life(async || {
        let world = World::open(&scratch).await;
        world.new_machine("dev").await.unwrap();
        write_disk(&world, PAST);
        sleep(&world).await;
        world.host.archive.sync_all().await;
        let asleep = record(&world);
        world.ask(Request::Stop { name: named("dev") }).await.unwrap();
        wake(&world).await;
        write_disk(&world, NOW);
        world.host.store.put_machine(&asleep).await.unwrap();
    });
    scratch.reboot();
    life(async || {
        let world = World::open(&scratch).await;
        boots(&world, "went down while it ran", NOW).await;
    });
}

/// A wake that came to nothing, or that was undone on purpose, is none.
#[test]
fn what_a_machine_went_back_to_is_what_it_has_after_a_power_failure() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let back = async |world: &World| {
        world.ask(Request::Restore { name: named("dev"), point: "base".parse().unwrap() }).await.unwrap();
    };
    life(async || {
        let world = World::open(&scratch).await;
        world.new_machine("dev").await.unwrap();
        world.ask(Request::Stop { name: named("dev") }).await.unwrap();
        write_disk(&world, PAST);
        let label = Some("base".parse().unwrap());
        world.ask(Request::Snapshot { name: named("dev"), label }).await.unwrap();
        // Down before and after: nothing wakes, and it says so in its record alone.
        back(&world).await;
        wake(&world).await;
        world.ask(Request::Stop { name: named("dev") }).await.unwrap();
        write_disk(&world, NOW);
        back(&world).await;
        assert_eq!(record(&world).state, State::Stopped);
    });
    scratch.reboot();
    life(async || {
        let world = World::open(&scratch).await;
        wake(&world).await;
        assert_eq!(disk(&world), PAST);
        sleep(&world).await;
        world.host.archive.sync_all().await;
        world.driver.fail_next_start("no");
        world.driver.fail_next_start("no");
        world.ask(Request::Attach { name: named("dev") }).await.unwrap_err();
    });
    scratch.reboot();
    life(async || {
        let world = World::open(&scratch).await;
        assert_ne!(record(&world).sleeps_in, None, "{:?}", record(&world));
    });
}
