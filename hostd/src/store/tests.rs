//! What is acknowledged is there, and what is damaged is found.

use super::*;
use crate::registry::Registry;
use jiff::Timestamp;

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_reopen() {
    let directory = std::env::temp_dir().join(format!("berth-store-{}", UserId::random()));
    let user = User {
        id: UserId::random(),
        label: "ann".into(),
        created: Timestamp::now(),
        locked: None,
        unknown: berth_types::Unknown::new(),
    };
    let first = {
        let store = Store::open(&directory.join("store")).unwrap();
        store.put_user(&user).await.unwrap();
        store.take_uid(700_000).await.unwrap()
    };
    let store = Store::open(&directory.join("store")).unwrap();
    assert_eq!(store.users().unwrap(), std::slice::from_ref(&user));
    assert_eq!(first, 700_000);
    assert_eq!(store.take_uid(700_000).await.unwrap(), 700_001);
    store.remove_user(&user.id).await.unwrap();
    assert_eq!(store.users().unwrap(), []);
    drop(store);
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_write_at_once_and_all_end() {
    let directory = std::env::temp_dir().join(format!("berth-store-{}", UserId::random()));
    let store = Store::open(&directory.join("store")).unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let store = store.clone();
        writers.spawn(async move {
            for _ in 0..20 {
                store.take_uid(700_000).await.unwrap();
            }
        });
    }
    let all = async { while writers.join_next().await.is_some_and(|ended| ended.is_ok()) {} };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("they wait for each other");
    assert_eq!(store.take_uid(700_000).await.unwrap(), 700_000 + 64 * 20);
    drop(store);
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn no_id_comes_again_after_the_store_was_lost() {
    let directory = std::env::temp_dir().join(format!("berth-store-{}", UserId::random()));
    let mut last = 0;
    for _ in 0..3 {
        {
            let store = Store::open(&directory.join("store")).unwrap();
            store.raise_uid(0).await.unwrap();
            for _ in 0..3 {
                let uid = store.take_uid(700_000).await.unwrap();
                assert!(uid > last, "{uid} after {last}");
                last = uid;
            }
        }
        std::fs::remove_dir_all(directory.join("store")).unwrap();
    }
    // What records say counts as well, and a start without a loss skips no id.
    let store = Store::open(&directory.join("store")).unwrap();
    store.raise_uid(800_000).await.unwrap();
    assert_eq!(store.take_uid(700_000).await.unwrap(), 800_001);
    drop(store);
    let store = Store::open(&directory.join("store")).unwrap();
    store.raise_uid(800_001).await.unwrap();
    assert_eq!(store.take_uid(700_000).await.unwrap(), 800_002);
    drop(store);
    std::fs::remove_dir_all(directory).unwrap();
}

/// Whatever becomes of the store's file, what was acknowledged is there again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_damaged_anywhere_is_rebuilt_from_the_mirrors() {
    let scratch = crate::tests::Scratch::new();
    let directory = scratch.path().to_owned();
    let signer = crate::format::Signer::open(&directory).unwrap();
    let lost = crate::lost::Lost::new(&directory, &directory);
    let (store, mirrors) = (directory.join("store"), directory.join("users"));
    let open = async || {
        let store = open_or_set_aside(&store).unwrap();
        let registry = Registry::open(store.clone(), mirrors.clone(), signer.clone(), &lost).await;
        (store, registry.unwrap())
    };
    {
        let (_store, registry) = open().await;
        for number in 0..12 {
            let key = crate::tests::key(&format!("key-{number}"));
            let user = registry.register(&format!("user-{number}"), key).await.unwrap();
            let session = crate::tests::session(&registry, &user.id);
            registry.add_key(&session, crate::tests::key(&format!("second-{number}"))).await.unwrap();
        }
    }
    let whole = std::fs::read(store.join("db")).unwrap();
    let files = std::fs::read_dir(&store).unwrap().flatten().filter(|entry| entry.path().is_file());
    let beside: Vec<_> =
        files.map(|entry| (entry.file_name(), std::fs::read(entry.path()).unwrap())).collect();
    let written = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let mut damaged: Vec<Vec<u8>> = Vec::new();
    for at in (0..=written).step_by(written / 24 + 1) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x5a;
        damaged.push(flipped);
        let mut wiped = whole.clone();
        let end = wiped.len().min(at + 512);
        wiped[at..end].fill(0);
        damaged.push(wiped);
        damaged.push(whole[..at].to_vec());
    }
    damaged.push(vec![0xff; whole.len()]);
    for (number, bytes) in damaged.iter().enumerate() {
        std::fs::write(store.join("db"), bytes).unwrap();
        {
            let (_store, registry) = open().await;
            assert_eq!(registry.users().len(), 12, "damage {number}");
            for key in (0..12).flat_map(|number| [format!("key-{number}"), format!("second-{number}")]) {
                let fingerprint = crate::tests::key(&key).fingerprint;
                assert!(registry.owner(&fingerprint).is_some(), "damage {number}: {key} is gone");
            }
        }
        assert_eq!(lost.all().len(), 0, "damage {number}");
        for entry in std::fs::read_dir(&directory).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("store") {
                std::fs::remove_dir_all(entry.path()).unwrap();
            }
        }
        std::fs::create_dir(&store).unwrap();
        for (name, bytes) in &beside {
            std::fs::write(store.join(name), bytes).unwrap();
        }
    }
}
