//! One loop that moves bytes between the host and a process, and ends as sshd
//! ends a session:
//!
//! - Without a terminal, output flows until everyone who holds the pipes has
//!   closed them. The exit is told when the process is gone and what it wrote
//!   has been sent, so it may come before the end of output when a background
//!   job still holds a pipe.
//! - With a terminal, the end of the process is the end of the terminal, once
//!   what is left in it has been sent.
//! - When the host vanishes, a terminal hangs up; pipes are closed and the
//!   process is left alone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use berth_guest_protocol::{Event, Exit, Kind};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::kill_process_group,
};

use super::spawn::{Ends, Running};
use crate::{
    children::Child,
    error::{Context, Result},
    server::wire::{Moved, Queue, Wire, unexpected},
    signals, traffic,
};

/// How much input may wait for a process that does not read. Beyond it the
/// host is no longer read either, signals included.
const INPUT_FULL: usize = 1024 * 1024;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

pub struct Stream<'w> {
    wire: &'w mut Wire,
    child: Child,
    ends: Open,
    input: Queue,
    /// The host will send no more input.
    input_ended: bool,
    exit: Progress<Exit>,
    output: Progress<()>,
}

/// Our ends, as long as they are open.
struct Open {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    terminal: Option<super::terminal::Terminal>,
}

/// Something that happens once and is told once.
enum Progress<T> {
    Running,
    Done(T),
    Told,
}

/// What a round of polling found.
#[derive(Clone, Copy)]
struct Ready {
    host_in: bool,
    host_gone: bool,
    input: bool,
    output: bool,
    errors: bool,
    exit: bool,
}

impl<'w> Stream<'w> {
    pub fn new(wire: &'w mut Wire, running: Running) -> Self {
        wire.push_data(Kind::Data, &running.greeting);
        let ends = match running.ends {
            Ends::Terminal(terminal) => {
                Open { stdin: None, stdout: None, stderr: None, terminal: Some(terminal) }
            }
            Ends::Pipes { stdin, stdout, stderr } => {
                Open { stdin: Some(stdin), stdout: Some(stdout), stderr: Some(stderr), terminal: None }
            }
        };
        Self {
            wire,
            child: running.child,
            ends,
            input: Queue::default(),
            input_ended: false,
            exit: Progress::Running,
            output: Progress::Running,
        }
    }

    pub fn run(mut self) -> Result<()> {
        loop {
            let ready = self.wait()?;
            if ready.host_gone {
                return Ok(());
            }
            if ready.host_in && self.wire.fill() == Moved::Ended {
                return Ok(());
            }
            self.take_frames()?;
            if ready.input {
                self.feed();
                // There is room again: what has arrived meanwhile would not
                // make the host readable once more.
                self.take_frames()?;
            }
            self.take_output(ready);
            if ready.exit {
                self.exit = Progress::Done(self.child.outcome().during("await", "a process")?);
            } else {
                self.tell_ends(ready)?;
            }
            if !self.wire.drain() {
                return Ok(());
            }
            if matches!((&self.exit, &self.output), (Progress::Told, Progress::Told)) {
                self.wire.finish();
                return Ok(());
            }
        }
    }

    fn wait(&self) -> Result<Ready> {
        let mut fds: [Option<PollFd<'_>>; 5] = [const { None }; 5];
        let reads_host = self.input.len() < INPUT_FULL;
        let mut host = PollFlags::empty();
        // Without reading, only the hang-up tells that the host is gone.
        host |= if reads_host { PollFlags::IN } else { PollFlags::RDHUP };
        if self.wire.wants_out() {
            host |= PollFlags::OUT;
        }
        let room = self.wire.has_room();
        let input = self.ends.input().filter(|_| !self.input.is_empty());
        let exit = matches!(self.exit, Progress::Running).then(|| self.child.exit.as_fd());
        let wanted = [
            Some((self.wire.as_fd(), host)),
            self.ends.output().filter(|_| room).map(|fd| (fd, PollFlags::IN)),
            self.ends.stderr.as_ref().filter(|_| room).map(|fd| (fd.as_fd(), PollFlags::IN)),
            input.map(|fd| (fd, PollFlags::OUT)),
            exit.map(|fd| (fd, PollFlags::IN)),
        ];
        for (place, want) in fds.iter_mut().zip(wanted) {
            *place = want.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
        }
        // A process is gone, its output not yet: look once more, then tell.
        let last_look = matches!(self.exit, Progress::Done(_)) && room;
        let mut present: Vec<PollFd<'_>> = fds.iter().flatten().cloned().collect();
        match poll(&mut present, last_look.then_some(&NOW)) {
            Ok(_) => {}
            Err(Errno::INTR) => present.iter_mut().for_each(PollFd::clear_revents),
            Err(error) => return Err(error).during("wait for", "a stream"),
        }
        let mut results = present.iter().map(PollFd::revents);
        let [host, output, errors, input, exit] =
            fds.map(|fd| fd.and_then(|_| results.next()).unwrap_or(PollFlags::empty()));
        Ok(Ready {
            host_in: reads_host && host.intersects(PollFlags::IN | PollFlags::HUP),
            host_gone: host.intersects(PollFlags::ERR | PollFlags::RDHUP)
                || (!reads_host && host.contains(PollFlags::HUP)),
            input: !input.is_empty(),
            output: !output.is_empty(),
            errors: !errors.is_empty(),
            exit: !exit.is_empty(),
        })
    }

    fn take_frames(&mut self) -> Result<()> {
        while self.input.len() < INPUT_FULL {
            let Some((kind, payload)) = self.wire.next_frame()? else { return Ok(()) };
            match kind {
                Kind::Data if self.input_ended => return Err(unexpected(kind)),
                Kind::Data => {
                    traffic::count(payload.len());
                    let rest = match self.ends.input() {
                        // Straight through while the process keeps up.
                        Some(fd) if self.input.is_empty() => match rustix::io::write(fd, payload) {
                            Ok(count) => payload.get(count..).unwrap_or_default(),
                            Err(Errno::AGAIN | Errno::INTR) => payload,
                            Err(_) => {
                                self.ends.close_input();
                                &[]
                            }
                        },
                        Some(_) => payload,
                        None => &[],
                    };
                    self.input.push(rest);
                }
                Kind::Eof => {
                    self.input_ended = true;
                    self.feed();
                }
                Kind::Event => {
                    let event = self.wire.decode(payload)?;
                    self.wire.consume_frame();
                    self.event(&event);
                    continue;
                }
                other => return Err(unexpected(other)),
            }
            self.wire.consume_frame();
        }
        Ok(())
    }

    fn event(&self, event: &Event) {
        // A window or a process that is already gone is no error of the stream.
        match event {
            Event::Resize { columns, rows, width, height } => {
                if let Some(terminal) = &self.ends.terminal {
                    let _ = terminal.resize(*columns, *rows, *width, *height);
                }
            }
            Event::Signal(name) => {
                // Once reaped, its number may be another's.
                if let (Some(signal), Progress::Running) = (signals::by_name(name), &self.exit) {
                    let _ = match &self.ends.terminal {
                        Some(terminal) => terminal.signal(signal, self.child.pid),
                        None => kill_process_group(self.child.pid, signal),
                    };
                }
            }
        }
    }

    /// Gives the process what waits for it.
    fn feed(&mut self) {
        while let (Some(fd), false) = (self.ends.input(), self.input.is_empty()) {
            match rustix::io::write(fd, self.input.as_slice()) {
                Ok(count) => self.input.consume(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.input.consume(self.input.len());
                    self.ends.close_input();
                }
            }
        }
        if self.input_ended && self.input.is_empty() {
            self.ends.close_input();
        }
    }

    fn take_output(&mut self, ready: Ready) {
        if ready.output
            && let Some(fd) = self.ends.output()
            && counted(self.wire.push_from(Kind::Data, fd)) == Moved::Ended
        {
            self.ends.stdout = None;
            self.ends.terminal = None;
        }
        if ready.errors
            && let Some(fd) = &self.ends.stderr
            && counted(self.wire.push_from(Kind::Errors, fd.as_fd())) == Moved::Ended
        {
            self.ends.stderr = None;
        }
        if self.ends.is_silent() && matches!(self.output, Progress::Running) {
            self.output = Progress::Done(());
        }
    }

    /// Tells the end of output and the exit, each once.
    fn tell_ends(&mut self, ready: Ready) -> Result<()> {
        let quiet = !ready.output && !ready.errors && self.wire.has_room();
        if matches!(self.exit, Progress::Done(_)) && quiet && self.ends.terminal.take().is_some() {
            self.output = Progress::Done(());
        }
        if let Progress::Done(()) = self.output {
            self.wire.push_empty(Kind::Eof);
            self.output = Progress::Told;
        }
        if let Progress::Done(exit) = &self.exit
            && (quiet || matches!(self.output, Progress::Told))
        {
            self.wire.push(exit)?;
            self.exit = Progress::Told;
        }
        Ok(())
    }
}

fn counted(moved: Moved) -> Moved {
    if let Moved::Some(count) = moved {
        traffic::count(count);
    }
    moved
}

impl Open {
    fn input(&self) -> Option<BorrowedFd<'_>> {
        self.terminal.as_ref().map(AsFd::as_fd).or(self.stdin.as_ref().map(AsFd::as_fd))
    }

    fn output(&self) -> Option<BorrowedFd<'_>> {
        self.terminal.as_ref().map(AsFd::as_fd).or(self.stdout.as_ref().map(AsFd::as_fd))
    }

    fn close_input(&mut self) {
        // A terminal has no half to close: its end is a character, sent by the user.
        self.stdin = None;
    }

    fn is_silent(&self) -> bool {
        self.terminal.is_none() && self.stdout.is_none() && self.stderr.is_none()
    }
}
