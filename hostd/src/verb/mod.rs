//! What can be asked of hostd, a file each.

mod attach;
mod audit;
mod egress;
mod fork;
mod key;
mod list;
mod login;
mod lost;
mod new;
mod operator;
mod ready;
mod remove;
mod rest;
mod secret;
mod snapshot;
mod upgrade;

use crate::{host::Host, machine::Policy};
use berth_api::{Reply, Request, Session};
use berth_types::{Code, MachineName, Refusal, UserId};
use std::{os::fd::OwnedFd, sync::Arc};
use tokio::sync::{OwnedMutexGuard, mpsc::UnboundedSender};

/// What a request ends with: a reply, and for a stream its descriptor.
pub type Outcome = Result<(Reply, Option<OwnedFd>), Refusal>;

/// Tells whoever waits what is happening.
#[derive(Clone)]
pub struct Progress(UnboundedSender<String>);

impl Progress {
    pub fn new(sender: UnboundedSender<String>) -> Self {
        Self(sender)
    }

    pub fn say(&self, text: impl Into<String>) {
        let _ = self.0.send(text.into());
    }
}

/// What the gateway asks before anyone has logged in.
pub async fn for_gateway(host: &Arc<Host>, request: Request) -> Outcome {
    match request {
        Request::Knows { fingerprint } => plain(Reply::Knows(login::knows(host, &fingerprint))),
        Request::Login { key, address } => {
            let fingerprint = key.fingerprint.clone();
            let answer = login::login(host, key, address).await;
            audit::record_login(host, fingerprint, address, &answer).await;
            answer.and_then(plain)
        }
        Request::LoginFailed { address, fingerprint, reason } => {
            plain(login::failed(host, address, fingerprint, reason).await)
        }
        Request::Ready => plain(ready::ready()?),
        Request::Access { seen } => plain(login::access(host, seen).await),
        Request::Standing { sessions } => plain(login::standing(host, &sessions)),
        _ => Err(not_yours()),
    }
}

/// What a user asks.
pub async fn for_user(host: &Arc<Host>, session: &Session, request: Request, progress: &Progress) -> Outcome {
    let deed = audit::deed(&request);
    let outcome = match host.registry.standing(session) {
        Ok(()) => serve_user(host, session, request, progress).await,
        Err(refusal) => Err(refusal),
    };
    audit::record(host, Some(&session.user), deed, &outcome).await;
    outcome
}

async fn serve_user(host: &Arc<Host>, session: &Session, request: Request, progress: &Progress) -> Outcome {
    let user = &session.user;
    match request {
        Request::Resolve { login } => plain(Reply::Resolved(attach::resolve(host, user, &login))),
        Request::Expect { login } => plain(Reply::Resolved(attach::expect(host, user, &login))),
        Request::Attach { name } => attach::attach(host, user, &name, progress).await,
        Request::AttachDefault => attach::attach_default(host, user, progress).await,
        Request::New { spec } => new::new(host, user, spec, progress).await.and_then(plain),
        Request::List => plain(Reply::Machines(list::list(host, user))),
        Request::Info { name } => list::info(host, user, &name).await.and_then(plain),
        Request::Console { name } => list::console(host, user, &name).await.and_then(plain),
        Request::Remove { names } => remove::remove(host, user, names, progress).await.and_then(plain),
        Request::Sleep { name } => {
            progress.say(format!("putting {name} to sleep"));
            host.fleet.find(user, &name)?.sleep().await?;
            view(host, user, &name)
        }
        Request::Wake { name } => {
            let handle = host.fleet.find(user, &name)?;
            handle.touch();
            progress.say(format!("waking {name}"));
            handle.start().await?;
            view(host, user, &name)
        }
        Request::Schedule { name, schedule } => {
            host.fleet.find(user, &name)?.set(Policy::Schedule(schedule)).await?;
            view(host, user, &name)
        }
        Request::Keepalive { name, span } => rest::keepalive(host, user, &name, span).await.and_then(plain),
        Request::Idle { name, policy } => {
            host.fleet.find(user, &name)?.set(Policy::Idle(policy)).await?;
            rest::why(host, user, &name).await.and_then(plain)
        }
        Request::Why { name } => rest::why(host, user, &name).await.and_then(plain),
        Request::Fork { source, new, count, no_secrets } => {
            fork::fork(host, user, source, new, count, no_secrets, progress).await.and_then(plain)
        }
        Request::Snapshot { name, label } => {
            snapshot::snapshot(host, user, &name, label, progress).await.and_then(plain)
        }
        Request::Snapshots { name } => snapshot::list(host, user, &name).await.and_then(plain),
        Request::SnapshotRemove { name, label } => {
            snapshot::remove(host, user, &name, label).await.and_then(plain)
        }
        Request::Restore { name, point } => {
            progress.say(format!("restoring {name} to {point}"));
            host.fleet.find(user, &name)?.restore(point).await?;
            view(host, user, &name)
        }
        Request::NewFrom { new, name, point, ttl } => {
            snapshot::new_from(host, user, new, &name, point, ttl, progress).await.and_then(plain)
        }
        Request::Stop { name } => {
            progress.say(format!("stopping {name}"));
            host.fleet.find(user, &name)?.stop().await?;
            view(host, user, &name)
        }
        Request::Restart { name } => {
            progress.say(format!("restarting {name}"));
            host.fleet.find(user, &name)?.restart().await?;
            view(host, user, &name)
        }
        Request::Rename { old, new } => {
            host.fleet.find(user, &old)?.rename(new.clone()).await?;
            host.apply(user, |machine| machine.name == new).await;
            view(host, user, &new)
        }
        Request::KeyAdd { key } => key::add(host, session, key).await.and_then(plain),
        Request::KeyList => plain(Reply::Keys(host.registry.keys(user))),
        Request::KeyRemove { fingerprint } => {
            let key = host.registry.remove_key(session, &fingerprint).await?;
            plain(Reply::Key(key))
        }
        Request::Whoami => list::whoami(host, user).and_then(plain),
        Request::SecretSet { name, binding, machine, value } => {
            secret::set(host, session, name, binding, machine, value.0).await.and_then(plain)
        }
        Request::SecretList => plain(Reply::Secrets(secret::list(host, user))),
        Request::SecretRemove { name } => secret::remove(host, session, &name).await.and_then(plain),
        Request::Egress { target, change } => {
            egress::egress(host, session, target, change).await.and_then(plain)
        }
        Request::Audit { machine, since, egress, most } => {
            audit::read(host, Some(user), machine, since, egress, most).await.and_then(plain)
        }
        _ => Err(not_yours()),
    }
}

/// What the operator asks.
pub async fn for_operator(host: &Arc<Host>, request: Request, progress: &Progress) -> Outcome {
    let deed = audit::deed(&request);
    let outcome = serve_operator(host, request, progress).await;
    audit::record(host, None, deed, &outcome).await;
    outcome
}

async fn serve_operator(host: &Arc<Host>, request: Request, progress: &Progress) -> Outcome {
    match request {
        Request::UserAdd { label, key } => operator::user_add(host, &label, key).await.and_then(plain),
        Request::UserList => plain(Reply::Users(operator::users(host))),
        Request::UserRemove { user } => operator::user_remove(host, &user).await.and_then(plain),
        Request::UserLock { user, reason } => operator::user_lock(host, &user, &reason).await.and_then(plain),
        Request::UserUnlock { user } => operator::user_unlock(host, &user).await.and_then(plain),
        Request::Status => operator::status(host).and_then(plain),
        Request::Ready => plain(ready::ready()?),
        Request::LostList => plain(lost::list(host)),
        Request::LostShow { entry } => lost::show(host, &entry).and_then(plain),
        Request::LostRestore { entry, user, name } => {
            lost::restore(host, &entry, &user, name).await.and_then(plain)
        }
        Request::LostRemove { entry } => lost::remove(host, &entry).and_then(plain),
        Request::UpgradeCheck { driver, version } => {
            plain(Reply::Stranded(upgrade::stranded(host, &driver, &version)))
        }
        Request::Audit { machine, since, egress, most } => {
            audit::read(host, None, machine, since, egress, most).await.and_then(plain)
        }
        Request::Rekey => operator::rekey(host, progress).await.and_then(plain),
        Request::Shutdown => operator::shutdown(host, progress).await.and_then(plain),
        _ => Err(not_yours()),
    }
}

/// Waits for the user's turn to change what their machines may reach or use, and checks the
/// login again: its key may have been removed meanwhile.
async fn turn(host: &Host, session: &Session) -> Result<OwnedMutexGuard<()>, Refusal> {
    let turn = host.policies.turn(&session.user).lock_owned().await;
    host.registry.standing(session)?;
    Ok(turn)
}

fn plain(reply: Reply) -> Outcome {
    Ok((reply, None))
}

fn view(host: &Host, user: &UserId, name: &MachineName) -> Outcome {
    plain(Reply::Machine(Box::new(host.fleet.find(user, name)?.view(host))))
}

fn not_yours() -> Refusal {
    Refusal::new(Code::NotAllowed, "that request is not for this caller", "see 'help'")
}
