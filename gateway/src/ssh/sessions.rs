//! The connections that are logged in: how many a user may have, and their end
//! when hostd takes access away.
//!
//! The gateway asks hostd to be told when keys are removed or users locked
//! ([`watch()`]), and then what that means for each connection. A connection that
//! logs in meanwhile is looked at once more: see [`Sessions::round`].

use super::{Gateway, flow::Budget, peer::told};
use berth_api::{Caller, Reply, Request, Session};
use berth_types::{Code, Refusal, UserId};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{Notify, watch};

/// Connections in one question to hostd, far below the size of a message.
const AT_ONCE: usize = 1000;
/// hostd is away, most likely for a restart.
const RETRY: Duration = Duration::from_millis(200);

/// Set when a connection has to end, with the reason.
pub type Ending = Arc<watch::Sender<Option<Refusal>>>;

#[derive(Debug)]
pub struct Sessions {
    per_user: u32,
    queue_per_user: usize,
    table: Mutex<Table>,
    review: Notify,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    round: u64,
    live: HashMap<u64, (Session, Ending)>,
    users: HashMap<UserId, (u32, Arc<Budget>)>,
    /// Users whose last connection has ended, perhaps with bytes still on their way.
    leaving: Vec<UserId>,
}

/// The place of one connection among those of its user; given back when dropped.
#[derive(Debug)]
pub struct Slot {
    sessions: Arc<Sessions>,
    number: u64,
    user: UserId,
    /// Of all connections of the user.
    pub budget: Arc<Budget>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.sessions.table();
        table.live.remove(&self.number);
        if let Some((count, _)) = table.users.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                table.leaving.push(self.user.clone());
            }
        }
    }
}

impl Table {
    /// Forgets users without connections, once nothing of theirs is queued: a new
    /// connection must not begin with a new budget while the old one is in use.
    fn forget(&mut self) {
        let Self { users, leaving, .. } = self;
        leaving.retain(|user| match users.get(user) {
            Some((0, budget)) if Arc::strong_count(budget) > 1 => true,
            Some((0, _)) => users.remove(user).is_none(),
            _ => false,
        });
    }
}

impl Sessions {
    pub fn new(per_user: u32, queue_per_user: usize) -> Self {
        Self { per_user, queue_per_user, table: Mutex::default(), review: Notify::new() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the reviews of all connections. A login that hostd answered before
    /// one and that entered after it was not looked at.
    pub fn round(&self) -> u64 {
        self.table().round
    }

    /// A place for a connection whose login began in `round`.
    pub fn enter(self: &Arc<Self>, session: Session, ending: Ending, round: u64) -> Result<Slot, Refusal> {
        let mut table = self.table();
        table.forget();
        let (count, budget) = table
            .users
            .entry(session.user.clone())
            .or_insert_with(|| (0, Arc::new(Budget::new(self.queue_per_user))));
        if *count >= self.per_user {
            let message = format!("you have {count} connections, the most there may be");
            return Err(Refusal::new(
                Code::Limit,
                message,
                "close one, or share one with ssh's ControlMaster",
            ));
        }
        *count += 1;
        let budget = Arc::clone(budget);
        let number = table.next;
        table.next += 1;
        let user = session.user.clone();
        table.live.insert(number, (session, ending));
        if table.round != round {
            self.review.notify_one();
        }
        Ok(Slot { sessions: Arc::clone(self), number, user, budget })
    }

    fn begin_round(&self) -> Vec<(Session, Ending)> {
        let mut table = self.table();
        table.round += 1;
        table.live.values().cloned().collect()
    }
}

/// Ends connections whose keys are removed or whose users are locked, for as
/// long as the gateway runs.
pub async fn watch(gateway: Arc<Gateway>) {
    let mut seen = None;
    loop {
        let now = tokio::select! {
            answer = ask(&gateway, Request::Access { seen }) => match answer {
                Ok(Reply::Access(version)) => Some(version),
                _ => {
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            },
            () = gateway.sessions.review.notified() => None,
        };
        if now.is_some() && now == seen {
            continue;
        }
        match review(&gateway).await {
            Ok(()) => seen = now.or(seen),
            Err(_) => {
                // hostd went away in between: everything is looked at when it is back.
                seen = None;
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn review(gateway: &Gateway) -> Result<(), Refusal> {
    let live = gateway.sessions.begin_round();
    for part in live.chunks(AT_ONCE) {
        let sessions = part.iter().map(|(session, _)| session.clone()).collect();
        let Reply::Standing(answers) = ask(gateway, Request::Standing { sessions }).await? else {
            return Err(crate::command::unexpected());
        };
        for ((session, ending), answer) in part.iter().zip(answers) {
            if let Some(refusal) = answer {
                tracing::info!(user = %session.user, key = session.key, %refusal, "a connection is ended");
                ending.send_replace(Some(refusal));
            }
        }
    }
    Ok(())
}

async fn ask(gateway: &Gateway, request: Request) -> Result<Reply, Refusal> {
    gateway.api.call(Caller::Gateway, request).await.map(|(reply, _)| reply).map_err(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(user: &UserId) -> Session {
        Session { user: user.clone(), key: "SHA256:x".into(), address: [192, 0, 2, 1].into() }
    }

    #[test]
    fn a_user_has_so_many_connections_and_others_have_theirs() {
        let sessions = Arc::new(Sessions::new(2, 1 << 20));
        let (ann, bob) = (UserId::random(), UserId::random());
        let enter = |user| sessions.enter(session(user), Arc::new(watch::channel(None).0), 0);
        let first = enter(&ann).unwrap();
        let _second = enter(&ann).unwrap();
        let refusal = enter(&ann).unwrap_err();
        assert_eq!(refusal.code, Code::Limit, "{refusal}");
        let third = enter(&bob).unwrap();
        drop(first);
        let _fourth = enter(&ann).unwrap();
        drop(third);
        let mut table = sessions.table();
        table.forget();
        assert_eq!((table.users.len(), table.live.len()), (1, 2));
    }

    #[test]
    fn a_budget_stays_while_bytes_of_an_ended_connection_are_queued() {
        let sessions = Arc::new(Sessions::new(2, 1 << 20));
        let ann = UserId::random();
        let enter = || sessions.enter(session(&ann), Arc::new(watch::channel(None).0), 0).unwrap();
        let slot = enter();
        let queued = Arc::clone(&slot.budget);
        drop(slot);
        let again = enter();
        assert!(Arc::ptr_eq(&queued, &again.budget));
        drop((queued, again));
        sessions.table().forget();
        assert!(sessions.table().users.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_that_a_review_missed_is_reviewed() {
        let sessions = Arc::new(Sessions::new(2, 1 << 20));
        let round = sessions.round();
        let _in_time =
            sessions.enter(session(&UserId::random()), Arc::new(watch::channel(None).0), round).unwrap();
        let reviewed = tokio::time::timeout(Duration::from_secs(1), sessions.review.notified()).await;
        assert!(reviewed.is_err(), "for nothing");
        assert_eq!(sessions.begin_round().len(), 1);
        let _late =
            sessions.enter(session(&UserId::random()), Arc::new(watch::channel(None).0), round).unwrap();
        sessions.review.notified().await;
    }
}
