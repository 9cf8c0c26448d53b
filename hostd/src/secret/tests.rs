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
        Vault::open(None, store, &self.0.join("secrets")).await.unwrap()
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
    let sealed = Sealed::seal(&vault.key, &meta, &value("sk-secret-one")).unwrap();
    assert!(sealed.open(&vault.key).is_some());
    for (from, to) in
        [("api.example.com", "api.evil.example"), ("\"a\"", "\"b\""), (ann.as_str(), "abcdefghijkl")]
    {
        let moved = Sealed { meta: sealed.meta.replace(from, to), ..sealed.clone() };
        assert_ne!(moved.meta, sealed.meta);
        assert!(moved.open(&vault.key).is_none(), "{to}");
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
