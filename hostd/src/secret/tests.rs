//! Secrets at rest.

use super::*;
use berth_types::{ByteSize, Size, egress::Projection};

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Scratch {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("berth-vault-{}", UserId::random())))
    }

    async fn open(&self) -> Vault {
        let store = Store::open(&self.0.join("store")).unwrap();
        let lost = Lost::new(&self.0, &self.0);
        Vault::open(None, store, &self.0.join("secrets"), &lost).await.unwrap()
    }
}

fn binding() -> Binding {
    Binding::new(vec!["api.example.com".parse().unwrap()], vec![Projection::Placeholder]).unwrap()
}

fn value(text: &str) -> SecretValue {
    SecretValue::new(text.as_bytes().to_vec()).unwrap()
}

fn name(text: &str) -> SecretName {
    text.parse().unwrap()
}

fn machine(owner: &UserId) -> Machine {
    let size = Size { cpus: 1, memory: ByteSize::mib(128), disk: ByteSize::mib(1) };
    Machine::new(owner.clone(), "dev".parse().unwrap(), "debian".into(), size)
}

/// Every byte of every file below a directory.
fn everything(directory: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        if entry.path().is_dir() {
            all.extend(everything(&entry.path()));
        } else {
            all.extend(std::fs::read(entry.path()).unwrap());
        }
    }
    all
}

#[tokio::test]
async fn a_value_is_on_no_disk_and_opens_again() {
    let scratch = Scratch::new();
    let ann = UserId::random();
    let vault = scratch.open().await;
    let first = vault.set(&ann, name("openai"), binding(), None, value("sk-first-secret")).await.unwrap();
    let second = vault.set(&ann, name("openai"), binding(), None, value("sk-second-secret")).await.unwrap();
    assert_eq!(first.placeholder, second.placeholder, "what machines have of it goes on to work");
    drop(vault);
    let files = everything(&scratch.0);
    for text in ["sk-first", "sk-second"] {
        assert!(!files.windows(text.len()).any(|window| window == text.as_bytes()), "{text} is on disk");
    }
    let vault = scratch.open().await;
    let read = vault.of(&ann);
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].value.as_ref().unwrap().expose(), b"sk-second-secret");
    assert!(!format!("{:?}", read[0]).contains("second"));
    vault.remove(&ann, &name("openai")).await.unwrap();
    assert!(vault.of(&ann).is_empty());
    assert!(vault.remove(&ann, &name("openai")).await.is_err());
}

#[tokio::test]
async fn a_lost_store_is_rebuilt_and_a_lost_key_opens_nothing() {
    let scratch = Scratch::new();
    let ann = UserId::random();
    scratch.open().await.set(&ann, name("a"), binding(), None, value("sk-secret-one")).await.unwrap();
    std::fs::remove_dir_all(scratch.0.join("store")).unwrap();
    assert!(scratch.open().await.of(&ann)[0].value.is_some());
    std::fs::remove_file(scratch.0.join("secrets/master.key")).unwrap();
    assert!(scratch.open().await.of(&ann)[0].value.is_none());
}

#[tokio::test]
async fn a_record_that_was_pointed_elsewhere_does_not_open() {
    let scratch = Scratch::new();
    let ann = UserId::random();
    let vault = scratch.open().await;
    let meta = vault.set(&ann, name("a"), binding(), None, value("sk-secret-one")).await.unwrap();
    let sealed = Sealed::seal(&vault.key().current, &meta, &value("sk-secret-one")).unwrap();
    assert!(sealed.open(&vault.key().current).is_some());
    for (from, to) in
        [("api.example.com", "api.evil.example"), ("\"a\"", "\"b\""), (ann.as_str(), "abcdefghijkl")]
    {
        let moved = Sealed { meta: sealed.meta.replace(from, to), ..sealed.clone() };
        assert_ne!(moved.meta, sealed.meta);
        assert!(moved.open(&vault.key().current).is_none(), "{to}");
    }
}

#[tokio::test]
async fn who_has_which_secret() {
    let scratch = Scratch::new();
    let (ann, bob) = (UserId::random(), UserId::random());
    let vault = scratch.open().await;
    let (dev, other, theirs) = (machine(&ann), machine(&ann), machine(&bob));
    let fork = Machine { lineage: vec![dev.id.clone()], ..machine(&ann) };
    let cut = Machine { no_secrets: true, ..fork.clone() };
    vault.set(&ann, name("all"), binding(), None, value("sk-secret-all")).await.unwrap();
    vault.set(&ann, name("only"), binding(), Some(dev.id.clone()), value("sk-secret-dev")).await.unwrap();
    let names = |machine: &Machine| -> Vec<String> {
        vault.for_machine(machine).iter().map(|secret| secret.meta.name.to_string()).collect()
    };
    assert_eq!(names(&dev), ["all", "only"]);
    assert_eq!(names(&fork), ["all", "only"]);
    assert_eq!(names(&other), ["all"]);
    assert_eq!(names(&cut), [""; 0]);
    assert_eq!(names(&theirs), [""; 0]);
    vault.forget(&ann, |meta| meta.machine.as_ref() == Some(&dev.id)).await.unwrap();
    assert_eq!(names(&dev), ["all"]);
}

#[tokio::test]
async fn another_master_key_opens_all_and_the_old_one_nothing() {
    let scratch = Scratch::new();
    let (ann, bob) = (UserId::random(), UserId::random());
    let vault = scratch.open().await;
    vault.set(&ann, name("a"), binding(), None, value("sk-secret-one")).await.unwrap();
    vault.set(&bob, name("b"), binding(), None, value("sk-secret-two")).await.unwrap();
    let old = vault.key().current.clone();
    assert_eq!(vault.rekey().await.unwrap(), 2);
    vault.set(&ann, name("c"), binding(), None, value("sk-secret-three")).await.unwrap();
    check_rekeyed(&vault, &old, 3);
    drop(vault);
    check_rekeyed(&scratch.open().await, &old, 3);
    // What was sealed anew is in the mirrors, too.
    std::fs::remove_dir_all(scratch.0.join("store")).unwrap();
    check_rekeyed(&scratch.open().await, &old, 3);
}

fn check_rekeyed(vault: &Vault, old: &crate::keyfile::Key, count: usize) {
    let sealed = vault.store.secrets().unwrap();
    assert_eq!(sealed.len(), count);
    assert!(sealed.iter().all(|one| one.open(old).is_none() && one.open(&vault.key().current).is_some()));
    assert!(vault.known().values().all(|secret| secret.value.is_some()));
    for left in ["master.old", "master.next"] {
        assert!(!vault.mirrors.join(left).exists(), "{left}");
    }
}

#[tokio::test]
async fn a_given_key_is_rotated_by_giving_another() {
    let scratch = Scratch::new();
    let ann = UserId::random();
    let open = async |current: [u8; 32], old: Option<[u8; 32]>| {
        let store = Store::open(&scratch.0.join("store")).unwrap();
        let key = zeroize::Zeroizing::new;
        let key = MasterKey { current: key(current), old: old.map(key), given: true };
        let lost = Lost::new(&scratch.0, &scratch.0);
        Vault::open(Some(key), store, &scratch.0.join("secrets"), &lost).await.unwrap()
    };
    let vault = open([1; 32], None).await;
    vault.set(&ann, name("a"), binding(), None, value("sk-secret-one")).await.unwrap();
    assert!(vault.rekey().await.is_err(), "it is not ours to make");
    drop(vault);
    drop(open([2; 32], Some([1; 32])).await);
    assert!(open([2; 32], None).await.of(&ann)[0].value.is_some());
    assert!(open([1; 32], None).await.of(&ann)[0].value.is_none());
}

const CHILD: &str = "BERTH_TEST_REKEY";

/// Not a test of its own: what the next one starts, and what dies in it.
#[tokio::test]
async fn rekey_in_a_child() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let scratch = std::mem::ManuallyDrop::new(Scratch(directory.into()));
    scratch.open().await.rekey().await.unwrap();
}

#[tokio::test]
async fn a_new_key_that_is_cut_off_anywhere_is_undone_or_finished() {
    for point in crate::fault::KEY_POINTS {
        let scratch = Scratch::new();
        let (ann, bob) = (UserId::random(), UserId::random());
        let vault = scratch.open().await;
        for (user, text) in [(&ann, "one"), (&ann, "two"), (&bob, "three")] {
            vault.set(user, name(text), binding(), None, value(&format!("sk-secret-{text}"))).await.unwrap();
        }
        let old = vault.key().current.clone();
        drop(vault);
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "secret::tests::rekey_in_a_child"])
            .env(CHILD, &scratch.0)
            .env("BERTH_FAULT", point)
            .output()
            .unwrap();
        let killed = std::os::unix::process::ExitStatusExt::signal(&child.status);
        assert_eq!(killed, Some(9), "{point}: {child:?}");
        let vault = scratch.open().await;
        if *vault.key().current == *old {
            assert!(["rekey.made", "rekey.kept"].contains(point), "{point} was undone");
            assert!(vault.known().values().all(|secret| secret.value.is_some()), "{point}");
            assert_eq!(vault.rekey().await.unwrap(), 3, "{point}");
        }
        check_rekeyed(&vault, &old, 3);
        assert_eq!(vault.of(&bob)[0].value.as_ref().unwrap().expose(), b"sk-secret-three", "{point}");
    }
}
