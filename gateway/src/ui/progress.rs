//! What is happening, for whoever waits longer than half a second.

use super::{LiveOn, Screen, text::printable};
use std::{future::Future, time::Duration};
use tokio::sync::watch;

/// Below this nobody wonders.
const PATIENCE: Duration = Duration::from_millis(500);

/// Told what happens; only the latest word counts.
#[derive(Clone, Debug)]
pub struct Progress(watch::Sender<String>);

impl Progress {
    pub fn report(&self, text: String) {
        self.0.send_replace(text);
    }

    /// Nobody looks.
    pub fn silent() -> Self {
        Self(watch::Sender::new(String::new()))
    }

    /// Runs `work` and shows what it reports: a live line on a terminal, plain
    /// lines elsewhere. A client that is gone does not stop the work.
    pub async fn show<F: Future>(screen: &Screen<'_>, on: LiveOn, work: impl FnOnce(Self) -> F) -> F::Output {
        let (sender, mut latest) = watch::channel(String::new());
        let work = work(Self(sender));
        tokio::pin!(work);
        tokio::select! {
            output = &mut work => return output,
            () = tokio::time::sleep(PATIENCE) => {}
        }
        let mut live = false;
        loop {
            let text = printable(&latest.borrow_and_update().clone(), 120);
            if !text.is_empty() {
                live |= screen.is_terminal();
                let _ = if screen.is_terminal() {
                    screen.live(on, &format!("berth: {text} …")).await
                } else {
                    screen.notice(&text).await
                };
            }
            let output = tokio::select! {
                output = &mut work => output,
                changed = latest.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => work.await,
                },
            };
            if live {
                let _ = screen.live(on, "").await;
            }
            return output;
        }
    }
}
