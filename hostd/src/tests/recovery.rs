//! What a killed hostd leaves, and what the next one makes of it.

use super::{Scratch, World, key, named};
use berth_api::Request;
use berth_types::State;

/// Runs one life of hostd and ends it as SIGKILL would: no goodbyes.
pub fn life<T>(work: impl AsyncFnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let result = runtime.block_on(work());
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    result
}

#[test]
fn machines_outlive_hostd() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let pid = life(async || {
        let world = World::open(&scratch).await;
        let machine = world.new_machine("dev").await.unwrap();
        world.new_machine("down").await.unwrap();
        world.ask(Request::Stop { name: named("down") }).await.unwrap();
        machine.record().runtime.clone().unwrap().pid
    });
    life(async || {
        let world = World::open(&scratch).await;
        world.ask(Request::Attach { name: named("dev") }).await.unwrap();
        assert_eq!(world.machine("dev").record().runtime.clone().unwrap().pid, pid, "the same process");
        assert_eq!(world.machine("down").record().state, State::Stopped);
        assert_eq!(world.host.ledger.usage(&world.user).machines, 2);
        world.ask(Request::Remove { names: vec![named("dev"), named("down")] }).await.unwrap();
    });
}

/// A hypervisor that its guest has taken over can leave its directory, not its control group.
#[test]
fn a_hypervisor_that_left_its_directory_is_found_by_its_control_group() {
    berth_sys::needs_root!();
    if !has_cgroup2() {
        println!("skipped: this host has no cgroup2");
        return;
    }
    let scratch = Scratch::new();
    let (kept, unowned) = life(async || {
        let world = World::open(&scratch).await;
        world.driver.wander();
        let pid = |name: &str| world.machine(name).record().runtime.clone().unwrap().pid;
        for name in ["kept", "unowned"] {
            world.new_machine(name).await.unwrap();
        }
        // As after a removal whose kill did not succeed.
        let id = world.machine("unowned").id().clone();
        std::fs::remove_dir_all(world.host.storage.directory(&id)).unwrap();
        world.host.store.remove_machine(&id).await.unwrap();
        (pid("kept"), pid("unowned"))
    });
    life(async || {
        let world = World::open(&scratch).await;
        world.ask(Request::Attach { name: named("kept") }).await.unwrap();
        assert_eq!(world.machine("kept").record().runtime.clone().unwrap().pid, kept, "the same process");
        let state = std::fs::read_to_string(format!("/proc/{unowned}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "it still runs: {state}");
        world.ask(Request::Remove { names: vec![named("kept")] }).await.unwrap();
    });
}

fn has_cgroup2() -> bool {
    std::fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| mounts.contains(" - cgroup2 "))
}

#[test]
fn what_died_meanwhile_boots_when_it_is_next_used() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    life(async || {
        let world = World::open(&scratch).await;
        let machine = world.new_machine("dev").await.unwrap();
        let mut record = (*machine.record()).clone();
        world.driver.end(machine.id(), berth_hypervisor::Exit::Panic).unwrap();
        machine.down().await;
        // hostd dies before it has noticed.
        record.state = State::Running;
        world.host.store.put_machine(&record).await.unwrap();
    });
    life(async || {
        let world = World::open(&scratch).await;
        assert_eq!(world.machine("dev").record().state, State::Stopped);
        world.ask(Request::Attach { name: named("dev") }).await.unwrap();
        world.ask(Request::Remove { names: vec![named("dev")] }).await.unwrap();
    });
}

/// The saved state that it last woke from is still there, and is not what it sleeps in.
#[test]
fn a_sleep_that_the_record_missed_is_where_a_machine_sleeps() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let disk = |world: &World| world.host.storage.directory(world.machine("dev").id()).join("disk");
    life(async || {
        let world = World::open(&scratch).await;
        world.new_machine("dev").await.unwrap();
        for text in ["past", "now"] {
            world.ask(Request::Attach { name: named("dev") }).await.unwrap();
            std::fs::write(disk(&world), text).unwrap();
            let up = (*world.machine("dev").record()).clone();
            world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
            // Killed when its files had moved.
            let record = berth_types::Machine { state: State::Suspending, ..up };
            if text == "now" {
                assert!(record.woke_from.is_some());
                world.host.store.put_machine(&record).await.unwrap();
            }
        }
    });
    life(async || {
        let world = World::open(&scratch).await;
        assert_eq!(world.machine("dev").record().state, State::Asleep);
        world.ask(Request::Attach { name: named("dev") }).await.unwrap();
        assert_eq!(std::fs::read_to_string(disk(&world)).unwrap(), "now");
    });
}

/// As a power failure may leave it: records are synced at once, directories later.
#[test]
fn a_record_without_files_is_undone_if_it_was_never_up() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    life(async || {
        let world = World::open(&scratch).await;
        for (name, fresh) in [("copy", true), ("dev", false)] {
            world.new_machine(name).await.unwrap();
            world.ask(Request::Stop { name: named(name) }).await.unwrap();
            let mut record = (*world.machine(name).record()).clone();
            record.fresh = fresh;
            world.host.store.put_machine(&record).await.unwrap();
            std::fs::remove_dir_all(world.host.storage.directory(&record.id)).unwrap();
        }
    });
    life(async || {
        let world = World::open(&scratch).await;
        assert_eq!(world.machine("dev").record().state, State::Failed, "its files were acknowledged");
        assert_eq!(world.host.ledger.usage(&world.user).machines, 1);
    });
}

#[test]
fn half_made_is_undone_and_half_removed_is_finished() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    life(async || {
        let world = World::open(&scratch).await;
        for name in ["one", "two", "three"] {
            world.new_machine(name).await.unwrap();
            world.ask(Request::Stop { name: named(name) }).await.unwrap();
        }
        let machines = world.host.storage.machines().to_owned();
        let place = |prefix: &str, name: &str| machines.join(format!("{prefix}{}", world.machine(name).id()));
        // Killed before the record was written.
        std::fs::rename(place("", "one"), place(".making-", "one")).unwrap();
        world.host.store.remove_machine(world.machine("one").id()).await.unwrap();
        // Killed after it was, before the directory had its name.
        std::fs::rename(place("", "two"), place(".making-", "two")).unwrap();
        // Killed in the middle of a removal.
        let mut record = (*world.machine("three").record()).clone();
        record.state = State::Removing;
        world.host.store.put_machine(&record).await.unwrap();
    });
    life(async || {
        let world = World::open(&scratch).await;
        assert_eq!(world.remains(), (1, 1));
        assert_eq!(world.machine("two").record().state, State::Stopped);
        world.new_machine("one").await.unwrap();
        world.new_machine("three").await.unwrap();
        world.ask(Request::Remove { names: vec![named("one"), named("two"), named("three")] }).await.unwrap();
    });
}

#[test]
fn a_lost_store_is_rebuilt_from_the_mirrors() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let user = life(async || {
        let world = World::open(&scratch).await;
        world.new_machine("dev").await.unwrap();
        world.ask(Request::Stop { name: named("dev") }).await.unwrap();
        world.user
    });
    std::fs::remove_dir_all(scratch.path().join("data/store")).unwrap();
    life(async || {
        let world = World::open(&scratch).await;
        assert_eq!(world.user, user);
        assert_eq!(world.host.registry.owner(&key("ann").fingerprint), Some(user));
        assert_eq!(world.machine("dev").record().state, State::Stopped);
        world.ask(Request::Remove { names: vec![named("dev")] }).await.unwrap();
    });
}
