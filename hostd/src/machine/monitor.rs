//! The monitor of a machine that runs: is the guest still there, and does it
//! do anything?

use crate::{
    guest::{Control, describe},
    host::Host,
    net::Link,
};
use berth_guest_client::GuestError;
use berth_guest_protocol::Vitals;
use berth_hypervisor::Vm;
use berth_types::{Activity, MachineId};
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Mutex, Notify, OwnedMutexGuard, watch},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

/// How often the host's own figures are looked at.
const EVERY: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 2_000 });
/// A guest that does nothing is asked less and less often, for to answer is work:
/// it dirties memory, which the host then writes to the pool.
const SELDOM: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 180_000 });
/// How long an answer may take before the guest is frozen without it.
const ANSWER: Duration = Duration::from_secs(2);
/// Which part of the time that it has been idle may pass unasked.
const UNASKED: u32 = 4;
/// A job in the foreground of a terminal counts for this long after it last
/// used CPU or moved bytes.
const JOB: Duration = Duration::from_secs(3_600);

pub struct Monitor {
    task: JoinHandle<()>,
    control: Line,
    activity: ActivityReader,
    lost: watch::Receiver<Option<String>>,
}

/// What the monitor saw last. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ActivityReader {
    seen: watch::Receiver<Seen>,
    calls: Arc<Calls>,
}

/// Calls for the guest to be asked at once.
#[derive(Debug, Default)]
struct Calls {
    /// How many there were.
    count: AtomicU64,
    ask_now: Notify,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    activity: Activity,
    /// How many calls there had been when the guest was asked.
    calls: u64,
}

impl ActivityReader {
    pub fn last(&self) -> Activity {
        self.seen.borrow().activity.clone()
    }

    /// As the guest says when it is asked after this call began. If it does not answer soon,
    /// as it was seen last.
    pub async fn fresh(&self) -> Activity {
        let mut seen = self.seen.clone();
        let call = self.calls.count.fetch_add(1, Ordering::SeqCst) + 1;
        self.calls.ask_now.notify_one();
        let _ = timeout(ANSWER, seen.wait_for(|seen| seen.calls >= call)).await;
        self.last()
    }
}

/// The connection that a guest is asked over, while there is one.
type Line = Arc<Mutex<Option<Control>>>;

/// That connection, kept from the monitor.
pub type Hushed = OwnedMutexGuard<Option<Control>>;

/// A machine, as far as its monitor has to know it.
pub struct Watched {
    pub id: MachineId,
    pub vm: Arc<dyn Vm>,
    pub link: Link,
    /// Changes when somebody connects.
    pub last_used: Arc<AtomicI64>,
}

/// One look at the monitor's news.
pub struct News {
    activity: watch::Receiver<Seen>,
    lost: watch::Receiver<Option<String>>,
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Monitor {
    pub fn start(host: Arc<Host>, watched: Watched, control: Control) -> Self {
        let (sender, seen) = watch::channel(Seen::default());
        let calls = Arc::<Calls>::default();
        let activity = ActivityReader { seen, calls: calls.clone() };
        let (gone, lost) = watch::channel(None);
        let control = Line::new(Mutex::new(Some(control)));
        let asking = control.clone();
        let task = tokio::spawn(async move {
            let reason = watch(&host, watched, &asking, (sender, &calls)).await;
            gone.send_replace(Some(reason));
            // Whoever waits must not take the end of this task for another.
            std::future::pending::<()>().await;
        });
        Self { task, control, activity, lost }
    }

    /// Has it ask nothing while what is returned is kept: a guest that is about to stand
    /// still would not hear the question, and the host's kernel would repeat it. A question
    /// that is under way is waited for, but not for long.
    pub async fn hush(&self) -> Option<Hushed> {
        timeout(ANSWER, self.control.clone().lock_owned()).await.ok()
    }

    /// One that it may use from now on, if it has none.
    pub fn give_control(&self, control: Control) {
        if let Ok(mut held) = self.control.try_lock() {
            held.get_or_insert(control);
        }
    }

    pub fn activity(&self) -> ActivityReader {
        self.activity.clone()
    }

    pub fn watch(&self) -> News {
        let mut activity = self.activity.seen.clone();
        activity.mark_unchanged();
        News { activity, lost: self.lost.clone() }
    }
}

impl News {
    /// Returns when it was seen once more, or with the reason why it is lost.
    pub async fn next(&mut self) -> Result<(), String> {
        tokio::select! {
            // The guard must not live on into the next wait.
            lost = async { self.lost.wait_for(Option::is_some).await.ok().and_then(|lost| lost.clone()) } => {
                Err(lost.unwrap_or_default())
            }
            // It fails when the monitor has ended: then the reason is on its way.
            Ok(()) = self.activity.changed() => Ok(()),
        }
    }
}

/// Looks now and then. Returns only when the guest counts as lost.
///
/// A guest on a busy host may be slow, and its connection may break without
/// harm, so only silence for the whole of the configured time counts. Garbage
/// counts at once: whatever speaks there is not guest-init any more.
async fn watch(
    host: &Host,
    Watched { id, vm, link, last_used }: Watched,
    control: &Mutex<Option<Control>>,
    (seen, calls): (watch::Sender<Seen>, &Calls),
) -> String {
    let patience = host.config.machine.silence_timeout.duration();
    let mut tracker = Tracker::new(f64::from(host.config.idle.cpu_percent), vm.cpu_time());
    let (mut asked, mut used, mut next) = (Instant::now(), 0, Instant::now() + EVERY);
    loop {
        // Not cancelled by being asked: CPU use is judged over whole periods.
        let by_request = timeout_at(next, calls.ask_now.notified()).await.is_ok();
        let now = Instant::now();
        if now >= next {
            next = now + EVERY;
            tracker.work(vm.cpu_time(), now);
        }
        let before = std::mem::replace(&mut used, last_used.load(Ordering::Relaxed));
        if !by_request && before == used && asked.elapsed() < (tracker.idle() / UNASKED).min(SELDOM) {
            // For whoever wants to know. What is to be done is decided on fresh answers.
            seen.send_if_modified(|seen| {
                seen.activity = tracker.activity();
                false
            });
            continue;
        }
        asked = now;
        let mut control = control.lock().await;
        // A capture may have kept the line for long, which is not the guest's silence.
        let deadline = Instant::now() + patience;
        let called = calls.count.load(Ordering::SeqCst);
        let vitals = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let asked = match &mut *control {
                Some(control) => control.vitals(left).await,
                None => Err(GuestError::Io(std::io::ErrorKind::NotConnected.into())),
            };
            match asked {
                Ok(vitals) => break vitals,
                Err(GuestError::Silent) => return silent(patience),
                Err(error) if !error.is_broken() => return describe(&error),
                Err(_) => match timeout_at(deadline, Control::when_up(&link)).await {
                    Ok(Ok(fresh)) => *control = Some(fresh),
                    Ok(Err(error)) => return describe(&error),
                    Err(_) => return silent(patience),
                },
            }
        };
        drop(control);
        // What the bridge moves for it counts as what it moves itself.
        let vitals = Vitals { moved: vitals.moved.wrapping_add(host.proxied(&id)), ..vitals };
        tracker.see(vitals, now);
        seen.send_replace(Seen { activity: tracker.activity(), calls: called });
    }
}

fn silent(patience: Duration) -> String {
    format!("the guest has not answered for {} s", patience.as_secs())
}

/// Turns samples into how long nothing has spoken against resting.
struct Tracker {
    threshold: f64,
    cpu: u64,
    percent: f64,
    /// As the guest said when it was asked last.
    vitals: Vitals,
    at: Instant,
    last_moved: Instant,
    last_worked: Instant,
    last_active: Instant,
}

impl Tracker {
    fn new(threshold: f64, cpu: u64) -> Self {
        let (now, vitals) = (Instant::now(), Vitals::default());
        Self {
            threshold,
            cpu,
            percent: 0.0,
            vitals,
            at: now,
            last_moved: now,
            last_worked: now,
            last_active: now,
        }
    }

    /// What the host sees by itself: its CPU time.
    fn work(&mut self, cpu: u64, now: Instant) {
        let wall = now.duration_since(self.at).as_nanos().max(1) as f64;
        self.percent = cpu.saturating_sub(self.cpu) as f64 / wall * 100.0;
        if self.percent >= self.threshold {
            self.last_worked = now;
            self.last_active = now;
        }
        (self.cpu, self.at) = (cpu, now);
    }

    /// What the guest says when it is asked at that moment.
    fn see(&mut self, vitals: Vitals, now: Instant) {
        if vitals.moved != self.vitals.moved {
            self.last_moved = now;
            self.last_worked = now;
            self.last_active = now;
        }
        let job = vitals.busy_terminals > 0 && now.duration_since(self.last_worked) < JOB;
        if vitals.commands > 0 || job {
            self.last_active = now;
        }
        self.vitals = vitals;
    }

    fn idle(&self) -> Duration {
        self.at.duration_since(self.last_active)
    }

    fn activity(&self) -> Activity {
        let since = |then| u64::try_from(self.at.duration_since(then).as_millis()).unwrap_or(u64::MAX);
        Activity {
            commands: self.vitals.commands,
            terminals: self.vitals.terminals,
            busy_terminals: self.vitals.busy_terminals,
            cpu_percent: self.percent as f32,
            quiet_ms: since(self.last_moved),
            idle_ms: since(self.last_active),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(vitals: impl Fn(u64) -> Vitals, cpu_percent: u64, seconds: u64) -> Activity {
        let start = Instant::now();
        let mut tracker = Tracker::new(10.0, 0);
        for second in 1..=seconds {
            let cpu = second * cpu_percent * 10_000_000;
            let now = start + Duration::from_secs(second);
            tracker.work(cpu, now);
            tracker.see(vitals(second), now);
        }
        tracker.activity()
    }

    #[tokio::test]
    async fn a_fresh_answer_is_to_a_question_of_after_the_call() {
        let (sender, seen) = watch::channel(Seen::default());
        let reader = ActivityReader { seen, calls: Arc::default() };
        let asked = {
            let reader = reader.clone();
            tokio::spawn(async move { reader.fresh().await })
        };
        reader.calls.ask_now.notified().await;
        let answer = |calls, commands| Seen { activity: Activity { commands, ..Activity::default() }, calls };
        // The guest was asked before the call, and answers now.
        sender.send_replace(answer(0, 1));
        tokio::task::yield_now().await;
        sender.send_replace(answer(1, 2));
        assert_eq!(asked.await.unwrap().commands, 2);
    }

    #[tokio::test]
    async fn an_open_but_silent_session_is_idle() {
        let seen = samples(|_| Vitals { terminals: 2, ..Vitals::default() }, 1, 600);
        assert!(seen.idle_ms >= 599_000, "{seen:?}");
    }

    #[tokio::test]
    async fn work_in_the_background_is_not_idle() {
        assert_eq!(samples(|_| Vitals::default(), 80, 600).idle_ms, 0);
        assert_eq!(samples(|_| Vitals { commands: 1, ..Vitals::default() }, 0, 600).idle_ms, 0);
        assert_eq!(samples(|second| Vitals { moved: second, ..Vitals::default() }, 0, 600).idle_ms, 0);
    }

    #[tokio::test]
    async fn a_job_in_the_foreground_counts_for_an_hour() {
        let job = |_| Vitals { terminals: 1, busy_terminals: 1, ..Vitals::default() };
        assert_eq!(samples(job, 0, 3_000).idle_ms, 0);
        assert!(samples(job, 0, 4_000).idle_ms > 300_000);
    }
}
