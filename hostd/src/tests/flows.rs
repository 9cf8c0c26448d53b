//! What users do, and what goes wrong meanwhile.

use super::{Scratch, World, guests::Manners, key, named, spec};
use berth_api::{Reply, Request, Resolved};
use berth_hypervisor::Exit;
use berth_types::{ByteSize, Code, State};
use std::time::Duration;

#[tokio::test]
async fn ten_first_logins_at_once_make_one_machine_and_one_boot() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let logins = (0..10).map(|_| world.ask(Request::AttachDefault));
    let mut made = 0;
    for result in all_at_once(logins).await {
        let Reply::Attached { name, made: this_one } = result.unwrap() else { panic!("no stream") };
        assert_eq!(name.as_str(), "main");
        made += usize::from(this_one);
    }
    assert_eq!(made, 1);
    assert_eq!(world.remains(), (1, 1));
    assert_eq!(world.guests.open(), 1);
}

/// Polls them together.
async fn all_at_once<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut waiting = false;
        for (future, output) in &mut pending {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *output = Some(value),
                    std::task::Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    pending.into_iter().filter_map(|(_, output)| output).collect()
}

#[tokio::test]
async fn a_machine_lives_stops_and_comes_back() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    assert_eq!(machine.record().state, State::Running);
    assert!(!machine.record().fresh);
    world.ask(Request::Stop { name: named("dev") }).await.unwrap();
    assert_eq!(machine.record().state, State::Stopped);
    assert!(machine.link().is_none());
    assert_eq!(world.guests.open(), 0);
    assert_eq!(world.host.ledger.memory().0, ByteSize(0));
    world.ask(Request::Attach { name: named("dev") }).await.unwrap();
    assert_eq!(machine.record().state, State::Running);
    world.ask(Request::Restart { name: named("dev") }).await.unwrap();
    assert_eq!(machine.record().state, State::Running);
    world.ask(Request::Rename { old: named("dev"), new: named("prod") }).await.unwrap();
    assert_eq!(world.ask(Request::Info { name: named("dev") }).await.unwrap_err().code, Code::NotFound);
    world.ask(Request::Remove { names: vec![named("prod")] }).await.unwrap();
    assert_eq!(world.remains(), (0, 0));
    assert_eq!(world.host.ledger.usage(&world.user).machines, 0);
}

#[tokio::test]
async fn a_machine_that_does_not_start_is_not_left_behind() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    world.driver.fail_next_start("no");
    assert_eq!(world.new_machine("dev").await.unwrap_err().code, Code::Failed);
    assert_eq!(world.remains(), (0, 0));
    assert_eq!(world.guests.open(), 0);
    assert_eq!(world.host.ledger.usage(&world.user), Default::default());
    world.new_machine("dev").await.unwrap();
}

#[tokio::test]
async fn a_boot_that_stands_still_is_begun_anew() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    world.guests.behave(Manners::MuteOnce);
    let machine = world.new_machine("dev").await.unwrap();
    assert_eq!(machine.record().state, State::Running);
    assert_eq!(world.guests.open(), 1, "the network of the first try was given back");
    world.ask(Request::Remove { names: vec![named("dev")] }).await.unwrap();
    // Twice is no accident.
    world.guests.behave(Manners::Mute);
    assert!(world.new_machine("dev").await.unwrap_err().message.contains("did not come up"));
    assert_eq!(world.remains(), (0, 0));
}

#[tokio::test]
async fn a_boot_that_hangs_can_be_removed() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    world.new_machine("dev").await.unwrap();
    world.ask(Request::Stop { name: named("dev") }).await.unwrap();
    world.guests.behave(Manners::Mute);
    let machine = world.machine("dev");
    let waiting = tokio::spawn({
        let machine = machine.clone();
        async move { machine.start().await }
    });
    while machine.record().runtime.as_ref().is_none_or(|up| up.pid == 0) {
        tokio::task::yield_now().await;
    }
    world.ask(Request::Remove { names: vec![named("dev")] }).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().code, Code::Conflict);
    assert_eq!(world.remains(), (0, 0));
    assert_eq!(world.guests.open(), 0);
}

#[tokio::test]
async fn a_death_is_told_and_the_next_login_boots() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    world.driver.end(machine.id(), Exit::Panic).unwrap();
    machine.down().await;
    let record = machine.record();
    assert_eq!(record.state, State::Failed);
    assert!(record.failure.as_ref().unwrap().reason.contains("panicked"));
    world.ask(Request::Attach { name: named("dev") }).await.unwrap();
    assert_eq!(machine.record().state, State::Running);
    assert!(machine.record().failure.is_some(), "still told until someone looks after it");
    world.ask(Request::Restart { name: named("dev") }).await.unwrap();
    assert!(machine.record().failure.is_none());
}

#[tokio::test]
async fn a_guest_that_powers_off_is_stopped_and_one_that_reboots_comes_back() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    let first = machine.record().runtime.clone().unwrap().pid;
    world.driver.end(machine.id(), Exit::Reboot).unwrap();
    while machine.record().state != State::Running || machine.record().runtime.as_ref().unwrap().pid == first
    {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world.driver.end(machine.id(), Exit::Clean).unwrap();
    machine.down().await;
    assert_eq!(machine.record().state, State::Stopped);
    assert!(machine.record().failure.is_none());
}

#[tokio::test]
async fn garbage_on_the_link_is_a_failure_with_its_reason() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let (bad, good) = (world.new_machine("bad").await.unwrap(), world.new_machine("good").await.unwrap());
    world.guests.behave(Manners::Garbage);
    bad.down().await;
    good.down().await;
    let reason = bad.record().failure.clone().unwrap().reason;
    assert!(reason.contains("broke the protocol"), "{reason}");
}

#[tokio::test]
async fn a_guest_that_does_not_shut_down_is_cut_off() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    world.guests.behave(Manners::Stubborn);
    world.ask(Request::Stop { name: named("dev") }).await.unwrap();
    assert_eq!(machine.record().state, State::Stopped);
    assert_eq!(world.guests.open(), 0);
}

#[tokio::test]
async fn quotas_refuse_and_nothing_is_half_made() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    for name in ["a", "b", "c"] {
        world.new_machine(name).await.unwrap();
    }
    assert_eq!(world.new_machine("d").await.unwrap_err().code, Code::Limit);
    assert_eq!(world.remains(), (3, 3));
    world.ask(Request::Remove { names: vec![named("c")] }).await.unwrap();
    let mut large = spec("large");
    large.memory = Some(ByteSize::gib(1));
    let refusal = world.ask(Request::New { spec: large }).await.unwrap_err();
    assert_eq!(refusal.code, Code::Limit, "{refusal}");
    assert_eq!(world.remains(), (2, 2));
    assert_eq!(world.new_machine("a").await.unwrap_err().code, Code::Conflict);
}

#[tokio::test]
async fn another_users_machine_is_not_there() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let mut world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    let bob = world.host.registry.register("bob", key("bob")).await.unwrap().id;
    world.user = bob;
    for request in [
        Request::Attach { name: named("dev") },
        Request::Info { name: named("dev") },
        Request::Console { name: named("dev") },
        Request::Stop { name: named("dev") },
        Request::Restart { name: named("dev") },
        Request::Remove { names: vec![named("dev")] },
        Request::Rename { old: named("dev"), new: named("mine") },
    ] {
        assert_eq!(world.ask(request.clone()).await.unwrap_err().code, Code::NotFound, "{request:?}");
    }
    for login in ["dev", machine.id().as_str(), "dex"] {
        let resolved = world.ask(Request::Resolve { login: login.to_owned() }).await.unwrap();
        assert_eq!(resolved, Reply::Resolved(Resolved::Lobby { similar: None }));
    }
    assert_eq!(world.ask(Request::List).await.unwrap(), Reply::Machines(vec![]));
    assert_eq!(machine.record().state, State::Running);
    world.new_machine("dev").await.unwrap();
}

#[tokio::test]
async fn the_last_key_cannot_be_removed_and_a_taken_one_not_added() {
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let fingerprint = key("ann").fingerprint;
    let refusal = world.ask(Request::KeyRemove { fingerprint: fingerprint.clone() }).await.unwrap_err();
    assert_eq!(refusal.code, Code::Conflict);
    world.host.registry.register("bob", key("bob")).await.unwrap();
    assert_eq!(world.ask(Request::KeyAdd { key: key("bob") }).await.unwrap_err().code, Code::Conflict);
    world.ask(Request::KeyAdd { key: key("second") }).await.unwrap();
    world.ask(Request::KeyRemove { fingerprint }).await.unwrap();
    assert_eq!(world.host.registry.owner(&key("ann").fingerprint), None);
}
