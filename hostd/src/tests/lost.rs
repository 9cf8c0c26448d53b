//! What a start cannot place is moved aside, and nothing with a disk in it is deleted.

use super::{Scratch, World, named, recovery::life};
use berth_api::Request;
use berth_types::{GenerationId, LostKind, Machine, MachineId, Refusal, State, UserId};
use std::path::PathBuf;

/// A stopped machine whose disk says whose it is.
async fn stopped(world: &World, name: &str) -> MachineId {
    world.new_machine(name).await.unwrap();
    world.ask(Request::Stop { name: named(name) }).await.unwrap();
    let id = world.machine(name).id().clone();
    std::fs::write(world.host.storage.directory(&id).join("disk"), name).unwrap();
    id
}

fn store(scratch: &Scratch) -> PathBuf {
    scratch.path().join("data/store")
}

fn disk_of(world: &World, id: &MachineId) -> String {
    std::fs::read_to_string(world.host.storage.directory(id).join("disk")).unwrap()
}

/// F1, M6: a user's mirror that does not decode must not cost that user's machines.
#[test]
fn machines_of_a_user_whose_mirror_is_broken_are_moved_aside_and_come_back() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let (user, id) = life(async || {
        let world = World::open(&scratch).await;
        let id = stopped(&world, "dev").await;
        (world.user.clone(), id)
    });
    std::fs::remove_dir_all(store(&scratch)).unwrap();
    let mirror = scratch.path().join(format!("data/users/{user}.json"));
    std::fs::write(&mirror, "{ \"text\": ").unwrap();
    life(async || {
        let world = World::open(&scratch).await;
        assert_ne!(world.user, user, "a new user, for no other is known");
        let lost = world.host.lost.all();
        let kinds: Vec<_> = lost.iter().map(|entry| (entry.note.kind, entry.note.reason.clone())).collect();
        assert_eq!(lost.len(), 2, "{kinds:?}");
        assert!(!mirror.exists(), "it was left where it is");
        let machine = lost.iter().find(|entry| entry.note.kind == LostKind::Machine).unwrap();
        assert!(machine.note.reason.contains(user.as_str()), "{}", machine.note.reason);
        assert_eq!(std::fs::read_to_string(machine.files.join("disk")).unwrap(), "dev");
    });
    // It stays there, start after start, and is given back to the one whom the operator names.
    life(async || {
        let world = World::open(&scratch).await;
        assert_eq!(world.host.lost.all().len(), 2);
        let entry = format!("machine-{id}");
        let ask = Request::LostRestore { entry: entry.clone(), user: world.user.clone(), name: None };
        world.operate(ask).await.unwrap();
        assert_eq!(disk_of(&world, world.machine("dev").id()), "dev");
        world.ask(Request::Attach { name: named("dev") }).await.unwrap();
        assert_eq!(world.host.lost.all().len(), 1);
    });
    life(async || {
        let world = World::open(&scratch).await;
        world.ask(Request::Attach { name: named("dev") }).await.unwrap();
        world.operate(Request::LostRemove { entry: format!("mirror-{user}.json") }).await.unwrap();
        assert_eq!(world.host.lost.all().len(), 0);
        world.ask(Request::Remove { names: vec![named("dev")] }).await.unwrap();
        assert_eq!(world.remains(), (0, 0));
    });
}

/// F2: in a sleep the machine's only disk is in the unfinished saved state.
/// Where nothing can be moved aside, what a machine sleeps in stays too.
#[test]
fn a_sleeper_that_cannot_be_moved_aside_keeps_its_memory() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let (user, id) = life(async || {
        let world = World::open(&scratch).await;
        world.new_machine("dev").await.unwrap();
        world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
        (world.user.clone(), world.machine("dev").id().clone())
    });
    std::fs::remove_dir_all(store(&scratch)).unwrap();
    std::fs::write(scratch.path().join(format!("data/users/{user}.json")), "{").unwrap();
    let lost = scratch.path().join("data/pool/lost");
    std::fs::write(&lost, "a file where a directory should be").unwrap();
    life(async || {
        let world = World::open(&scratch).await;
        assert!(world.host.fleet.all().is_empty());
        assert_eq!(world.host.archive.of(&id).len(), 1, "what it sleeps in was removed");
    });
    std::fs::remove_file(&lost).unwrap();
    life(async || {
        let world = World::open(&scratch).await;
        let (entry, user) = (format!("machine-{id}"), world.user.clone());
        world.operate(Request::LostRestore { entry, user, name: None }).await.unwrap();
        assert_eq!(world.machine("dev").record().state, State::Asleep);
        world.ask(Request::Attach { name: named("dev") }).await.unwrap();
    });
}

#[test]
fn an_unfinished_sleep_whose_manifest_is_torn_keeps_its_disk() {
    berth_sys::needs_root!();
    for manifest in [Some("{ \"generation\": "), None] {
        let scratch = Scratch::new();
        let id = life(async || {
            let world = World::open(&scratch).await;
            let id = stopped(&world, "dev").await;
            let making =
                scratch.path().join(format!("data/pool/generations/.making-{}", GenerationId::random()));
            std::fs::create_dir(&making).unwrap();
            manifest.iter().for_each(|text| std::fs::write(making.join("manifest.json"), text).unwrap());
            std::fs::rename(world.host.storage.directory(&id).join("disk"), making.join("disk")).unwrap();
            id
        });
        life(async || {
            let world = World::open(&scratch).await;
            let lost = world.host.lost.all();
            assert_eq!(lost.len(), 1);
            assert_eq!(lost[0].note.kind, LostKind::Snapshot);
            assert_eq!(std::fs::read_to_string(lost[0].files.join("disk")).unwrap(), "dev");
            let record = world.machine("dev").record();
            assert_eq!(record.state, State::Failed);
            assert!(record.failure.as_ref().unwrap().reason.contains("berth lost"), "{record:?}");
            let (user, entry) = (world.user.clone(), lost[0].id.clone());
            let name = Some(named("again"));
            world.operate(Request::LostRestore { entry, user, name }).await.unwrap();
            let again = world.machine("again");
            assert_ne!(*again.id(), id);
            assert_eq!(disk_of(&world, again.id()), "dev");
            world.ask(Request::Attach { name: named("again") }).await.unwrap();
            assert_eq!(world.host.lost.all().len(), 0);
        });
    }
}

/// Marked as what they are; nothing is concluded from an owner that is not there.
#[test]
fn only_what_says_that_it_is_a_template_is_undone_as_one() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let place = |id: &MachineId| scratch.path().join("data/pool/machines").join(id.as_str());
    let (template, foreign) = life(async || {
        let world = World::open(&scratch).await;
        let leave = async |template: bool| {
            let name = if template { "template" } else { "foreign" };
            world.new_machine(name).await.unwrap();
            world.ask(Request::Stop { name: named(name) }).await.unwrap();
            let record = (*world.machine(name).record()).clone();
            let record = Machine { owner: UserId::random(), template, fresh: false, ..record };
            world.host.storage.mirror(&record).await.unwrap();
            world.host.store.remove_machine(&record.id).await.unwrap();
            record.id
        };
        (leave(true).await, leave(false).await)
    });
    life(async || {
        let world = World::open(&scratch).await;
        assert!(!place(&template).exists() && !place(&foreign).exists());
        let lost: Vec<_> = world.host.lost.all().into_iter().map(|entry| entry.note.name).collect();
        assert_eq!(lost, [foreign.to_string()]);
        assert_eq!(world.remains(), (0, 0));
    });
}

/// M6: cut short after any number of writes, a rebuild is finished by the next start.
#[test]
fn a_rebuild_may_be_killed_at_any_write() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let (users, uid) = life(async || {
        let world = World::open(&scratch).await;
        let mut uid = 0;
        for name in ["one", "two"] {
            let id = stopped(&world, name).await;
            uid = uid.max(world.host.store.machines().unwrap().iter().find(|one| one.id == id).unwrap().uid);
        }
        let bob = world.host.registry.register("bob", super::key("bob")).await.unwrap();
        let session = super::session(&world.host.registry, &bob.id);
        world.host.registry.add_key(&session, super::key("bob-2")).await.unwrap();
        (vec![world.user.clone(), bob.id], uid)
    });
    let mut finished = false;
    for writes in 0..40 {
        if store(&scratch).exists() {
            std::fs::remove_dir_all(store(&scratch)).unwrap();
        }
        // A start whose store takes so many writes and then no more; its end is a kill.
        let data = scratch.path().join("data");
        finished = life(async || {
            let store = crate::store::Store::open(&data.join("store")).unwrap();
            store.faults.fail_after(writes, true);
            let opened = World::try_open(&scratch, store.clone()).await;
            !store.faults.end() && opened.is_ok()
        });
        life(async || {
            let mut world = World::open(&scratch).await;
            for user in &users {
                assert!(world.host.registry.user(user).is_some(), "after {writes} writes {user} is gone");
            }
            for key in ["ann", "bob", "bob-2"] {
                let fingerprint = super::key(key).fingerprint;
                assert!(
                    world.host.registry.owner(&fingerprint).is_some(),
                    "after {writes} writes {key} is gone"
                );
            }
            world.user = users[0].clone();
            for name in ["one", "two"] {
                assert_eq!(disk_of(&world, world.machine(name).id()), name, "after {writes} writes");
            }
            assert_eq!(world.host.lost.all().len(), 0, "after {writes} writes");
            let next = world.host.store.take_uid(0).await.unwrap();
            assert!(next > uid, "after {writes} writes the id {next} comes again");
        });
        if finished {
            break;
        }
    }
    assert!(finished, "a rebuild never ends");
}

/// What was removed does not come back with a mirror, wherever the removal was cut short.
#[test]
fn what_was_removed_stays_removed() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    life(async || {
        let world = World::open(&scratch).await;
        stopped(&world, "gone").await;
        world.ask(Request::Remove { names: vec![named("gone")] }).await.unwrap();
        let bob = world.host.registry.register("bob", super::key("bob")).await.unwrap();
        let session = super::session(&world.host.registry, &bob.id);
        world.host.registry.add_key(&session, super::key("stolen")).await.unwrap();
        world.host.registry.remove_key(&session, &super::key("stolen").fingerprint).await.unwrap();
        let eve = world.host.registry.register("eve", super::key("eve")).await.unwrap();
        world.host.registry.remove_user(&eve.id).await.unwrap();
    });
    std::fs::remove_dir_all(store(&scratch)).unwrap();
    life(async || {
        let world = World::open(&scratch).await;
        assert_eq!(world.remains(), (0, 0));
        assert!(world.host.registry.owner(&super::key("bob").fingerprint).is_some());
        for key in ["stolen", "eve"] {
            assert_eq!(world.host.registry.owner(&super::key(key).fingerprint), None, "{key} is back");
        }
    });
}

/// L7, and mirrors that are another installation's.
#[test]
fn one_machines_bad_files_cost_no_other_machine() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let bad = life(async || {
        let world = World::open(&scratch).await;
        stopped(&world, "good").await;
        let bad = stopped(&world, "bad").await;
        let directory = world.host.storage.directory(&bad);
        // Something that cannot be moved, published or removed as a directory.
        std::fs::write(scratch.path().join(format!("data/pool/machines/.making-{bad}")), "a file").unwrap();
        let other = MachineId::random();
        let foreign = directory.with_file_name(other.as_str());
        std::fs::create_dir(&foreign).unwrap();
        std::fs::write(foreign.join("disk"), "x").unwrap();
        std::fs::copy(directory.join("machine.json"), foreign.join("machine.json")).unwrap();
        bad
    });
    life(async || {
        let world = World::open(&scratch).await;
        world.ask(Request::Attach { name: named("good") }).await.unwrap();
        let record = world.machine("bad").record();
        assert_eq!((&record.id, record.state), (&bad, State::Failed), "{record:?}");
        let lost = world.host.lost.all();
        assert_eq!(lost.len(), 1);
        assert!(lost[0].note.reason.contains("another machine's"), "{}", lost[0].note.reason);
    });
}

#[test]
fn a_restore_from_lost_refuses_what_it_cannot_do() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    life(async || {
        let world = World::open(&scratch).await;
        let refused = async |request| -> Refusal { world.operate(request).await.unwrap_err() };
        let entry = "machine-nowhere".to_owned();
        let there = refused(Request::LostShow { entry: entry.clone() }).await;
        assert_eq!(there.code, berth_types::Code::NotFound);
        let user = UserId::random();
        let id = stopped(&world, "dev").await;
        let directory = world.host.storage.directory(&id);
        let entry = world.host.lost.put(LostKind::Machine, id.as_str(), &directory, "a test").unwrap().id;
        let stranger = refused(Request::LostRestore { entry: entry.clone(), user, name: None }).await;
        assert_eq!(stranger.code, berth_types::Code::NotFound);
        // The name is taken by the machine whose files these are.
        let user = world.user.clone();
        let taken = refused(Request::LostRestore { entry: entry.clone(), user, name: None }).await;
        assert_eq!(taken.code, berth_types::Code::Conflict);
        let (user, name) = (world.user.clone(), Some(named("attach")));
        let verb = refused(Request::LostRestore { entry: entry.clone(), user, name }).await;
        assert_eq!(verb.code, berth_types::Code::Usage, "a name that no new machine gets");
        assert_eq!(world.host.lost.all().len(), 1, "it is still there");
        assert!(world.ask(Request::LostRemove { entry }).await.is_err(), "a user may not");
    });
}
