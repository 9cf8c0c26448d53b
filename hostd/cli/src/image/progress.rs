//! What happens now and how long it has been happening, on standard error.

use std::time::Instant;

#[derive(Debug)]
pub struct Progress {
    subject: String,
    started: Instant,
}

impl Progress {
    pub fn new(subject: impl Into<String>) -> Self {
        Self { subject: subject.into(), started: Instant::now() }
    }

    /// Says what begins now.
    pub fn step(&self, what: &str) {
        say!("{} {:5.1}s {what}", self.subject, self.started.elapsed().as_secs_f64());
    }
}
