//! Taking access away, and what a gateway cannot have.

use super::{Scratch, World, key};
use crate::{egress::Scope, verb};
use berth_api::{EgressChange, EgressTarget, Reply, Request, Session};
use berth_types::{AuditEvent, Code, Refusal, SshKey, egress::EgressMode};
use std::net::IpAddr;

const ADDRESS: [u8; 4] = [192, 0, 2, 9];

fn nth_key(seed: u8) -> SshKey {
    key(&format!("key {seed}"))
}

async fn as_gateway(world: &World, request: Request) -> Result<Reply, Refusal> {
    verb::for_gateway(&world.host, request).await.map(|(reply, _)| reply)
}

async fn log_in(world: &World, key: &SshKey) -> Result<Reply, Refusal> {
    as_gateway(world, Request::Login { key: key.clone(), address: ADDRESS.into() }).await
}

async fn call(world: &World, session: &Session, request: Request) -> Result<Reply, Refusal> {
    let progress = verb::Progress::new(tokio::sync::mpsc::unbounded_channel().0);
    verb::for_user(&world.host, session, request, &progress).await.map(|(reply, _)| reply)
}

async fn standing(world: &World, session: &Session) -> Option<Refusal> {
    match as_gateway(world, Request::Standing { sessions: vec![session.clone()] }).await {
        Ok(Reply::Standing(mut answers)) => answers.remove(0),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_key_may_ask_for_nothing_more() {
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let second = nth_key(1);
    world.ask(Request::KeyAdd { key: second.clone() }).await.unwrap();
    let thief = Session { key: second.fingerprint.clone(), ..world.session() };
    call(&world, &thief, Request::Whoami).await.unwrap();
    assert_eq!(standing(&world, &thief).await, None);
    let seen = *world.host.registry.access().borrow();

    world.ask(Request::KeyRemove { fingerprint: second.fingerprint.clone() }).await.unwrap();
    let Ok(Reply::Access(version)) = as_gateway(&world, Request::Access { seen: Some(seen) }).await else {
        panic!("no answer")
    };
    assert_ne!(version, seen, "the gateway is told");
    for request in [Request::Whoami, Request::KeyAdd { key: nth_key(2) }, Request::AttachDefault] {
        let refusal = call(&world, &thief, request).await.unwrap_err();
        assert_eq!((refusal.code, refusal.message.contains("key")), (Code::NotAllowed, true), "{refusal}");
    }
    assert!(standing(&world, &thief).await.is_some());
    assert_eq!(standing(&world, &world.session()).await, None, "the owner's own connection");
    world.ask(Request::Whoami).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_removed_while_its_request_waits_changes_nothing() {
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let stolen = nth_key(1);
    world.ask(Request::KeyAdd { key: stolen.clone() }).await.unwrap();
    world.ask(super::egress::set("kept", None)).await.unwrap();
    let thief = Session { key: stolen.fingerprint.clone(), ..world.session() };
    let egress =
        Request::Egress { target: EgressTarget::All, change: Some(EgressChange::Mode(EgressMode::Open)) };
    let remove = Request::SecretRemove { name: "kept".parse().unwrap() };

    // Each call passes the first check and waits for the user's turn.
    let held = world.host.policies.turn(&world.user).lock_owned().await;
    let (opened, set, removed, ()) = tokio::join!(
        call(&world, &thief, egress),
        call(&world, &thief, super::egress::set("planted", None)),
        call(&world, &thief, remove),
        async {
            world.ask(Request::KeyRemove { fingerprint: stolen.fingerprint.clone() }).await.unwrap();
            drop(held);
        }
    );
    for refused in [opened, set, removed] {
        assert_eq!(refused.unwrap_err().code, Code::NotAllowed);
    }
    assert_eq!(world.host.policies.get(&world.user, &Scope::User), None);
    let names: Vec<String> =
        world.host.vault.of(&world.user).iter().map(|secret| secret.meta.name.to_string()).collect();
    assert_eq!(names, ["kept"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_user_is_no_way_in() {
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    world.host.registry.register("bob", key("bob")).await.unwrap();
    for fingerprint in [key("bob").fingerprint.as_str(), "SHA256:nobody", ""] {
        let session = Session { key: fingerprint.into(), ..world.session() };
        assert!(call(&world, &session, Request::KeyAdd { key: nth_key(3) }).await.is_err(), "{fingerprint}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_user_is_refused_with_the_reason_until_unlocked() {
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let own = nth_key(4);
    world.ask(Request::KeyAdd { key: own.clone() }).await.unwrap();
    let user = world.user.clone();
    let seen = *world.host.registry.access().borrow();
    world.operate(Request::UserLock { user: user.clone(), reason: "stolen laptop".into() }).await.unwrap();
    assert_ne!(*world.host.registry.access().borrow(), seen);
    let refusal = world.ask(Request::Whoami).await.unwrap_err();
    assert!(refusal.message.contains("locked (stolen laptop)"), "{refusal}");
    let Ok(Reply::Barred(refusal)) = log_in(&world, &own).await else { panic!("not barred") };
    assert!(refusal.message.contains("stolen laptop"));

    // It is kept.
    drop(world);
    let world = World::open(&scratch).await;
    assert!(world.ask(Request::Whoami).await.is_err(), "a restart unlocked it");
    world.operate(Request::UserUnlock { user }).await.unwrap();
    world.ask(Request::Whoami).await.unwrap();
    assert!(matches!(log_in(&world, &own).await, Ok(Reply::LoggedIn { .. })));
    world
        .operate(Request::UserLock { user: berth_types::UserId::random(), reason: String::new() })
        .await
        .unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_is_told_once_of_a_key_that_another_key_added() {
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let (laptop, desk, planted) = (nth_key(5), nth_key(6), nth_key(7));
    for key in [&laptop, &desk] {
        world.ask(Request::KeyAdd { key: key.clone() }).await.unwrap();
    }
    for key in [&laptop, &desk] {
        log_in(&world, key).await.unwrap();
    }
    let thief = Session { key: desk.fingerprint.clone(), address: ADDRESS.into(), ..world.session() };
    call(&world, &thief, Request::KeyAdd { key: planted.clone() }).await.unwrap();
    let Ok(Reply::LoggedIn { notices, .. }) = log_in(&world, &laptop).await else { panic!("no login") };
    let [notice] = notices.as_slice() else { panic!("{notices:?}") };
    assert_eq!((&notice.fingerprint, notice.from), (&planted.fingerprint, Some(IpAddr::from(ADDRESS))));
    for key in [&laptop, &desk] {
        let Ok(Reply::LoggedIn { notices, .. }) = log_in(&world, key).await else { panic!("no login") };
        assert_eq!(notices, [], "told already, or its own doing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_cannot_register_what_is_no_key() {
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let mut lying = nth_key(8);
    lying.fingerprint = nth_key(9).fingerprint;
    assert!(log_in(&world, &lying).await.is_err());
    assert!(world.ask(Request::KeyAdd { key: lying }).await.is_err());
    let bare = SshKey { public: "ssh-ed25519 mallory".into(), ..key("ann") };
    assert!(log_in(&world, &bare).await.is_err(), "a fingerprint without its key");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_registration_has_limits_that_are_told_and_audited() {
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let most = u8::try_from(world.host.config.gateway.registration_per_address).unwrap();
    for seed in 0..most {
        log_in(&world, &nth_key(seed)).await.unwrap();
    }
    let before = world.host.registry.users().len();
    let refusal = log_in(&world, &nth_key(most)).await.unwrap_err();
    assert_eq!(refusal.code, Code::Limit, "{refusal}");
    assert!(refusal.message.contains("from your address") && !refusal.hint.is_empty());
    assert_eq!(world.host.registry.users().len(), before);
    log_in(&world, &nth_key(0)).await.expect("a user that is there already");

    let failed =
        Request::LoginFailed { address: ADDRESS.into(), fingerprint: None, reason: "too slow".into() };
    as_gateway(&world, failed).await.unwrap();
    let Ok(Reply::Audit(entries)) =
        world.operate(Request::Audit { machine: None, since: None, egress: false, most: 100 }).await
    else {
        panic!("no entries")
    };
    let refused: Vec<&String> = entries
        .iter()
        .filter_map(|entry| match &entry.event {
            AuditEvent::Refused { address: Some(address), reason, .. } => {
                assert_eq!(*address, IpAddr::from(ADDRESS));
                Some(reason)
            }
            _ => None,
        })
        .collect();
    assert!(refused.iter().any(|reason| reason.contains("from your address")), "{refused:?}");
    assert!(refused.iter().any(|reason| *reason == "too slow"), "{refused:?}");
    assert!(entries.iter().any(|entry| matches!(entry.event, AuditEvent::Login { address: Some(_), .. })));
}
