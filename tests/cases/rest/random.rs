//! Random verbs on five machines, with random kills, and then a reckoning.
//!
//! `BERTH_TEST_SEQUENCES` says how many sequences, `BERTH_TEST_SEED` which: a
//! failure names the seed of its sequence.

use super::{machines, settings, sound::sound};
use crate::{
    cases,
    context::{Case, Context},
    faults::{MINUTE, hypervisors},
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Service};
use nix::sys::signal::{Signal, kill};
use std::{
    collections::{BTreeMap, BTreeSet},
    env, thread,
    time::Duration,
};

pub const CASES: &[Case] = cases![
    OwnService:
        random_verbs_and_kills_lose_nothing;
];

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const STEPS: u64 = 8;
/// What is said of a file that was never written.
const NONE: &str = "none";
/// About a minute's worth.
const SEQUENCES: u64 = 3;

/// xorshift64*: the same sequence for the same seed, everywhere.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }

    fn name(&mut self) -> &'static str {
        NAMES[usize::try_from(self.below(5)).unwrap_or(0)]
    }
}

/// What a machine's file may say; more than one when a verb was cut short.
#[derive(Clone, Debug, Default)]
struct Known {
    notes: BTreeSet<String>,
    /// At the time of its snapshot, if it has one.
    point: Option<BTreeSet<String>>,
    /// It may be gone: a verb that makes or removes it was cut short.
    doubtful: bool,
}

struct Play<'a> {
    service: &'a Service,
    account: Account,
    dice: Dice,
    known: BTreeMap<&'static str, Known>,
    count: u64,
}

fn random_verbs_and_kills_lose_nothing(context: &Context) -> Result<()> {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let sequences = number("BERTH_TEST_SEQUENCES").unwrap_or(SEQUENCES);
    let first = number("BERTH_TEST_SEED").unwrap_or_else(|| u64::from(std::process::id()) * 1_000);
    context.with_service(&settings().set("quota.machines", 50), |service| {
        let account = service.account(context.scratch())?;
        account.verb("whoami")?.ok()?;
        let dice = Dice(1);
        let mut play = Play { service, account, dice, known: BTreeMap::new(), count: 0 };
        for sequence in 0..sequences {
            let seed = first + sequence;
            eprintln!("sequence {} of {sequences}, seed {seed}", sequence + 1);
            play.dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            play.sequence().with_context(|| format!("seed {seed}"))?;
        }
        Ok(())
    })
}

impl Play<'_> {
    fn sequence(&mut self) -> Result<()> {
        let mut done = Vec::new();
        for _ in 0..STEPS {
            let step = self.step().with_context(|| done.join("; "))?;
            done.push(step);
        }
        self.reckon().with_context(|| done.join("; "))
    }

    /// One verb, perhaps with a kill in the middle. What was done, in words.
    fn step(&mut self) -> Result<String> {
        let name = self.dice.name();
        let what = self.dice.below(12);
        let Some(known) = self.known.get(name).cloned() else {
            let (done, words) = self.verb(&format!("new {name}"))?;
            let notes = BTreeSet::from([NONE.to_owned()]);
            self.known.insert(name, Known { notes, point: None, doubtful: !done });
            return Ok(words);
        };
        match what {
            0..=2 => self.write(name),
            3..=4 => Ok(self.verb(&format!("sleep {name}"))?.1),
            5 => Ok(self.verb(&format!("wake {name}"))?.1),
            6 => Ok(self.verb(&format!("stop {name}"))?.1),
            7 => Ok(self.verb(&format!("restart {name}"))?.1),
            8 => {
                let child = self.dice.name();
                if self.known.contains_key(child) {
                    return self.write(child);
                }
                let (done, words) = self.verb(&format!("fork {name} {child}"))?;
                self.known.insert(child, Known { notes: known.notes, point: None, doubtful: !done });
                Ok(words)
            }
            9 if known.point.is_none() => {
                let (done, words) = self.verb(&format!("snapshot {name} point"))?;
                let entry = self.known.entry(name).or_default();
                // If it was cut short, nothing is expected of it.
                entry.point = done.then_some(known.notes);
                if !done {
                    self.account.verb(&format!("snapshot rm {name} point"))?;
                }
                Ok(words)
            }
            9 | 10 => {
                let Some(point) = known.point else { return self.write(name) };
                let (done, words) = self.verb(&format!("restore {name} point"))?;
                let entry = self.known.entry(name).or_default();
                if done {
                    entry.notes = point;
                } else {
                    entry.notes.extend(point);
                }
                Ok(words)
            }
            _ => {
                let (done, words) = self.verb(&format!("rm {name}"))?;
                if done {
                    self.known.remove(name);
                } else {
                    self.known.entry(name).or_default().doubtful = true;
                }
                Ok(words)
            }
        }
    }

    /// A file that is acknowledged once the machine has synced it.
    fn write(&mut self, name: &'static str) -> Result<String> {
        self.count += 1;
        let note = self.count.to_string();
        let out = self
            .account
            .at(name)
            .run(&format!("echo {note} > note.new && sync && mv note.new note && sync"))?;
        let entry = self.known.entry(name).or_default();
        if out.status == 0 {
            entry.notes = BTreeSet::from([note.clone()]);
            entry.doubtful = false;
        } else {
            entry.notes.insert(note.clone());
        }
        Ok(format!("write {name} {note} ({})", out.status))
    }

    /// One in three is cut short. True when it was acknowledged.
    fn verb(&mut self, words: &str) -> Result<(bool, String)> {
        let verb = self.account.client("ssh").args(["berth", "--", words]).limit(2 * MINUTE).start()?;
        let victim = self.dice.below(12);
        let moment = Duration::from_millis(10 + self.dice.below(600));
        if victim < 4 {
            thread::sleep(moment);
        }
        let killed = match victim {
            0 | 1 => {
                self.service.kill_hostd()?;
                self.service.start_hostd()?;
                "hostd"
            }
            2 => {
                self.service.kill_gateway()?;
                self.service.start_gateway()?;
                "the gateway"
            }
            3 => {
                let all = hypervisors(self.service)?;
                let chosen = self.dice.below(all.len().max(1) as u64);
                if let Some((pid, _)) = all.get(usize::try_from(chosen)?) {
                    // It may end by itself at the same moment.
                    let _ = kill(*pid, Signal::SIGKILL);
                }
                "a hypervisor"
            }
            _ => "nobody",
        };
        let out = verb.wait()?;
        // A refusal is as good as done: nothing changed. Only what was cut short is in doubt.
        ensure!(victim < 4 || [0, 1, 3, 5].contains(&out.status), "{}", out.report());
        let done = out.status == 0;
        Ok((done, format!("{words} ({}, {killed} killed after {} ms)", out.status, moment.as_millis())))
    }

    /// Everything agrees, and every acknowledged file is there.
    fn reckon(&mut self) -> Result<()> {
        sound(self.service, &self.account)?;
        let there: BTreeSet<String> = machines(&self.account)?.into_iter().map(|(name, _)| name).collect();
        for name in &there {
            ensure!(self.known.contains_key(name.as_str()), "{name} was removed, and is there");
        }
        let mut known = std::mem::take(&mut self.known);
        known.retain(|name, known| there.contains(*name) || !known.doubtful);
        for (name, known) in &mut known {
            ensure!(there.contains(*name), "{name} is gone");
            let look = format!("cat note 2>/dev/null || echo {NONE}");
            let mut out = self.account.at(name).run(&look)?;
            if out.status != 0 {
                self.account.verb(&format!("restart {name}"))?.ok().with_context(|| out.report())?;
                out = self.account.at(name).exec(&look)?;
            }
            let note = out.line();
            ensure!(known.notes.contains(&note), "{name} says {note}, not one of {:?}", known.notes);
            known.notes = BTreeSet::from([note]);
            known.doubtful = false;
        }
        self.known = known;
        sound(self.service, &self.account)
    }
}
