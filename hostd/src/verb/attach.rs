//! A stream to a machine's guest. Brings the machine up first if need be.

use super::{Outcome, Progress, new};
use crate::{host::Host, machine::Handle};
use berth_api::{Reply, Resolved};
use berth_types::{Code, DEFAULT_MACHINE, MachineName, MachineSpec, Refusal, State, UserId};
use std::{sync::Arc, time::Duration};

/// How long a guest that is up may take to accept a stream.
const CONNECT: Duration = Duration::from_secs(10);

/// Which machine a login name means. An id is no name: it says nothing here.
pub fn resolve(host: &Host, user: &UserId, login: &str) -> Resolved {
    match login.parse::<MachineName>() {
        Ok(name) if host.fleet.get(user, &name).is_some() => Resolved::Machine(name),
        _ => {
            let mut names = host.fleet.names(user).into_iter();
            Resolved::Lobby { similar: names.find(|name| nearly(name.as_str(), login)) }
        }
    }
}

/// Resolves, and gets a machine at rest out of it. Whether that succeeds is for
/// the stream that will be asked for next, which finds it done or under way.
pub fn expect(host: &Host, user: &UserId, login: &str) -> Resolved {
    let resolved = resolve(host, user, login);
    if let Resolved::Machine(name) = &resolved
        && let Some(handle) = host.fleet.get(user, name)
        && matches!(handle.record().state, State::Asleep | State::Paused)
    {
        handle.touch();
        tokio::spawn(async move {
            if let Err(refusal) = handle.start().await {
                tracing::debug!(%refusal, "an expected machine did not wake");
            }
        });
    }
    resolved
}

pub async fn attach(host: &Arc<Host>, user: &UserId, name: &MachineName, progress: &Progress) -> Outcome {
    let handle = host.fleet.find(user, name)?;
    stream(&handle, false, progress).await
}

pub async fn attach_default(host: &Arc<Host>, user: &UserId, progress: &Progress) -> Outcome {
    let name: MachineName = DEFAULT_MACHINE
        .parse()
        .map_err(|error| Refusal::new(Code::Failed, format!("{error}"), "name a machine before the @"))?;
    let mut made = false;
    let handle = loop {
        if let Some(handle) = host.fleet.get(user, &name) {
            break handle;
        }
        let spec = MachineSpec {
            name: name.clone(),
            image: None,
            cpus: None,
            memory: None,
            disk: None,
            labels: Default::default(),
            ttl: None,
        };
        match new::make(host, user, spec).await {
            Ok(handle) => {
                made = true;
                break handle;
            }
            // Ten first logins at once: one makes it, the others wait for it.
            Err(refusal) if refusal.code == Code::Conflict && host.fleet.is_taken(user, &name) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(refusal) => return Err(refusal),
        }
    };
    stream(&handle, made, progress).await
}

async fn stream(handle: &Handle, made: bool, progress: &Progress) -> Outcome {
    handle.touch();
    let name = handle.record().name.clone();
    let link = match handle.link() {
        Some(link) => link,
        None => {
            let record = handle.record();
            if let (State::Failed, Some(failure)) = (record.state, &record.failure) {
                progress.say(format!("{name} failed: {}", failure.reason));
            }
            // Its memory is there, even if somebody else has begun to wake it.
            let rests = record.sleeps_in.is_some() || record.state == State::Paused;
            progress.say(format!("{} {name}", if rests { "waking" } else { "starting" }));
            handle.start().await?;
            handle.link().ok_or_else(|| went_down(&name))?
        }
    };
    match link.dial(CONNECT).await.and_then(|stream| stream.into_std()) {
        Ok(stream) => Ok((Reply::Attached { name, made }, Some(stream.into()))),
        Err(error) => {
            tracing::warn!(machine = %handle.id(), %error, "a guest that is up does not accept streams");
            Err(went_down(&name))
        }
    }
}

fn went_down(name: &MachineName) -> Refusal {
    let hint = format!("see why with 'info {name}', or try 'restart {name}'");
    Refusal::new(Code::Failed, format!("'{name}' does not answer"), hint)
}

/// One letter off: swapped, missing, extra or wrong.
fn nearly(name: &str, login: &str) -> bool {
    let (name, login) = (name.as_bytes(), login.as_bytes());
    let same = name.iter().zip(login).take_while(|(one, two)| one == two).count();
    let rest = |bytes: &[u8], skip: usize| bytes.get(same + skip..).map(<[u8]>::to_vec);
    let wrong = rest(name, 1).is_some() && rest(name, 1) == rest(login, 1);
    let missing = rest(name, 1).is_some() && rest(name, 1) == rest(login, 0);
    let extra = rest(login, 1).is_some() && rest(name, 0) == rest(login, 1);
    let swapped = match (name.get(same..same + 2), login.get(same..same + 2)) {
        (Some([a, b]), Some([c, d])) => a == d && b == c && rest(name, 2) == rest(login, 2),
        _ => false,
    };
    name.len() > 2 && (wrong || missing || extra || swapped)
}

#[cfg(test)]
mod tests {
    use super::nearly;

    #[test]
    fn a_slip_of_the_finger_is_near_and_another_word_is_not() {
        for login in ["deev", "de", "dve", "dew", "devv", "ddev"] {
            assert!(nearly("dev", login), "{login}");
        }
        for login in ["root", "alice", "d", "", "prod"] {
            assert!(!nearly("dev", login), "{login}");
        }
    }
}
