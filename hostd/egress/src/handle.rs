//! hostd's end of the bridge: one task that starts the process, knows all that
//! it was told, and tells it again to the next one if it dies.
//!
//! The listeners stay open here, so a guest that connects while there is no
//! bridge waits in their queue, and nothing passes.

use crate::{
    channel::{ChannelError, MAX_EVENT, Receiver, Sender, halves},
    control::{Command, Event, LISTENERS, Link, Listeners, Order, Settings, Terms},
    spawn::Launch,
};
use berth_types::MachineId;
use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};
use tokio::{
    process::Child,
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

/// A bridge that takes longer over one command is taken for stuck.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two starts of a bridge that does not live.
const PAUSE: Duration = Duration::from_millis(500);
/// Decisions that hostd has not written down yet; then the bridge waits.
const EVENTS: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    #[error("cannot start the egress bridge {0}")]
    Start(String, #[source] io::Error),
    #[error("the egress bridge did not come up")]
    Silent,
    #[error("cannot talk to the egress bridge")]
    Channel(#[from] ChannelError),
    #[error("the egress bridge refused: {0}")]
    Refused(String),
    #[error("the egress bridge is shut down")]
    Gone,
}

/// Cheap to clone; the process ends when the last clone is gone.
#[derive(Clone, Debug)]
pub struct Bridge {
    requests: mpsc::Sender<Request>,
}

#[derive(Debug)]
struct Request {
    order: Order,
    listeners: Option<Listeners<OwnedFd>>,
    answer: oneshot::Sender<Result<(), BridgeError>>,
}

impl Bridge {
    /// Starts the process and configures it. The events have to be read: the
    /// bridge waits for its decisions to be taken.
    pub async fn start(
        launch: Launch,
        settings: Settings,
    ) -> Result<(Self, mpsc::Receiver<Event>), BridgeError> {
        let known = Known { settings, links: HashMap::new() };
        let process = Process::start(&launch, &known).await?;
        let (requests, incoming) = mpsc::channel(64);
        let (events, outgoing) = mpsc::channel(EVENTS);
        tokio::spawn(supervise(launch, known, process, incoming, events));
        Ok((Self { requests }, outgoing))
    }

    pub async fn configure(&self, settings: Settings) -> Result<(), BridgeError> {
        self.order(Order::Configure(Box::new(settings)), None).await
    }

    /// Serves a machine on these sockets, in place of what it was served on before.
    pub async fn link(&self, link: Link, listeners: Listeners<OwnedFd>) -> Result<(), BridgeError> {
        self.order(Order::Link(Box::new(link)), Some(listeners)).await
    }

    /// When this returns, the next request is judged by the new terms.
    pub async fn update(&self, machine: MachineId, terms: Terms) -> Result<(), BridgeError> {
        self.order(Order::Update { machine, terms: Box::new(terms) }, None).await
    }

    pub async fn unlink(&self, machine: MachineId) -> Result<(), BridgeError> {
        self.order(Order::Unlink { machine }, None).await
    }

    async fn order(&self, order: Order, listeners: Option<Listeners<OwnedFd>>) -> Result<(), BridgeError> {
        let (answer, answered) = oneshot::channel();
        let request = Request { order, listeners, answer };
        self.requests.send(request).await.map_err(|_| BridgeError::Gone)?;
        answered.await.map_err(|_| BridgeError::Gone)?
    }
}

type Kept = Arc<[OwnedFd; LISTENERS]>;

/// All that a new process has to be told.
struct Known {
    settings: Settings,
    links: HashMap<MachineId, (Link, Kept)>,
}

impl Known {
    fn learn(&mut self, order: &Order, listeners: Option<Listeners<OwnedFd>>) {
        match order {
            Order::Configure(settings) => self.settings = (**settings).clone(),
            Order::Link(link) => {
                if let Some(listeners) = listeners {
                    let kept = ((**link).clone(), Arc::new(listeners.into_array()));
                    self.links.insert(link.machine.clone(), kept);
                }
            }
            Order::Update { machine, terms } => {
                if let Some((link, _)) = self.links.get_mut(machine) {
                    link.terms = (**terms).clone();
                }
            }
            Order::Unlink { machine } => {
                self.links.remove(machine);
            }
        }
    }
}

struct Process {
    child: Child,
    sender: Sender,
    events: mpsc::Receiver<Event>,
    waiting: HashMap<u64, oneshot::Sender<Result<(), BridgeError>>>,
    serial: u64,
    started: Instant,
}

impl Process {
    async fn start(launch: &Launch, known: &Known) -> Result<Self, BridgeError> {
        let (child, stream) = launch
            .start()
            .map_err(|error| BridgeError::Start(launch.program.display().to_string(), error))?;
        let (sender, receiver) = halves(stream);
        let (forward, events) = mpsc::channel(EVENTS);
        tokio::spawn(read(receiver.at_most(MAX_EVENT), forward));
        let waiting = HashMap::new();
        let mut process = Self { child, sender, events, waiting, serial: 0, started: Instant::now() };
        match timeout(PATIENCE, process.events.recv()).await {
            Ok(Some(Event::Ready)) => {}
            _ => return Err(BridgeError::Silent),
        }
        process.tell(&Order::Configure(Box::new(known.settings.clone())), None).await?;
        process.confirmed().await?;
        for (link, listeners) in known.links.values() {
            process.tell(&Order::Link(Box::new(link.clone())), Some(listeners)).await?;
        }
        Ok(process)
    }

    /// The answer to the first command; what else is said meanwhile is nothing
    /// yet, for no machine is linked.
    async fn confirmed(&mut self) -> Result<(), BridgeError> {
        match timeout(PATIENCE, self.events.recv()).await {
            Ok(Some(Event::Done { error: None, .. })) => Ok(()),
            Ok(Some(Event::Done { error: Some(error), .. })) => Err(BridgeError::Refused(error)),
            _ => Err(BridgeError::Silent),
        }
    }

    async fn tell(&mut self, order: &Order, listeners: Option<&Kept>) -> Result<u64, BridgeError> {
        self.serial += 1;
        let command = Command { serial: self.serial, order: order.clone() };
        let descriptors: Vec<_> =
            listeners.map(|listeners| listeners.iter().map(AsFd::as_fd).collect()).unwrap_or_default();
        match timeout(PATIENCE, self.sender.send(&command, &descriptors)).await {
            Ok(sent) => sent?,
            Err(_) => return Err(BridgeError::Silent),
        }
        Ok(self.serial)
    }
}

/// Reads on its own, because half a message must not be lost to a `select`.
async fn read(mut receiver: Receiver, forward: mpsc::Sender<Event>) {
    loop {
        match receiver.receive::<Event>().await {
            Ok((event, _)) => {
                if forward.send(event).await.is_err() {
                    return;
                }
            }
            Err(ChannelError::Closed) => return,
            Err(error) => {
                tracing::warn!(%error, "the egress bridge does not make sense");
                return;
            }
        }
    }
}

async fn supervise(
    launch: Launch,
    mut known: Known,
    mut process: Process,
    mut requests: mpsc::Receiver<Request>,
    events: mpsc::Sender<Event>,
) {
    loop {
        if serve(&mut known, &mut process, &mut requests, &events).await.is_break() {
            return;
        }
        let waiting = std::mem::take(&mut process.waiting);
        if process.started.elapsed() < PAUSE {
            tokio::time::sleep(PAUSE).await;
        }
        let _ = process.child.kill().await;
        process = loop {
            match Process::start(&launch, &known).await {
                Ok(process) => break process,
                Err(error) => {
                    tracing::error!(%error, "the egress bridge does not start: machines reach nothing")
                }
            }
            tokio::time::sleep(PAUSE).await;
        };
        // Whatever was asked is part of what the new process was told.
        for answer in waiting.into_values() {
            let _ = answer.send(Ok(()));
        }
        if events.send(Event::Restarted).await.is_err() {
            return;
        }
    }
}

/// Until the process dies (continue) or nobody needs it any more (break).
async fn serve(
    known: &mut Known,
    process: &mut Process,
    requests: &mut mpsc::Receiver<Request>,
    events: &mpsc::Sender<Event>,
) -> std::ops::ControlFlow<()> {
    use std::ops::ControlFlow::{Break, Continue};
    // Settings that a bridge refuses must not be told to the next one.
    let mut before: Option<(u64, Settings)> = None;
    loop {
        tokio::select! {
            event = process.events.recv() => match event {
                Some(Event::Done { serial, error }) => {
                    if let Some((_, settings)) = before.take_if(|(asked, _)| *asked == serial)
                        && error.is_some()
                    {
                        known.settings = settings;
                    }
                    if let Some(answer) = process.waiting.remove(&serial) {
                        let _ = answer.send(error.map_or(Ok(()), |error| Err(BridgeError::Refused(error))));
                    } else if let Some(error) = error {
                        tracing::warn!(error, "the egress bridge refused a link");
                    }
                }
                Some(event) => {
                    if events.send(event).await.is_err() {
                        return Break(());
                    }
                }
                None => {
                    tracing::error!("the egress bridge died; starting another");
                    return Continue(());
                }
            },
            request = requests.recv() => {
                let Some(Request { order, listeners, answer }) = request else { return Break(()) };
                let settings = matches!(order, Order::Configure(_)).then(|| known.settings.clone());
                known.learn(&order, listeners);
                let kept = match &order {
                    Order::Link(link) => known.links.get(&link.machine).map(|(_, listeners)| listeners.clone()),
                    _ => None,
                };
                match process.tell(&order, kept.as_ref()).await {
                    Ok(serial) => {
                        before = settings.map(|settings| (serial, settings)).or(before);
                        process.waiting.insert(serial, answer);
                    }
                    Err(error) => {
                        tracing::error!(%error, "the egress bridge does not listen; starting another");
                        // It is told again to the next one.
                        process.waiting.insert(0, answer);
                        return Continue(());
                    }
                }
            }
        }
    }
}
